"""The latest snapshot as Prometheus metrics: base units, bounded labels, and what is not known left out.

Names follow Prometheus' conventions (prometheus.io, "Metric and label naming"). Of the holders only the ones with the
most bytes have series of their own; the others are summed under the pid ``other``.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import UTC, datetime

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

import pinscope
from pinscope.live.sampler import History
from pinscope.records.environment import Link
from pinscope.records.figure import Figure, Number, figures
from pinscope.records.snapshot import DeviceFigures, GpuUse, Holder, HostTotals, Snapshot

MOST_HOLDERS = 25
"""Holders with series of their own."""
OTHER = "other"
"""Pid and name under which the rest of the holders is summed."""
_OTHERS = (OTHER, OTHER, "", "")
STALE_INTERVALS = 5
STALE_SECONDS = 10.0
"""A snapshot older than so many intervals and so many seconds more is not exported any longer."""
HOLDER_LABELS = ("pid", "name", "user", "container")
GPU_LABELS = ("gpu", "uuid")

HOST, HOLDER, HOLDER_GPU, GPU, LINK = (
    tuple(figure for figure in figures(record) if figure.metric)
    for record in (HostTotals, Holder, GpuUse, DeviceFigures, Link)
)
_UNLESS_MIG = "unattributed_bytes"
"""Of a GPU with MIG instances the driver does not say what belongs to which process."""


class SnapshotCollector(Collector):
    """Gives the sampler's latest snapshot to each scrape; takes none itself.

    Args:
        history: what the sampler knows.
        now: the moment of the scrape.
    """

    def __init__(self, history: Callable[[], History], now: Callable[[], datetime] = lambda: datetime.now(UTC)) -> None:
        self._history = history
        self._now = now

    def describe(self) -> Iterable[Metric]:
        """Nothing beforehand: what there is depends on the machine."""
        return ()

    def collect(self) -> Iterator[Metric]:
        """All metrics of one scrape."""
        begun = time.perf_counter()
        history = self._history()
        age = None if history.latest is None else (self._now() - history.latest.taken_at).total_seconds()
        fresh = age is not None and age <= STALE_INTERVALS * history.interval_seconds + STALE_SECONDS
        yield _gauge(
            "pinscope_up",
            "1 if the last reading of the host succeeded and is not old.",
            float(fresh and history.trouble is None),
        )
        if age is not None:
            yield _gauge("pinscope_snapshot_age_seconds", "Time since the figures were read.", max(age, 0.0))
        if history.latest is not None and fresh:
            yield from _of_snapshot(history.latest)
        yield CounterMetricFamily(
            "pinscope_exporter_cpu_seconds_total", "Processor time of the exporter.", value=time.process_time()
        )
        yield _gauge("pinscope_scrape_seconds", "Time that it took to make this answer.", time.perf_counter() - begun)
        build = GaugeMetricFamily(
            "pinscope_build_info", "Always 1; the label names the version of PinScope.", labels=["version"]
        )
        build.add_metric([pinscope.__version__], 1)
        yield build


def _of_snapshot(seen: Snapshot) -> Iterator[Metric]:
    yield _gauge("pinscope_snapshot_cpu_seconds", "Processor time that reading the figures took.", seen.cpu_seconds)
    yield _gauge("pinscope_unreadable", "How many things could not be read.", len(seen.unreadable))
    hidden = any(gap.hides_holders for gap in seen.unreadable)
    yield _gauge("pinscope_holders_hidden", "1 if there may be holders that are not seen.", float(hidden))
    silent = any(gap.what == "GPUs" for gap in seen.unreadable)
    yield _gauge("pinscope_gpus_readable", "1 if the GPUs' driver answers.", float(not silent))
    yield _gauge("pinscope_holders", "Processes that hold pinned or locked memory, or may.", len(seen.holders))
    if seen.probe is not None:
        yield CounterMetricFamily(
            "pinscope_probe_lost_events_total",
            "Calls that came faster than the probe could read them.",
            value=seen.probe.lost_events,
        )
    yield from _host(seen.host)
    yield from _holders(seen.holders)
    yield from _gpus(seen.devices)


def _host(host: HostTotals) -> Iterator[Metric]:
    for figure in HOST:
        yield from _family(figure, (), [((), getattr(host, figure.field))])
    if host.pressure is not None:
        stalled = CounterMetricFamily(
            "pinscope_host_memory_stalled_seconds_total",
            "Time in which tasks stalled for memory since boot: at least one (some), or all at once (full).",
            labels=["tasks"],
        )
        stalled.add_metric(["some"], host.pressure.some_total_seconds)
        stalled.add_metric(["full"], host.pressure.full_total_seconds)
        yield stalled


def _holders(holders: Sequence[Holder]) -> Iterator[Metric]:
    named, rest = holders[:MOST_HOLDERS], holders[MOST_HOLDERS:]
    for figure in HOLDER:
        values = [(_identity(holder), getattr(holder, figure.field)) for holder in named]
        others = figure.together(getattr(holder, figure.field) for holder in rest)
        yield from _family(figure, HOLDER_LABELS, [*values, (_OTHERS, others)])
    for figure in HOLDER_GPU:
        values = [(_identity(holder, use.index), getattr(use, figure.field)) for holder in named for use in holder.gpus]
        for index in sorted({use.index for holder in rest for use in holder.gpus}):
            others = figure.together(getattr(use, figure.field) for use in _uses(rest, index))
            values.append(((*_OTHERS, str(index)), others))
        yield from _family(figure, (*HOLDER_LABELS, "gpu"), values)


def _gpus(devices: Sequence[DeviceFigures]) -> Iterator[Metric]:
    for figure in (*GPU, *LINK):
        values = [
            ((str(device.index), device.uuid), getattr(device.link if figure in LINK else device, figure.field, None))
            for device in devices
            if not (device.mig and figure.field == _UNLESS_MIG)
        ]
        yield from _family(figure, GPU_LABELS, values)
    if devices:
        names = GaugeMetricFamily(
            "pinscope_gpu_info", "Always 1; the labels name the GPU.", labels=(*GPU_LABELS, "model")
        )
        for device in devices:
            names.add_metric([str(device.index), device.uuid, device.name], 1)
        yield names


def _gauge(name: str, text: str, value: float) -> GaugeMetricFamily:
    return GaugeMetricFamily(name, text, value=value)


def _family(
    figure: Figure, labels: Sequence[str], values: Iterable[tuple[Sequence[str], Number]]
) -> Iterator[GaugeMetricFamily]:
    """The metric of a figure, with those of the values that are known; nothing if none is."""
    family = GaugeMetricFamily(figure.metric or "", figure.help, labels=labels)
    for names, value in values:
        if value is not None:
            family.add_metric(names, value)
    if family.samples:
        yield family


def _identity(holder: Holder, *gpu: int) -> tuple[str, ...]:
    return str(holder.pid), holder.name, holder.user or "", holder.container or "", *map(str, gpu)


def _uses(holders: Sequence[Holder], index: int) -> Iterator[GpuUse]:
    return (use for holder in holders for use in holder.gpus if use.index == index)
