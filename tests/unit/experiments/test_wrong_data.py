"""What did not arrive as it was sent is the verdict and the first finding of every experiment that compares content."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice

import pytest

from pinscope.experiments.registry import read_run
from pinscope.store.recordings import recorded_observations
from tests.data.recorded import RECORDED

COMPARED: Mapping[str, tuple[str, str, object]] = {
    "access-h200": ("access-wrong", "intact", False),
    "bandwidth-h200": ("content-wrong", "wrong_words", 3),
    "dataloader-h200": ("batch-wrong", "wrong_items", 3),
    "overlap-h200": ("ordered-copy-corrupted", "corrupted_chunks", 3),
    "registration-2xh200": ("content-wrong", "wrong_words", 3),
    "registration-h200": ("content-wrong", "wrong_words", 3),
    "scatter-h200": ("scatter-wrong", "wrong_words", 3),
    "staging-h200": ("staging-wrong", "wrong_words", 3),
    "topology-2xh200": ("content-wrong", "wrong_words", 3),
    "topology-all-reduce-2xh200": ("content-wrong", "wrong_words", 3),
}
"""Recording → the rule, and what its observations say where content is wrong."""
ROWS = 150


@pytest.mark.parametrize("name", COMPARED)
def test_wrong_data_is_critical_and_stands_before_all_else(name: str) -> None:
    (rule, field, wrong), run = COMPARED[name], RECORDED[name]
    rows = [dict(row) for row in islice(recorded_observations(run.id), ROWS)]
    for row in rows:
        row[field] = None if row.get(field) is None else wrong
    reading = read_run(run, rows)
    first = reading.findings[0]
    assert (first.rule, first.severity) == (rule, "critical")
    assert (reading.verdict or "").endswith("do not trust any figure of this run.")
