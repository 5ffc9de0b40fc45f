"""The grammar of charts: curves over an axis in panels, parts of a time, lengths. Data in, a :class:`Chart` out."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import plotly.graph_objects as go

from pinscope.analysis.ways import LineStyle
from pinscope.charts.bars import Part, bars, limit_marks
from pinscope.charts.chart import Chart, alt_text
from pinscope.charts.lines import End, line, name_ends, put, reference
from pinscope.charts.matrix import Square, matrices
from pinscope.charts.theme import panels, seconds_axis, seconds_unit, size_axis
from pinscope.units import format_bandwidth, format_seconds, format_share


@dataclass(frozen=True)
class Scale:
    """A vertical axis.

    Attributes:
        title: with its unit.
        unit: SI units of one unit of the axis.
        text: a value as a reader sees it who points at it.
        log: of seconds, by decades.
    """

    title: str
    unit: float
    text: Callable[[float], str]
    log: bool = False


RATE = Scale("Rate (GB/s)", 1e9, format_bandwidth)
SHARE = Scale("Share (%)", 0.01, format_share)
Axis = Callable[[go.Figure, Sequence[float]], object]
"""Makes the shared horizontal axis of a figure, for the places where there are points."""


def seconds(title: str) -> Scale:
    """An axis of times, by decades."""
    return Scale(title, 1.0, format_seconds, log=True)


def sizes(title: str = "Copy size (bytes, log scale)") -> Axis:
    """An axis of bytes."""
    return lambda figure, places: size_axis(figure, [int(place) for place in places], title)


def counts(title: str, word: str) -> Axis:
    """A logarithmic axis of few counts, each with its label; ``word``: what is counted, for who points at it."""
    return lambda figure, places: figure.update_xaxes(
        type="log",
        tickmode="array",
        tickvals=list(places),
        ticktext=[f"{place:g}" for place in places],
        title_text=f"{title} (log scale)",
        unifiedhovertitle_text=f"%{{x}} {word}",
    )


class Spot(NamedTuple):
    """A point of a curve: where it is, in SI units, and what it is."""

    x: float
    y: float
    words: str


class Curve(NamedTuple):
    """A line with markers."""

    style: LineStyle
    spots: Sequence[Spot]


Panes = Mapping[str, Mapping[str, Curve]]
"""Title of a panel → name of a curve → the curve."""


def curves(
    key: str,
    title: str,
    caption: str,
    panes: Panes,
    y: Scale,
    x: Axis,
    alt: str,
    *,
    limit: float | None = None,
    pixels: int = 300,
    ends: Iterable[tuple[str, str]] | None = None,
    ends_named: bool = False,
) -> Chart:
    """Curves by name, a panel for each pane.

    Args:
        key, title, caption: of the chart.
        panes: what is drawn.
        y: the vertical axis of all panels.
        x: the horizontal axis.
        alt: what is drawn, for those who do not see it.
        limit: dotted in each panel: what the link can carry, in SI units.
        pixels: height of a panel.
        ends: what follows ``alt``: names with what they come to; by default the last point of each curve of the first
            pane.
        ends_named: write names and values at the right ends of the curves.
    """
    figure = panels(list(panes), [pixels] * len(panes))
    places = sorted({spot.x for pane in panes.values() for curve in pane.values() for spot in curve.spots})
    for row, pane in enumerate(panes.values(), start=1):
        for name, curve in pane.items():
            points = [(spot.x, spot.y / y.unit, f"{spot.words}: {y.text(spot.y)}") for spot in curve.spots]
            if points:
                put(figure, row, line(name, curve.style, points))
        if limit is not None:
            across = [places[0], places[-1]]
            put(figure, row, reference("link limit", across, [limit / y.unit] * 2, f", {y.text(limit)}"))
    if y.log:
        seconds_axis(figure, y.title)
    else:
        figure.update_yaxes(title_text=y.title, rangemode="tozero")
    x(figure, places)
    if ends_named:
        for row, pane in enumerate(panes.values(), start=1):
            drawn = {name: curve.spots for name, curve in pane.items() if curve.spots}
            name_ends(figure, row, [_end(name, spots, y) for name, spots in drawn.items()])
    if ends is None:
        first = next(iter(panes.values()))
        ends = [(name, y.text(curve.spots[-1].y)) for name, curve in first.items() if curve.spots]
    return Chart(key, title, caption, figure, alt_text(alt, ends))


def _end(name: str, spots: Sequence[Spot], y: Scale) -> End:
    last = spots[-1]
    rises = len(spots) > 1 and spots[-2].y < last.y
    return End(name, y.text(last.y), last.x, last.y / y.unit, rises)


class TimePart(NamedTuple):
    """A part of a time: its name, the key of its colour, and Plotly's name of a hatching."""

    name: str
    colour: str
    pattern: str = ""


