"""Memory of each backing, real: what it takes, what is refused and with which words."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
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
from pinscope.probes.host_memory import page_table_bytes, pinned_bytes, read_limits
from pinscope.probes.proc import Proc
from pinscope.records.base import Budget
from pinscope.records.environment import HugePages
from pinscope.records.run import Backing

MIB = 2**20
NONE_RESERVED = HugePages(transparent="never", hugetlb_page_bytes=2 * MIB, hugetlb_total_pages=5, hugetlb_free_pages=3)
NO_HUGETLB = HugePages(
    transparent=None, hugetlb_page_bytes=None, hugetlb_total_pages=None, hugetlb_free_pages=None,
    missing={"transparent": "/sys … is not there", "hugetlb_page_bytes": "/proc/meminfo has no line Hugepagesize"},
)  # fmt: skip


@pytest.fixture
def lab() -> Iterator[HostModelLab]:
    with HostModelLab() as lab:
        yield lab


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
    before = lab.memory_state().page_table_bytes
    with lab.ordinary_memory(256 * MIB, "4k") as memory:
        touch(memory)
        after = lab.memory_state().page_table_bytes
    assert before is not None
    assert after is not None
    assert after - before == pytest.approx(256 * MIB // 4096 * 8, abs=32 * 1024)


def test_what_the_host_model_cannot_know_has_a_reason(lab: HostModelLab) -> None:
    state = lab.memory_state()
    for name in ("device_used_bytes", "nvml_used_bytes", "pinned_bytes"):
        assert getattr(state, name) is None
        assert "no GPU" in state.missing[name]


def test_missing_hugetlb_pages_are_told_with_the_command_that_reserves_them() -> None:
    reason = why_not_backing("hugetlb", 16 * MIB, NONE_RESERVED)
    assert reason is not None
    assert "takes 8 page(s) of 2 MiB, and 3 of 5 are free" in reason
    assert reason.endswith("sysctl vm.nr_hugepages=10")
    assert why_not_backing("hugetlb", 6 * MIB, NONE_RESERVED) is None


def test_kernels_without_huge_pages_say_so() -> None:
    assert "no hugetlb pages" in (why_not_backing("hugetlb", 1, NO_HUGETLB) or "")
    assert "is not there" in (why_not_backing("thp", 1, NO_HUGETLB) or "")
    assert "off here (never)" in (why_not_backing("thp", 1, NONE_RESERVED) or "")


def test_more_hugetlb_memory_than_is_reserved_is_refused_with_the_reason() -> None:
    free = read_huge_pages().hugetlb_free_pages or 0
    with pytest.raises(NotEnoughMemory, match=r"sysctl vm\.nr_hugepages="):
        OwnMemory((free + 8) * 2 * MIB, "hugetlb")


def test_a_posix_segment_is_shared_memory_whose_name_is_gone_at_once() -> None:
    folder = Path("/dev/shm")
    before = set(folder.iterdir())
    with shared_region(MIB, "shm_open") as descriptor:
        assert str(Path(f"/proc/self/fd/{descriptor}").readlink()).startswith("/dev/shm/pinscope-")
        assert set(folder.iterdir()) == before
        with OwnMemory(MIB, descriptor=descriptor) as one, OwnMemory(MIB, descriptor=descriptor) as other:
            ctypes.memset(one.address, 7, MIB)
            assert ctypes.string_at(other.address + MIB - 1, 1) == b"\x07"


def test_a_segment_for_which_its_file_system_has_no_room_is_refused_with_the_command() -> None:
    with pytest.raises(NotEnoughMemory, match=r"/dev/shm has room for .*mount -o remount"):
        OwnMemory(2**50, "shm_open")


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


def test_pins_of_the_host_are_pages_acquired_less_pages_released(tmp_path: Path) -> None:
    (tmp_path / "proc").mkdir()
    file = tmp_path / "proc" / "vmstat"
    file.write_text("nr_free_pages 7\nnr_foll_pin_acquired 1000\nnr_foll_pin_released 400\n")
    assert pinned_bytes(Proc.below(tmp_path)).value == 600 * 4096
    file.write_text("nr_free_pages 7\n")
    answer = pinned_bytes(Proc.below(tmp_path))
    assert answer.value is None
    assert "nr_foll_pin_acquired" in (answer.reason or "")
    assert (page_table_bytes().value or 0) > 0
