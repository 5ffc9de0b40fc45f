"""Copies of one process counted from outside by real uprobes, on a stand-in for the driver's library.

Skipped, with the reason, where the kernel or this user lacks what the probe needs.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from pinscope.live.tracker import Tracker
from pinscope.probes.copy_calls import COPY_CALLS, CopyProbe
from pinscope.probes.elf import function_offsets
from pinscope.records.registration import Copies
from tests.data.fake_driver import Program, is_probed, left_by, tracing

MIB = 2**20
SMALL = 2**16
"""Bytes of a ring."""


@pytest.fixture(scope="module")
def program(driver: Path) -> Iterator[Program]:
    """One that runs before the probe starts."""
    with Program(driver) as running:
        yield running


@pytest.fixture(scope="module")
def tracker(driver: Path, program: Program) -> Iterator[Tracker]:
    with tracing() as folder:
        with Tracker(libraries=[driver], copies_of=[program.pid]) as running:
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
    program.tries("thread\nh2d", gpu, pinned, 1)
    assert new(tracker, program, before) == {
        ("cuMemcpyHtoD_v2", "h2d", "pinned", 3000),
        ("cuMemcpyHtoD_v2", "h2d", "pinned", 1),
        ("cuMemcpyHtoD_v2", "h2d", "unknown", 5000),
        ("cuMemcpyDtoHAsync_v2_ptsz", "d2h", "unknown", 70000),
        ("cuMemcpyAsync", "h2d", "pinned", 7),
        ("cuMemcpyAsync", "d2h", "unknown", 9),
    }
    copies = counted(tracker, program)
    assert (copies.to_gpu_bytes, copies.from_gpu_bytes, copies.pinned_bytes) == (8008, 70009, 3008)
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


def test_another_process_is_not_counted_and_has_no_probes(tracker: Tracker, program: Program, driver: Path) -> None:
    before = rows(counted(tracker, program))
    with Program(driver) as other:
        assert not is_probed(other.pid, driver)
        other.does("h2d", 4096, other.does("map", MIB), 4096)
    assert rows(counted(tracker, program)) == before
    assert is_probed(program.pid, driver)


@contextmanager
def probe(program: Program, driver: Path) -> Iterator[CopyProbe]:
    with driver.open("rb") as file:
        offsets = function_offsets(file.fileno(), COPY_CALLS, os.uname().machine).value
    assert offsets
    with tracing(), closing(CopyProbe([program.pid], ring_bytes=SMALL)) as opened:
        opened.add(str(driver), offsets)
        yield opened


def test_more_calls_than_the_ring_takes_are_lost_and_said_and_after_the_end_nothing_is_left(driver: Path) -> None:
    room, more = SMALL // 48, 100
    with Program(driver) as program:
        with probe(program, driver) as opened:
            program.does("many", room + more, 512)
            assert (len(opened.read().calls), opened.lost_calls()) == (room, more)
            program.does("many", more, 512)
            assert (len(opened.read().calls), opened.lost_calls()) == (more, more)
            assert is_probed(program.pid, driver)
        assert not is_probed(program.pid, driver)


def test_a_process_that_has_ended_is_no_trouble(driver: Path) -> None:
    with Program(driver) as program:
        program.kill()
        with probe(program, driver) as opened:
            assert opened.read().calls == []
