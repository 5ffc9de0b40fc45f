"""Charts of a pressure run: what is drawn, where the run would stop, and nothing where nothing was told."""

from __future__ import annotations

from typing import Any

import pytest

from pinscope.experiments.pressure.charts import draw
from pinscope.records.run import Run
from tests.data import synthetic
from tests.unit.experiments.pressure.test_reading import FILE, at, rows

RUN: Run = synthetic.run("pressure", "host", params={"floor": 2**30})


def keys(found: list[dict[str, Any]]) -> list[str]:
    return [chart.key for chart in draw(RUN, found)]


def test_a_run_shows_memory_what_was_felt_and_stalls() -> None:
    taken, felt, memory, stalls = draw(RUN, rows())
    lines = {trace.name: trace for trace in memory.figure.data}
    assert list(lines) == [
        "floor", "meant to be pinned", "pinned by this run", "available", "page cache and shared memory",
    ]  # fmt: skip
    assert set(lines["floor"].y) == {1.0}
    assert set(lines["meant to be pinned"].y) == {4.0}
    assert max(lines["pinned by this run"].y) == 4.0
    panels = [[note.text for note in chart.figure.layout.annotations] for chart in (taken, felt)]
    assert panels == [
        ["Gone from available memory", "Page fault, median"],
        ["Page fault, longest", "Reading its file again", "Its file still in the cache"],
    ]
    assert {trace.name for trace in stalls.figure.data} == {
        "memory, at least one task", "memory, all tasks", "I/O, at least one task", "I/O, all tasks"
    }  # fmt: skip
    assert stalls.figure.layout.yaxis.range[1] == 1.05  # calm is drawn flat


def test_what_was_given_back_stands_apart_from_what_was_before() -> None:
    taken, *_ = draw(RUN, rows(at("after", 0, fault_median_seconds=4e-6)))
    back = [trace for trace in taken.figure.data if trace.name == "given back"][-1]
    assert (tuple(back.x), back.marker.symbol) == ((0.0,), "diamond-open")
    assert back.y[0] == pytest.approx(4.0)


def test_nothing_is_drawn_of_what_was_not_told() -> None:
    none = dict.fromkeys(("memory_some_seconds", "memory_full_seconds", "io_some_seconds", "io_full_seconds"))
    assert keys(rows(**none)) == ["pressure-taken", "pressure-felt", "pressure-memory"]
    no_file = dict.fromkeys(("file_bytes", "file_cached_bytes", "read_bytes", "read_seconds"))
    felt = draw(RUN, rows(**no_file))[1]
    assert [note.text for note in felt.figure.layout.annotations] == ["Page fault, longest"]
    capped = draw(RUN, rows(cgroup_headroom_bytes=FILE))[2]
    assert "left in the control group" in {trace.name for trace in capped.figure.data}


def test_a_run_that_goes_on_is_drawn_as_far_as_it_is() -> None:
    whole = rows()
    assert keys([]) == []
    assert keys(whole[:1]) == ["pressure-memory"]
    assert keys(whole[:-1]) == ["pressure-taken", "pressure-felt", "pressure-memory", "pressure-stalls"]
