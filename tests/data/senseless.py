"""Rows in which one field at a time says what no measurement does."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pinscope.records.run import Run
from pinscope.store.recordings import recorded_observations, recorded_runs
from tests.data import synthetic_timeline

VALUES = (0, None, 2**62)
_ROWS_TRIED = 150
Rows = Sequence[Mapping[str, Any]]


def subject(name: str) -> tuple[Run, Rows]:
    """A recording of this experiment; a short timeline with all kinds of row instead of a recorded one."""
    if name == "timeline":
        return synthetic_timeline.run(), synthetic_timeline.growing(samples=12)
    run = next(run for run in recorded_runs() if run.experiment == name)
    return run, recorded_observations(run.id)[:_ROWS_TRIED]


def senseless(rows: Rows, value: int | None) -> Iterator[tuple[str, Rows]]:
    """Each field's name, and the rows with this value in its place wherever there was one."""
    for field in sorted({key for row in rows for key in row} - {"repeat", "warmup"}):
        yield field, [{**row, field: _like(row[field], value)} if row.get(field) is not None else row for row in rows]


def _like(before: object, value: int | None) -> object:
    """The value as the type that was there."""
    return type(before)(value) if isinstance(before, (int, float, str)) and value is not None else value
