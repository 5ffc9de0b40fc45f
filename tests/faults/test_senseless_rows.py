"""Rows in which one field says what no measurement does, as a bundle may bring them: read and drawn, or refused in one
line."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

import pytest

from pinscope.errors import BadInput
from pinscope.experiments.registry import draw_run, read_run, readers
from pinscope.records.run import Run
from pinscope.store.recordings import recorded_observations, recorded_runs
from tests.data import synthetic_timeline
from tests.faults.campaign import Campaign

Rows = Sequence[Mapping[str, Any]]
Use = Callable[[Run, Rows], Iterable[object]]
VALUES = (0, None, 2**62)
ROWS_TRIED = 150


@pytest.mark.xdist_group("readings")  # recordings are read from their bundles once
@pytest.mark.parametrize(
    ("use", "kinds", "size"), [(read_run, len(readers()), 120), (draw_run, 3, 12)], ids=["readings", "drawings"]
)
def test_senseless_rows(campaign: Campaign, use: Use, kinds: int, size: int) -> None:
    """``kinds``: of how many kinds of run the sample is. ``size``: attempts of the sample."""
    chosen = campaign.random().sample(readers(), campaign.size(sample=kinds, whole=len(readers())))
    attempts = [attempt for reader in chosen for attempt in changes(reader.name)]
    for run, rows, field, value in campaign.random().sample(attempts, campaign.size(sample=size, whole=len(attempts))):
        campaign.count("bundles")
        wrong = [{**row, field: like(row[field], value)} if row.get(field) is not None else row for row in rows]
        try:
            with suppress(BadInput):
                list(use(run, wrong))
        except Exception as error:
            error.add_note(f"{run.experiment} with {field} {value}")
            raise


def changes(name: str) -> Iterator[tuple[Run, Rows, str, int | None]]:
    """Rows of an experiment, or a short timeline with all kinds of row; each field, and each value in its place."""
    if name == "timeline":
        run, rows = synthetic_timeline.run(), synthetic_timeline.growing(samples=12)
    else:
        run = next(run for run in recorded_runs() if run.experiment == name)
        rows = recorded_observations(run.id)[:ROWS_TRIED]
    for field in sorted({key for row in rows for key in row} - {"repeat", "warmup"}):
        yield from ((run, rows, field, value) for value in VALUES)


def like(before: object, value: int | None) -> object:
    """The value as the type that was there."""
    return type(before)(value) if isinstance(before, int | float | str) and value is not None else value
