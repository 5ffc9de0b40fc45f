"""Kinds of run: what all share, and what only an execution of an experiment has."""

from __future__ import annotations

import io
import json
import zipfile

import pytest
from pydantic import ValidationError

from pinscope.cli.runs import run_object
from pinscope.errors import BadInput
from pinscope.experiments.registry import draw_run, read_run
from pinscope.records.run import ExperimentRun, TimelineRun, parse_run
from pinscope.store.bundle import render_bundle
from tests.unit.store.runs import new_run

ONLY_EXPERIMENTS = ("device", "quick", "budget")


def timeline() -> TimelineRun:
    """A timeline."""
    run = new_run(experiment="timeline", lab="live", params={"interval_seconds": 1.0, "for_seconds": 60})
    assert isinstance(run, TimelineRun)
    return run


def test_only_the_run_of_an_experiment_has_a_device_a_size_and_a_budget() -> None:
    measured, watched = new_run().model_dump(mode="json"), timeline().model_dump(mode="json")
    assert set(measured) - set(watched) == set(ONLY_EXPERIMENTS)
    assert set(watched) <= set(measured)
    assert (measured["kind"], measured["format"]) == ("experiment", 1)
    assert (watched["kind"], watched["format"]) == ("timeline", 2)
    listed = run_object(timeline())
    assert [listed[field] for field in ("kind", "device", "quick")] == ["timeline", None, None]
    assert set(run_object(new_run())) == set(listed)
    assert (new_run().expected_seconds, timeline().expected_seconds) == (1.5, 60.0)
    assert new_run(experiment="timeline", lab="live", params={}).expected_seconds is None


def test_the_format_is_raised_only_for_what_an_older_version_cannot_hold() -> None:
    for runs, number in (((new_run(), new_run()), 1), ((new_run(), timeline()), 2)):
        with zipfile.ZipFile(io.BytesIO(render_bundle([(run, []) for run in runs]))) as archive:
            assert json.loads(archive.read("manifest.json"))["format"] == number


def test_what_is_no_kind_of_run_is_refused() -> None:
    for changes in [
        {"kind": "novel"},
        {"kind": 1},
        {"kind": "timeline"},
        {"lab": "live"},
        {"kind": "experiment", "lab": "live"},
    ]:
        with pytest.raises(ValidationError):
            parse_run(new_run().model_dump(mode="json", exclude={"kind"}) | changes)


def test_a_run_that_carries_the_name_of_another_kind_is_not_read_as_one() -> None:
    wrong = new_run(experiment="timeline", lab="host")
    assert isinstance(wrong, ExperimentRun)
    for read in (read_run, draw_run):
        with pytest.raises(BadInput, match="kept as a run of kind experiment, which timeline is not"):
            read(wrong, [])
