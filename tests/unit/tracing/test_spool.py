"""Buffers as CUPTI fills them: whole ones, one that a killed program left, and one of another version."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import numpy as np

from pinscope.tracing.spool import Spool

LAYOUTS = {
    "5": {"size": 40, "fields": {
        "kind": [0, "<i4"], "cbid": [4, "<u4"], "start": [8, "<u8"], "end": [16, "<u8"], "thread_id": [28, "<u4"],
        "correlation_id": [32, "<u4"], "return_value": [36, "<u4"],
    }},
    "10": {"size": 216, "fields": {
        "kind": [0, "<i4"], "start": [16, "<u8"], "end": [24, "<u8"], "device_id": [40, "<u4"],
        "stream_id": [48, "<u4"], "correlation_id": [92, "<u4"],
    }},
}  # fmt: skip


def spool(folder: Path) -> Spool:
    config = {"kinds": {"RUNTIME": 5, "CONCURRENT_KERNEL": 10}, "layouts": LAYOUTS}
    (folder / "config.json").write_text(json.dumps(config))
    return Spool(folder)


def call(correlation: int) -> bytes:
    return struct.pack("<IIQQIIII", 5, 41, 1000, 2000, 77, 78, correlation, 0)


def kernel(correlation: int) -> bytes:
    record = bytearray(216)
    struct.pack_into("<I", record, 0, 10)
    struct.pack_into("<QQ", record, 16, 5000, 6000)
    struct.pack_into("<I", record, 92, correlation)
    return bytes(record)


def test_records_of_several_kinds_in_one_buffer(tmp_path: Path) -> None:
    read = spool(tmp_path).decode(call(1) + kernel(2) + call(3))
    assert read["RUNTIME"]["correlation_id"].tolist() == [1, 3]
    assert read["RUNTIME"]["thread_id"].tolist() == [78, 78]
    assert (read["CONCURRENT_KERNEL"]["end"] - read["CONCURRENT_KERNEL"]["start"]).tolist() == [1000]


def test_a_buffer_that_was_not_given_back_ends_with_its_last_record(tmp_path: Path) -> None:
    seen = spool(tmp_path)
    (tmp_path / "buffer.000000.done").write_bytes(call(1))
    (tmp_path / "buffer.000001").write_bytes(call(2) + kernel(3) + bytes(4096))
    assert [list(buffer) for buffer in seen.take()] == [["RUNTIME"]]
    assert [list(buffer) for buffer in seen.take(ended=True)] == [["RUNTIME", "CONCURRENT_KERNEL"]]
    assert seen.unreadable_bytes == 0
    assert not list(tmp_path.glob("buffer.*"))


def test_what_stands_behind_a_record_of_unknown_length_is_counted_as_lost(tmp_path: Path) -> None:
    seen = spool(tmp_path)
    unknown = struct.pack("<I", 99) + bytes(60)
    assert seen.decode(call(1) + unknown + call(2))["RUNTIME"]["correlation_id"].tolist() == [1]
    assert seen.unreadable_bytes == len(unknown) + len(call(2))


def test_a_stack_that_was_half_written_is_left_out(tmp_path: Path) -> None:
    seen = spool(tmp_path)
    (tmp_path / "stacks").write_text('[1, [["a.py", 1, "f"]]]\n[2, [["b.py", 2')
    assert seen.stacks() == [[("a.py", 1, "f")]]


def test_calls_come_in_the_order_of_their_numbers_without_unused_places(tmp_path: Path) -> None:
    np.asarray([9, 2, 3, 0, 0, 0, 7, 1, 0], "<u4").tofile(tmp_path / "calls.000000")
    assert spool(tmp_path).calls().tolist() == [(7, 1, 0), (9, 2, 3)]
