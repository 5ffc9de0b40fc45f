"""The one sentence of a run, also of runs that broke off or measured a part of what a recording did."""

from __future__ import annotations

import re

import pytest

from pinscope.analysis.read_rows import ReadRows, Rows
from pinscope.experiments.registry import find_reader, read_run
from pinscope.records.run import Run
from pinscope.store.recordings import recorded_observations
from tests.data.recorded import RECORDED, reading

PARTS = {
    "access": ("way", "pattern", "spacing", "uses"),
    "page_tables": ("memory", "backing"),
    "pinning_strategy": ("strategy",),
    "pressure": ("phase", "who", "kind"),
    "registration": ("strategy", "processes", "step", "contexts", "device"),
    "timeline": ("kind",),
    "topology": ("issued_by", "gpus", "direction"),
    "while_serving": ("way", "phase"),
}
"""Experiment → the labels by which its rows are left out."""
STAGES = 15
"""At which a run breaks off."""
LONGEST, MOST_WORDS = 150, 20
SENTENCE = re.compile(r"([A-Z0-9]|[a-z0-9]+ \(pid ).*[^.]\.")
"""It begins with a capital, a number or a process."""


def named(experiment: str) -> list[tuple[Run, Rows]]:
    runs = [run for run in RECORDED.values() if run.experiment == experiment]
    return [(run, [dict(row) for row in recorded_observations(run.id)]) for run in runs]


def check(run: Run, rows: Rows) -> str | None:
    return checked(read_run(run, rows).verdict)


def checked(verdict: str | None) -> str | None:
    """The verdict, which reads as one."""
    if verdict is not None:
        assert SENTENCE.fullmatch(verdict), verdict
        assert len(verdict) <= LONGEST, verdict
        assert len(verdict.split()) <= MOST_WORDS, verdict
        assert not re.search(r"-\d|n/a|None|nan|inf\b", verdict.replace("2026-", "")), verdict
    return verdict


@pytest.mark.xdist_group("readings")
def test_every_recording_has_a_verdict_of_one_short_sentence() -> None:
    for name in RECORDED:
        assert checked(reading(name).verdict) is not None


@pytest.mark.parametrize("experiment", PARTS)
def test_a_run_that_broke_off_has_a_verdict_that_reads_as_one_or_none(experiment: str) -> None:
    for run, observations in named(experiment):
        count = len(observations)
        assert check(run, []) is None
        rows = ReadRows(find_reader(experiment).kind.Observation)  # grows, as that of a run that goes on
        for part in range(1, STAGES + 1):
            rows.add(observations[len(rows) : count * part // STAGES])
            verdict = check(run, rows)
        assert verdict is not None
        assert len(verdict) <= 150


@pytest.mark.parametrize("experiment", PARTS)
def test_a_run_that_measured_only_a_part_has_a_verdict_on_that_or_none(experiment: str) -> None:
    for run, observations in named(experiment):
        for label in PARTS[experiment]:
            for value in {row.get(label) for row in observations}:
                check(run, [row for row in observations if row.get(label) == value])
                check(run, [row for row in observations if row.get(label) != value])
