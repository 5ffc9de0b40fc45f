"""Each headline of each recording, worked out again from the raw rows by a few lines of its own."""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from pinscope.experiments.registry import readers
from tests.data.recorded import RECORDED, reading
from tests.unit.recordings import bandwidth, overlap, page_tables, pinning_strategy, timeline, trace
from tests.unit.recordings.raw import Recorded, recordings

AGAIN: Mapping[str, Callable[[Recorded], dict[str, object]]] = {
    "bandwidth": bandwidth.headline,
    "overlap": overlap.headline,
    "page_tables": page_tables.headline,
    "pinning_strategy": pinning_strategy.headline,
    "timeline": timeline.headline,
    "trace": trace.headline,
}
"""Experiment → its headline from the raw rows: name of each quantity, and its value."""
NEAR = 1e-9
"""Relative: both add up the same numbers, in another order."""
HERE = Path(__file__).parent


WORKED_OUT = [recorded for recorded in recordings() if recorded.run["experiment"] in AGAIN]
NAMES = {run.id: name for name, run in RECORDED.items()}


@pytest.mark.xdist_group("readings")
def test_each_headline_of_a_recording_follows_from_its_raw_rows() -> None:
    for recorded in WORKED_OUT:
        told = {quantity.name: quantity.value for quantity in reading(NAMES[recorded.run["id"]]).headline}
        again = AGAIN[recorded.run["experiment"]](recorded)
        assert told
        assert set(told) == set(again)
        for name, value in told.items():
            number = isinstance(value, float | int) and again[name] is not None
            assert value == (pytest.approx(again[name], rel=NEAR) if number else again[name]), name


def test_every_kind_of_run_is_recorded() -> None:
    kinds = {reader.kind.name for reader in readers()}
    assert set(AGAIN) <= kinds == {recorded.run["experiment"] for recorded in recordings()}


def test_what_works_it_out_again_uses_none_of_the_code_that_it_checks() -> None:
    for path in sorted(set(HERE.glob("*.py")) - set(HERE.glob("test_*.py"))):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            names += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            for name in names:
                assert not name.startswith("pinscope") or name == "pinscope.units", f"{path.name} imports {name}"
