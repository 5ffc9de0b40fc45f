"""The command ``runs trend``: which runs it takes, its small chart, and its JSON."""

from __future__ import annotations

import json

import pytest

from pinscope.cli.main import main
from pinscope.records.run import quantity
from pinscope.store.store import Store
from tests.data.stepping_runs import KEY, add_stepping_runs
from tests.unit.store.runs import new_run


@pytest.fixture
def step() -> str:
    """Runs in the store; gives the id of the one from which on they are slower."""
    with Store() as store:
        return add_stepping_runs(store)


def test_a_step_is_marked_below_its_run_and_named_with_what_changed(
    step: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["runs", "trend", "bandwidth"]) == 0
    said = capsys.readouterr()
    _, chart, mark, _, words = said.out.splitlines()
    assert (len(chart), mark) == (20, " " * 12 + "▲")
    assert f"from run {step} on" in words
    assert "driver 580.1 → 590.2" in words
    assert "1 further runs of bandwidth have another machine, lab or parameters" in said.err


def test_json_has_the_runs_and_the_step(step: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["runs", "trend", "bandwidth", KEY, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert [run["id"] for run in document["runs"]] == [f"run-{place:02}" for place in range(20)]
    (found,) = document["steps"]
    assert (found["run"], found["changed"][0]["key"]) == (step, "driver")
    assert found["ratio"] == pytest.approx(0.8, rel=0.02)


def test_a_run_whose_figure_is_not_known_is_left_out_and_where_none_is_known_the_reason_is_said(
    capsys: pytest.CaptureFixture[str],
) -> None:
    unknown = quantity("Pinned", None, "bytes/second", key=KEY, reason="its repeats vary too much")
    with Store() as store:
        for place in range(5):
            store.add(new_run(f"vague-{place}", status="done", figure=unknown))
        assert main(["runs", "trend", "bandwidth"]) == 2
        assert "Pinned: not known in any run of this series (its repeats vary too much)" in capsys.readouterr().err
        add_stepping_runs(store, many=1)
    assert main(["runs", "trend", "bandwidth", "--like", "run-00"]) == 0
    assert "not known there: vague-0, vague-1, vague-2 and 2 more" in capsys.readouterr().err


@pytest.mark.usefixtures("step")
def test_a_figure_that_no_run_has_is_refused_with_those_there_are(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["runs", "trend", "bandwidth", "none.such"]) == 2
    assert f"no run has the figure 'none.such'; there are: {KEY}" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["scatter"], "no finished run of scatter; make one"),
        (["nothing"], "no experiment"),
        (["bandwidth"], "no finish"),
        (["bandwidth", "--like", "bandwidth-h200"], "no finished run of bandwidth is like bandwidth-h200"),
    ],
)
def test_bad_input_ends_with_2(arguments: list[str], why: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["runs", "trend", *arguments]) == 2
    assert why in capsys.readouterr().err
