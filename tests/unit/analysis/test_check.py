"""Baselines and what is worse than them: equal runs pass, planted slow-downs are named, one bad run is not blamed."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from pinscope.analysis.check import (
    Baseline,
    Checked,
    KeptRuns,
    baseline_of,
    check,
    deviation,
    lacking,
    least_change,
    parse_only,
    regression_words,
    runs_needed,
)
from pinscope.analysis.comparison import Measured
from pinscope.errors import BadInput
from pinscope.experiments.registry import measured_run
from pinscope.store.recordings import recorded_observations, recorded_runs
from tests.data.simulated_runs import Host, as_it_is
from tests.unit.store.runs import new_run

RUNS, AGAIN = 8, 2


def slow(memory: str, size: int) -> float:
    """Pinned copies take a fifth longer."""
    del size
    return 1.2 if memory == "pinned" else 1.0


def little(memory: str, size: int) -> float:
    """Pinned copies take 3 % longer: less than is asked about."""
    del size
    return 1.03 if memory == "pinned" else 1.0


def kept_of(host: Host) -> KeptRuns:
    """A baseline of the host, as it comes back from its file."""
    made = baseline_of([host.run() for _ in range(RUNS)])
    return Baseline.model_validate_json(made.model_dump_json()).experiments[0]


def runs(host: Host, slower: Any = as_it_is) -> list[Measured]:
    return [host.run(slower) for _ in range(AGAIN)]


@pytest.fixture(scope="module")
def host() -> Host:
    """With pinned and pageable memory only."""
    made = Host(7)
    made.cells = [cell for cell in made.cells if cell[0] in ("pageable", "pinned")]
    return made


@pytest.fixture(scope="module")
def kept(host: Host) -> KeptRuns:
    return kept_of(host)


def test_equal_runs_pass(host: Host, kept: KeptRuns) -> None:
    checked = check(kept, runs(host), lambda _: runs(host))
    assert checked.regressions == []
    assert len(checked.cells) == 60


def test_each_cell_that_is_worse_is_named_and_no_other(host: Host, kept: KeptRuns) -> None:
    checked = check(kept, runs(host, slow), lambda _: runs(host, slow))
    assert len(checked.regressions) == 30
    assert {item.labels["memory"] for item in checked.regressions} == {"pinned"}
    assert all("instead of" in regression_words(item) for item in checked.regressions)


def test_what_does_not_fall_out_again_is_not_blamed(host: Host, kept: KeptRuns) -> None:
    checked = check(kept, runs(host, slow), lambda _: runs(host))
    assert (checked.regressions, checked.once) == ([], 30)


def test_less_than_the_tolerance_is_no_regression(host: Host, kept: KeptRuns) -> None:
    new = runs(host, little)
    assert check(kept, new).regressions == []
    assert len(check(kept, new, tolerance=0.015).regressions) >= 25


def test_only_some_cells_count_if_so_asked(host: Host, kept: KeptRuns) -> None:
    new = runs(host, slow)
    one = check(kept, new, only=parse_only(["memory=pinned", "bytes=1 MiB,4KiB", "direction=h2d"]))
    assert {item.words for item in one.regressions} == {"pinned, h2d, 4 KiB", "pinned, h2d, 1 MiB"}
    assert check(kept, new, only=parse_only(["memory=pageable"])).regressions == []


def test_a_choice_that_leaves_nothing_is_refused(host: Host, kept: KeptRuns) -> None:
    assert lacking(kept, parse_only(["size=1MiB", "figure=issue_seconds", "bytes=1"])) == ["size"]
    with pytest.raises(BadInput, match="--only"):
        check(kept, runs(host), only=parse_only(["memory=none"]))


def test_a_baseline_without_a_cell_of_the_runs_is_refused(host: Host, kept: KeptRuns) -> None:
    with pytest.raises(BadInput, match="write the baseline anew"):
        check(kept, [replace(run, cells=[]) for run in runs(host)], only=parse_only(["memory=pinned"]))


@pytest.mark.parametrize("text", ["memory", "=pinned", "memory="])
def test_a_choice_is_a_label_and_what_it_may_be(text: str) -> None:
    with pytest.raises(BadInput, match="LABEL=VALUE"):
        parse_only([text])


def test_a_baseline_is_of_one_machine_and_the_same_parameters(host: Host) -> None:
    elsewhere = new_run(status="done")
    machine = elsewhere.environment.model_copy(update={"machine_id": "another"})
    with pytest.raises(BadInput, match="of one machine"):
        baseline_of([host.run(), host.run(run=elsewhere.model_copy(update={"environment": machine}))])
    with pytest.raises(BadInput, match="same parameters"):
        baseline_of([host.run(), host.run(run=new_run(status="done", params={"sizes": [1]}))])


@pytest.mark.parametrize(
    "experiments", [{"trace", "overlap", "timeline"}, pytest.param(None, marks=pytest.mark.release)]
)
def test_a_recording_is_as_good_as_itself(experiments: set[str] | None) -> None:
    for run in recorded_runs():
        if experiments is None or run.experiment in experiments:
            measured = measured_run(run, recorded_observations(run.id))
            made = baseline_of([measured]).model_dump_json()
            checked = check(Baseline.model_validate_json(made).experiments[0], [measured])
            assert checked.regressions == []
            assert not any(cell.differs for cell in checked.comparison.cells)
            assert not checked.comparison.alone


def telling(checked: Checked) -> int:
    return sum(map(checked.tells, checked.cells))


def test_a_check_says_in_how_many_cells_the_tolerance_would_show(host: Host, kept: KeptRuns) -> None:
    new = runs(host)
    assert (
        25 <= telling(check(kept, new)) < 40
    )  # pinned copies differ by less than the tolerance, pageable ones by more
    assert telling(check(kept, new, tolerance=10.0)) == 60


def test_a_line_of_a_program_that_is_new_is_a_regression() -> None:
    run = next(run for run in recorded_runs() if run.experiment == "trace")
    measured = measured_run(run, recorded_observations(run.id))
    dearest = max((cell for cell in measured.cells if hasattr(cell, "text")), key=lambda cell: cell.seconds.median)
    before = replace(measured, cells=[cell for cell in measured.cells if cell is not dearest])
    (regression,) = check(baseline_of([before]).experiments[0], [measured]).regressions
    assert regression_words(regression).startswith("new, costs")


def test_as_many_runs_are_needed_as_the_formula_says(kept: KeptRuns) -> None:
    assert [runs_needed(spread, 0.02) for spread in (0.001, 0.005, 0.01, 0.02, 0.05)] == [2, 5, 11, 36, 214]
    assert runs_needed(1.0, 0.02) is None
    assert least_change(0.02, 36, 36) <= 0.02 < least_change(0.02, 35, 35)
    assert 0.005 < (deviation(kept) or 0) < 0.03
