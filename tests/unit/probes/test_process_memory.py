"""A process's status and maps, in the kernel's form and out of it."""

from __future__ import annotations

import mmap
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pinscope.probes.process import ProcessStatus, covered_bytes, parse_maps, plain_address_space
from tests.data.like_cuda import map_like_cuda, room_of, unmap
from tests.data.synthetic_host import context, maps_text, named, ordinary, zero

H200_STATUS = Path(__file__).parents[2] / "data" / "proc" / "h200-idle" / "proc" / "self" / "status"
MIB = 2**20


def test_the_status_of_a_real_process_is_read() -> None:
    status = ProcessStatus(H200_STATUS.read_text())
    assert status.has_memory
    assert status.line("Name") == "python"
    assert (status.number("PPid"), status.number("Uid")) == (396, 0)
    assert (status.bytes("VmLck"), status.bytes("VmPin"), status.bytes("RssShmem")) == (0, 0, 0)
    assert status.bytes("VmRSS") == 69120 * 1024 == status.bytes("RssAnon") + status.bytes("RssFile")  # type: ignore[operator]
    assert status.bytes("HugetlbPages") == 0
    assert "309112" in status.size
    assert "243576" in status.size


def test_the_quick_questions_of_a_snapshot_agree_with_the_amounts() -> None:
    text = H200_STATUS.read_text()
    status = ProcessStatus(text)
    assert not status.has_locked
    assert not status.may_share
    assert status.parent == 396
    assert plain_address_space(text.encode()) == status.bytes("VmSize")
    for key in ("VmLck", "VmPin", "RssShmem"):
        changed = text.replace(f"{key}:\t       0 kB", f"{key}:\t12345678 kB")
        assert plain_address_space(changed.encode()) is None
        assert ProcessStatus(changed).has_locked is (key != "RssShmem")
        assert ProcessStatus(changed).may_share is (key == "RssShmem")


def test_this_process_has_the_form_that_is_read_quickly() -> None:
    text = Path("/proc/self/status").read_text()
    status = ProcessStatus(text)
    expected = None if status.has_locked or status.may_share else status.bytes("VmSize")
    assert plain_address_space(text.encode()) == expected


def test_the_quick_questions_are_answered_in_another_form_than_the_kernels_too() -> None:
    text = "Name:\tx\nVmSize:\t8 kB\nVmLck: 0 kB\nVmPin: 0 kB\nRssShmem: 0 kB\n"
    status = ProcessStatus(text)
    assert not status.has_locked
    assert not status.may_share
    assert plain_address_space(text.encode()) is None
    nothing = ProcessStatus("Name:\tx\n")
    assert not nothing.has_locked
    assert nothing.may_share  # it is not told
    assert nothing.parent is None


def test_a_kernel_thread_has_no_memory() -> None:
    status = ProcessStatus("Name:\tkworker/0:0\nState:\tI (idle)\nPPid:\t2\nUid:\t0\t0\t0\t0\nThreads:\t1\n")
    assert not status.has_memory
    assert status.size == ""
    assert status.bytes("VmLck") is None


def test_a_process_name_cannot_fake_a_line() -> None:
    # The kernel writes a line end in a name as backslash and n.
    status = ProcessStatus("Name:\ta\\nVmLck:\t  99 kB\nVmSize:\t  10 kB\nVmLck:\t   4 kB\n")
    assert status.bytes("VmLck") == 4096
    assert status.line("Name") == "a\\nVmLck:\t  99 kB"


@pytest.mark.parametrize("line", ["VmLck:", "VmLck: kB", "VmLck: -4 kB", "VmLck: 4 MB", "VmLck: ٤ kB", "VmLckX: 4 kB"])
def test_an_amount_that_makes_no_sense_is_none(line: str) -> None:
    assert ProcessStatus(f"Name:\tx\n{line}\n").bytes("VmLck") is None


def test_cuda_host_memory_is_found_among_other_mappings() -> None:
    text = maps_text(
        [
            named(2 * MIB, "/dev/nvidiactl"),
            zero(2 * MIB, inode=77),
            named(4096, "", "---p", 0),
            zero(512 * MIB, inode=78),
            named(64 * MIB, "/dev/shm/torch_1 (deleted)"),
            named(MIB, "/tmp/my /dev/zero (deleted)"),
            named(MIB, "/dev/zero", "rw-p"),
            named(8 * MIB, "/dev/nvidia-uvm"),
            named(8 * MIB, "/dev/nvidia-uvm-tools"),
        ]
    )
    maps = parse_maps(text)
    sizes = {key: covered_bytes(extents) for key, extents in maps.shared_zero.items()}
    assert sizes == {("00:01", 77): 2 * MIB, ("00:01", 78): 512 * MIB}
    assert maps.managed_bytes == 8 * MIB


def test_a_private_copy_of_such_memory_is_not_shared() -> None:
    assert parse_maps(maps_text([zero(MIB, inode=5, permissions="rw-p")])).shared_zero == {}


