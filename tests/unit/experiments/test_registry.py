"""Rows that are no observations are refused in one line, whatever made them."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest

from pinscope.errors import BadInput, UnknownName
from pinscope.experiments.registry import draw_run, read_run
from pinscope.records.run import Run
from pinscope.store.recordings import recorded_observations, recorded_runs
from tests.data import synthetic


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"device_seconds": None}, "a pass without device_seconds"),
        ({"pinned_copy_seconds": None}, "a pass without pinned_copy_seconds"),
        ({"direction": "sideways"}, "field 'direction' does not fit"),
    ],
)
def test_rows_that_lack_what_a_reading_needs_are_refused(changes: dict[str, Any], complaint: str) -> None:
    run = synthetic.run("overlap")
    rows = [{**row, **changes} for row in synthetic.overlap_rows() if row["kind"] == "pass"]
    for use in (read_run, draw_run):
        with pytest.raises(BadInput, match=f"these are not observations of overlap: {complaint}"):
            use(run, rows)


def test_a_run_of_an_experiment_from_the_future_is_named() -> None:
    with pytest.raises(UnknownName, match="no experiment 'teleport'"):
        read_run(synthetic.run("bandwidth").model_copy(update={"experiment": "teleport"}), [])


@pytest.mark.parametrize("recorded", recorded_runs(), ids=lambda run: run.experiment)
@pytest.mark.parametrize("value", [0, None])
def test_figures_that_make_no_sense_are_refused_in_one_line(recorded: Run, value: int | None) -> None:
    """Whatever number or missing value a bundle brings: a reading, or one line that says what is wrong."""
    rows = recorded_observations(recorded.id)[:300]
    for field in sorted({key for row in rows for key in row} - {"repeat", "warmup"}):
        wrong = [{**row, field: type(row[field])(0) if value == 0 else None} if row.get(field) else row for row in rows]
        for use in (read_run, draw_run):
            with suppress(BadInput):
                use(recorded, wrong)
