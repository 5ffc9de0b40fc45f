"""The grammar of charts: what is given is drawn, in the axes' units, and said to those who do not see it."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from pinscope.analysis.cells import LineStyle, way
from pinscope.charts.marks import End, Marks, Square, marks_of_seconds, matrix, name_ends
from pinscope.charts.plot import (
    RATE,
    SHARE,
    Bar,
    Curve,
    Scale,
    Spot,
    TimePart,
    bars,
    counts,
    curves,
    level,
    linear,
    parts_of_time,
    seconds,
    sizes,
    way_curves,
)
from pinscope.charts.theme import panels

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
    assert chart.alt == "Rate; at 1 GiB: pinned 55.0 GB/s."
    assert "1 GiB: 55.0 GB/s" in first.customdata


def test_the_limit_of_the_link_is_drawn_across_every_panel() -> None:
    chart = curves("rates", "Rates", "Medians.", TWO, RATE, sizes(), "Rate", limit=57.6e9)
    limits = [trace for trace in chart.figure.data if trace.name == "link limit"]
    assert [(list(trace.x), list(trace.y)) for trace in limits] == [([2**20, 2**30], [57.6, 57.6])] * 2


def test_a_level_goes_across_its_panel_however_far_the_curves_reach() -> None:
    panes = {title: pane | {"most": level(50e9, "50 GB/s", "dash")} for title, pane in TWO.items()}
    chart = curves("rates", "Rates", "Medians.", panes, RATE, sizes(), "Rate")
    levels = [trace for trace in chart.figure.data if trace.name == "most"]
    assert [(list(trace.x), list(trace.y)) for trace in levels] == [([2**20, 2**30], [50.0, 50.0])] * 2
    assert {trace.line.dash for trace in levels} == {"dash"}
    assert chart.alt == "Rate: pinned 55.0 GB/s."


def test_names_stand_at_the_ends_of_curves_where_that_is_asked_for() -> None:
    chart = curves("rates", "Rates", "Medians.", TWO, RATE, sizes(), "Rate", ends_named=True)
    written = [note.text for note in chart.figure.layout.annotations]
    assert {"pinned 55.0 GB/s", "pinned 40.0 GB/s"} <= set(written)


@pytest.mark.parametrize(("scale", "kind"), [(seconds("Time"), "log"), (SHARE, None)])
def test_times_are_drawn_by_decades_and_shares_from_nothing(scale: object, kind: str | None) -> None:
    panes = {"": {"wait": Curve(STYLE, [Spot(1, 0.5, "1"), Spot(8, 0.25, "8")])}}
    chart = curves("waits", "Waits", "Medians.", panes, scale, counts("Threads", "threads"), "Waits")  # type: ignore[arg-type]
    assert chart.figure.layout.yaxis.type == kind
    assert (chart.figure.layout.xaxis.type, list(chart.figure.layout.xaxis.ticktext)) == ("log", ["1", "8"])


@dataclass(frozen=True)
class Timed:
    way: str
    bytes: int
    seconds: float


def test_each_way_with_a_style_has_a_curve_in_the_order_of_its_table() -> None:
    ways = {"plain": way("plain copy", "", STYLE), "half": way("a half"), "pin": way("pinned", "", STYLE)}
    cells = [Timed("pin", 2**20, 1.0), Timed("plain", 2**20, 2.0), Timed("plain", 2**30, 3.0), Timed("half", 8, 1.0)]
    made = way_curves(cells, ways, lambda cell: cell.seconds)
    assert {name: [(spot.x, spot.y, spot.words) for spot in curve.spots] for name, curve in made.items()} == {
        "plain copy": [(2**20, 2.0, "1 MiB"), (2**30, 3.0, "1 GiB")],
        "pinned": [(2**20, 1.0, "1 MiB")],
    }
    assert list(made) == ["plain copy", "pinned"]


def test_parts_of_a_time_are_stacked_and_their_whole_stands_at_the_end() -> None:
    times = {"pinned": (1e-3, 2e-3), "pageable": (0.0, 9e-3)}
    chart = parts_of_time(
        "parts", "Parts", "Medians.", (TimePart("pin", "touch"), TimePart("copy", "copy")), times, "Time"
    )
    pin, copy = chart.figure.data
    assert (list(pin.x), list(copy.x)) == ([1.0, 0.0], [2.0, 9.0])  # milliseconds
    assert chart.alt == "Time: pinned 3.00 ms; pageable 9.00 ms."


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


def test_a_matrix_tells_each_square_once() -> None:
    square = Square(0.5, "50 %", "GPUs 0 and 1: 50 %")
    grid = {("GPU 0", "1"): square, ("GPU 1", "0"): square}
    chart = matrix("key", "title", "caption", {"h2d": grid}, ["0", "1"], ["GPU 0", "GPU 1"], ("x", "y"), "Pairs")
    assert chart.alt == "Pairs: GPUs 0 and 1 50 %."
    assert chart.figure.data[0].z == ([None, 0.5], [0.5, None])


def test_panels_have_scales_of_their_own_and_rules_neither_markers_nor_ends() -> None:
    rule = Curve(LineStyle("reference", dash="dot"), [Spot(0.0, 1e9, "1 GB/s"), Spot(20.0, 1e9, "")], rule=True)
    mark = Curve(LineStyle("corrupted", "x"), [Spot(10.0, 2e9, "killed here")], rule=True)
    rate = Curve(LineStyle("copy"), [Spot(0.0, 1e9, "before"), Spot(10.0, 2e9, "10 GiB")])
    panes = {
        "Read": {"limit": rule, "rate": rate, "killed": mark},
        "Held": {"share": Curve(LineStyle("cached"), [Spot(5.0, 0.5, "5 GiB")])},
    }
    scales = [RATE, Scale("Share (%)", 0.01, str, reach=1.0)]
    chart = curves("key", "Title", "", panes, scales, linear("Pinned (GiB)", "%{x} GiB"), "Drawn")
    limit, measured, killed, share = chart.figure.data
    assert (limit.mode, measured.mode, killed.customdata) == ("lines", "lines+markers", ("killed here",))
    assert (list(measured.y), list(share.y)) == ([1.0, 2.0], [50.0])
    layout = chart.figure.layout
    assert [layout.yaxis.title.text, layout.yaxis2.title.text] == ["Rate (GB/s)", "Share (%)"]
    assert (layout.yaxis2.range, layout.xaxis.range) == ((-4.0, 105.0), (-0.8, 20.8))
    assert chart.alt == "Drawn: rate 2.00 GB/s."


def test_lines_that_end_close_to_each_other_keep_their_own_values() -> None:
    figure = panels(["Rate"], [300])
    figure.add_scatter(x=[1, 2], y=[12.0, 12.8])
    heights = {"pinned": 12.8, "mapped": 12.7, "pageable": 12.2}
    name_ends(figure, 1, [End(name, f"{height} GB/s", 2, height) for name, height in heights.items()])
    assert [note.text for note in figure.layout.annotations if "GB/s" in note.text] == [
        "pinned 12.8 GB/s<br>mapped 12.7 GB/s<br>pageable 12.2 GB/s"
    ]


def test_a_mark_stands_in_the_row_of_its_name_and_none_where_nothing_is_known() -> None:
    series = [
        Marks("launch", LineStyle("issue"), {"idle": 1e-4, "pinning": 6.5}),
        Marks("copy", LineStyle("copy"), {"idle": None}),
    ]
    rows, ends = ["idle", "pinning"], [("pinning", "6.50 s")]
    chart = marks_of_seconds("waits", "Waits", "The longest.", rows, series, "Longest wait", "Longest call", ends)
    assert chart.alt == "Longest call: pinning 6.50 s."
    (launch,) = chart.figure.data
    assert dict(zip(launch.y, launch.x, strict=True)) == {"idle": 1e-4, "pinning": 6.5}
    assert list(chart.figure.layout.yaxis.categoryarray) == ["pinning", "idle"]  # from below
