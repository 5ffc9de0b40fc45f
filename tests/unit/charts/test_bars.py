"""Bars: their names stay legible, and the legend names the parts as they lie."""

from __future__ import annotations

import pytest

from pinscope.charts.marks import THICKNESS, Part, bars, limit_marks

PARTS = (Part("touching", "touch", {"one": 3.0, "two": 1.0}), Part("pinning", "pinned", {"one": 1.0, "two": 2.0}))


@pytest.mark.parametrize(("side_by_side", "order"), [(False, "normal"), (True, "reversed")])
def test_the_legend_names_parts_from_the_left_or_from_the_top(side_by_side: bool, order: str) -> None:
    """Plotly draws bars side by side from below, and would reverse the legend of stacked ones."""
    figure = bars(["one", "two"], PARTS, "Time (s)", str, side_by_side=side_by_side)
    assert figure.layout.legend.traceorder == order


def test_the_names_of_bars_that_lie_below_each_other_begin_at_the_upper_one_s_edge() -> None:
    figure = bars(["one", "two"], PARTS, "Time (s)", str, side_by_side=True)
    names = {note.text: note for note in figure.layout.annotations}
    for place, name in enumerate(("two", "one")):
        assert names[name].yanchor == "bottom"
        assert names[name].y == pytest.approx(place + (1 - figure.layout.bargap) / 2)


def test_the_marks_of_a_limit_cross_each_bar_and_no_name() -> None:
    figure = bars(["one", "two"], PARTS, "Time (s)", str)
    limit_marks(figure, 1, 2, 2.5)
    names = [note for note in figure.layout.annotations if note.text in ("one", "two")]
    for place, (mark, name) in enumerate(zip(figure.layout.shapes, names, strict=True)):
        assert (mark.x0, mark.x1) == (2.5, 2.5)
        assert mark.y0 < place - THICKNESS / 2
        assert place + THICKNESS / 2 < mark.y1 < name.y
