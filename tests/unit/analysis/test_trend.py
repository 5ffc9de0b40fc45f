"""Steps of a figure over runs: planted ones are named with run, size and key; equal runs have none."""

from __future__ import annotations

import math
from random import Random

import pytest

from pinscope.analysis.trend import LEAST_RUNS, Trend, series_key, steps, verdict
from pinscope.records.run import Run, quantity
from tests.unit.store.runs import new_run

FIGURE = quantity("Pinned, to GPU", 55e9, "bytes/second", key="pinned.h2d.rate")
MANY = 30
OFF = 0.007
"""Standard deviation between runs of a pinned copy, the most that was seen on an H100."""


def series(seed: int, count: int = MANY, step: float = 1.0, at: int = 20, off: float = OFF) -> list[float]:
    """Rates of runs that differ by chance, and from one on by a factor too."""
    random = Random(seed)
    return [55e9 * math.exp(off * random.gauss(0, 1)) * (step if place >= at else 1.0) for place in range(count)]


def run_with(driver: str) -> Run:
    run = new_run(status="done")
    return run.model_copy(update={"environment": run.environment.model_copy(update={"driver": driver})})


def trend(values: list[float], at: int) -> Trend:
    """Of a machine whose driver was changed there."""
    return Trend(FIGURE, [run_with("580.1" if place < at else "590.2") for place in range(len(values))], values)


def test_a_step_is_named_with_its_run_its_size_and_what_changed_there() -> None:
    made = trend(series(1, step=0.82), 20)
    (step,) = made.steps
    assert (step.place, step.run) == (20, made.runs[20])
    assert step.ratio == pytest.approx(0.82, rel=0.01)
    assert [(key.key, key.a, key.b) for key in step.changed] == [("driver", "580.1", "590.2")]
    assert "driver 580.1 → 590.2" in verdict(made)


def test_a_change_of_the_machine_alone_is_no_step() -> None:
    found = trend(series(2), 20)
    assert found.steps == []
    assert f"no step in {MANY} runs" in verdict(found)


def test_one_run_that_is_off_is_no_step() -> None:
    values = series(3)
    values[14] *= 0.3
    assert steps(values) == []


def test_the_last_three_of_thirty_runs_are_a_step() -> None:
    assert steps(series(4, step=0.7, at=27)) == [27]


def test_a_step_and_back_are_two() -> None:
    there = series(5, step=0.9, at=10)[:20]
    assert steps([*there, *series(6, count=12)]) == [10, 20]


def test_few_runs_have_no_step() -> None:
    few = LEAST_RUNS - 1
    found = trend(series(7, count=few, step=0.5, at=4), 4)
    assert found.steps == []
    assert f"in {few} runs: it takes {LEAST_RUNS}" in verdict(found)


def test_nothing_or_less_is_a_figure_too() -> None:
    assert steps([0.0] * 10 + [5.0] * 10) == [10]


def test_equal_values_have_no_step() -> None:
    found = trend([1.0] * 12, 99)
    assert found.steps == []


def test_runs_of_other_parameters_or_machines_are_another_series() -> None:
    run = new_run()
    elsewhere = run.environment.model_copy(update={"machine_id": "another"})
    assert series_key(new_run()) == series_key(run_with("590.2"))
    for other in ({"params": {"sizes": [1]}}, {"device": 1}, {"environment": elsewhere}):
        assert series_key(run.model_copy(update=other)) != series_key(run)


def test_of_many_series_the_planted_steps_are_named_and_hardly_others() -> None:
    assert sum(bool(steps(series(seed))) for seed in range(100, 200)) <= 5
    planted = [steps(series(seed, step=0.97)) for seed in range(100, 200)]
    assert sum(20 in places for places in planted) >= 95
    assert sum(places == [20] for places in planted) >= 93
