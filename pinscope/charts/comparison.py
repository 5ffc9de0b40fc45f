"""Runs against runs, drawn: both sides beside each other, the ratios with their intervals; and a figure over runs."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from pinscope.analysis.cells import LineStyle
from pinscope.analysis.comparison import CellVerdict, ComparedCell, Comparison, Pooled
from pinscope.analysis.read_rows import grouped
from pinscope.analysis.trend import Trend
from pinscope.charts.marks import AROUND_PIXELS, ROW_PIXELS, Chart, alt_text, line, names_above
from pinscope.charts.plot import Curve, Spot, TimePart, counts, curves, linear, parts_of_time, scale_of, sizes
from pinscope.charts.theme import COLOURS, panels
from pinscope.units import format_change, format_precision, format_value

MOST_PANES, MOST_BARS, MOST_RATIOS = 4, 12, 16
"""What is drawn of many: what costs most first."""
_A, _B = LineStyle("wait", "diamond", "dash"), LineStyle("copy")
_LOOKS: dict[CellVerdict, LineStyle] = {
    "worse": LineStyle("corrupted", "triangle-down", size=11),
    "better": LineStyle("intact", "triangle-up", size=11),
    "same": LineStyle("reference"),
}


def draw(comparison: Comparison) -> list[Chart]:
    """Both sides, then the ratios; none where no cell is on both sides."""
    cells = [cell for cell in comparison.firsts if cell.ratio]
    if not cells:
        return []
    cells.sort(key=lambda cell: (not cell.differs, -abs(math.log(cell.ratio or 1.0))))
    return [_both(comparison, cells), *_ratios(comparison, cells)]


def _both(comparison: Comparison, cells: Sequence[ComparedCell]) -> Chart:
    """Curves over the label with most numbers; without such a label bars."""
    value = cells[0].value
    cells = [cell for cell in cells if cell.value == value]
    what, sides = value.title.capitalize(), ((comparison.a.name, "a", _A), (comparison.b.name, "b", _B))
    words = "The sides in the cells that differ most; medians, and ± where it is known."
    if axis := _axis(cells):
        series = grouped(cells, lambda cell: ", ".join(text for name, text in cell.texts.items() if name != axis))
        panes: dict[str, dict[str, Curve]] = {}
        for title, some in list(series.items())[:MOST_PANES]:
            some.sort(key=lambda cell: cell.labels[axis])
            for name, side, style in sides:
                spots = [_spot(cell, axis, getattr(cell, side)) for cell in some]
                panes.setdefault(title, {})[name] = Curve(style, spots)
        mark = cells[0].marks[axis]
        across = sizes("Size (bytes, log scale)") if mark.unit == "bytes" else counts(mark.title, axis)
        alt = f"{what} of both sides; of the largest"
        return curves("both", "Both sides", words, panes, scale_of(what, value.unit), across, alt, pixels=200)
    times = {cell.words: (cell.a.value, cell.b.value) for cell in cells[:MOST_BARS]}
    parts = [TimePart(name, style.colour) for name, _, style in sides]
    upright = None if value.unit == "seconds" else scale_of(what, value.unit)
    return parts_of_time("both", "Both sides", words, parts, times, f"{what} of both", axis=upright, side_by_side=True)


def _axis(cells: Sequence[ComparedCell]) -> str | None:
    """The label along which the cells are drawn: that with most numbers, three at least; sizes before counts."""
    numbers = {
        name: (mark.unit == "bytes", len({cell.labels[name] for cell in cells}))
        for name, mark in cells[0].marks.items()
        if all(isinstance(value := cell.labels.get(name), int | float) and value > 0 for cell in cells)
    }
    fitting = [name for name, (_, count) in numbers.items() if count >= 3]
    return max(fitting, key=numbers.__getitem__, default=None)


def _spot(cell: ComparedCell, axis: str, side: Pooled) -> Spot:
    bar = (side.value * (1 - side.spread), side.value * (1 + side.spread)) if side.spread else None
    after = f" {format_precision(side.spread, None)}".rstrip()
    return Spot(cell.labels[axis], side.value, cell.texts[axis], bar, after)


def _ratios(comparison: Comparison, cells: Sequence[ComparedCell]) -> Iterator[Chart]:
    """Of the cells with an interval those that differ most, the worst on top."""
    known = [(cell, cell.ratio, cell.low, cell.high) for cell in cells if cell.ratio and cell.low and cell.high]
    known = sorted(known[:MOST_RATIOS], key=lambda item: item[0].gain)
    if not known:
        return
    figure = panels([""], [AROUND_PIXELS + ROW_PIXELS * len(known)])
    for verdict, some in grouped(known, lambda item: item[0].verdict).items():
        points = [(at, cell.words, f"{format_change(at)}, {cell.interval_words}") for cell, at, _, _ in some]
        up, down = [high - at for _, at, _, high in some], [at - low for _, at, low, _ in some]
        whiskers = {"type": "data", "array": up, "arrayminus": down}
        hover = "%{customdata}<extra>%{fullData.name}</extra>"
        words = some[0][0].verdict_words
        figure.add_trace(line(words, _LOOKS[verdict], points, mode="markers", error_x=whiskers, hovertemplate=hover))
    names_above(figure, 1, [cell.words for cell, *_ in known])
    figure.add_vline(1.0, line={"color": COLOURS["reference"], "dash": "dot", "width": 2})
    title = f"{comparison.b.name} over {comparison.a.name}, {known[0][0].value.title} (log scale)"
    figure.update_xaxes(type="log", tickformat="~g", tickangle=0, nticks=7, title_text=title)
    figure.update_layout(hovermode="closest")
    ends = [(cell.words, f"{format_change(at)} {cell.verdict_words}") for cell, at, _, _ in known]
    words = "The ratio of both sides and its interval, which holds for all cells together."
    yield Chart("ratios", "Ratios", words, figure, alt_text("Ratios", ends))


_RUNS, _MEDIAN = LineStyle("copy"), LineStyle("reference")


def draw_trend(trend: Trend) -> Chart:
    """A figure over runs: each run, the oldest first, the median between steps, and by how much it steps."""
    values, figure = trend.values, trend.figure
    runs = [
        Spot(place, value, f"{run.created_at:%Y-%m-%d %H:%M}, {run.id}")
        for place, (run, value) in enumerate(zip(trend.runs, values, strict=True), start=1)
    ]
    medians = {
        f"Median from {begin + 1}": Curve(_MEDIAN, [Spot(place, middle, "") for place in (begin + 1, end)], rule=True)
        for begin, end, middle in trend.levels
    }
    said = [(f"run {step.place + 1}", step.change) for step in trend.steps]
    chart = curves(
        "trend",
        figure.name,
        "Each run, the oldest first; grey: the median between steps. The axis does not begin at 0.",
        {"": {"Runs": Curve(_RUNS, runs), **medians}},
        scale_of(figure.name, figure.unit, max(values)),
        linear("Run, the oldest first", "Run %{x}"),
        f"{figure.name} over {len(values)} runs",
        ends=[*said, ("last run", format_value(values[-1], figure.unit))],
    )
    # A step of some percent is seen, which an axis from 0 would hide.
    chart.figure.update_yaxes(autorange=True, rangemode="normal").update_layout(showlegend=False)
    look = {"color": COLOURS["corrupted"], "dash": "dot", "width": 2}
    for step in trend.steps:
        side = "top left" if step.place > len(values) / 2 else "top right"
        chart.figure.add_vline(step.place + 0.5, line=look, annotation_text=step.change, annotation_position=side)
    return chart
