"""The command ``runs trend``: which runs it takes, its small chart, and its JSON."""

from __future__ import annotations

import json
import math
from random import Random

import pytest

from pinscope.cli.main import main
from pinscope.records.run import quantity
from pinscope.store.store import Store
from tests.unit.store.runs import new_run

KEY = "pinned.h2d.rate"


@pytest.fixture
def step() -> str:
    """Twenty runs in the store, slower from the thirteenth on, whose driver is another; and one of other parameters.
    Gives the id of the thirteenth."""
    random = Random(9)
    with Store() as store:
        for place in range(20):
            rate = 10e9 * math.exp(0.005 * random.gauss(0, 1)) * (0.8 if place >= 12 else 1.0)
            made = new_run(f"run-{place:02}", status="done", figure=quantity("Pinned", rate, "bytes/second", key=KEY))
            driver = {"driver": "590.2" if place >= 12 else "580.1"}
            store.add(made.model_copy(update={"environment": made.environment.model_copy(update=driver)}))
        store.add(new_run("quick", status="done", created_at=made.created_at.replace(year=2020), params={"sizes": [1]}))
    return "run-12"


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


@pytest.mark.parametrize(
    ("arguments", "why"),
    [(["scatter"], "no finished run"), (["nothing"], "no experiment"), (["bandwidth"], "no finish")],
)
def test_bad_input_ends_with_2(arguments: list[str], why: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["runs", "trend", *arguments]) == 2
    assert why in capsys.readouterr().err
