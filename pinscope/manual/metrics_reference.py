"""The reference of the exporter's metrics: what its collector gives for a snapshot in which everything is known."""

from __future__ import annotations

import inspect
import types
import typing
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from itertools import groupby
from typing import Any, Literal, NamedTuple, TypeVar, Union, get_args, get_origin

from pinscope.live.sampler import History
from pinscope.manual.json_reference import UNITS
from pinscope.monitoring.metrics import SnapshotCollector
from pinscope.records.base import Record
from pinscope.records.snapshot import Snapshot

_Made = TypeVar("_Made", bound=Record)
_VALUES: Mapping[Any, Any] = {
    bool: True,
    int: 1,
    float: 1.0,
    str: "x",
    datetime: datetime(2026, 1, 1, tzinfo=UTC),
    Any: "x",
}


def specimen(record: type[_Made]) -> _Made:
    """Every field has a value, and every list one entry."""
    return record(**{name: _value(field.annotation) for name, field in record.model_fields.items()})


def _value(kind: Any) -> Any:
    if kind in _VALUES:
        return _VALUES[kind]
    if inspect.isclass(kind) and issubclass(kind, Record):
        return specimen(kind)
    origin, parts = get_origin(kind), get_args(kind)
    if origin is Literal:
        return parts[0]
    if origin in (Union, types.UnionType, typing.Annotated):
        return _value(next(part for part in parts if part is not type(None)))
    return (_value(parts[0]),) if origin is tuple else {}  # what is left is a mapping


_GROUPS = {"pinscope_host_": "The host", "pinscope_holder_": "A holder", "pinscope_gpu_": "A GPU"}
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
