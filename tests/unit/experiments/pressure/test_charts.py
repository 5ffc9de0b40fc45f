"""Charts of a pressure run: what is drawn, where it would stop, and nothing where nothing was told."""

from __future__ import annotations

from typing import Any

import pytest

from pinscope.records.run import Run
from tests.data import synthetic
from tests.data.readings import As
from tests.unit.experiments.pressure.test_reading import FILE, at, rows

draw = As("pressure").draw

RUN: Run = synthetic.run("pressure", "host", params={"floor": 2**30})


def keys(found: list[dict[str, Any]]) -> list[str]:
    return [chart.key for chart in draw(RUN, found)]


def test_a_run_shows_what_was_felt_and_memory() -> None:
    felt, memory = draw(RUN, rows())
    lines = {trace.name: trace for trace in memory.figure.data}
    assert list(lines) == [
        "pinned by this run", "available", "page cache and shared memory", "floor", "less what is pinned",
    ]  # fmt: skip
    assert set(lines["floor"].y) == {1.0}
    assert tuple(lines["less what is pinned"].y) == (20.0, 16.0)
    assert max(lines["pinned by this run"].y) == 4.0
    panels = [note.text for note in felt.figure.layout.annotations]
    assert panels == ["Page fault", "Reading its file again", "Its file still in the cache"]


def test_what_was_given_back_stands_apart_from_what_was_before() -> None:
    felt, _ = draw(RUN, rows(at("after", 0, fault_median_seconds=4e-6)))
    back = next(trace for trace in felt.figure.data if trace.name == "given back")
    assert (tuple(back.x), back.marker.symbol) == ((0.0,), "diamond-open")
    assert back.y[0] == pytest.approx(4.0)


def test_nothing_is_drawn_of_what_was_not_told() -> None:
    no_file = dict.fromkeys(("file_bytes", "file_cached_bytes", "read_bytes", "read_seconds"))
    felt = draw(RUN, rows(**no_file))[0]
    assert [note.text for note in felt.figure.layout.annotations] == ["Page fault"]
    capped = draw(RUN, rows(cgroup_headroom_bytes=FILE))[1]
    assert "left in the control group" in {trace.name for trace in capped.figure.data}


def test_a_run_that_goes_on_is_drawn_as_far_as_it_is() -> None:
    whole = rows()
    assert keys([]) == []
    assert keys(whole[:1]) == []
    assert keys(whole[:-1]) == ["pressure-felt", "pressure-memory"]
