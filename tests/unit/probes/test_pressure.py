"""How scarce memory is: what the kernel tells, and why where it does not."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from pinscope.probes.host_memory import read_pressure
from pinscope.probes.proc import Proc

if TYPE_CHECKING:
    from tests.unit.probes.conftest import Plant

MEMINFO = "MemTotal: 16384 kB\nMemFree: 4096 kB\nMemAvailable: 8192 kB\nCached: 2048 kB\n"
STALLS = "some avg10=1.50 avg60=0.57 avg300=0.38 total=2500000\nfull avg10=0.44 avg60=0.55 avg300=0.33 total=1000000\n"


def test_figures_are_bytes_and_seconds(plant: Plant) -> None:
    read = read_pressure(plant({
        "/proc/meminfo": MEMINFO,
        "/proc/vmstat": "pswpin 3\npswpout 5\n",
        "/proc/zoneinfo": "Node 0\n  pages free 9\n    cpu: 0\n              count:    7\n              high:  9\n"
        "    cpu: 1\n              count:    4\n",
        "/proc/pressure/memory": STALLS,
        "/proc/pressure/io": STALLS.replace("2500000", "7"),
    }))  # fmt: skip
    page = os.sysconf("SC_PAGE_SIZE")
    assert (read.available_bytes, read.free_bytes, read.cached_bytes) == (8 * 2**20, 4 * 2**20, 2 * 2**20)
    assert read.per_cpu_bytes == 11 * page
    assert (read.swap_in_bytes, read.swap_out_bytes) == (3 * page, 5 * page)
    assert (read.memory_some_seconds, read.memory_full_seconds) == (2.5, 1.0)
    assert (read.io_some_seconds, read.io_full_seconds) == (7e-6, 1.0)
    assert set(read.missing) == {"cgroup_headroom_bytes"}


def test_a_kernel_without_stall_counters_is_told_not_taken_for_calm(plant: Plant) -> None:
    read = read_pressure(plant({"/proc/meminfo": MEMINFO, "/proc/vmstat": "", "/proc/pressure/io": "some avg10=0\n"}))
    assert read.memory_some_seconds is None
    assert read.missing["memory_some_seconds"] == "/proc/pressure/memory is not there"
    assert read.missing["io_some_seconds"] == "/proc/pressure/io has no total of some"
    assert read.missing["io_full_seconds"] == "/proc/pressure/io has no line full"
    assert read.missing["per_cpu_bytes"] == "/proc/zoneinfo is not there"
    assert read.missing["swap_in_bytes"] == "/proc/vmstat has no line pswpin"


def test_every_captured_host_has_a_value_or_a_reason_for_each_figure(captured: Proc) -> None:
    read = read_pressure(captured)
    for field in type(read).__dataclass_fields__:
        if field != "missing":
            assert (getattr(read, field) is None) == (field in read.missing), field
    assert read.available_bytes > 0


@pytest.mark.parametrize(("limit", "left"), [("6291456", 2 * 2**20), ("max", 8 * 2**20)])
def test_what_is_left_is_the_tighter_of_host_and_control_group(plant: Plant, limit: str, left: int) -> None:
    group = "/sys/fs/cgroup/box"
    read = read_pressure(plant({
        "/proc/meminfo": MEMINFO,
        "/proc/self/cgroup": "0::/box\n",
        "/proc/self/mountinfo": "1 0 0:1 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n",
        f"{group}/memory.max": f"{limit}\n",
        f"{group}/memory.current": "4194304\n",
    }))  # fmt: skip
    assert read.left_bytes == left
