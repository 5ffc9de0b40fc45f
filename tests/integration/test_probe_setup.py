"""Setting the probe on the driver's library, and taking it away: after crashes, twice, again, where it cannot be."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pytest

from pinscope.errors import NotPossible
from pinscope.live.source import LiveSource, snapshot
from pinscope.live.tracker import Tracker
from pinscope.probes.tracefs import TraceInstance
from tests.data.fake_driver import LIBRARY, Program, build, left_by
from tests.data.waiting import until

MIB = 2**20


@pytest.fixture(autouse=True)
def _leaves_no_probe_behind(kernel: Path) -> Iterator[None]:
    yield
    assert left_by(os.getpid(), kernel) == set()


def test_events_that_came_too_fast_are_counted_as_lost(driver: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pinscope.live.tracker.READ_SECONDS", 3600.0)
    monkeypatch.setattr("pinscope.probes.tracefs._buffer_kib", lambda: 8)
    with Tracker(libraries=[driver]) as tracker, Program(driver) as program:
        program.does("register", program.does("map", MIB), MIB, 0)
        program.does("pairs", 5000)
        registrations = tracker.registered()
        assert registrations.lost_events > 0
        # Each call has two events, and one that lost either is not counted.
        assert registrations.by_pid[program.pid].calls < 5001
        holders = snapshot(registrations=registrations).holders
        holder = next(holder for holder in holders if holder.pid == program.pid)
        assert "too fast" in holder.estimates["registered_bytes"].text


def test_stopped_and_started_again_it_begins_anew_and_what_was_pinned_before_is_unknown(driver: Path) -> None:
    tracker = Tracker(libraries=[driver])
    with Program(driver) as program:
        place = program.does("map", MIB)
        for from_start in (True, False):
            tracker.start()
            tracker.start()  # the second changes nothing
            assert program.pid not in tracker.registered().by_pid
            if from_start:
                program.does("register", place, 5000, 0)
            else:
                program.does("unregister", place)
            known = tracker.registered().by_pid[program.pid]
            assert (known.from_start, known.registered_bytes) == (False, 5000 * from_start)
            tracker.stop()
            tracker.stop()
            with pytest.raises(NotPossible, match="does not run"):
                tracker.registered()


def test_a_live_source_starts_and_stops_the_probe_and_tells_if_its_trace_breaks_off(
    tmp_path: Path, kernel: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(self: TraceInstance, limit_seconds: float = 1.0) -> str:
        raise OSError(5, "Input/output error")

    driver = build(tmp_path)
    with LiveSource(tracker=Tracker(libraries=[driver])) as source, Program(driver) as program:
        driver.unlink()  # as when a package is updated: it is followed still
        program.does("register", program.does("map", MIB), 5000, 0)
        holder = next(holder for holder in source.take().holders if holder.pid == program.pid)
        assert holder.registered_bytes == 5000
        assert left_by(os.getpid(), kernel) != set()
        monkeypatch.setattr(TraceInstance, "read", fails)
        for _ in range(2):
            taken = source.take()
            holder = next(holder for holder in taken.holders if holder.pid == program.pid)
            assert holder.registered_bytes is None
            assert taken.probe is not None
            assert "Input/output error" in (taken.probe.trouble or "")


CHILD = """
import sys, time
from pathlib import Path
from pinscope.live.tracker import Tracker
tracker = Tracker(libraries=[Path(sys.argv[1])])
tracker.start()
print("runs", flush=True)
sys.stdin.read()
"""


def child_with_probe(driver: Path) -> subprocess.Popen[str]:
    child = subprocess.Popen(
        [sys.executable, "-c", CHILD, str(driver)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert child.stdout is not None
    assert child.stdout.readline() == "runs\n"
    return child


def test_two_processes_probe_at_once_and_what_a_killed_one_left_is_removed_by_the_next(
    driver: Path, kernel: Path
) -> None:
    killed, child = child_with_probe(driver), child_with_probe(driver)
    killed.kill()
    killed.communicate()
    assert left_by(killed.pid, kernel) != set()
    with Tracker(libraries=[driver]) as tracker, Program(driver) as program:
        assert left_by(killed.pid, kernel) == set()
        program.does("register", program.does("map", MIB), 5000, 0)
        known = tracker.registered().by_pid[program.pid]
        assert (known.registered_bytes, known.calls) == (5000, 1)
        assert left_by(child.pid, kernel) != set()
        child.communicate()  # it ends without stopping its tracker: that is done at exit
        assert left_by(child.pid, kernel) == set()
        program.does("register", program.does("map", MIB), 6000, 0)
        assert tracker.registered().by_pid[program.pid].registered_bytes == 11000


def test_a_stop_takes_the_probe_away_though_a_reading_hangs(
    driver: Path, kernel: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    goes_on, hangs = threading.Event(), threading.Event()

    def follow(*arguments: object) -> object:
        hangs.set()
        goes_on.wait(120)
        raise OSError(5, "Input/output error")

    tracker = Tracker(libraries=[driver])
    tracker.start()
    monkeypatch.setattr("pinscope.live.tracker._Session.update", follow)
    monkeypatch.setattr("pinscope.live.tracker.STOP_SECONDS", 0.1)
    monkeypatch.setattr("pinscope.live.sampler.STOP_SECONDS", 0.1)
    try:
        assert hangs.wait(60)
        tracker.stop()
        assert left_by(os.getpid(), kernel) == set()
        assert not goes_on.is_set()
    finally:
        goes_on.set()
    until(lambda: "pinscope-tracker" not in {thread.name for thread in threading.enumerate()})


def test_programs_of_an_installed_library_that_cannot_be_probed_are_not_followed(
    tmp_path: Path, driver: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    odd = build(tmp_path)
    adds = TraceInstance.add_group

    def refuses(self: TraceInstance, number: int, lines: Callable[[str], Iterable[str]]) -> str:
        if number > 0:  # that of the second library
            raise OSError(5, "Input/output error")
        return adds(self, number, lines)

    monkeypatch.setattr(TraceInstance, "add_group", refuses)
    with Tracker(libraries=[driver, odd]) as tracker, Program(odd) as program:
        program.does("register", program.does("map", MIB), 5000, 0)
        until(lambda: program.pid in tracker.registered().not_followed)
        registrations = tracker.registered()
        assert program.pid not in registrations.by_pid
        assert "does not take probes" in registrations.not_followed[program.pid]


def test_a_library_without_the_calls_is_refused_and_named(tmp_path: Path) -> None:
    libc = next(line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines() if "/libc." in line)
    (tmp_path / LIBRARY).write_bytes(Path(libc).read_bytes())
    with pytest.raises(NotPossible, match="exports none of the driver's calls that pin memory"):
        Tracker(libraries=[tmp_path / LIBRARY]).start()
    (tmp_path / LIBRARY).write_bytes(b"text")
    with pytest.raises(NotPossible, match="is not a shared library for"):
        Tracker(libraries=[tmp_path / LIBRARY]).start()


def test_a_host_without_the_library_is_refused() -> None:
    with pytest.raises(NotPossible, match=r"no libcuda\.so\.1 on this host"):
        Tracker(libraries=[]).start()
