"""Metrics: right values in base units, bounded series, and nothing that is not known."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from pinscope.live.sampler import History
from pinscope.manual.reference import metrics_reference
from pinscope.monitoring.server import GPU, HOLDER, HOLDER_GPU, HOST, LINK, MOST_HOLDERS, SnapshotCollector
from pinscope.records.registration import ProbeState
from pinscope.records.snapshot import GpuUse, Pressure, Snapshot, Unreadable
from tests.data.synthetic_snapshot import GIB, MIB, TAKEN_AT, device, holder, host, snapshot

Labels = frozenset[tuple[str, str]]


def text(history: History, age: float = 1.0) -> str:
    registry = CollectorRegistry(auto_describe=False)
    registry.register(SnapshotCollector(lambda: history, lambda: TAKEN_AT + timedelta(seconds=age)))
    return generate_latest(registry).decode()


def samples(seen: Snapshot | None, age: float = 1.0, **changes: Any) -> dict[str, dict[Labels, float]]:
    """Series by name."""
    series: dict[str, dict[Labels, float]] = {}
    for family in text_string_to_metric_families(text(History(latest=seen, **changes), age)):
        for sample in family.samples:
            series.setdefault(sample.name, {})[frozenset(sample.labels.items())] = sample.value
    return series


def labels(**wanted: str) -> Labels:
    return frozenset(wanted.items())


def whole_snapshot() -> Snapshot:
    """One in which everything is known."""
    pressure = Pressure(
        some_10s_share=0.1, some_60s_share=0.1, some_total_seconds=2.5,
        full_10s_share=0.0, full_60s_share=0.0, full_total_seconds=1.0,
    )  # fmt: skip
    return snapshot(
        host=host(
            cgroup_limit_bytes=64 * GIB,
            cgroup_headroom_bytes=32 * GIB,
            pressure=pressure,
            driver_memory_bytes=GIB,
            pinned_least_bytes=16 * GIB,
        ),
        holders=(
            holder(
                registered_bytes=GIB,
                kept_bytes=MIB,
                cgroup_limit_bytes=64 * GIB,
                cgroup_headroom_bytes=32 * GIB,
                driver_memory_bytes=2 * MIB,
                context_pinned_bytes=8 * MIB,
            ),
        ),
        probe=ProbeState(since=TAKEN_AT, lost_events=3),
    )


def names() -> set[str]:
    """All series that there can be."""
    return set(samples(whole_snapshot()))


def test_figures_of_host_holders_and_gpus_are_exported_as_they_are() -> None:
    exported = samples(whole_snapshot())
    assert exported["pinscope_up"] == {labels(): 1.0}
    assert exported["pinscope_host_memory_bytes"] == {labels(): 512 * GIB}
    assert exported["pinscope_host_pinned_bytes"] == {labels(): 16 * GIB}
    assert exported["pinscope_host_memory_stalled_seconds_total"] == {
        labels(tasks="some"): 2.5,
        labels(tasks="full"): 1.0,
    }
    trainer = {"pid": "4711", "name": "python", "user": "ada", "container": ""}
    assert exported["pinscope_holder_host_alloc_bytes"] == {labels(**trainer): 16 * GIB}
    assert exported["pinscope_holder_registered_bytes"] == {labels(**trainer): GIB}
    assert exported["pinscope_holder_driver_memory_bytes"] == {labels(**trainer): 2 * MIB}
    assert exported["pinscope_holder_context_pinned_bytes"] == {labels(**trainer): 8 * MIB}
    assert exported["pinscope_host_driver_memory_bytes"] == {labels(): GIB}
    assert exported["pinscope_holder_page_table_bytes"] == {labels(**trainer, gpu="0"): 32 * MIB}
    gpu = labels(gpu="0", uuid="GPU-00000000-0000-4000-8000-000000000000")
    assert exported["pinscope_gpu_memory_unattributed_bytes"] == {gpu: 40 * MIB}
    assert exported["pinscope_gpu_context_overhead_bytes"] == {gpu: 7 * MIB}
    assert exported["pinscope_gpu_link_generation"] == {gpu: 5}
    assert exported["pinscope_gpu_receive_bytes_per_second"] == {gpu: 27.6e9}
    assert exported["pinscope_probe_lost_events_total"] == {labels(): 3}


def test_every_metric_is_there_where_everything_is_known_and_is_documented() -> None:
    figures = {figure.metric for figure in (*HOST, *HOLDER, *HOLDER_GPU, *GPU, *LINK)}
    assert figures <= names()
    reference = metrics_reference()
    assert [name for name in sorted(names()) if f"`{name}`" not in reference] == []


def test_what_is_not_known_is_left_out_and_never_0() -> None:
    unknown = host(**dict.fromkeys(("pinned_bytes", "explained_bytes", "other_pinned_bytes", "hugetlb_used_bytes")))
    process = holder(
        host_alloc_bytes=None, locked_bytes=None, user=None,
        gpus=(GpuUse(index=0, memory_bytes=None, page_table_bytes=None),),
    )  # fmt: skip
    gpu = device(link=None, unattributed_bytes=None, busy_share=None)
    exported = samples(snapshot(host=unknown, holders=(process,), devices=(gpu,)))
    for name in [
        "pinscope_host_pinned_bytes", "pinscope_host_pinned_explained_bytes", "pinscope_host_pinned_other_bytes",
        "pinscope_host_hugetlb_used_bytes", "pinscope_host_cgroup_limit_bytes", "pinscope_holder_host_alloc_bytes",
        "pinscope_holder_registered_bytes", "pinscope_holder_locked_bytes", "pinscope_holder_gpu_memory_bytes",
        "pinscope_holder_page_table_bytes", "pinscope_gpu_link_generation", "pinscope_gpu_memory_unattributed_bytes",
        "pinscope_gpu_busy_ratio", "pinscope_host_memory_stalled_seconds_total",
    ]:  # fmt: skip
        assert name not in exported, name
    assert "pinscope_holder_resident_bytes" in exported


def test_series_are_bounded_and_the_rest_is_summed() -> None:
    holders = tuple(
        holder(pid, host_alloc_bytes=(200 - pid) * MIB, locked_bytes=None if pid > 90 else MIB)
        for pid in range(1, MOST_HOLDERS + 76)
    )
    exported = samples(snapshot(holders=holders))
    series = exported["pinscope_holder_host_alloc_bytes"]
    assert len(series) == MOST_HOLDERS + 1
    assert sum(series.values()) == sum(process.host_alloc_bytes or 0 for process in holders)
    rest = labels(pid="other", name="other", user="", container="")
    assert series[rest] == sum(process.host_alloc_bytes or 0 for process in holders[MOST_HOLDERS:])
    assert exported["pinscope_holder_locked_bytes"][rest] == (90 - MOST_HOLDERS) * MIB
    assert exported["pinscope_holder_gpu_memory_bytes"][rest | labels(gpu="0")] == 75 * 20 * GIB
    assert exported["pinscope_holders"] == {labels(): MOST_HOLDERS + 75}
    assert rest not in exported.get("pinscope_holder_cgroup_limit_bytes", {})


def test_after_trouble_the_last_figures_stay_until_they_are_old() -> None:
    seen = snapshot()
    nothing = samples(None, trouble="Reading failed: boom")
    assert nothing["pinscope_up"] == {labels(): 0.0}
    assert not [name for name in nothing if name.startswith(("pinscope_host", "pinscope_gpu", "pinscope_snapshot"))]
    exported = samples(seen, age=12.0, interval_seconds=1.0, trouble="Reading failed: boom")
    assert exported["pinscope_up"] == {labels(): 0.0}
    assert exported["pinscope_snapshot_age_seconds"] == {labels(): 12.0}
    assert "pinscope_host_pinned_bytes" in exported
    exported = samples(seen, age=16.0, interval_seconds=1.0)
    assert exported["pinscope_up"] == {labels(): 0.0}
    assert "pinscope_host_pinned_bytes" not in exported
    assert samples(seen, age=16.0, interval_seconds=5.0)["pinscope_up"] == {labels(): 1.0}
    assert samples(seen, age=-3.0)["pinscope_snapshot_age_seconds"] == {labels(): 0.0}  # the clock was set back


def test_what_cannot_be_read_is_counted_and_not_named() -> None:
    gaps = (
        Unreadable(what="Open files of 3 of 90 processes", reason="others'", hides_holders=True),
        Unreadable(what="GPUs", reason="NVML has not answered for 12 s"),
    )
    exported = samples(snapshot(unreadable=gaps, devices=()))
    assert exported["pinscope_unreadable"] == {labels(): 2}
    assert exported["pinscope_holders_hidden"] == {labels(): 1}
    assert exported["pinscope_gpus_readable"] == {labels(): 0}
    assert "pinscope_gpu_info" not in exported


def test_names_from_outside_are_labels_and_nothing_else() -> None:
    for name in ['a"b\\c', "new\nline", "\x1b[31m", "ümläut", "{}=,", "�"]:
        exported = samples(snapshot(holders=(holder(name=name),)))
        ((series, value),) = exported["pinscope_holder_host_alloc_bytes"].items()
        assert dict(series)["name"] == name
        assert value == 16 * GIB
