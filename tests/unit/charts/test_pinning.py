"""Charts of allocation and pinning strategy runs, read back from the figures."""

from __future__ import annotations

import pytest

from tests.data import synthetic
from tests.data.readings import As
from tests.unit.analysis.test_pinning_strategy import USUAL, idle, row
from tests.unit.experiments.allocation.test_arithmetic import BOTH_COPIES, GIB, PAGEABLE, buffers


def test_runs_without_rows_have_no_charts() -> None:
    assert As("allocation").draw(synthetic.run("overlap"), []) == []
    assert As("pinning_strategy").draw(synthetic.run("overlap"), []) == []
    assert As("pinning_strategy").draw(synthetic.run("overlap"), [idle()]) == []


def test_an_allocation_run_shows_times_parts_and_break_even() -> None:
    rows = [
        *PAGEABLE, *buffers("pinned", 1.0, 0.2), *BOTH_COPIES,
        *buffers("registered_4k", 0.5, 0.15, touch_seconds=0.3, register_seconds=0.15, unregister_seconds=0.1),
    ]  # fmt: skip
    parts, times, pays = As("allocation").draw(synthetic.run("overlap"), rows)
    assert {trace.name for trace in times.figure.data} == {
        "fresh, touched, 4 KiB pages", "cudaHostAlloc", "touch + register, 4 KiB pages",
    }  # fmt: skip
    pinned = [trace for trace in times.figure.data if trace.name == "cudaHostAlloc"]
    assert [trace.y[0] for trace in pinned] == pytest.approx([1.0, 0.2])
    bars = {trace.name: dict(zip(trace.y, trace.x, strict=True)) for trace in parts.figure.data}
    assert sum(bar["touch + register, 4 KiB pages"] for bar in bars.values()) == pytest.approx(0.65)
    assert bars["register"]["touch + register, 4 KiB pages"] == pytest.approx(0.15)
    assert {trace.name: trace.y[0] for trace in pays.figure.data}["cudaHostAlloc"] == 10
    assert all(chart.caption.endswith(".") and chart.alt.endswith(".") for chart in (times, parts, pays))
    assert "cudaHostAlloc 1.20 s" in parts.alt


def test_the_host_model_is_drawn_in_its_own_words() -> None:
    _, times = As("allocation").draw(synthetic.run("overlap", "host"), buffers("pinned", 1.0))
    assert [trace.name for trace in times.figure.data] == ["map + mlock"] * 2


def test_a_strategy_run_shows_times_and_waits_of_each() -> None:
    rows = [idle(), USUAL, row("thp_register_chunks", 0.5, 0.015, touch_seconds=0.2, pin_seconds=0.3)]
    times, waits = As("pinning_strategy").draw(synthetic.run("overlap"), rows)
    touch, pin = times.figure.data
    assert list(touch.x) == [0.0, 0.2]
    assert [note.text for note in times.figure.layout.annotations if "recommended" in note.text] == [
        "4.80 s, recommended"
    ]
    assert list(pin.x) == pytest.approx([4.8, 0.3])
    assert f"{16 * GIB // GIB} GiB" in times.title
    info = next(trace for trace in waits.figure.data if trace.name == "cudaMemGetInfo")
    assert list(info.x) == [3e-4, 0.3, 0.015]
    assert "idle" in info.y[0]
    assert len({trace.marker.symbol for trace in waits.figure.data}) == 6
    marks = {trace.name: list(trace.x) for trace in waits.figure.data}
    assert marks["any, memory given back"] == [0.3, 0.015]
    assert marks["no driver calls"] == [1e-4] * 3
