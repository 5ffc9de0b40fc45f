"""The recordings and what this version reads in them: each is read once by the tests of the group ``readings``."""

from __future__ import annotations

from functools import cache

from pinscope.records.run import Reading
from pinscope.report.facts import Document, open_document
from pinscope.store import recordings
from pinscope.store.attachments import attached_by
from pinscope.store.recordings import recorded_observations, recorded_parts, recorded_runs, recording_name

RECORDED = {recording_name(run): run for run in recorded_runs()}


@cache
def document(name: str) -> Document:
    """What a recording's reports are made from."""
    run = RECORDED[name]
    return open_document(run, recorded_observations(run.id), attached=attached_by(run, recorded_parts))


def reading(name: str) -> Reading:
    """What a recording tells."""
    return document(name).reading


def forget_recordings() -> None:
    """Make the store look into the folder again."""
    recordings._recordings.cache_clear()
    recordings._rows.cache_clear()
