"""The host's totals."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from pinscope.probes.host_memory import (
    last_level_cache_bytes,
    memlock_headroom,
    memory_pressure,
    read_host,
    read_limits,
    read_pressure,
)
from pinscope.probes.proc import Proc
from tests.data.synthetic_host import SyntheticHost

if TYPE_CHECKING:
    from tests.unit.probes.conftest import Plant

GIB = 2**30


def test_a_host_with_everything(tmp_path: Path) -> None:
    host = read_host(SyntheticHost(tmp_path, pinned_bytes=24 * GIB).proc)
    assert host.total_bytes == 131981020 * 1024
    assert host.pinned_bytes == 24 * GIB
    assert (host.mlocked_bytes, host.unevictable_bytes) == (106440 * 1024, 108196 * 1024)
    assert (host.hugetlb_pool_bytes, host.hugetlb_used_bytes) == (GIB, 12 * 2 * 2**20)
    assert host.pressure is not None
    assert host.pressure.some_10s_share == pytest.approx(0.015)
    assert host.pressure.full_total_seconds == 1.0


def test_every_captured_host_gives_each_figure_or_its_reason(captured: Proc) -> None:
    host = read_host(captured)
    nothing = {name for name, value in host.model_dump().items() if value is None}
    with_holders = {"explained_bytes", "other_pinned_bytes", "pinned_least_bytes"}
    assert nothing - with_holders <= host.missing.keys()
    assert host.available_bytes <= host.total_bytes
    assert host.shmem_bytes is not None


def test_a_kernel_without_the_counters_says_so(tmp_path: Path) -> None:
    host = read_host(SyntheticHost(tmp_path, pinned_bytes=None).proc)
    assert host.pinned_bytes is None
    assert "nr_foll_pin_acquired" in host.missing["pinned_bytes"]


def test_huge_pages_of_all_sizes_count(plant: Plant) -> None:
    folder = "/sys/kernel/mm/hugepages"
    pages = {"2048": (512, 500), "1048576": (4, 1)}
    files: dict[str, str | bytes] = {}
    for size, (total, free) in pages.items():
        files[f"{folder}/hugepages-{size}kB/nr_hugepages"] = f"{total}\n"
        files[f"{folder}/hugepages-{size}kB/free_hugepages"] = f"{free}\n"
    host = read_host(plant(files))
    assert host.hugetlb_pool_bytes == 5 * GIB
    assert host.hugetlb_used_bytes == 12 * 2 * 2**20 + 3 * GIB
    broken = read_host(plant({f"{folder}/hugepages-2048kB/free_hugepages": "many\n"}))
    assert broken.hugetlb_used_bytes is None
    assert "is not a number" in broken.missing["hugetlb_used_bytes"]


def test_driver_memory_is_what_no_account_of_the_kernel_has(plant: Plant) -> None:
    mib = 2**20
    amounts = dict.fromkeys(("Buffers", "Cached", "SwapCached", "AnonPages", "Slab", "PageTables", "Percpu"), 1024)
    amounts |= {"MemTotal": 100 * 1024, "MemFree": 20 * 1024, "VmallocUsed": 5 * 1024, "KernelStack": 2 * 1024}
    text = "".join(f"{name}: {amount} kB\n" for name, amount in amounts.items())
    kept = "Node 0, zone Normal\n  pagesets\n    cpu: 0\n              count:    512\n              high: 1024\n"
    files: dict[str, str | bytes] = {"/proc/meminfo": text, "/proc/zoneinfo": kept + kept}
    host = read_host(plant(files))
    page_bytes = os.sysconf("SC_PAGE_SIZE")
    assert host.driver_memory_bytes == (100 - 20 - 7 - 5) * mib - 1024 * page_bytes
    assert host.estimates["driver_memory_bytes"].text.startswith("about")
    newer = read_host(plant(files | {"/proc/meminfo": f"{text}Hugetlb: 3072 kB\nBalloon: 1024 kB\n"}))
    assert newer.driver_memory_bytes == host.driver_memory_bytes - 4 * mib
    older = read_host(plant(files | {"/proc/meminfo": text.replace("Percpu", "Per")}))
    assert older.driver_memory_bytes is None
    assert "Percpu" in older.missing["driver_memory_bytes"]


def test_an_idle_captured_host_has_little_driver_memory() -> None:
    tree = Path(__file__).parents[2] / "data" / "proc" / "h200-idle"
    host = read_host(Proc.below(tree))
    assert host.driver_memory_bytes is not None
    assert host.driver_memory_bytes < 512 * 2**20  # with what processors keep for themselves, which it does not have


@pytest.mark.parametrize(
    "text", ["", "some avg10=0.00 avg60=0.00 avg300=0.00 total=0\n", "some avg10=x\nfull avg10=y\n", "some\0full"]
)
def test_pressure_that_makes_no_sense_is_a_reason(plant: Plant, text: str) -> None:
    assert "/proc/pressure/memory " in (memory_pressure(plant({"/proc/pressure/memory": text})).reason or "")


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


IPC_LOCK = "CapEff:\t0000000000004000\n"
NO_CAPABILITY = "CapEff:\t0000000000000000\n"
ALL_USERS = "         0          0 4294967295\n"
ROOTLESS = "         0       1000          1\n"


def limits_file(soft: str) -> str:
    return (
        "Limit                     Soft Limit           Hard Limit           Units\n"
        f"Max locked memory         {soft:20} unlimited            bytes\n"
        "Max address space         unlimited            unlimited            bytes\n"
    )


def status(capability: str = NO_CAPABILITY, locked: str = "VmLck:\t  1024 kB\n") -> str:
    return f"Name:\tpython\n{locked}{capability}"


@pytest.mark.parametrize(
    ("soft", "text", "users", "expected"),
    [
        ("8388608", status(), None, 7 * 2**20),
        ("65536", status(), None, 0),  # more is locked than that
        ("unlimited", status(), None, "no limit: RLIMIT_MEMLOCK is unlimited"),
        ("65536", status(IPC_LOCK), ALL_USERS, "no limit: this process has CAP_IPC_LOCK"),
        ("8388608", status(IPC_LOCK), ROOTLESS, 7 * 2**20),
        *(
            ("8388608", status(unreadable), None, 7 * 2**20)
            for unreadable in ("", "CapEff:\tnonsense\n", "CapEff:\t-1\n")
        ),
        ("8388608", status(locked=""), None, 8 * 2**20),  # the limit itself is the upper bound
    ],
)
def test_a_process_may_lock_its_limit_less_what_is_locked_unless_the_capability_lifts_it(
    plant: Plant, soft: str, text: str, users: str | None, expected: int | str
) -> None:
    files = {"/proc/self/status": text, "/proc/self/limits": limits_file(soft)}
    answer = memlock_headroom(plant(files if users is None else {**files, "/proc/self/uid_map": users}))
    assert (answer.value if answer.reason is None else answer.reason) == expected


def test_every_missing_limit_says_why(plant: Plant) -> None:
    limits = read_limits(plant({"/proc/self/limits": limits_file("unlimited")}))
    nothing = {name for name, value in limits.model_dump().items() if value is None}
    assert nothing == set(limits.missing)
    assert limits.missing["shm_free_bytes"] == "/dev/shm is not there"


def cache(root: Path, processor: int, level: str, size: str, shared: str) -> None:
    folder = root / f"sys/devices/system/cpu/cpu{processor}/cache/index{level}"
    folder.mkdir(parents=True)
    for name, text in (("level", level), ("size", size), ("shared_cpu_list", shared)):
        (folder / name).write_text(f"{text}\n")


@pytest.mark.parametrize(
    ("shared", "expected"), [(("0-1", "0-1"), 300 * 2**20), (("0", "1"), 600 * 2**20)], ids=["one", "one each"]
)
def test_each_last_level_cache_counts_once(tmp_path: Path, shared: tuple[str, str], expected: int) -> None:
    for processor in (0, 1):
        cache(tmp_path, processor, "1", "48K", str(processor))
        cache(tmp_path, processor, "3", "307200K", shared[processor])
    assert last_level_cache_bytes(Proc.below(tmp_path)).value == expected
