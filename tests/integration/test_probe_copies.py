"""Copies of one process counted from outside by real uprobes, on a stand-in for the driver's library.

Skipped, with the reason, where the kernel or this user lacks what the probe needs.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from pinscope.live.tracker import Tracker
from pinscope.records.registration import Copies
from tests.data.fake_driver import Program, build, left_by, tracing

MIB = 2**20


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("driver"))


@pytest.fixture(scope="module")
def program(library: Path) -> Iterator[Program]:
    """One that runs before the probe starts."""
    with Program(library) as running:
        yield running


@pytest.fixture(scope="module")
def tracker(library: Path, program: Program) -> Iterator[Tracker]:
    with tracing() as folder:
        with Tracker(libraries=[library], copies_of=[program.pid]) as running:
            yield running
        assert left_by(os.getpid(), folder) == set()


def counted(tracker: Tracker, program: Program) -> Copies:
    return tracker.registered().copies[program.pid]


def rows(copies: Copies) -> set[tuple[str, str, str, int, int, int]]:
    return {(each.call, each.direction, each.memory, each.most_bytes, each.count, each.bytes) for each in copies.sums}


def new(tracker: Tracker, program: Program, before: Copies) -> set[tuple[str, str, str, int]]:
    """Calls, directions, kinds of memory and bytes since then."""
    now = counted(tracker, program)
    was = {row[:4]: row[5] for row in rows(before)}
    more = {(*row[:3], row[5] - was.get(row[:4], 0)) for row in rows(now)}
    return {row for row in more if row[3]}


def test_copies_are_counted_to_the_byte_by_call_direction_size_and_memory(tracker: Tracker, program: Program) -> None:
    before = counted(tracker, program)
    gpu, pageable, pinned = program.does("gpu", MIB), program.does("map", MIB), program.does("alloc", MIB, 0)
    program.does("h2d", gpu, pinned + 10, 3000)
    program.does("h2d", gpu, pageable, 5000)
    program.does("d2h", pageable + 99, gpu, 70000)
    program.does("any", gpu + 4096, pinned, 7)
    program.does("any", pageable, gpu, 9)
    program.does("any", pageable, pinned, 11)  # not over the link
    program.does("any", gpu, gpu, 13)
    assert new(tracker, program, before) == {
        ("cuMemcpyHtoD_v2", "h2d", "pinned", 3000),
        ("cuMemcpyHtoD_v2", "h2d", "unknown", 5000),
        ("cuMemcpyDtoHAsync_v2_ptsz", "d2h", "unknown", 70000),
        ("cuMemcpyAsync", "h2d", "pinned", 7),
        ("cuMemcpyAsync", "d2h", "unknown", 9),
    }
    copies = counted(tracker, program)
    assert (copies.to_gpu_bytes, copies.from_gpu_bytes, copies.pinned_bytes) == (8007, 70009, 3007)
    assert (copies.uncounted_calls, copies.lost_calls) == (0, 0)
    program.does("2d", gpu, pinned, 5)
    assert counted(tracker, program).uncounted_calls == 1


def test_memory_is_pinned_while_it_is(tracker: Tracker, program: Program) -> None:
    before, gpu, memory = counted(tracker, program), program.does("gpu", MIB), program.does("map", MIB)
    program.does("h2d", gpu, memory, 100)
    program.does("register", memory, 8192, 0)
    program.does("h2d", gpu, memory, 1000)
    program.does("unregister", memory)
    program.does("h2d", gpu, memory, 300)
    assert {row[2:] for row in new(tracker, program, before)} == {("unknown", 100), ("pinned", 1000), ("unknown", 300)}


def test_another_process_is_not_counted_and_pays_nothing(tracker: Tracker, program: Program, library: Path) -> None:
    before = rows(counted(tracker, program))
    with Program(library) as other:
        assert b"\xcc" not in first_bytes(other)
        other.does("h2d", 4096, other.does("map", MIB), 4096)
    assert rows(counted(tracker, program)) == before


def first_bytes(program: Program) -> bytes:
    """Of the function cuMemcpyHtoD_v2, as it stands in the program's memory; the kernel's breakpoint is 0xcc on x86."""
    raise NotImplementedError


def test_what_comes_faster_than_it_can_be_read_is_lost_and_said(tracker: Tracker, program: Program) -> None:
    del tracker, program
    time.sleep(0)
