"""The grammar of charts: what is given is drawn, in the axes' units, and said to those who do not see it."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from pinscope.analysis.cells import LineStyle, way
from pinscope.charts.plot import (
    RATE,
    SHARE,
    Curve,
    Length,
    Spot,
    TimePart,
    counts,
    curves,
    lengths,
    level,
    parts_of_time,
    seconds,
    sizes,
    way_curves,
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


def test_lengths_are_bars_of_one_colour_without_a_legend() -> None:
    bars = {"": [Length("kernel", 0.3, TimePart("longer", "compute"))]}
    chart = lengths("longer", "Longer", "Medians.", bars, SHARE, "Longer")
    (bar,) = chart.figure.data
    assert (list(bar.x), chart.figure.layout.showlegend) == ([30.0], False)
    assert chart.alt == "Longer: kernel 30.0 %."
