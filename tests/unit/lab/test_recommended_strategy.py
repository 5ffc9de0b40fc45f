"""One truth: reading, code to paste, pinscope.pinned_empty and plan name and do the same strategy."""

from __future__ import annotations

import re
from collections.abc import Sequence
from types import ModuleType
from typing import Any

import pytest

from pinscope.analysis.pinning_strategy import (
    DEFAULT_ARRAY,
    DEFAULT_CHUNKS,
    TITLES,
    Recipe,
    Recommended,
    default_strategy,
    recipes_of,
    recommend,
    strategy_cells,
)
from pinscope.experiments.registry import checked_rows
from pinscope.lab import pinned_array
from pinscope.lab.pinning import Pinner
from pinscope.planning.plan import PlanParams, plan_for
from pinscope.planning.prices import known_prices
from pinscope.records.registration import STRATEGIES, Strategy
from pinscope.records.run import Finding, Run
from pinscope.store.recordings import recorded_observations, recorded_runs
from pinscope.store.store import Store
from tests.data import synthetic
from tests.data.readings import As
from tests.unit.analysis.test_pinning_strategy import USUAL, row, thrice
from tests.unit.lab.driver import Driver

GIB, MIB = 2**30, 2**20
Rows = Sequence[dict[str, Any]]
RECORDED = [run for run in recorded_runs() if run.experiment == "pinning_strategy"]
ARRAYS = [way.name for way in STRATEGIES.values() if way.makes_array and not way.chunked and way.backing]
CHUNKS = [way.name for way in STRATEGIES.values() if way.makes_array and way.chunked]
CALL = re.compile(r"pinscope\.pinned_empty\([^)]*\)")


@pytest.fixture
def pinned_by(monkeypatch: pytest.MonkeyPatch) -> list[Strategy]:
    """The strategies that pinned_empty took, on a host with huge pages."""
    taken: list[Strategy] = []

    class Spy(Pinner):
        def register(self, *arguments: Any) -> float | None:
            taken.append(self.strategy)
            return super().register(*arguments)

    monkeypatch.setattr(pinned_array, "Pinner", Spy)
    monkeypatch.setattr(pinned_array, "why_not_backing", lambda backing: None)
    return taken


def call_it(call: str) -> None:
    """What somebody does who pastes the advised call, with less memory and calls that take notes."""
    pinscope = ModuleType("pinscope")
    pinscope.pinned_empty = lambda size, **named: pinned_array.pinned_empty(4 * MIB, calls=Driver(), **named)  # type: ignore[attr-defined]
    eval(call, {"pinscope": pinscope})  # noqa: S307 - that is what a user does with it


def as_own(run: Run, rows: Rows, store: Store) -> Run:
    """The same run as one of this machine."""
    here = synthetic.environment()
    own = run.model_copy(
        update={"id": "an-own-run", "recording": False, "observations": len(rows), "environment": here}
    )
    store.import_runs([(own, list(rows))])
    return own


def check(run: Run, rows: Rows, taken: list[Strategy]) -> Recommended[Recipe]:
    """Reading, code, pinned_empty and plan of a run agree; what they say."""
    cells = strategy_cells(rows)
    recipes = recipes_of(recommend(cells), run.params)
    reading = As("pinning_strategy").read(run, rows)
    headline = {quantity.name: quantity.value for quantity in reading.headline}
    findings = {finding.rule: finding for finding in reading.findings}
    assert recipes.array is not None
    assert headline["Recommended in one piece"] == TITLES[recipes.array.strategy]
    check_finding(findings["faster-strategy"], recipes.array, taken)
    if recipes.gentler_in_chunks:
        assert recipes.chunks is not None
        assert headline["Recommended in chunks"] == TITLES[recipes.chunks.strategy]
        check_finding(findings["gentler-in-chunks"], recipes.chunks, taken)
    with Store() as store:
        as_own(run, rows, store)
        prices = known_prices(store, synthetic.environment())
    assert plan_for(PlanParams(pinned=GIB), prices, synthetic.environment()).recipe == recipes.array
    return recipes


def check_finding(finding: Finding, recipe: Recipe, taken: list[Strategy]) -> None:
    """Title, code and call are of the same strategy."""
    assert recipe.title in finding.detail
    (call,) = CALL.findall(finding.advice)
    assert call == recipe.call(parse(finding))
    assert call in (finding.code or "")
    call_it(call)
    assert taken[-1].name == recipe.strategy


def parse(finding: Finding) -> int:
    """The advised size."""
    assert "16 GiB" in finding.advice
    return 16 * GIB


@pytest.mark.parametrize("run", RECORDED, ids=lambda run: run.id)
def test_all_name_the_strategy_that_a_recording_recommends(run: Run, pinned_by: list[Strategy]) -> None:
    check(run, checked_rows(run.experiment, recorded_observations(run.id)), pinned_by)


def test_the_defaults_of_pinned_empty_are_what_the_recorded_h200_recommends(pinned_by: list[Strategy]) -> None:
    (run,) = (run for run in RECORDED if "H200" in run.environment.devices[0].name)
    best = recommend(strategy_cells(checked_rows(run.experiment, recorded_observations(run.id))))
    assert best.array is not None
    assert best.chunks is not None
    assert (best.array.strategy, best.chunks.strategy) == (DEFAULT_ARRAY, DEFAULT_CHUNKS)
    call_it('pinscope.pinned_empty("16 GiB")')
    call_it('pinscope.pinned_empty("16 GiB", chunk="256 MiB")')
    assert [strategy.name for strategy in pinned_by] == [DEFAULT_ARRAY, DEFAULT_CHUNKS]


@pytest.mark.parametrize("chunks", CHUNKS)
@pytest.mark.parametrize("array", ARRAYS)
def test_all_name_the_strategy_that_wins_whichever_it_is(array: str, chunks: str, pinned_by: list[Strategy]) -> None:
    losers = [row(name, 3.0, 0.3) for name in (*ARRAYS, *CHUNKS) if name not in (array, chunks)]
    rows = thrice(USUAL, *losers, row(array, 0.5, 0.2), row(chunks, 0.6, 0.01))
    best = check(synthetic.run("pinning_strategy", params={}), rows, pinned_by)
    assert best.gentler_in_chunks
    assert best.array is not None
    assert best.chunks is not None
    assert (best.array.strategy, best.chunks.strategy) == (array, chunks)


@pytest.mark.parametrize("chunked", [False, True])
def test_without_huge_pages_the_default_is_the_nearest_in_small_pages(chunked: bool) -> None:
    huge, small = (default_strategy(chunked, huge_pages=there) for there in (True, False))
    assert (huge.backing, small.backing) == ("thp", "4k")
    assert huge.chunked == small.chunked == chunked
    assert huge.touched
    assert small.touched
