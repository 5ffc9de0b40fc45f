"""How long a run is said to take, beside how long the recorded runs of real GPUs took."""

from __future__ import annotations

from collections import Counter

import pytest

from pinscope.experiments.contract import budget_of
from pinscope.experiments.dataloader import experiment as dataloader
from pinscope.experiments.pressure import experiment as pressure
from pinscope.experiments.registry import EXPERIMENTS
from pinscope.experiments.topology import experiment as topology
from pinscope.probes.proc import Answer
from pinscope.records.run import ExperimentRun, LabKind
from pinscope.store.recordings import recorded_runs
from tests.data import synthetic

RECORDED = [run for run in recorded_runs() if isinstance(run, ExperimentRun)]
BEGAN = Counter(run.created_at for run in RECORDED)
ALONE = [run for run in RECORDED if BEGAN[run.created_at] == 1]
"""Without those of two H200s: one run that measured more than an experiment does now was split into two recordings, and
each has the time of the whole."""
WITHIN = 0.3


@pytest.mark.parametrize("run", ALONE, ids=lambda run: f"{run.experiment}-{run.gpu.name}")
def test_a_run_is_said_to_take_as_long_as_the_recorded_one_took(
    run: ExperimentRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    for needs_torch in (dataloader, topology):
        monkeypatch.setattr(needs_torch, "find_spec", lambda name: name)
    monkeypatch.setattr(pressure, "find_place", lambda: Answer(("cgroup2", "/sys/fs/cgroup")))
    experiment = next(entry.experiment for entry in EXPERIMENTS if entry.name == run.experiment)
    fields = experiment.Params.model_fields  # a recorded run may have set what is fixed now
    given = {name: value for name, value in run.params.items() if name in fields}
    if "ways" in given:  # one that an earlier version measured is left out
        given["ways"] = [way for way in given["ways"] if way in experiment.Params.preset("cuda", quick=False).ways]
    if "hugetlb" in run.params.get("sharing", ()):
        given["all_devices"] = False  # of the host's two GPUs this run was given one
    later = {name: value for name, value in experiment.Params.preset("cuda", quick=False) if fields[name].is_required()}
    params = experiment.Params.model_validate(later | given)
    assert run.finished_at is not None
    took = (run.finished_at - run.created_at).total_seconds()
    said = budget_of(experiment, params, run.environment).seconds
    assert said == pytest.approx(took, rel=WITHIN), f"{said:.0f} s said, {took:.0f} s taken"
    assert budget_of(experiment, experiment.Params.preset("cuda", quick=True), run.environment).seconds < said / 2


@pytest.mark.parametrize(("lab", "most"), [("cuda", 90.0), ("host", 40.0)])
def test_all_quick_runs_together_are_said_to_take_a_minute_and_a_half_at_most_and_less_without_a_gpu(
    lab: LabKind, most: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dataloader, "find_spec", lambda name: name)
    environment = synthetic.environment(devices=int(lab == "cuda"))
    here = [entry.experiment for entry in EXPERIMENTS if entry.experiment.labs[lab] is None]
    said = [budget_of(one, one.Params.preset(lab, quick=True), environment).seconds for one in here]
    assert sum(said) < most


def test_every_experiment_has_a_recording_to_compare_with() -> None:
    assert {run.experiment for run in RECORDED} == {entry.name for entry in EXPERIMENTS}
