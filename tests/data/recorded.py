"""The recordings and what this version reads in them: each is read once by the tests of the group ``readings``."""

from __future__ import annotations

from functools import cache

from pinscope.experiments.registry import read_run
from pinscope.records.run import Reading
from pinscope.store.recordings import recorded_observations, recorded_runs, recording_name

RECORDED = {recording_name(run): run for run in recorded_runs()}


@cache
def reading(name: str) -> Reading:
    """What a recording tells."""
    return read_run(RECORDED[name], recorded_observations(RECORDED[name].id))
