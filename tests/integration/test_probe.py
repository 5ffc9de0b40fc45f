"""Registered memory followed by real uprobes: on a stand-in for the driver's library, with programs that use it.

Skipped, with the reason, where the kernel or this user lacks what the probe needs.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from pinscope.errors import NotPossible
from pinscope.live.source import snapshot
from pinscope.live.tracker import Tracker
from pinscope.probes.uprobes import ANOTHER_COPY
from pinscope.records.registration import PidRegistrations
from tests.data.fake_driver import Program, build, left_by
from tests.data.waiting import until

MIB = 2**20
PAGE = os.sysconf("SC_PAGE_SIZE")
SLOW = 0x100
"""Flag by which the stand-in takes 50 ms."""
WRITE_COMBINED = 0x04
TICK_SECONDS = 0.05
"""More than the kernel's clock of process starts counts in."""


@pytest.fixture(scope="module")
def tracker(driver: Path, kernel: Path) -> Iterator[Tracker]:
    """One for all: setting probes and removing them takes the kernel a second."""
    with Tracker(libraries=[driver]) as running:
        time.sleep(TICK_SECONDS)
        yield running
    assert left_by(os.getpid(), kernel) == set()


@pytest.fixture
def program(driver: Path, tracker: Tracker) -> Iterator[Program]:
    with Program(driver) as running:
        yield running


def registrations_of(tracker: Tracker, program: Program) -> PidRegistrations:
    return tracker.registered().by_pid[program.pid]


def test_registered_memory_is_known_to_the_byte_by_pid_address_and_duration(tracker: Tracker, program: Program) -> None:
    place = program.does("map", MIB) + 10
    before = time.time()
    program.does("register", place, 8000, SLOW)
    known = registrations_of(tracker, program)
    (piece,) = known.pieces
    assert (piece.kind, piece.address, piece.bytes, piece.flags) == ("register", place, 8000, SLOW)
    assert 0.05 <= piece.seconds < 5
    assert before - 1 < piece.since.timestamp() < time.time() + 1
    assert (known.registered_bytes, known.registrations, known.pinned_registered_bytes) == (8000, 1, 2 * PAGE)
    assert (known.name, known.from_start, known.calls) == ("program", True, 1)
    program.does("unregister", place)
    known = registrations_of(tracker, program)
    assert (known.registered_bytes, known.pieces) == (0, ())


@pytest.mark.parametrize(
    ("words", "kind"),
    [
        (("alloc", 5 * MIB + 1, 0), "alloc"),
        (("alloc", 3000, 0), "alloc"),
        (("local", 5 * MIB, 0), "alloc"),
        (("local", 3000, 0), "alloc"),
        (("alloc", 5 * MIB, WRITE_COMBINED), "write_combined"),
    ],
)
def test_allocated_memory_is_known_with_its_address_and_goes_when_it_is_freed(
    tracker: Tracker, program: Program, words: tuple[str | int, ...], kind: str
) -> None:
    address = program.does(*words)
    (piece,) = registrations_of(tracker, program).pieces
    assert (piece.kind, piece.address, piece.bytes) == (kind, address, words[1])
    program.does("free", address)
    assert registrations_of(tracker, program).pieces == ()


def test_where_no_address_can_be_found_the_size_counts_until_a_release(tracker: Tracker, program: Program) -> None:
    old = program.does("old", 5 * MIB)
    assert [(piece.address, piece.bytes) for piece in registrations_of(tracker, program).pieces] == [(None, 5 * MIB)]
    program.does("free", old)
    small = [program.does("far", 3000, 0), program.does("far", 3000, 0)]
    assert [(piece.address, piece.bytes) for piece in registrations_of(tracker, program).pieces] == [(None, 3000)] * 2
    program.does("free", small[1])
    assert [(piece.address, piece.bytes) for piece in registrations_of(tracker, program).pieces] == [(None, 3000)]


def test_two_processes_at_once_are_told_apart_and_so_are_their_threads(tracker: Tracker, driver: Path) -> None:
    with Program(driver) as first_program, Program(driver) as second_program:
        first, second = first_program.does("map", MIB), second_program.does("map", MIB)
        first_program.does("register", first, 5000, 0)
        assert first_program.tries("thread\nregister", first + 8192, 7000, 0)[0] == 0
        second_program.does("register", second, 9000, 0)
        by_pid = tracker.registered().by_pid
        assert [piece.bytes for piece in by_pid[first_program.pid].pieces] == [5000, 7000]  # oldest first
        assert [piece.address for piece in by_pid[second_program.pid].pieces] == [second]


def test_failed_calls_pin_nothing(tracker: Tracker, program: Program) -> None:
    place = program.does("map", MIB)
    program.does("register", place, 5000, 0)
    for _ in range(2):
        assert program.tries("register", place, 5000, 0)[0] == 712
    assert program.tries("unregister", place + PAGE)[0] == 713
    assert program.tries("alloc", 0, 0)[0] == 1
    known = registrations_of(tracker, program)
    assert known.registered_bytes == 5000


