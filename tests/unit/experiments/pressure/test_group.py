"""pressure in a control group, on the host model: its budget, a real group filled, and that nothing of it is left."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from pinscope.errors import Cancelled, MeasurementFailed, NotPossible
from pinscope.experiments.contract import budget_of
from pinscope.experiments.pressure import experiment as pressure
from pinscope.experiments.pressure.experiment import SMALLEST_GROUP, Pressure, PressureParams
from pinscope.experiments.pressure.reading import Climb, Mark, courses
from pinscope.lab.cgroup_sandbox import CgroupSandbox, find_place
from pinscope.lab.harness import Harness, check_budget
from pinscope.lab.hostmodel import HostModelLab
from pinscope.probes.proc import Answer
from pinscope.records.environment import Limits
from tests.data import synthetic

MIB, GIB = 2**20, 2**30
MODULES = ("pinscope.experiments.pressure.ways", "pinscope.lab.child_processes")
PLACE = find_place()
needs_a_group = pytest.mark.skipif(PLACE.value is None, reason=PLACE.reason or "")


def off(mark: Mark, expected: int | None) -> int:
    """By how many bytes what was expected lies outside the two steps."""
    return 0 if expected is None else max(mark.below_bytes - expected, expected - mark.bytes, 0)


def params(quick: bool = True, **overrides: object) -> PressureParams:
    chosen = {"group": "limited", **overrides}
    return PressureParams.preset("host", quick).with_overrides(chosen)


def small(**overrides: object) -> PressureParams:
    return params(**{"limit": SMALLEST_GROUP, "step": 0.05, "step_seconds": 0.02, **overrides})


def fill(chosen: PressureParams, at: Callable[[str], None] = lambda _: None, **harness: Any) -> tuple[Climb, list[str]]:
    """A group filled, and notes."""
    notes: list[str] = []
    with HostModelLab() as lab:
        turns = Harness(report=lambda _, message: at(message), note=notes.append, **harness)
        (climb,) = courses([row.model_dump() for row in Pressure().measure(chosen, lab, turns)])
    assert isinstance(climb, Climb)
    return climb, notes


def left() -> list[object]:
    """Groups and processes of this test's."""
    assert PLACE.value is not None
    groups = [path for path in Path(PLACE.value[1]).iterdir() if path.name.startswith(f"pinscope-{os.getpid()}-")]
    return [*groups, *workers()]


def workers(of: int | None = None) -> list[psutil.Process]:
    """The run's own processes are direct children; below a browser's processes end at any moment."""
    return [child for child in psutil.Process(of).children() if any(word in MODULES for word in said(child))]


def said(process: psutil.Process) -> list[str]:
    """Its command line; none of one that has just ended."""
    try:
        return process.cmdline()
    except (psutil.NoSuchProcess, psutil.ZombieProcess):
        return []


@pytest.mark.parametrize(("quick", "seconds"), [(True, 10), (False, 80)])
def test_presets_fit_a_machine_of_24_gib(monkeypatch: pytest.MonkeyPatch, quick: bool, seconds: float) -> None:
    monkeypatch.setattr(pressure, "find_place", lambda: Answer(("cgroup2", "/sys/fs/cgroup")))
    fields = {"host_total_bytes": 24 * GIB, "host_available_bytes": 24 * GIB}
    limits = Limits.model_validate({
        **fields, "cgroup_headroom_bytes": None, "memlock_headroom_bytes": None, "shm_free_bytes": None,
    })  # fmt: skip
    chosen = params(quick)
    budget = budget_of(Pressure(), chosen, synthetic.environment(0))
    check_budget(budget, limits, None, "host")
    assert budget.pinned_bytes == chosen.limit
    assert budget.seconds < seconds


def test_without_a_place_for_a_group_it_says_what_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pressure, "find_place", lambda: Answer.missing("no control group; run it as root"))
    with pytest.raises(NotPossible, match="run it as root"):
        budget_of(Pressure(), params(), synthetic.environment(0))


@needs_a_group
def test_a_group_is_filled_until_the_ordinary_process_is_killed_and_nothing_is_left() -> None:
    climb, notes = fill(small(swap="without,with"))
    killed = climb.kill
    assert killed is not None
    assert off(killed, climb.expected_kill) <= 0.05 * climb.limit
    assert climb.ended is not None
    assert climb.ended.at_end("kills") == 1
    assert climb.charged["registered"][1] == pytest.approx(climb.charged["registered"][0], rel=0.05)
    assert climb.gone is True
    assert left() == []
    assert any("swap" in note for note in notes) == (psutil.swap_memory().total == 0)


@needs_a_group
def test_cancelling_it_and_a_child_that_dies_leave_nothing() -> None:
    stop: list[bool] = []
    with pytest.raises(Cancelled):
        fill(small(), at=lambda message: stop.append("pinned" in message), cancelled=lambda: any(stop))
    assert left() == []

    def kill_outside(message: str) -> None:
        if "pinned" in message:
            min(workers(), key=lambda child: child.pid).kill()

    with pytest.raises(MeasurementFailed, match="the ordinary process outside the group was killed by SIGKILL"):
        fill(small(), at=kill_outside)
    assert left() == []


@needs_a_group
def test_of_a_run_that_is_killed_the_processes_end_and_the_next_run_removes_the_group(
    place_apart: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A runner that is killed cannot tidy up: the kernel ends its children, and the group says whose it was."""
    monkeypatch.setattr("pinscope.lab.cgroup_sandbox.find_place", lambda: Answer(place_apart))
    read, write = os.pipe()

    def stand_still(message: str) -> None:
        if "pinned" in message:
            os.write(write, b"1")
            time.sleep(600)

    runner = os.fork()
    if runner == 0:  # pragma: no cover - the other process
        try:
            fill(small(), at=stand_still)
        finally:
            os._exit(1)
    assert os.read(read, 1) == b"1"
    children = workers(runner)
    assert len(children) == 3
    os.kill(runner, signal.SIGKILL)
    os.waitpid(runner, 0)
    os.close(read)
    os.close(write)
    _, alive = psutil.wait_procs(children, 30)
    assert alive == []
    (group,) = Path(place_apart[1]).glob(f"pinscope-{runner}-*")
    with CgroupSandbox(SMALLEST_GROUP):
        assert not group.exists()
