"""pressure on the host model: its parameters and budget, a real run, and that it stops and tidies up by itself."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pinscope.errors import Cancelled, MeasurementFailed, NotEnoughMemory
from pinscope.experiments.contract import budget_of
from pinscope.experiments.pressure import experiment as pressure
from pinscope.experiments.pressure.experiment import Pressure, PressureObservation, PressureParams
from pinscope.lab.harness import Harness, check_budget
from pinscope.lab.hostmodel import HostModelLab
from pinscope.probes.host_memory import HostPressure
from pinscope.records.base import Budget
from pinscope.records.environment import Environment, Limits
from pinscope.runner.jobs import Request, prepare
from tests.data import synthetic
from tests.data.readings import As
from tests.unit.experiments.pressure.test_bystander import others

MIB, GIB = 2**20, 2**30
SMALL = {"cap": 64 * MIB, "steps": 2, "step_seconds": 0.05, "file": 8 * MIB, "floor": 64 * MIB}


def params(**overrides: object) -> PressureParams:
    return PressureParams.preset("host", True).with_overrides({**SMALL, **overrides})


def machine(**limits: Any) -> Environment:
    """A machine with these limits; 24 GiB available otherwise."""
    fields = {
        "host_total_bytes": 24 * GIB, "host_available_bytes": 24 * GIB, "cgroup_headroom_bytes": None,
        "memlock_headroom_bytes": None, "shm_free_bytes": None,
    }  # fmt: skip
    environment: Environment = synthetic.environment(0)
    return environment.model_copy(update={"limits": Limits.model_validate(fields | limits)})


def measure(
    chosen: PressureParams, at: Callable[[str], None] = lambda _: None, **harness: Any
) -> tuple[list[PressureObservation], list[str]]:
    """Rows and notes."""
    notes: list[str] = []
    with HostModelLab() as lab:
        turns = Harness(report=lambda _, message: at(message), note=notes.append, **harness)
        return list(Pressure().measure(chosen, lab, turns)), notes


# Parameters and budget


@pytest.mark.parametrize(("quick", "most", "seconds"), [(True, 2 * GIB, 10), (False, 8 * GIB, 60)])
def test_presets_stay_small_on_a_machine_of_24_gib(quick: bool, most: int, seconds: float) -> None:
    budget = budget_of(Pressure(), PressureParams.preset("host", quick), machine())
    assert most / 2 < budget.pinned_bytes <= most
    assert budget.seconds < seconds


def test_a_budget_is_never_more_than_is_safe() -> None:
    for available in [1.5 * GIB, 3 * GIB, 24 * GIB, 300 * GIB, 4096 * GIB]:
        for share in [0.3, 1.0]:
            for cgroup in (None, int(available / 2)):
                here = machine(host_available_bytes=int(available), cgroup_headroom_bytes=cgroup)
                small = {"floor": 64 * MIB, "file": 16 * MIB}
                chosen = PressureParams.preset("host", False).with_overrides({"share": share, "cap": "4TiB", **small})
                budget = budget_of(Pressure(), chosen, here)
                check_budget(budget, here.limits, None, "host")
                assert budget.pinned_bytes <= available / 2 * share
                full = budget_of(Pressure(), chosen.with_overrides({"cap": "16GiB"}), here)
                assert full.pinned_bytes <= 16 * GIB


def test_a_small_limit_on_locked_memory_makes_a_preset_smaller_and_says_so() -> None:
    run = prepare(Request("pressure", "host", quick=True), machine(memlock_headroom_bytes=600 * MIB))
    assert run.budget.pinned_bytes == 512 * MIB
    assert "Reduced to what is safe" in run.notes[0]
    assert "RLIMIT_MEMLOCK" in run.notes[0]


def test_a_machine_that_is_at_the_floor_already_is_told_before_anything_starts() -> None:
    for limits in ({"host_available_bytes": GIB}, {"cgroup_headroom_bytes": GIB}):
        with pytest.raises(NotEnoughMemory, match="less than the floor of 1 GiB; free memory, lower the floor"):
            prepare(Request("pressure", "host", quick=True), machine(**limits))


# A real run


def test_every_phase_has_rounds_and_readings_and_memory_is_locked_only_between() -> None:
    locked: list[int] = []

    def look(message: str) -> None:
        locked.append(_locked())

    rows, notes = measure(params(), look)
    stages = list(dict.fromkeys((row.phase, row.step) for row in rows))
    assert stages == [("before", 0), ("held", 1), ("held", 2), ("after", 0)]
    for stage in stages:
        mine = [row for row in rows if (row.phase, row.step) == stage]
        assert [row.moment for row in mine if row.kind == "host"] == ["begin", "end"]
        rounds = [row for row in mine if row.kind == "process"]
        assert len(rounds) >= 3
        assert all((row.fault_median_seconds or 0) > 0 for row in rounds)
        assert all(0 < (row.fault_pages or 0) <= 4096 for row in rounds)  # a busy machine leaves no time for all
    ends = [row.bytes for row in rows if row.moment == "end"]
    assert ends == [0, 32 * MIB, 64 * MIB, 0]
    assert max(locked) - locked[0] == 64 * MIB
    assert locked[-1] == locked[0]
    assert [row.warmup for row in rows if row.kind == "process"].count(True) == 1
    assert rows == sorted(rows, key=lambda row: row.elapsed_seconds)
    assert not any(row.floor_reached for row in rows)
    assert not any("Stopped" in note for note in notes)
    reading = As("pressure").read(synthetic.run("pressure", "host"), [row.model_dump() for row in rows])
    assert " MiB" in (reading.verdict or "")  # on a busy machine less than was locked: it tells what was slow
    assert reading.headline[0].value or reading.headline[0].reason  # what else goes on counts here


def _locked() -> int:
    """Bytes of this process that are locked."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmLck"))


