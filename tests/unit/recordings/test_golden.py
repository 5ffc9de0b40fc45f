"""What this version reads in each recording is what it read before."""

from __future__ import annotations

import json
from difflib import unified_diff

import pytest

from pinscope.experiments.registry import read_run
from pinscope.manual.reference import FIRES
from pinscope.records.run import Run
from pinscope.report.document import open_document
from pinscope.store.bundle import folder, recorded_observations, recorded_runs, recording_name
from pinscope.store.store import Store
from tests.data.golden_text import FOLDER, golden_text
from tests.data.quoted_figures import fires_on


@pytest.mark.parametrize("run", recorded_runs(), ids=recording_name)
def test_a_recording_reads_as_before(run: Run) -> None:
    with Store() as store:
        read = golden_text(open_document(run, recorded_observations(run.id), attached=store.attached(run)))
    before = (FOLDER / f"{recording_name(run)}.txt").read_text(encoding="utf-8")
    changed = list(unified_diff(before.splitlines(), read.splitlines(), "before", "now", n=0, lineterm=""))
    assert not changed, "\n".join((*changed[:60], "where this is wanted: scripts/write-verdicts"))


def test_every_recording_has_its_text_and_no_text_is_left_over() -> None:
    assert {file.stem for file in FOLDER.iterdir()} == set(map(recording_name, recorded_runs()))


def test_the_manual_knows_on_which_recording_a_rule_fires() -> None:
    readings = {recording_name(run): read_run(run, recorded_observations(run.id)) for run in recorded_runs()}
    assert json.loads((folder() / FIRES).read_text("utf-8")) == fires_on(readings)
