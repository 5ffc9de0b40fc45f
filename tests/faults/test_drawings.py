"""Charts of rows that make no sense: drawn, or refused in one line. That they are read so, unit tests hold."""

from __future__ import annotations

from contextlib import suppress

from pinscope.errors import BadInput
from pinscope.experiments.registry import draw_run, readers
from tests.data.senseless import VALUES, senseless, subject
from tests.faults.campaign import Campaign


def test_drawings(campaign: Campaign) -> None:
    kinds = campaign.random().sample(readers(), campaign.size(sample=3, whole=len(readers())))
    attempts = [
        (run, field, value, wrong)
        for run, rows in (subject(reader.name) for reader in kinds)
        for value in VALUES
        for field, wrong in senseless(rows, value)
    ]
    size = campaign.size(sample=12, whole=len(attempts))
    for run, field, value, wrong in campaign.random().sample(attempts, size):
        campaign.count("bundles")
        try:
            with suppress(BadInput):
                draw_run(run, wrong)
        except Exception as error:
            error.add_note(f"{run.experiment} with {field} {value}")
            raise
