"""The reference of the exporter's metrics: what its collector gives for a snapshot in which everything is known."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from itertools import groupby
from typing import NamedTuple

from pinscope.live.sampler import History
from pinscope.manual.keys import UNITS
from pinscope.manual.specimen import specimen
from pinscope.monitoring.metrics import SnapshotCollector
from pinscope.records.snapshot import Snapshot

_GROUPS = {
    "pinscope_host_": "The host",
    "pinscope_holder_": "A holder",
    "pinscope_gpu_": "A GPU",
}
_REST = "The exporter"
_MORE_UNITS = {**UNITS, "ratio": "share, 0 to 1"}


class MetricFacts(NamedTuple):
    """One metric: its name as it is scraped, its type, labels and help."""

    name: str
    type: str
    labels: tuple[str, ...]
    help: str

    @property
    def group(self) -> str:
        """What it is a figure of."""
        return next((title for start, title in _GROUPS.items() if self.name.startswith(start)), _REST)

    @property
    def unit(self) -> str:
        """Of its value; empty where it has none."""
        bare = self.name.removesuffix("_total")
        return next((unit for end, unit in _MORE_UNITS.items() if bare.endswith(f"_{end}")), "")


def metrics() -> list[MetricFacts]:
    """Every metric that there can be, each once, in the order in which it is exported."""
    found: dict[str, MetricFacts] = {}
    full = specimen(Snapshot)
    whole = full.model_copy(  # some figures are left out of a GPU in parts
        update={"devices": tuple(device.model_copy(update={"mig": ()}) for device in full.devices)}
    )
    for seen in (full, whole):
        for one in _collected(seen):
            found.setdefault(one.name, one)
    return list(found.values())


def metrics_reference() -> str:
    """All metrics by what they are figures of, as Markdown."""
    order = [_REST, *_GROUPS.values()]
    parts = []
    for title, members in groupby(sorted(metrics(), key=lambda one: order.index(one.group)), lambda one: one.group):
        lines = [f"## {title}", "", "| metric | type | unit | labels | meaning |", "| --- | --- | --- | --- | --- |"]
        for one in members:
            labels = ", ".join(f"`{label}`" for label in one.labels)
            lines.append(f"| `{one.name}` | {one.type} | {one.unit} | {labels} | {one.help} |")
        parts.append("\n".join(lines))
    return "\n\n".join(parts)


def _collected(seen: Snapshot) -> Iterator[MetricFacts]:
    collector = SnapshotCollector(lambda: History(latest=seen), lambda: seen.taken_at + timedelta(seconds=1))
    for family in collector.collect():
        for sample in family.samples[:1]:
            yield MetricFacts(sample.name, family.type, tuple(sample.labels), family.documentation)
