"""The host's totals."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pytest

from pinscope.probes.host_memory import memory_pressure, read_host
from pinscope.probes.proc import Proc
from tests.data.synthetic_host import SyntheticHost

if TYPE_CHECKING:
    from tests.unit.probes.conftest import Plant

GIB = 2**30


def test_a_host_with_everything(tmp_path: Path) -> None:
    host = read_host(SyntheticHost(tmp_path, pinned_bytes=24 * GIB).proc)
    assert host.total_bytes == 131981020 * 1024
    assert host.pinned_bytes == 24 * GIB
    assert (host.mlocked_bytes, host.unevictable_bytes) == (6440 * 1024, 8196 * 1024)
    assert (host.hugetlb_pool_bytes, host.hugetlb_used_bytes) == (GIB, 12 * 2 * 2**20)
    assert host.pressure is not None
    assert host.pressure.some_10s_share == pytest.approx(0.015)
    assert host.pressure.full_total_seconds == 1.0


def test_every_captured_host_gives_each_figure_or_its_reason(captured: Proc) -> None:
    host = read_host(captured)
    for name, value in host.model_dump().items():
        assert value is not None or host.missing.get(name), name
    assert host.available_bytes <= host.total_bytes
    assert host.shmem_bytes is not None


def test_an_idle_h200_host_has_nothing_pinned() -> None:
    tree = Path(__file__).parents[2] / "data" / "proc" / "h200-idle"
    host = read_host(Proc.below(tree))
    assert host.pinned_bytes == 0
    assert host.mlocked_bytes == 6440 * 1024
    assert host.hugetlb_pool_bytes == 0


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
    assert "makes no sense" in (memory_pressure(plant({"/proc/pressure/memory": text})).reason or "")


def test_this_machine_agrees_with_psutil() -> None:
    host, told = read_host(), psutil.virtual_memory()
    assert host.total_bytes == told.total
    assert host.shmem_bytes is not None
    assert abs(host.shmem_bytes - told.shared) < GIB
