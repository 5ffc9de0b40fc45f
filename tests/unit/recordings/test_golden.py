"""What this version reads in each recording is what it read before."""

from __future__ import annotations

from difflib import unified_diff

from pinscope.report.facts import open_document
from pinscope.store.recordings import recorded_observations, recorded_runs, recording_name
from pinscope.store.store import Store
from tests.data.golden_text import FOLDER, golden_text


def test_a_recording_reads_as_before() -> None:
    for run in recorded_runs():
        with Store() as store:
            read = golden_text(open_document(run, recorded_observations(run.id), attached=store.attached(run)))
        before = (FOLDER / f"{recording_name(run)}.txt").read_text(encoding="utf-8")
        changed = list(unified_diff(before.splitlines(), read.splitlines(), "before", "now", n=0, lineterm=""))
        assert not changed, "\n".join((*changed[:60], "where this is wanted: scripts/write-verdicts"))


def test_every_recording_has_its_text_and_no_text_is_left_over() -> None:
    assert {file.stem for file in FOLDER.iterdir()} == set(map(recording_name, recorded_runs()))