def test_a_process_killed_while_it_holds_drops_out(tracker: Tracker, program: Program) -> None:
    program.does("register", program.does("map", MIB), 5000, 0)
    assert registrations_of(tracker, program).registered_bytes == 5000
    program.kill()
    assert program.pid not in tracker.registered().by_pid


def test_a_forked_child_holds_nothing_and_another_program_in_its_place_neither(
    tracker: Tracker, program: Program
) -> None:
    program.does("register", program.does("map", MIB), 5000, 0)
    child = program.does("fork")
    assert {program.pid, child} & set(tracker.registered().by_pid) == {program.pid}
    os.kill(child, signal.SIGKILL)
    program.tries("exec")
    assert tracker.registered().by_pid.get(program.pid, PidRegistrations(pid=0, name="")).registered_bytes == 0
    program.does("register", program.does("map", MIB), 6000, 0)
    assert registrations_of(tracker, program).registered_bytes == 6000


def test_a_context_that_ended_is_noted(tracker: Tracker, program: Program) -> None:
    program.does("register", program.does("map", MIB), 5000, 0)
    assert registrations_of(tracker, program).context_ended_at is None
    program.does("reset")
    known = registrations_of(tracker, program)
    assert known.context_ended_at is not None
    assert known.context_ended_at > known.pieces[0].since


def test_a_program_in_another_language_is_followed(tracker: Tracker, driver: Path) -> None:
    code = (
        "import ctypes, sys; driver = ctypes.CDLL(sys.argv[1]); place = ctypes.c_void_p()\n"
        "print(driver.cuMemHostAlloc(ctypes.byref(place), ctypes.c_size_t(3000), 0), place.value, flush=True)\n"
        "input(); print(driver.cuMemFreeHost(place), flush=True); input()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, str(driver)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        result, address = map(int, child.stdout.readline().split())
        (piece,) = tracker.registered().by_pid[child.pid].pieces
        assert (result, piece.bytes) == (0, 3000)
        assert piece.address in (address, None)
        child.stdin.write("\n")
        child.stdin.flush()
        assert child.stdout.readline() == "0\n"
        assert tracker.registered().by_pid[child.pid].pieces == ()
        child.communicate("\n")


def test_a_burst_of_calls_is_followed_to_the_last(tracker: Tracker, program: Program) -> None:
    place = program.does("map", MIB)
    program.does("register", place, 5000, 0)
    program.does("pairs", 5000)
    registrations = tracker.registered()
    known = registrations.by_pid[program.pid]
    assert (registrations.lost_events, known.calls, known.registered_bytes) == (0, 5001, 5000)


def test_a_snapshot_carries_what_the_probe_knows(tracker: Tracker, program: Program) -> None:
    place = program.does("map", 8 * MIB)
    program.does("register", place + 1, 4 * MIB, 0)
    program.does("register", place + 6 * MIB, 9000, 0)
    taken = snapshot(registrations=tracker.registered())
    holder = next(holder for holder in taken.holders if holder.pid == program.pid)
    assert (holder.registered_bytes, holder.registrations) == (4 * MIB + 9000, 2)
    assert "registered_bytes" not in holder.missing | holder.estimates
    assert taken.probe is not None
    assert taken.probe.lost_events == 0
    assert [copy.reason for copy in taken.probe.libraries] == [None]


def test_reading_costs_little(tracker: Tracker, program: Program) -> None:
    program.does("register", program.does("map", MIB), 5000, 0)
    tracker.registered()
    begun = time.thread_time()
    for _ in range(20):
        tracker.registered()
    assert (time.thread_time() - begun) / 20 < 0.005


def test_a_second_probe_in_one_process_is_refused_and_a_forked_child_leaves_its_parents_alone(
    tracker: Tracker, program: Program, driver: Path, kernel: Path
) -> None:
    with pytest.raises(NotPossible, match="has a probe already"):
        Tracker(libraries=[driver]).start()
    child = os.fork()
    if not child:
        tracker.stop()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert left_by(os.getpid(), kernel) != set()
    program.does("register", program.does("map", MIB), 5000, 0)
    assert registrations_of(tracker, program).registered_bytes == 5000


def test_moments_stay_on_one_scale_when_the_clock_is_set(
    tracker: Tracker, program: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(time, "time", lambda now=time.time: now() + 3600)
    program.does("register", program.does("map", MIB), 5000, 0)
    (piece,) = registrations_of(tracker, program).pieces
    assert 0 <= (piece.since - tracker.registered().since).total_seconds() < 600


def test_of_a_program_with_another_copy_it_is_said_that_it_is_not_followed(
    tmp_path: Path, tracker: Tracker, program: Program
) -> None:
    with Program(build(tmp_path)) as other:
        program.does("register", program.does("map", MIB), 5000, 0)
        other.does("register", other.does("map", MIB), 6000, 0)
        until(lambda: other.pid in tracker.registered().not_followed)
        registrations = tracker.registered()
        assert registrations.not_followed[other.pid] == ANOTHER_COPY
        assert program.pid not in registrations.not_followed
        assert other.pid not in registrations.by_pid
        assert registrations.by_pid[program.pid].registered_bytes == 5000
