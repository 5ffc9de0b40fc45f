"""What holds of each reading of a recording, that it is as before, and on which of them a rule of the manual fires."""

from __future__ import annotations

import json
import re
from difflib import unified_diff

import pytest

from pinscope.experiments.registry import read_run
from pinscope.manual.reference import FIRES
from pinscope.records.run import Run
from pinscope.store.recordings import folder, recorded_observations, recording_name
from tests.data.golden_text import FOLDER, golden_text
from tests.data.quoted_figures import fires_on
from tests.data.recorded import RECORDED, document, reading

pytestmark = pytest.mark.xdist_group("readings")  # each is read once


def keys(name: str) -> list[str | None]:
    return [quantity.key for quantity in reading(name).headline]


def test_no_figure_of_a_recording_has_both_an_interval_and_too_few_repeats_for_one() -> None:
    for name in RECORDED:
        figures = [*reading(name).headline, *(figure for said in reading(name).findings for figure in said.evidence)]
        few = [figure for figure in figures if figure.repeats is not None]
        assert [figure.name for figure in few if figure.spread is not None or figure.repeats >= 8] == []  # type: ignore[operator]


def test_each_figure_of_a_headline_has_a_key_of_its_own_which_another_recording_has_too() -> None:
    for name in RECORDED:
        assert keys(name)
        assert len(set(keys(name))) == len(keys(name))
        assert [key for key in keys(name) if not re.fullmatch(r"[a-z0-9_]+(\.[a-z0-9_]+)*", key or "")] == []
        other = f"{name.removesuffix('h100')}h200"
        assert keys(name) == keys(other if name.endswith("-h100") and other in RECORDED else name)


@pytest.mark.parametrize(
    "run", [run for run in RECORDED.values() if run.experiment in ("bandwidth", "staging", "scatter")]
)
def test_neither_a_size_nor_a_measured_value_is_in_a_key(run: Run) -> None:
    larger = [
        {
            name: value * 8
            if value and not isinstance(value, bool | str) and name.endswith(("bytes", "seconds"))
            else value
            for name, value in row.items()
        }
        for row in recorded_observations(run.id)
    ]
    read, again = reading(recording_name(run)).headline, read_run(run, larger).headline
    assert [quantity.key for quantity in again] == [quantity.key for quantity in read]
    assert [(figure.name, figure.value) for figure in again] != [(figure.name, figure.value) for figure in read]


def test_the_manual_knows_on_which_recording_a_rule_fires() -> None:
    assert json.loads((folder() / FIRES).read_text("utf-8")) == fires_on({name: reading(name) for name in RECORDED})


@pytest.mark.xdist_group("readings")
def test_a_recording_reads_as_before() -> None:
    for name in RECORDED:
        read = golden_text(document(name))
        before = (FOLDER / f"{name}.txt").read_text(encoding="utf-8")
        changed = list(unified_diff(before.splitlines(), read.splitlines(), "before", "now", n=0, lineterm=""))
        assert not changed, "\n".join((*changed[:60], "where this is wanted: scripts/write-verdicts"))


def test_every_recording_has_its_text_and_no_text_is_left_over() -> None:
    assert {file.stem for file in FOLDER.iterdir()} == set(RECORDED)
