"""A run in a program of the user's own: its cells and rows as tables of pandas."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pandas as pd
import pytest

import pinscope
from pinscope.analysis.cells import labels_of, values_of
from pinscope.analysis.statistics import Summary
from pinscope.errors import BadInput
from pinscope.experiments.registry import cells_of
from pinscope.records.run import ExperimentRun, Run
from pinscope.store.recordings import recorded_observations, recorded_runs, recording_name
from tests.unit.recordings.raw import recordings

MEASURED = [run for run in recorded_runs() if isinstance(run, ExperimentRun)]
KEPT = [run for run in recorded_runs() if not isinstance(run, ExperimentRun)]
WORDS = {"bytes": "bytes", "seconds": "seconds", "bytes/second": "bytes_per_second", "share": "share", "ratio": "ratio"}
"""Unit → what stands for it in a name."""


def declared(run: Run) -> type:
    return type(cells_of(run, recorded_observations(run.id))[0])


@pytest.mark.parametrize("run", MEASURED, ids=recording_name)
def test_cells_have_units_in_their_names_and_the_figures_of_the_run_s_own_table(run: Run) -> None:
    opened, kind = pinscope.open_run(run.id), declared(run)
    columns = list(opened.cells.columns)
    assert columns[: len(labels_of(kind))] == list(labels_of(kind))
    assert set(values_of(kind)) <= set(columns)
    assert [name for name, value in values_of(kind).items() if WORDS.get(value.unit, "") not in name] == []
    if run.experiment == "scatter":
        return
    titles = {value.title: name for name, value in values_of(kind).items()}
    table = max(opened.reading.tables, key=lambda table: len(titles.keys() & set(table.columns)))
    shared = [title for title in titles if title in table.columns]
    read = pd.DataFrame(table.rows, columns=table.columns)[shared].map(plain)
    made = opened.cells[[titles[title] for title in shared]].map(plain)
    assert len(shared) > 1
    assert set(map(tuple, read.to_numpy())) <= set(map(tuple, made.to_numpy()))


def plain(value: Any) -> str:
    return "n/a" if pd.isna(value) else f"{float(value):.9g}" if isinstance(value, int | float) else str(value)


def medians(run: Run) -> dict[str, tuple[list[str], pd.Series[Any]]]:
    """Of values that are the median of a field of the rows: name → labels, and what pandas makes of the plain files."""
    kind, first = declared(run), cells_of(run, recorded_observations(run.id))[0]
    rows = next(recorded.counted for recorded in recordings() if recorded.run["id"] == run.id)
    labels: Sequence[str] = [name for name in labels_of(kind) if name in kind.__dataclass_fields__]
    fields = {name: value.row or name for name, value in values_of(kind).items()}
    rows = rows[rows["kind"] == "move"] if run.experiment == "scatter" else rows
    if run.experiment == "bandwidth":  # copies both ways count while both copy, also in older runs
        both = (rows["direction"] == "bidirectional") & (rows["one_more_copies"] == 1) & (rows["memory"] != "pageable")
        seconds = 2 / (1 / rows["h2d_seconds"] + 1 / rows["d2h_seconds"])
        rows = rows.assign(one_more_seconds=rows["one_more_seconds"].where(~both, seconds))
    if not set(labels) <= set(rows.columns):
        return {}
    groups = rows.groupby(list(labels), dropna=False, sort=False)
    return {
        name: (list(labels), groups[field].median().dropna())
        for name, field in fields.items()
        if isinstance(getattr(first, name), Summary) and field in rows.columns
    }


@pytest.mark.parametrize(
    ("experiment", "at_least"),
    [("access", 2), ("bandwidth", 4), ("staging", 1), ("pinning_strategy", 1), ("scatter", 1)],
)
def test_medians_are_those_that_pandas_makes_of_the_rows(experiment: str, at_least: int) -> None:
    run = next(run for run in MEASURED if run.experiment == experiment)
    computed, cells = medians(run), pinscope.open_run(run.id).cells
    assert len(computed) >= at_least
    for name, (labels, expected) in computed.items():
        made = cells.set_index(labels)[name].dropna()
        assert by_labels(made) == pytest.approx(by_labels(expected))


def by_labels(values: pd.Series[Any]) -> dict[tuple[str, ...], float]:
    return {tuple(map(plain, labels)): value for labels, value in values.items()}  # type: ignore[call-overload]


@pytest.mark.parametrize("run", KEPT, ids=recording_name)
def test_rows_are_all_observations_and_what_repeats_nothing_has_no_cells(run: Run) -> None:
    opened = pinscope.open_run(run.id)
    assert len(opened.rows) == run.observations
    assert set(opened.rows.columns) == {name for row in recorded_observations(run.id) for name in row}
    with pytest.raises(BadInput, match=f"is a {run.kind}, which repeats nothing"):
        _ = opened.cells
