"""What the findings of the recordings say together: no advice out of a tie, nothing that another sentence denies."""

from __future__ import annotations

import pytest

from pinscope.experiments.registry import read_run
from pinscope.records.run import parse_run
from tests.unit.recordings.raw import Recorded, recordings

NOT_SO = (
    "costs nothing more", "just to copy it once", "all is hidden", "is noise", "is the longest that keeps",
    "and is no slower", "The fastest here:", "From 73.1 %",
)  # fmt: skip
"""Parts of sentences that recordings were once said to bear."""


@pytest.mark.parametrize("recorded", recordings(), ids=str)
def test_nothing_is_said_that_the_recording_does_not_bear(recorded: Recorded) -> None:
    reading = read_run(parse_run(recorded.run), recorded.observations)
    said = " ".join([reading.verdict or "", *(f"{one.title} {one.detail} {one.advice}" for one in reading.findings)])
    assert [words for words in NOT_SO if words in said] == []


@pytest.mark.parametrize("recorded", recordings(), ids=str)
def test_no_figure_of_a_recording_has_both_an_interval_and_too_few_repeats_for_one(recorded: Recorded) -> None:
    reading = read_run(parse_run(recorded.run), recorded.observations)
    figures = [*reading.headline, *(figure for one in reading.findings for figure in one.evidence)]
    assert [
        one.name for one in figures if one.repeats is not None and (one.spread is not None or one.repeats >= 8)
    ] == []