def parts_of_time(
    key: str,
    title: str,
    caption: str,
    parts: Sequence[TimePart],
    times: Mapping[str, Sequence[float]],
    alt: str,
    *,
    least: float | None = None,
    ends: Mapping[str, str] | None = None,
    axis: Scale | None = None,
) -> Chart:
    """A bar for each name, made up of parts.

    Args:
        key, title, caption: of the chart.
        parts: from the left.
        times: name of a bar → seconds of each part.
        alt: what is drawn, for those who do not see it.
        least: dotted at each bar: the least possible, in seconds.
        ends: name of a bar → what stands at its end; by default its whole.
        axis: where the whole is no time.
    """
    wholes = {name: sum(seconds) for name, seconds in times.items()}
    if axis is None:
        scale, unit = seconds_unit(max(wholes.values(), default=0.0))
        axis = Scale(f"Time ({unit})", scale, format_seconds)
    drawn = [
        Part(part.name, part.colour, {name: seconds[place] for name, seconds in times.items()}, part.pattern)
        for place, part in enumerate(parts)
    ]
    ends = {name: axis.text(whole) for name, whole in wholes.items()} if ends is None else ends
    figure = bars(list(times), drawn, axis.title, axis.text, scale=axis.unit, ends=ends)
    if least is not None:
        limit_marks(figure, list(times), least / axis.unit)
    return Chart(key, title, caption, figure, alt_text(alt, ends.items()))


def lengths(
    key: str,
    title: str,
    caption: str,
    name: str,
    colour: str,
    values: Mapping[str, float],
    scale: Scale,
    alt: str,
    *,
    ends: Mapping[str, str] | None = None,
) -> Chart:
    """A bar of one colour for each name: ``values`` in SI units, ``scale`` the horizontal axis."""
    ends = {bar: scale.text(value) for bar, value in values.items()} if ends is None else ends
    figure = bars(list(values), [Part(name, colour, values)], scale.title, scale.text, scale=scale.unit, ends=ends)
    return Chart(key, title, caption, figure.update_layout(showlegend=False), alt_text(alt, ends.items()))


def lengths_by_kind(
    key: str,
    title: str,
    caption: str,
    kinds: Mapping[str, str],
    values: Mapping[str, tuple[str, float]],
    scale: Scale,
    alt: str,
    *,
    limit: float | None = None,
) -> Chart:
    """A bar for each name, in the colour of its kind.

    Args:
        key, title, caption: of the chart.
        kinds: name in the legend → key of its colour.
        values: name of a bar → its kind, and its length in SI units.
        scale: the horizontal axis.
        alt: what is drawn, for those who do not see it.
        limit: dotted at each bar, in SI units; values then stand behind the names, not at the ends of the bars.
    """
    texts = {name: scale.text(value) for name, (_, value) in values.items()}
    names = texts if limit is None else {f"{name}: {text}": text for name, text in texts.items()}
    bars_drawn = list(zip(names, values.values(), strict=True))
    parts = [
        Part(kind, colour, {name: value for name, (own, value) in bars_drawn if own == kind})
        for kind, colour in kinds.items()
    ]
    ends = texts if limit is None else None
    drawn = [part for part in parts if part.values]
    figure = bars(list(names), drawn, scale.title, scale.text, scale=scale.unit, ends=ends)
    if limit is not None:
        limit_marks(figure, list(names), limit / scale.unit)
        top = max(limit, *(value for _, value in values.values()))
        figure.update_xaxes(range=[0, 1.04 * top / scale.unit])
    return Chart(key, title, caption, figure, alt_text(alt, texts.items()))


MOST_SQUARES = 60
"""That are told to those who do not see a matrix."""


def matrix(
    key: str,
    title: str,
    caption: str,
    panes: Mapping[str, Mapping[tuple[str, str], Square]],
    columns: Sequence[str],
    rows: Sequence[str],
    axes: tuple[str, str],
    alt: str,
) -> Chart:
    """Names by names, a matrix for each pane: as :func:`matrices`. What squares hover is told after ``alt``."""
    figure = matrices(list(panes), columns, rows, list(panes.values()), axes)
    hovers = list(dict.fromkeys(square.hover for pane in panes.values() for square in pane.values()))
    ends = (hover.partition(": ")[::2] for hover in hovers[:MOST_SQUARES])
    return Chart(key, title, caption, figure, alt_text(alt, ends))