def test_one_piece_in_several_mappings_counts_once() -> None:
    # mprotect splits a mapping; and the same memory may be mapped a second time.
    lines = "".join(
        f"{0x7F0000000000 + place * MIB:012x}-{0x7F0000000000 + (place + 1) * MIB:012x} {access} {offset * MIB:08x} "
        "00:01 9      /dev/zero (deleted)\n"
        for place, offset, access in [(0, 0, "rw-s"), (1, 1, "r--s"), (2, 2, "rw-s"), (3, 3, "rw-s"), (9, 1, "rw-s")]
    )
    (extents,) = parse_maps(lines).shared_zero.values()
    assert len(extents) == 5
    assert covered_bytes(extents) == 4 * MIB


def test_ordinary_shared_memory_is_told_by_where_it_lies() -> None:
    line = "{:012x}-{:012x} rw-s 00000000 00:01 9      /dev/zero (deleted)\n"
    rest = "{:012x}-{:012x} {} 00000000 00:00 0 \n"
    base, size = 0x7F0000000000, 3 * MIB + 4096
    reserved = line.format(base, base + size) + rest.format(base + size, base + 32 * MIB, "---p")
    assert list(parse_maps(reserved).sizes.values()) == [size]
    for text in (
        line.format(base + 4096, base + 4 * MIB),  # begins anywhere
        line.format(base, base + size),  # nothing is reserved behind it
        line.format(base, base + size) + rest.format(base + size, base + 32 * MIB, "rw-p"),
        line.format(base, base + size) + rest.format(base + size, base + size + 4096, "---p"),  # a guard page
    ):
        assert parse_maps(text).sizes == {}
    assert list(parse_maps(line.format(base, base + 4 * MIB)).sizes.values()) == [4 * MIB]  # ends where the range does


def test_a_context_shows_its_gpu_its_driver_memory_and_the_piece_that_lies_anywhere() -> None:
    maps = parse_maps(maps_text([*context(gpu=3), ordinary(2 * MIB, 7), named(65536, "/dev/nvidia1", "-w-s")]))
    assert maps.gpus == {3}
    assert sum(maps.driver_sizes) == 56 * MIB + 8 * MIB + 6_205_440 + 20 * 4096
    assert len(maps.sizes) == 4  # one more would be a second context's
    assert parse_maps(maps_text([ordinary(2 * MIB, 7)])).sizes == {}


def test_this_kernel_names_shared_anonymous_memory_so() -> None:
    before = parse_maps(Path("/proc/self/maps").read_text()).shared_zero
    place = map_like_cuda(3 * MIB)
    after = parse_maps(Path("/proc/self/maps").read_text()).shared_zero
    unmap(place, room_of(3 * MIB))
    with mmap.mmap(-1, 3 * MIB + 4096):
        assert parse_maps(Path("/proc/self/maps").read_text()).shared_zero.keys() == before.keys()
    new = {key: extents for key, extents in after.items() if key not in before}
    assert [covered_bytes(extents) for extents in new.values()] == [3 * MIB]
    assert os.sysconf("SC_PAGE_SIZE") <= 3 * MIB


EXTENTS = st.lists(st.tuples(st.integers(0, 300), st.integers(1, 60)).map(lambda pair: (pair[0], pair[0] + pair[1])))


@given(extents=EXTENTS)
def test_covered_bytes_are_those_in_at_least_one_extent(extents: list[tuple[int, int]]) -> None:
    assert covered_bytes(extents) == len({byte for start, end in extents for byte in range(start, end)})


MALFORMED = st.one_of(
    st.text(max_size=200),
    st.lists(
        st.sampled_from(
            ["7f00-7f10 rw-s 0 00:01 5 /dev/zero (deleted)", "/dev/zero (deleted)", " /dev/nvidia-uvm", "\n", "\0",
             "7f10-7f00 rw-s 00000000 00:01 5   /dev/zero (deleted)\n", "zz-7f rw-s 0 00:01 5 /dev/nvidia-uvm\n",
             "VmLck:\t", "VmSize:", " kB\n", "9" * 30, "7f00-7f10 rw-s 0 00:01 " + "9" * 30 + " /dev/zero (deleted)"]
        ),
        max_size=12,
    ).map("".join),
)  # fmt: skip


@given(text=MALFORMED)
def test_no_text_makes_the_parsers_raise(text: str) -> None:
    maps = parse_maps(text)
    assert maps.managed_bytes >= 0
    assert all(end > start for extents in maps.shared_zero.values() for start, end in extents)
    status = ProcessStatus(text)
    for key in ("Name", "VmLck", "PPid"):
        assert (status.bytes(key) or 0) >= 0
        assert (status.number(key) or 0) >= 0
    assert isinstance(status.size, str)
    assert {type(status.has_memory), type(status.has_locked), type(status.may_share)} == {bool}
    assert (status.parent or 0) >= 0
    assert (plain_address_space(text.encode()) or 0) >= 0
