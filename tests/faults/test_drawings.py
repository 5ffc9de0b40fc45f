"""Charts of rows that make no sense: drawn, or refused in one line. That they are read so, unit tests hold."""

from __future__ import annotations

from contextlib import suppress

from pinscope.errors import BadInput
from pinscope.experiments.registry import draw_run, readers
from tests.data.senseless import VALUES, senseless, subject
from tests.faults.campaign import Campaign


def test_drawings(campaign: Campaign) -> None:
    attempts = [
        (run, field, value, wrong)
        for run, rows in (subject(reader.name) for reader in readers())
        for value in VALUES
        for field, wrong in senseless(rows, value)
    ]
    size = campaign.size(sample=45, whole=len(attempts))
    for run, field, value, wrong in campaign.random().sample(attempts, size):
        campaign.count("bundles")
        try:
            with suppress(BadInput):
                draw_run(run, wrong)
        except Exception as error:
            error.add_note(f"{run.experiment} with {field} {value}")
            raise
