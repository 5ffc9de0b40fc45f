"""The grammar of charts: what is given is drawn, in the axes' units, and said to those who do not see it."""

from __future__ import annotations

import pytest

from pinscope.analysis.cells import LineStyle
from pinscope.charts.plot import (
    RATE,
    SHARE,
    Bar,
    Curve,
    Spot,
    TimePart,
    bars,
    counts,
    curves,
    parts_of_time,
    seconds,
    sizes,
)

STYLE = LineStyle("pinned")
TWO = {
    "to the GPU": {"pinned": Curve(STYLE, [Spot(2**20, 50e9, "1 MiB"), Spot(2**30, 55e9, "1 GiB")])},
    "from the GPU": {"pinned": Curve(STYLE, [Spot(2**20, 40e9, "1 MiB")])},
}


def test_curves_are_drawn_in_the_units_of_their_axis_a_panel_each() -> None:
    chart = curves("rates", "Rates", "Medians.", TWO, RATE, sizes(), "Rate; at 1 GiB")
    first, second = chart.figure.data
    assert (list(first.x), list(first.y)) == ([2**20, 2**30], [50.0, 55.0])
    assert (first.yaxis, second.yaxis) == ("y", "y2")
    assert (first.showlegend, second.showlegend) == (True, False)
    assert chart.alt == "Rate; at 1 GiB: to the GPU, pinned 55.0 GB/s; from the GPU, pinned 40.0 GB/s."
    assert "1 GiB: 55.0 GB/s" in first.customdata


@pytest.mark.parametrize(("scale", "kind"), [(seconds("Time"), "log"), (SHARE, None)])
def test_times_are_drawn_by_decades_and_shares_from_nothing(scale: object, kind: str | None) -> None:
    panes = {"": {"wait": Curve(STYLE, [Spot(1, 0.5, "1"), Spot(8, 0.25, "8")])}}
    chart = curves("waits", "Waits", "Medians.", panes, scale, counts("Threads", "threads"), "Waits")  # type: ignore[arg-type]
    assert chart.figure.layout.yaxis.type == kind
    assert (chart.figure.layout.xaxis.type, list(chart.figure.layout.xaxis.ticktext)) == ("log", ["1", "8"])


PARTS = (TimePart("pin", "touch"), TimePart("copy", "copy"))


def test_parts_that_lie_below_each_other_are_told_one_by_one_and_one_may_be_missing() -> None:
    times = {"GPU 0": (5e9, 4e9), "GPU 1": (None, 3e9)}
    chart = parts_of_time("key", "title", "caption", PARTS, times, "Rates", axis=RATE, side_by_side=True)
    assert {bar.name: list(bar.y) for bar in chart.figure.data} == {"pin": ["GPU 0"], "copy": ["GPU 0", "GPU 1"]}
    assert list(chart.figure.data[0].x) == [5.0]
    assert chart.figure.layout.xaxis.title.text == "Rate (GB/s)"
    assert chart.alt == "Rates: GPU 0, pin 5.00 GB/s; GPU 0, copy 4.00 GB/s; GPU 1, copy 3.00 GB/s."


@pytest.mark.parametrize(("side_by_side", "order"), [(False, "normal"), (True, "reversed")])
def test_the_legend_names_parts_as_they_lie_and_the_least_crosses_each_bar_and_no_name(
    side_by_side: bool, order: str
) -> None:
    """Plotly draws bars side by side from below, and would reverse the legend of stacked ones."""
    times = {"first": (3.0, 1.0), "second": (1.0, 2.0)}
    layout = parts_of_time(
        "key", "title", "caption", PARTS, times, "Time", least=2.5, side_by_side=side_by_side
    ).figure.layout
    assert layout.legend.traceorder == order
    names = [note for note in layout.annotations if note.text in times]
    for place, (mark, name) in enumerate(zip(layout.shapes, names, strict=True)):
        assert name.yanchor == "bottom"
        assert (mark.x0, mark.x1) == (2.5, 2.5)
        assert mark.y0 < place - 0.2
        assert place + 0.2 < mark.y1 < name.y
        assert not side_by_side or name.y == pytest.approx(place + (1 - layout.bargap) / 2)


BARS = {"": [Bar("GPU 0", 50e9, TimePart("alone", "copy")), Bar("GPU 1", 25e9, TimePart("together", "pinned"))]}


@pytest.mark.parametrize(
    ("panes", "drawn"), [(BARS, {"alone": [50.0], "together": [25.0]}), ({"": BARS[""][:1]}, {"alone": [50.0]})]
)
def test_bars_have_their_look_and_a_legend_where_there_are_several(
    panes: dict[str, list[Bar]], drawn: dict[str, list[float]]
) -> None:
    chart = bars("key", "title", "caption", panes, RATE, "Rates")
    assert chart.figure.layout.showlegend == (len(drawn) > 1)
    assert {bar.name: list(bar.x) for bar in chart.figure.data} == drawn
    assert chart.alt.startswith("Rates: GPU 0 50.0 GB/s")


@pytest.mark.parametrize(("limit", "end"), [(60e9, 62.4), (40e9, 52.0)])
def test_beside_a_limit_values_stand_behind_the_names_and_the_axis_reaches_it(limit: float, end: float) -> None:
    chart = bars("key", "title", "caption", BARS, RATE, "Rates", limit=limit)
    assert list(chart.figure.layout.yaxis.categoryarray) == ["GPU 1: 25.0 GB/s", "GPU 0: 50.0 GB/s"]
    assert [shape.x0 for shape in chart.figure.layout.shapes] == [limit / 1e9] * 2
    assert chart.figure.layout.xaxis.range[1] == pytest.approx(end)
