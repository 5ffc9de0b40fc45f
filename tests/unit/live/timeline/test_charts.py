"""Charts of timelines: all that was seen is drawn, holes stay holes, and a long watch stays light."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import plotly.graph_objects as go
import pytest

from pinscope.charts.marks import Chart
from pinscope.experiments.registry import draw_run
from pinscope.live.series import Moment, TimelineRows
from pinscope.live.timeline.charts import MOST_POINTS
from tests.data import synthetic_timeline
from tests.data.synthetic_snapshot import GIB, holder, host, snapshot
from tests.data.synthetic_timeline import run, watched


def charts(rows: list[dict[str, Any]]) -> dict[str, Chart]:
    return {chart.key: chart for chart in draw_run(run(), rows)}


def lines(chart: Chart) -> dict[str, go.Scatter]:
    """Traces by name; the first of those that several panels share."""
    return {trace.name: trace for trace in reversed(chart.figure.data)}


@pytest.fixture(scope="module")
def drawn() -> dict[str, Chart]:
    return charts(synthetic_timeline.growing())


def test_a_host_with_gpus_has_all_charts_and_one_without_has_those_of_the_host(drawn: dict[str, Chart]) -> None:
    assert list(drawn) == ["timeline-pinned", "timeline-holders", "timeline-page-tables", "timeline-pcie"]
    assert list(charts(watched(3))) == ["timeline-pinned", "timeline-holders"]
    assert list(charts(watched(3, holders=lambda n: ()))) == ["timeline-pinned"]


def test_nothing_is_drawn_of_a_timeline_without_samples() -> None:
    assert charts(TimelineRows().missed("OSError: no", Moment(0, 0.0))) == {}
    assert charts([]) == {}


def test_pinned_memory_is_split_and_stands_beside_the_memory_there_is(drawn: dict[str, Chart]) -> None:
    found = lines(drawn["timeline-pinned"])
    assert {
        "Pinned, whole host",
        "Pinned, process known",
        "Pinned, process unknown",
        "Locked (mlock)",
        "Available",
    } <= set(found)
    assert found["Pinned, process unknown"].y[0] == 1.0
    assert found["Pinned, whole host"].y[-1] == pytest.approx(10 + 59 * 8 / 1024)
    assert "host memory 512 GiB (off scale)" in found  # 10 GiB pinned would lie on the ground beside it


def test_many_holders_are_six_lines_apart_in_more_than_colour_and_their_rest_together() -> None:
    crowd = [holder(pid, host_alloc_bytes=pid * GIB) for pid in range(1, 11)]
    found = lines(charts(watched(3, holders=lambda n: crowd))["timeline-holders"])
    assert list(found)[::-1] == [*(f"python (pid {pid})" for pid in range(10, 4, -1)), "4 others together"]
    assert found["4 others together"].y == (10.0, 10.0, 10.0)
    assert len({trace.line.dash for name, trace in found.items() if "pid" in name}) == 6


def test_each_gpu_has_a_panel_and_each_line_one_name_in_the_legend(drawn: dict[str, Chart]) -> None:
    for key, names in (
        ("timeline-page-tables", {"Unattributed", "Page tables"}),
        ("timeline-pcie", {"Received over PCIe", "Sent over PCIe", "the link carries 57.6 GB/s"}),
    ):
        figure = drawn[key].figure
        assert [note.text for note in figure.layout.annotations] == ["GPU 0", "GPU 1"]
        shown = [trace.name for trace in figure.data if trace.showlegend]
        assert sorted(shown) == sorted(names)


def test_a_time_without_samples_is_a_hole_in_every_line() -> None:
    made = TimelineRows()
    rows = []
    for at in (*range(10), *range(60, 70)):
        rows += made.of(snapshot(host=host()), Moment(at, float(at)), 0.0)
    for chart in charts(rows).values():
        for trace in chart.figure.data:
            if len(trace.x) > 2:  # not a limit
                crossing = [
                    (left, right)
                    for (left, above), (right, below) in pairwise(zip(trace.x, trace.y, strict=True))
                    if right - left > 2.5 and above is not None and below is not None
                ]
                assert crossing == [], trace.name
                assert None in trace.y


def test_a_long_watch_stays_light_and_keeps_its_peak() -> None:
    peak = 9_311
    rows = watched(11_000, holders=lambda n: (), pinned_bytes=lambda n: (100 if n == peak else n % 7) * GIB)
    chart = charts(rows)["timeline-pinned"]
    trace = lines(chart)["Pinned, whole host"]
    assert len(trace.x) <= MOST_POINTS + 4
    assert max(trace.y) == 100
    assert list(chart.figure.select_xaxes())[-1].title.text == "Time (hours)"
    assert trace.x[trace.y.index(100)] == pytest.approx(peak / 3600)


def test_what_a_process_calls_itself_is_no_markup() -> None:
    named = holder(1, name="<b>%{x}</b>")
    chart = charts(watched(3, holders=lambda n: (named,)))["timeline-holders"]
    (trace,) = chart.figure.data
    assert "<b>" not in trace.name + trace.hovertemplate
    assert "%{x}" not in trace.hovertemplate
