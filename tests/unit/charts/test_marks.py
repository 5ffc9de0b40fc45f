"""Marks in rows: each where it was measured, none where it was not."""

from __future__ import annotations

from pinscope.analysis.cells import LineStyle
from pinscope.charts.marks import Marks, marks_of_seconds


def test_a_mark_stands_in_the_row_of_its_name_and_none_where_nothing_is_known() -> None:
    series = [
        Marks("launch", LineStyle("issue"), {"idle": 1e-4, "pinning": 6.5}),
        Marks("copy", LineStyle("copy"), {"idle": None}),
    ]
    rows, ends = ["idle", "pinning"], [("pinning", "6.50 s")]
    chart = marks_of_seconds("waits", "Waits", "The longest.", rows, series, "Longest wait", "Longest call", ends)
    assert chart.alt == "Longest call: pinning 6.50 s."
    figure = chart.figure
    (launch,) = figure.data
    assert dict(zip(launch.y, launch.x, strict=True)) == {"idle": 1e-4, "pinning": 6.5}
    assert list(launch.customdata) == ["100 µs", "6.50 s"]
    assert list(figure.layout.yaxis.categoryarray) == ["pinning", "idle"]  # from below
    assert figure.layout.xaxis.title.text == "Longest wait (log scale)"