def test_it_stops_by_itself_before_it_goes_below_the_floor(monkeypatch: pytest.MonkeyPatch) -> None:
    start, real = _locked(), pressure.read_pressure
    with HostModelLab():
        lab = _locked() - start

    def on_a_machine_of_1_gib() -> HostPressure:
        return replace(real(), available_bytes=GIB - (_locked() - start - lab), cgroup_headroom_bytes=None)

    monkeypatch.setattr(pressure, "read_pressure", on_a_machine_of_1_gib)
    rows, notes = measure(params(steps=4, floor=GIB - 40 * MIB))
    assert max(row.bytes for row in rows) == 32 * MIB  # a third step would leave 976 MiB, and the floor is 984
    assert (rows[-1].phase, rows[-1].bytes, rows[-1].floor_reached) == ("after", 0, True)
    (note,) = [note for note in notes if note.startswith("Stopped by itself")]
    assert note == (
        "Stopped by itself with 32 MiB pinned: 992 MiB was left, and the next step of 16 MiB would have gone below "
        "the floor of 984 MiB."
    )


def test_it_lets_go_within_a_step_when_others_take_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    real = pressure.read_pressure

    class Others:
        took = 0

    def with_others() -> HostPressure:
        read = real()
        return replace(read, available_bytes=max(read.available_bytes - Others.took, 0))

    def take(message: str) -> None:
        if message == "32 MiB pinned":
            Others.took = 2**50

    monkeypatch.setattr(pressure, "read_pressure", with_others)
    rows, notes = measure(params(step_seconds=0.4), take)
    assert max(row.bytes for row in rows) == 32 * MIB
    assert len([note for note in notes if "that is below the floor" in note]) == 1


def test_it_never_pins_more_than_the_budget_it_was_started_with() -> None:
    budget = Budget(pinned_bytes=40 * MIB, pageable_bytes=0, device_bytes=0, seconds=1)
    rows, _ = measure(params(), budget=budget)
    assert max(row.bytes for row in rows) == rows[0].target_bytes == 40 * MIB


def test_memory_that_went_since_the_start_ends_the_run_before_it_pins() -> None:
    budget = Budget(pinned_bytes=8 * MIB, pageable_bytes=0, device_bytes=0, seconds=1)
    with pytest.raises(NotEnoughMemory, match="only 8 MiB is safe to pin here now"):
        measure(params(), budget=budget)


def test_without_a_place_for_its_file_it_measures_the_rest_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pressure, "folder_for", lambda _: (None, "/tmp is in memory itself (tmpfs)"))
    rows, notes = measure(params(steps=1))
    assert all(row.file_bytes is None and row.read_bytes is None for row in rows)
    assert "Left out: reading a file. /tmp is in memory itself (tmpfs); TMPDIR names another folder." in notes


def test_a_process_that_dies_while_memory_is_held_ends_the_run_and_all_is_given_back() -> None:
    before = _locked()

    def kill(message: str) -> None:
        if message == "32 MiB pinned":
            others()[0].kill()

    with pytest.raises(MeasurementFailed, match="the ordinary process beside the run was killed by SIGKILL"):
        measure(params(), kill)
    assert others() == []
    assert _locked() == before


def test_cancelling_gives_all_of_it_back_at_once() -> None:
    before = _locked()

    class Asked:
        now = False

    def cancel(message: str) -> None:
        Asked.now = message == "64 MiB pinned"

    with pytest.raises(Cancelled):
        measure(params(step_seconds=0.4, steps=1), cancel, cancelled=lambda: Asked.now)
    assert others() == []
    assert _locked() == before
