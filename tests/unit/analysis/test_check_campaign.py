"""A gate over real runs: 24 of the host model, on two cores that other work kept busy, of which some are drawn.

Eight are the baseline, two are checked, six measured again. Their rates differ from run to run by half.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import make_dataclass, replace
from pathlib import Path
from random import Random
from typing import Annotated, Any

import pytest

from pinscope.analysis.cells import labels_of, values_of
from pinscope.analysis.check import KeptFigure, KeptRuns, baseline_of, check
from pinscope.analysis.comparison import Measured
from pinscope.analysis.statistics import Summary
from pinscope.experiments.bandwidth.reading import Cell
from pinscope.report.comparison import read_baseline

LEAST = 1.2
"""A planted regression takes at least so many times as long."""
Plant = Callable[[Measured], Measured]
MARKS = {**labels_of(Cell), **values_of(Cell)}


def _runs() -> list[Measured]:
    kept = read_baseline(Path(__file__).parents[2] / "data" / "host-model-runs.json").experiments[0]
    names = [*labels_of(Cell), *kept.cells[0].figures]
    flat = make_dataclass("Cell", [(name, Annotated[Any, MARKS[name]]) for name in names])
    return [
        Measured(
            kept.run.model_copy(update={"id": run_id}),
            [
                flat(**cell.labels, **{name: _figure(figure, number) for name, figure in cell.figures.items()})
                for cell in kept.cells
            ],
        )
        for number, run_id in enumerate(kept.runs)
    ]


def _figure(figure: KeptFigure, number: int) -> Summary:
    value, off = figure.runs[number] or (0.0, None)
    return Summary(1, value, value, value, None, math.inf if off is None else off)


def _slower(kept: KeptRuns, memory: str) -> Plant:
    """All times of that memory longer by a fifth, or by twice what the runs of the baseline lie apart."""
    spreads = {tuple(cell.labels.values()): cell.figures for cell in kept.cells}

    def times(cell: Any, name: str) -> float:
        labels = tuple(getattr(cell, label) for label in labels_of(Cell))
        far = max(LEAST, 1 + 2 * spreads[labels][name].spread)
        return {"seconds": far, "bytes/second": 1 / far}.get(MARKS[name].unit, 1.0)

    def plant(run: Measured) -> Measured:
        return replace(run, cells=[_longer(cell, times) if cell.memory == memory else cell for cell in run.cells])

    return plant


def _longer(cell: Any, times: Callable[[Any, str], float]) -> Any:
    names = [name for name in values_of(type(cell)) if getattr(cell, name).median]
    figures = {name: getattr(cell, name) for name in names}
    return replace(
        cell, **{name: replace(figure, median=figure.median * times(cell, name)) for name, figure in figures.items()}
    )


def _campaign(tries: int) -> tuple[int, dict[str, int]]:
    """False alarms, and regressions of each memory that were named."""
    random, runs, alarms = Random(1), _runs(), 0
    told = {"pinned": 0, "pageable": 0}
    for _ in range(tries):
        drawn = random.sample(runs, 16)
        (kept,) = baseline_of(drawn[:8]).experiments

        def checked(plant: Plant, drawn: list[Measured] = drawn, kept: KeptRuns = kept) -> bool:
            new = [plant(run) for run in drawn[8:]]
            return bool(check(kept, new[:2], lambda _: new[2:]).regressions)

        alarms += checked(lambda run: run)
        for memory in told:
            told[memory] += checked(_slower(kept, memory))
    return alarms, told


@pytest.mark.parametrize("tries", [1, 50])
def test_equal_runs_pass_and_planted_regressions_never(tries: int) -> None:
    alarms, told = _campaign(tries)
    assert alarms <= tries // 50
    assert told == {"pinned": tries, "pageable": tries}
