"""Bars coloured by kind, and matrices, of the grammar of charts."""

from __future__ import annotations

import pytest

from pinscope.charts.marks import Square
from pinscope.charts.plot import RATE, Length, TimePart, lengths, matrix, parts_of_time

BARS = {"": [Length("GPU 0", 50e9, TimePart("alone", "copy")), Length("GPU 1", 25e9, TimePart("together", "pinned"))]}


def test_each_bar_is_drawn_in_its_look_and_the_legend_names_the_looks() -> None:
    chart = lengths("key", "title", "caption", BARS, RATE, "Rates")
    assert chart.figure.layout.showlegend
    assert {bar.name: list(bar.x) for bar in chart.figure.data} == {"alone": [50.0], "together": [25.0]}
    assert chart.alt == "Rates: GPU 0 50.0 GB/s; GPU 1 25.0 GB/s."


@pytest.mark.parametrize(("limit", "end"), [(60e9, 62.4), (40e9, 52.0)])
def test_beside_a_limit_values_stand_behind_the_names_and_the_axis_reaches_it(limit: float, end: float) -> None:
    chart = lengths("key", "title", "caption", BARS, RATE, "Rates", limit=limit)
    assert list(chart.figure.layout.yaxis.categoryarray) == ["GPU 1: 25.0 GB/s", "GPU 0: 50.0 GB/s"]
    assert [shape.x0 for shape in chart.figure.layout.shapes] == [limit / 1e9] * 2
    assert chart.figure.layout.xaxis.range[1] == pytest.approx(end)


def test_a_matrix_tells_each_square_once() -> None:
    square = Square(0.5, "50 %", "GPUs 0 and 1: 50 %")
    grid = {("GPU 0", "1"): square, ("GPU 1", "0"): square}
    chart = matrix("key", "title", "caption", {"h2d": grid}, ["0", "1"], ["GPU 0", "GPU 1"], ("x", "y"), "Pairs")
    assert chart.alt == "Pairs: GPUs 0 and 1 50 %."
    assert chart.figure.data[0].z == ([None, 0.5], [0.5, None])


def test_parts_that_lie_below_each_other_are_told_one_by_one_and_one_may_be_missing() -> None:
    parts, times = (
        [TimePart("alone", "copy"), TimePart("at once", "pinned")],
        {"GPU 0": (5e9, 4e9), "GPU 1": (None, 3e9)},
    )
    chart = parts_of_time("key", "title", "caption", parts, times, "Rates", axis=RATE, side_by_side=True)
    assert {bar.name: list(bar.y) for bar in chart.figure.data} == {"alone": ["GPU 0"], "at once": ["GPU 0", "GPU 1"]}
    assert chart.alt == "Rates: GPU 0, alone 5.00 GB/s; GPU 0, at once 4.00 GB/s; GPU 1, at once 3.00 GB/s."


def test_parts_of_something_else_than_a_time_have_its_axis() -> None:
    chart = parts_of_time("key", "title", "caption", [TimePart("part", "copy")], {"bar": [5e9]}, "Parts", axis=RATE)
    assert chart.figure.layout.xaxis.title.text == "Rate (GB/s)"
    assert list(chart.figure.data[0].x) == [5.0]
