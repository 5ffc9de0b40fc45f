"""Every figure of a headline has a key that stays the same, so that a program finds it again in the next run."""

from __future__ import annotations

import re

import pytest

from pinscope.experiments.registry import read_run
from pinscope.records.run import Run
from pinscope.store.bundle import recorded_observations, recorded_runs, recording_name


def keys(run: Run) -> list[str | None]:
    return [quantity.key for quantity in read_run(run, recorded_observations(run.id)).headline]


@pytest.mark.parametrize("run", recorded_runs(), ids=recording_name)
def test_each_figure_has_a_key_of_its_own(run: Run) -> None:
    made = keys(run)
    assert made
    assert len(set(made)) == len(made)
    assert [key for key in made if not re.fullmatch(r"[a-z0-9_]+(\.[a-z0-9_]+)*", key or "")] == []


def test_two_recordings_of_an_experiment_have_the_same_keys() -> None:
    by_name = {recording_name(run): keys(run) for run in recorded_runs()}
    both = [name for name in by_name if name.endswith("-h100") and f"{name.removesuffix('h100')}h200" in by_name]
    assert len(both) == 3
    for name in both:
        assert by_name[name] == by_name[f"{name.removesuffix('h100')}h200"]


@pytest.mark.parametrize(
    "run", [run for run in recorded_runs() if run.experiment in ("bandwidth", "staging", "scatter")], ids=recording_name
)
def test_neither_a_size_nor_a_measured_value_is_in_a_key(run: Run) -> None:
    larger = [
        {
            name: value * 8
            if value and not isinstance(value, bool | str) and name.endswith(("bytes", "seconds"))
            else value
            for name, value in row.items()
        }
        for row in recorded_observations(run.id)
    ]
    read, again = read_run(run, recorded_observations(run.id)).headline, read_run(run, larger).headline
    assert [quantity.key for quantity in again] == [quantity.key for quantity in read]
    assert [(quantity.name, quantity.value) for quantity in again] != [(each.name, each.value) for each in read]
