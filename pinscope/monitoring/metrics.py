"""The latest snapshot as Prometheus metrics: base units, bounded labels, and what is not known left out.

Names follow Prometheus' conventions (prometheus.io, "Metric and label naming"). Of the holders only the ones with the
most bytes have series of their own; the others are summed under the pid ``other``.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

import pinscope
from pinscope.live.sampler import History
from pinscope.records.environment import Link
from pinscope.records.snapshot import DeviceFigures, GpuUse, Holder, HostTotals, Snapshot

MOST_HOLDERS = 25
"""Holders with series of their own."""
OTHER = "other"
"""Pid and name under which the rest of the holders is summed."""
STALE_INTERVALS = 5
STALE_SECONDS = 10.0
"""A snapshot older than so many intervals and so many seconds more is not exported any longer."""
HOLDER_LABELS = ("pid", "name", "user", "container")
GPU_LABELS = ("gpu", "uuid")

Number = float | int | None


@dataclass(frozen=True)
class Figure:
    """One metric, and how its value is read."""

    name: str
    help: str
    read: Callable[[Any], Number]


HOST: tuple[Figure, ...] = (
    Figure("pinscope_host_memory_bytes", "Memory of the host.", lambda host: host.total_bytes),
    Figure("pinscope_host_memory_available_bytes", "Memory that programs can still get.",
           lambda host: host.available_bytes),
    Figure("pinscope_host_pinned_bytes", "Pinned for device access (DMA) on the whole host, each pin counted.",
           lambda host: host.pinned_bytes),
    Figure("pinscope_host_pinned_explained_bytes", "The part of the pinned memory that the holders explain.",
           lambda host: host.explained_bytes),
    Figure("pinscope_host_pinned_other_bytes", "The rest: registered memory that was not followed, other pins.",
           lambda host: host.other_pinned_bytes),
    Figure("pinscope_host_driver_memory_bytes", "What the kernel's accounts leave over: driver memory, about.",
           lambda host: host.driver_memory_bytes),
    Figure("pinscope_host_mlocked_bytes", "Locked with mlock, which is not pinned for CUDA.",
           lambda host: host.mlocked_bytes),
    Figure("pinscope_host_unevictable_bytes", "Memory that the kernel cannot reclaim.",
           lambda host: host.unevictable_bytes),
    Figure("pinscope_host_hugetlb_pool_bytes", "Reserved for huge pages, used or not.",
           lambda host: host.hugetlb_pool_bytes),
    Figure("pinscope_host_hugetlb_used_bytes", "Huge pages in use.", lambda host: host.hugetlb_used_bytes),
    Figure("pinscope_host_shmem_bytes", "Shared memory of all kinds, with cudaHostAlloc memory.",
           lambda host: host.shmem_bytes),
    Figure("pinscope_host_cgroup_limit_bytes", "Limit of the control group around the exporter that leaves the least.",
           lambda host: host.cgroup_limit_bytes),
    Figure("pinscope_host_cgroup_headroom_bytes", "What that control group leaves.",
           lambda host: host.cgroup_headroom_bytes),
)  # fmt: skip

HOLDER: tuple[Figure, ...] = (
    Figure("pinscope_holder_host_alloc_bytes", "cudaHostAlloc memory that the process owns.",
           lambda one: one.host_alloc_bytes),
    Figure("pinscope_holder_driver_memory_bytes", "Write-combined memory, cuMemCreate on the host, host pools.",
           lambda one: one.driver_memory_bytes),
    Figure("pinscope_holder_context_pinned_bytes", "What the driver itself pinned for the process's contexts.",
           lambda one: one.context_pinned_bytes),
    Figure("pinscope_holder_registered_bytes", "cudaHostRegister memory, seen while the probe runs.",
           lambda one: one.registered_bytes),
    Figure("pinscope_holder_locked_bytes", "Locked with mlock (VmLck).", lambda one: one.locked_bytes),
    Figure("pinscope_holder_vm_pin_bytes", "Pinned as the kernel accounts it (VmPin): RDMA, io_uring.",
           lambda one: one.vm_pin_bytes),
    Figure("pinscope_holder_inherited_bytes", "cudaHostAlloc memory of another process that is mapped too.",
           lambda one: one.inherited_bytes),
    Figure("pinscope_holder_rounding_bytes", "At most so much is waste by rounding up to powers of two.",
           lambda one: one.rounding_bytes),
    Figure("pinscope_holder_resident_bytes", "Resident memory (VmRSS).", lambda one: one.rss_bytes),
)  # fmt: skip
"""Of each holder; summed over the rest."""

HOLDER_GROUP: tuple[Figure, ...] = (
    Figure("pinscope_holder_cgroup_limit_bytes", "Limit of the holder's control group that leaves the least.",
           lambda one: one.cgroup_limit_bytes),
    Figure("pinscope_holder_cgroup_headroom_bytes", "What that control group leaves.",
           lambda one: one.cgroup_headroom_bytes),
)  # fmt: skip
"""Of each holder; nothing that could be summed."""

HOLDER_GPU: tuple[Figure, ...] = (
    Figure("pinscope_holder_gpu_memory_bytes", "GPU memory of the process as NVML gives it, without page tables.",
           lambda use: use.memory_bytes),
    Figure("pinscope_holder_page_table_bytes", "GPU memory that the page tables of its pinned memory take.",
           lambda use: use.page_table_bytes),
)  # fmt: skip

GPU: tuple[Figure, ...] = (
    Figure("pinscope_gpu_memory_bytes", "Memory of the GPU.", lambda gpu: gpu.memory_total_bytes),
    Figure("pinscope_gpu_memory_used_bytes", "Used, without what driver and firmware reserve.",
           lambda gpu: gpu.memory_used_bytes),
    Figure("pinscope_gpu_memory_reserved_bytes", "Reserved by driver and firmware.",
           lambda gpu: gpu.memory_reserved_bytes),
    Figure("pinscope_gpu_memory_unattributed_bytes",
           "Used by no process: page tables, managed memory, the driver's own; not told of a GPU with MIG instances.",
           lambda gpu: None if gpu.mig else gpu.unattributed_bytes),
    Figure("pinscope_gpu_page_table_bytes", "Page tables that the holders' pinned memory implies.",
           lambda gpu: gpu.page_table_bytes),
    Figure("pinscope_gpu_context_overhead_bytes",
           "Memory that the driver takes for contexts and charges to no process, about: as measured on H200s.",
           lambda gpu: gpu.context_overhead_bytes),
    Figure("pinscope_gpu_bar1_bytes", "Size of the BAR1 window.", lambda gpu: gpu.bar1_total_bytes),
    Figure("pinscope_gpu_bar1_used_bytes", "Used of the BAR1 window.", lambda gpu: gpu.bar1_used_bytes),
    Figure("pinscope_gpu_receive_bytes_per_second", "Received over PCIe, such as copies to the device.",
           lambda gpu: gpu.rx_bytes_per_second),
    Figure("pinscope_gpu_transmit_bytes_per_second", "Sent over PCIe, such as copies to the host.",
           lambda gpu: gpu.tx_bytes_per_second),
    Figure("pinscope_gpu_busy_ratio", "Share of the driver's last sample period in which a kernel ran.",
           lambda gpu: gpu.busy_share),
    Figure("pinscope_gpu_temperature_celsius", "Temperature.", lambda gpu: gpu.temperature_celsius),
    Figure("pinscope_gpu_link_generation", "PCIe generation now; an idle link lowers it.",
           lambda gpu: _of_link(gpu, lambda link: link.generation_now)),
    Figure("pinscope_gpu_link_best_generation", "PCIe generation that GPU and slot can do together.",
           lambda gpu: _of_link(gpu, lambda link: link.generation_max)),
    Figure("pinscope_gpu_link_lanes", "PCIe lanes in use.",
           lambda gpu: _of_link(gpu, lambda link: link.width_now)),
    Figure("pinscope_gpu_link_best_lanes", "PCIe lanes that GPU and slot can do together.",
           lambda gpu: _of_link(gpu, lambda link: link.width_max)),
    Figure("pinscope_gpu_link_limit_bytes_per_second", "What the link carries at best one way, after packets.",
           lambda gpu: _of_link(gpu, lambda link: link.limit_bytes_per_second)),
)  # fmt: skip


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
        yield _gauge("pinscope_up", "1 if the last reading of the host succeeded and is not old.",
                     float(fresh and history.trouble is None))  # fmt: skip
        if age is not None:
            yield _gauge("pinscope_snapshot_age_seconds", "Since the figures were read.", max(age, 0.0))
        if history.latest is not None and fresh:
            yield from _of_snapshot(history.latest)
        yield CounterMetricFamily(
            "pinscope_exporter_cpu_seconds_total", "Processor time of the exporter.", value=time.process_time()
        )
        yield _gauge("pinscope_scrape_seconds", "What making this answer took.", time.perf_counter() - begun)
        build = GaugeMetricFamily("pinscope_build_info", "Always 1; which PinScope this is.", labels=["version"])
        build.add_metric([pinscope.__version__], 1)
        yield build


def _of_snapshot(seen: Snapshot) -> Iterator[Metric]:
    yield _gauge("pinscope_snapshot_cpu_seconds", "Processor time that reading the figures took.", seen.cpu_seconds)
    yield _gauge("pinscope_unreadable", "Things that could not be looked at.", len(seen.unreadable))
    hidden = any(gap.hides_holders for gap in seen.unreadable)
    yield _gauge("pinscope_holders_hidden", "1 if there may be holders that are not seen.", float(hidden))
    silent = any(gap.what == "GPUs" for gap in seen.unreadable)
    yield _gauge("pinscope_gpus_readable", "1 if the GPUs' driver answers.", float(not silent))
    yield _gauge("pinscope_holders", "Processes that hold pinned or locked memory, or may.", len(seen.holders))
    if seen.probe is not None:
        yield CounterMetricFamily(
            "pinscope_probe_lost_events_total", "Calls that came faster than the probe could read them.",
            value=seen.probe.lost_events,
        )  # fmt: skip
    yield from _host(seen.host)
    yield from _holders(seen.holders)
    yield from _gpus(seen.devices)


def _host(host: HostTotals) -> Iterator[Metric]:
    for figure in HOST:
        value = figure.read(host)
        if value is not None:
            yield _gauge(figure.name, figure.help, value)
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
    for figure in (*HOLDER, *HOLDER_GROUP):
        family = GaugeMetricFamily(figure.name, figure.help, labels=HOLDER_LABELS)
        for one in named:
            _add(family, _identity(one), figure.read(one))
        if figure in HOLDER:
            _add(family, (OTHER, OTHER, "", ""), _sum(figure.read(one) for one in rest))
        if family.samples:
            yield family
    for figure in HOLDER_GPU:
        family = GaugeMetricFamily(figure.name, figure.help, labels=(*HOLDER_LABELS, "gpu"))
        for one in named:
            for use in one.gpus:
                _add(family, (*_identity(one), str(use.index)), figure.read(use))
        for index in sorted({use.index for one in rest for use in one.gpus}):
            _add(family, (OTHER, OTHER, "", "", str(index)), _sum(figure.read(use) for use in _uses(rest, index)))
        if family.samples:
            yield family


def _gpus(devices: Sequence[DeviceFigures]) -> Iterator[Metric]:
    for figure in GPU:
        family = GaugeMetricFamily(figure.name, figure.help, labels=GPU_LABELS)
        for one in devices:
            _add(family, (str(one.index), one.uuid), figure.read(one))
        if family.samples:
            yield family
    if devices:
        names = GaugeMetricFamily("pinscope_gpu_info", "Always 1; which GPU it is.", labels=(*GPU_LABELS, "model"))
        for one in devices:
            names.add_metric([str(one.index), one.uuid, one.name], 1)
        yield names


def _gauge(name: str, text: str, value: float) -> GaugeMetricFamily:
    return GaugeMetricFamily(name, text, value=value)


def _add(family: GaugeMetricFamily, labels: Sequence[str], value: Number) -> None:
    if value is not None:
        family.add_metric(labels, value)


def _identity(one: Holder) -> tuple[str, str, str, str]:
    return str(one.pid), one.name, one.user or "", one.container or ""


def _uses(holders: Sequence[Holder], index: int) -> Iterator[GpuUse]:
    return (use for one in holders for use in one.gpus if use.index == index)


def _sum(values: Iterable[Number]) -> Number:
    """Of what is known; ``None`` if nothing is."""
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def _of_link(gpu: DeviceFigures, read: Callable[[Link], Number]) -> Number:
    return None if gpu.link is None else read(gpu.link)
