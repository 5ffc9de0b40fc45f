"""Buffers as CUPTI fills them: whole ones, one that a killed program left, and one of another version."""

from __future__ import annotations

import json
import resource
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from pinscope.tracing.mapped_file import ENTRY
from pinscope.tracing.spool import RecordFiles, Spool

LAYOUTS = {
    "49": {"size": 128, "fields": {
        "kind": [0, "<i4"], "memory_operation_type": [4, "<i4"], "memory_kind": [8, "<i4"],
        "correlation_id": [12, "<u4"], "address": [16, "<u8"], "bytes": [24, "<u8"], "timestamp": [32, "<u8"],
    }},
    "10": {"size": 216, "fields": {
        "kind": [0, "<i4"], "start": [16, "<u8"], "end": [24, "<u8"], "device_id": [40, "<u4"],
        "stream_id": [48, "<u4"], "correlation_id": [92, "<u4"],
    }},
}  # fmt: skip


def spool(folder: Path) -> Spool:
    config = {"kinds": {"MEMORY2": 49, "CONCURRENT_KERNEL": 10}, "layouts": LAYOUTS}
    (folder / "config.json").write_text(json.dumps(config))
    return Spool(folder)


def allocation(correlation: int) -> bytes:
    return struct.pack("<4I3Q", 49, 1, 2, correlation, 1 << 40, 4096, 1000) + bytes(88)


def kernel(correlation: int, start: int = 5000, end: int = 6000) -> bytes:
    record = bytearray(216)
    struct.pack_into("<I", record, 0, 10)
    struct.pack_into("<QQ", record, 16, start, end)
    struct.pack_into("<I", record, 92, correlation)
    return bytes(record)


def test_records_of_several_kinds_in_one_buffer(tmp_path: Path) -> None:
    read = spool(tmp_path).decode(allocation(1) + kernel(2) + allocation(3))
    assert read["MEMORY2"]["correlation_id"].tolist() == [1, 3]
    assert read["MEMORY2"]["bytes"].tolist() == [4096, 4096]
    assert (read["CONCURRENT_KERNEL"]["end"] - read["CONCURRENT_KERNEL"]["start"]).tolist() == [1000]


def test_a_buffer_that_was_not_given_back_ends_with_its_last_record(tmp_path: Path) -> None:
    seen = spool(tmp_path)
    (tmp_path / "buffer.000000.done").write_bytes(allocation(1))
    (tmp_path / "buffer.000001").write_bytes(allocation(2) + kernel(3) + bytes(4096))
    assert [list(buffer) for buffer in seen.take()] == [["MEMORY2"]]
    assert [list(buffer) for buffer in seen.take(ended=True)] == [["MEMORY2", "CONCURRENT_KERNEL"]]
    assert seen.unreadable_bytes == 0
    assert not list(tmp_path.glob("buffer.*"))


def test_a_buffer_that_is_given_back_while_it_is_taken_is_taken_once(tmp_path: Path) -> None:
    """Of a process that outlives the program."""
    seen = spool(tmp_path)
    for number in range(3):
        (tmp_path / f"buffer.00000{number}").write_bytes(allocation(number))
    taken = []
    for left, buffer in zip((2, 1, 0), seen.take(ended=True), strict=True):
        assert len(list(tmp_path.glob("buffer.*"))) == left  # who keeps it may need the room
        taken += buffer["MEMORY2"]["correlation_id"].tolist()
        for path in tmp_path.glob("buffer.00000?"):
            path.rename(f"{path}.done")
    assert taken == [0, 1, 2]


def test_a_fault_that_could_not_be_written_is_one_all_the_same(tmp_path: Path) -> None:
    seen = spool(tmp_path)
    assert seen.said("fault") is None
    (tmp_path / "fault").touch()
    assert seen.said("fault") == "the reason could not be written"


def test_what_stands_behind_a_record_of_unknown_length_is_counted_as_lost(tmp_path: Path) -> None:
    seen = spool(tmp_path)
    unknown = struct.pack("<I", 99) + bytes(60)
    assert seen.decode(allocation(1) + unknown + allocation(2))["MEMORY2"]["correlation_id"].tolist() == [1]
    assert seen.unreadable_bytes == len(unknown) + len(allocation(2))


def test_a_stack_that_was_half_written_is_left_out(tmp_path: Path) -> None:
    seen = spool(tmp_path)
    (tmp_path / "stacks").write_text('[1, [["a.py", 1, "f"]]]\n[2, [["b.py", 2')
    assert seen.stacks() == [[("a.py", 1, "f")]]


def test_calls_come_in_the_order_of_their_numbers_without_unused_places(tmp_path: Path) -> None:
    later, earlier = (9, 277, 1, 2, 3, 1000, 2000), (7, 276, 1, 1, 0, 100, 200)
    (tmp_path / "calls.000000").write_bytes(ENTRY.pack(*later) + bytes(ENTRY.size) + ENTRY.pack(*earlier))
    assert spool(tmp_path).calls().tolist() == [earlier, later]


def test_a_call_during_which_the_clock_was_set_back_took_no_time(tmp_path: Path) -> None:
    (tmp_path / "calls.000000").write_bytes(ENTRY.pack(7, 276, 1, 1, 0, 1000, 200))
    assert spool(tmp_path).calls().tolist() == [(7, 276, 1, 1, 0, 1000, 1000)]


def test_room_that_calls_have_not_taken_yet_is_no_record(tmp_path: Path) -> None:
    """Each of many processes may make one call only."""
    seen = spool(tmp_path)
    assert seen.least_calls == 0
    for number in range(3):
        (tmp_path / f"calls.{number:06d}").write_bytes(bytes(100 * ENTRY.size))
        assert seen.least_calls == 100 * number


# Records that are moved out of a spool


@contextmanager
def files_of_at_most(size: int) -> Iterator[None]:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def record_files(folder: Path) -> tuple[Spool, RecordFiles]:
    (folder / "spool").mkdir()
    seen = spool(folder / "spool")
    return seen, RecordFiles(seen, folder)


def test_a_buffer_for_which_there_is_no_room_stays_and_is_kept_once_later(tmp_path: Path) -> None:
    seen, files = record_files(tmp_path)
    allocations = b"".join(allocation(number) for number in range(100))
    (seen.folder / "buffer.000000.done").write_bytes(kernel(1) + allocations)
    with files_of_at_most(1000), pytest.raises(OSError, match="File too large"):
        files.take()
    assert [len(files.table(name)) for name in ("kernels", "allocations")] == [0, 0]
    files.take()
    assert len(files.table("kernels")) == 1
    assert files.table("allocations")["correlation_id"].tolist() == list(range(100))
    assert files.records == 101


def test_no_end_is_before_its_start_and_a_kernel_that_cupti_could_not_time_is_left_out(tmp_path: Path) -> None:
    seen, files = record_files(tmp_path)
    untimed = kernel(1, 0, 0) + kernel(2, 0, 60)
    (seen.folder / "buffer.000000.done").write_bytes(untimed + kernel(3, 50, 20) + kernel(4, 50, 60) + kernel(5, 50, 0))
    files.take()
    assert files.table("kernels")["start"].tolist() == [50] * 3
    assert files.table("kernels")["end"].tolist() == [50, 60, 0]
