"""SYNTHETIC snapshots: hosts, holders and GPUs that never were, for tests to change."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from pinscope.records.environment import Link
from pinscope.records.snapshot import Allocations, DeviceFigures, GpuUse, Holder, HostTotals, Snapshot

MIB, GIB = 2**20, 2**30
TAKEN_AT = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


def host(**changes: Any) -> HostTotals:
    """A host of 512 GiB, most of it available, with 16 GiB pinned that the holders explain."""
    usual: dict[str, Any] = {
        "total_bytes": 512 * GIB, "available_bytes": 448 * GIB, "cgroup_limit_bytes": None,
        "cgroup_headroom_bytes": None, "pinned_bytes": 16 * GIB, "explained_bytes": 16 * GIB, "other_pinned_bytes": 0,
        "mlocked_bytes": 8 * MIB, "unevictable_bytes": 16 * MIB, "hugetlb_pool_bytes": 0, "hugetlb_used_bytes": 0,
        "shmem_bytes": 17 * GIB, "pressure": None,
        "missing": {"cgroup_limit_bytes": "no limit", "cgroup_headroom_bytes": "no limit", "pressure": "not told"},
    }  # fmt: skip
    filled = usual | changes
    filled.setdefault("pinned_least_bytes", filled["pinned_bytes"])
    if "available_bytes" not in changes:  # what is pinned is in use
        filled["available_bytes"] = min(448 * GIB, filled["total_bytes"] - (filled["pinned_bytes"] or 0))
    return HostTotals(**filled)


def holder(pid: int = 4711, **changes: Any) -> Holder:
    """A training program with 16 GiB of cudaHostAlloc memory and a context on GPU 0."""
    usual: dict[str, Any] = {
        "pid": pid, "parent_pid": 4000, "user": "ada", "name": "python", "command": "python train.py",
        "cgroup": "/user.slice/user-1000.slice/session-3.scope", "container": None,
        "started_at": datetime(2026, 1, 2, 1, 0, tzinfo=UTC), "cuda": True, "host_alloc_bytes": 16 * GIB,
        "allocations": (Allocations(size_bytes=16 * GIB - MIB, count=1, power_of_two=False),), "rounding_bytes": 0,
        "inherited_bytes": 0, "inherited_from": (), "inherited_by": (), "managed_bytes": 0, "locked_bytes": 0,
        "vm_pin_bytes": 0, "hugetlb_bytes": 0, "rss_bytes": 18 * GIB, "rss_anon_bytes": GIB, "rss_file_bytes": GIB,
        "rss_shmem_bytes": 16 * GIB, "gpus": (GpuUse(index=0, memory_bytes=20 * GIB, page_table_bytes=32 * MIB),),
        "missing": {"cgroup_limit_bytes": "no limit", "cgroup_headroom_bytes": "no limit", "container": "none"},
    }  # fmt: skip
    return Holder(**(usual | changes))


def link(**changes: Any) -> Link:
    """Generation 5 with 16 lanes, at its best."""
    best: dict[str, Any] = {
        "kind": "pcie", "generation_now": 5, "width_now": 16, "generation_max": 5, "width_max": 16,
        "limit_bytes_per_second": 57.6e9, "raw_bytes_per_second": 63.0e9,
    }  # fmt: skip
    return Link(**(best | changes))


def device(index: int = 0, **changes: Any) -> DeviceFigures:
    """An H200 at work, whose memory is explained by its processes and page tables."""
    usual: dict[str, Any] = {
        "index": index, "uuid": f"GPU-00000000-0000-4000-8000-00000000000{index}", "name": "NVIDIA H200",
        "memory_total_bytes": 150_754_820_096, "memory_free_bytes": 120 * GIB, "memory_used_bytes": 20 * GIB + 40 * MIB,
        "memory_reserved_bytes": 600 * MIB, "processes": (), "processes_bytes": 20 * GIB,
        "unattributed_bytes": 40 * MIB, "page_table_bytes": 32 * MIB, "context_overhead_bytes": 7 * MIB,
        "bar1_total_bytes": 256 * GIB, "bar1_used_bytes": MIB,
        "link": link(), "rx_bytes_per_second": 27.6e9, "tx_bytes_per_second": 0.0,
        "rx_share": 27.6 / 57.6, "tx_share": 0.0, "busy_share": 0.5, "memory_busy_share": 0.25, "copy_engines": 4,
        "sm_clock_hertz": 1.98e9, "memory_clock_hertz": 3.2e9, "temperature_celsius": 41.0, "mig": (),
        "missing": {},
    }  # fmt: skip
    return DeviceFigures(**(usual | changes))


def snapshot(**changes: Any) -> Snapshot:
    """One holder and one GPU, with nothing to complain about."""
    usual: dict[str, Any] = {
        "taken_at": TAKEN_AT, "host": host(), "holders": (holder(),), "devices": (device(),), "unreadable": (),
        "cpu_seconds": 0.004,
    }  # fmt: skip
    return Snapshot(**(usual | changes))
