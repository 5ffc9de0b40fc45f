"""Memory of each backing, real: what it takes, what is refused and with which words."""

from __future__ import annotations

import ctypes
import re
from pathlib import Path

import pytest

from pinscope.errors import NotEnoughMemory
from pinscope.lab.backing import (
    HUGE_PAGE,
    OwnMemory,
    free_gigantic_pages,
    shared_region,
    touch,
    why_not_backing,
    why_not_segment,
)
from pinscope.lab.harness import check_budget
from pinscope.lab.hostmodel import HostModelLab
from pinscope.probes.environment import read_huge_pages
from pinscope.probes.host_memory import read_limits
from pinscope.records.base import Budget
from pinscope.records.environment import HugePages
from pinscope.records.run import Backing

MIB = 2**20
NONE_RESERVED = HugePages(transparent="never", hugetlb_page_bytes=2 * MIB, hugetlb_total_pages=5, hugetlb_free_pages=3)
NO_HUGETLB = HugePages(
    transparent=None, hugetlb_page_bytes=None, hugetlb_total_pages=None, hugetlb_free_pages=None,
    missing={"transparent": "/sys … is not there", "hugetlb_page_bytes": "/proc/meminfo has no line Hugepagesize"},
)  # fmt: skip


def resident_kib(name: str) -> int:
    return int(Path("/proc/self/status").read_text().split(f"{name}:")[1].split()[0])


@pytest.mark.parametrize("backing", ["4k", "thp", "shm"])
def test_memory_is_taken_when_it_is_touched_not_before(backing: Backing) -> None:
    kind = "RssShmem" if backing == "shm" else "RssAnon"
    before = resident_kib(kind)
    with OwnMemory(64 * MIB, backing) as mapping:
        assert resident_kib(kind) - before < 8 * 1024
        touch(mapping)
        assert resident_kib(kind) - before > 60 * 1024
    assert resident_kib(kind) - before < 8 * 1024


def test_transparent_huge_pages_begin_at_a_huge_page() -> None:
    with OwnMemory(3 * MIB, "thp") as mapping:
        assert mapping.address % HUGE_PAGE == 0
        touch(mapping)


@pytest.mark.parametrize("backing", ["4k", "thp", "shm"])
def test_registering_locks_what_was_touched_and_lets_it_go(lab: HostModelLab, backing: Backing) -> None:
    before = resident_kib("VmLck")
    with lab.ordinary_memory(8 * MIB, backing) as memory:
        touch(memory)
        with lab.register(memory.part(0, 4 * MIB)) as registered:
            assert registered.memory == "registered"
            assert resident_kib("VmLck") - before == 4 * 1024
        assert resident_kib("VmLck") == before


def test_the_page_tables_of_touched_memory_are_8_bytes_a_page(lab: HostModelLab) -> None:
    before = lab.memory_state()
    with lab.ordinary_memory(256 * MIB, "4k") as memory:
        touch(memory)
        after = lab.memory_state()
    assert before.missing.keys() == {"device_used_bytes", "nvml_used_bytes", "pinned_bytes"}
    assert (after.page_table_bytes or 0) - (before.page_table_bytes or 0) == pytest.approx(
        256 * MIB // 4096 * 8, abs=32 * 1024
    )


def test_missing_huge_pages_are_told_with_what_to_do() -> None:
    for backing, nbytes, pages, why in [
        ("hugetlb", 16 * MIB, NONE_RESERVED, r"takes 8 page\(s\) of 2 MiB, and 3 of 5 are free.*nr_hugepages=10$"),
        ("hugetlb", 1, NO_HUGETLB, "no hugetlb pages"),
        ("thp", 1, NO_HUGETLB, "is not there"),
        ("thp", 1, NONE_RESERVED, r"off here \(never\)"),
    ]:
        assert re.search(why, why_not_backing(backing, nbytes, pages) or "")
        assert why_not_backing("hugetlb", 6 * MIB, NONE_RESERVED) is None


@pytest.mark.parametrize(
    ("backing", "nbytes", "reason"),
    [
        ("hugetlb", ((read_huge_pages().hugetlb_free_pages or 0) + 8) * 2 * MIB, r"sysctl vm\.nr_hugepages="),
        ("shm_open", 2**50, r"/dev/shm has room for .*mount -o remount"),
    ],
)
def test_memory_that_the_system_has_not_is_refused_with_the_command(backing: Backing, nbytes: int, reason: str) -> None:
    with pytest.raises(NotEnoughMemory, match=reason):
        OwnMemory(nbytes, backing)


def test_a_posix_segment_is_shared_memory_whose_name_is_gone_at_once() -> None:
    folder = Path("/dev/shm")
    before = set(folder.iterdir())
    with shared_region(MIB, "shm_open") as descriptor:
        assert str(Path(f"/proc/self/fd/{descriptor}").readlink()).startswith("/dev/shm/pinscope-")
        assert set(folder.iterdir()) == before
        with OwnMemory(MIB, descriptor=descriptor) as first, OwnMemory(MIB, descriptor=descriptor) as second:
            ctypes.memset(first.address, 7, MIB)
            assert ctypes.string_at(second.address + MIB - 1, 1) == b"\x07"


def test_gigantic_pages_that_nobody_reserved_are_told_with_the_file_that_reserves_them() -> None:
    free = free_gigantic_pages()
    reason = why_not_backing("hugetlb_1g", (free + 1) * 2**30)
    assert reason is not None
    assert "no hugetlb pages of 1 GiB" in reason or "hugepages-1048576kB/nr_hugepages" in reason


def test_a_segment_of_huge_pages_has_whole_ones() -> None:
    pool = Path("/sys/kernel/mm/hugepages/hugepages-1048576kB/free_hugepages")
    reason = why_not_segment("hugetlb_1g", 3 * MIB)
    assert reason is not None  # either there is none, or 3 MiB is no multiple
    assert ("no multiple" in reason) == (pool.exists() and int(pool.read_text()) > 0)


def test_a_budget_of_hugetlb_memory_is_checked_before_anything_starts() -> None:
    budget = Budget(pinned_bytes=16 * MIB, pageable_bytes=0, device_bytes=0, seconds=1.0, hugetlb_bytes=16 * MIB)
    with pytest.raises(NotEnoughMemory, match=r"takes 8 page\(s\).*sysctl"):
        check_budget(budget, read_limits(), None, "host", NONE_RESERVED)
