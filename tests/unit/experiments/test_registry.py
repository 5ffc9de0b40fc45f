"""Rows that are no observations are refused in one line, whatever made them."""

from __future__ import annotations

from typing import Any

import pytest

from pinscope.errors import BadInput, UnknownName
from pinscope.experiments.registry import draw_run, read_run
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
