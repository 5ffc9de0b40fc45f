"""The grammar of charts: curves over an axis in panels, parts of a time, bars. Data in, a :class:`Chart` out."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import plotly.graph_objects as go

from pinscope.analysis.cells import LineStyle, Way
from pinscope.analysis.read_rows import grouped
from pinscope.charts import marks
from pinscope.charts.theme import COLOURS, DASHES, GAP_PIXELS, panels, seconds_axis, seconds_unit, size_axis
from pinscope.units import format_bandwidth, format_bytes, format_seconds, format_share, format_value


@dataclass(frozen=True)
class Scale:
    """A vertical axis.

    Attributes:
        title: with its unit.
        unit: SI units of one unit of the axis.
        text: a value as a reader sees it who points at it.
        log: of seconds, by decades.
        reach: in SI units; the axis goes at least so far, with room for markers at 0.
    """

    title: str
    unit: float
    text: Callable[[float], str]
    log: bool = False
    reach: float | None = None


RATE = Scale("Rate (GB/s)", 1e9, format_bandwidth)
SHARE = Scale("Share (%)", 0.01, format_share)
Axis = Callable[[go.Figure, Sequence[float]], object]
"""Makes the shared horizontal axis of a figure, for the places where there are points."""


def seconds(title: str) -> Scale:
    """An axis of times, by decades."""
    return Scale(title, 1.0, format_seconds, log=True)


def scale_of(title: str, unit: str, longest: float | None = None) -> Scale:
    """The axis of any figure; of times up to ``longest`` seconds a linear one, else by decades."""
    if unit != "seconds":
        return RATE if unit == "bytes/second" else Scale(title, 1.0, lambda value: format_value(value, unit))
    if longest is None:
        return seconds(title)
    factor, word = seconds_unit(longest)
    return Scale(f"Time ({word})", factor, format_seconds)


def sizes(title: str = "Copy size (bytes, log scale)") -> Axis:
    """An axis of bytes."""
    return lambda figure, places: size_axis(figure, [int(place) for place in places], title)


def counts(title: str, word: str, text: Callable[[float], str] = "{:g}".format) -> Axis:
    """A logarithmic axis of few counts, each with its label, ``text``; ``word``: what is counted, for who points at
    it."""
    return lambda figure, places: figure.update_xaxes(
        type="log",
        tickmode="array",
        tickvals=list(places),
        ticktext=[text(place) for place in places],
        title_text=f"{title} (log scale)",
        unifiedhovertitle_text=f"%{{x}} {word}",
    )


def linear(title: str, hover: str) -> Axis:
    """A linear axis with room for markers at both ends; ``hover``: what stands above a value that is pointed at."""

    def make(figure: go.Figure, places: Sequence[float]) -> None:
        room = 0.04 * (places[-1] - places[0] or 1.0)
        figure.update_xaxes(range=[places[0] - room, places[-1] + room], unifiedhovertitle_text=hover)
        figure.update_xaxes(title_text=title, row=sum(1 for _ in figure.select_xaxes()), col=1)

    return make


class Spot(NamedTuple):
    """A point of a curve: where it is, in SI units, and what it is.

    ``bar``: the ends of its error bar, where it has one; ``after``: what follows its value, such as its ±.
    """

    x: float
    y: float
    words: str
    bar: tuple[float, float] | None = None
    after: str = ""


class Curve(NamedTuple):
    """A line with markers, or with Plotly's words for another mode or shape.

    As a ``rule`` a grey one without markers, beside what was measured, where words may be empty; of one spot it is a
    marker, and what is infinite ends with what was measured.
    """

    style: LineStyle
    spots: Sequence[Spot]
    rule: bool = False
    mode: str = "lines+markers"
    shape: str = "linear"


def level(height: float, words: str = "", dash: str = DASHES["reference"]) -> Curve:
    """A grey line across the panel, at a height in SI units."""
    ends = [Spot(x, height, words) for x in (-math.inf, math.inf)]
    return Curve(LineStyle("reference", dash=dash), ends, rule=True)


Panes = Mapping[str, Mapping[str, Curve]]
"""Title of a panel → name of a curve → the curve."""


def way_curves(cells: Iterable[Any], ways: Mapping[str, Way], value: Callable[[Any], float]) -> dict[str, Curve]:
    """A curve for each way that has a style, over the bytes of its cells; ``value`` in SI units."""
    groups = grouped(cells, lambda cell: cell.way)
    return {
        way.title: Curve(way.style, [Spot(cell.bytes, value(cell), format_bytes(cell.bytes)) for cell in groups[name]])
        for name, way in ways.items()
        if way.style and name in groups
    }


_THICKNESS = 0.42
"""Of a bar, of its row: its name stands above it."""
_BAR_GAP = 0.35
"""Of a row, what bars that lie below each other leave."""
MANY_NAMES = 8
"""A longer legend takes so much of a phone's screen that panels need more room between them."""


def curves(
    key: str,
    title: str,
    caption: str,
    panes: Panes,
    y: Scale | Sequence[Scale],
    x: Axis,
    alt: str,
    *,
    limit: float | Mapping[str, float] | None = None,
    pixels: int = 300,
    ends: Iterable[tuple[str, str]] | None = None,
    ends_named: bool = False,
) -> marks.Chart:
    """Curves by name, a panel for each pane.

    Args:
        key, title, caption: of the chart.
        panes: what is drawn.
        y: the vertical axis of all panels, or that of each.
        x: the horizontal axis.
        alt: what is drawn, for those who do not see it.
        limit: dotted in each panel: what the link can carry, in SI units; or that by the panel's title.
        pixels: height of a panel.
        ends: what follows ``alt``: names with what they come to; by default the last point of each curve.
        ends_named: write names and values at the right ends of the curves.
    """
    names = {name for pane in panes.values() for name in pane}
    gap = GAP_PIXELS if len(names) <= MANY_NAMES else GAP_PIXELS + 40
    figure = panels(list(panes), [pixels] * len(panes), gap)
    drawn = [{name: curve for name, curve in pane.items() if curve.spots} for pane in panes.values()]
    xs = {spot.x for pane in drawn for curve in pane.values() for spot in curve.spots}
    places = sorted(filter(math.isfinite, xs))
    scales = [y] * len(panes) if isinstance(y, Scale) else y
    for row, (title_of_pane, pane, scale) in enumerate(zip(panes, drawn, scales, strict=True), start=1):
        most = limit.get(title_of_pane) if isinstance(limit, Mapping) else limit
        if most is not None:
            pane["link limit"] = level(most, scale.text(most))
        marks.put(figure, row, *(_trace(name, curve, scale, places) for name, curve in pane.items()))
        if scale.log:
            continue
        figure.update_yaxes(title_text=scale.title, rangemode="tozero", row=row, col=1)
        if scale.reach is not None:
            top = max(scale.reach, *(spot.y for curve in pane.values() for spot in curve.spots)) / scale.unit
            figure.update_yaxes(range=[-0.04 * top, 1.05 * top], row=row, col=1)
    if scales[0].log:
        seconds_axis(figure, scales[0].title)
    x(figure, places)
    if ends_named:
        for row, (pane, scale) in enumerate(zip(drawn, scales, strict=True), start=1):
            marks.name_ends(
                figure, row, [_end(name, curve.spots, scale) for name, curve in pane.items() if not curve.rule]
            )
    if ends is None:
        ends = [
            (f"{pane_title}, {name}" if len(panes) > 1 else name, scale.text(curve.spots[-1].y))
            for pane_title, pane, scale in zip(panes, drawn, scales, strict=True)
            for name, curve in pane.items()
            if not curve.rule
        ]
    return marks.Chart(key, title, caption, figure, marks.alt_text(alt, ends))


def _trace(name: str, curve: Curve, y: Scale, places: Sequence[float]) -> go.Scatter:
    if curve.rule and len(curve.spots) == 1:
        return marks.line(
            name, curve.style, [(spot.x, spot.y / y.unit, spot.words) for spot in curve.spots], cliponaxis=False
        )
    if curve.rule:
        text = f": {curve.spots[0].words}" if curve.spots[0].words else None
        values = [spot.y / y.unit for spot in curve.spots]
        return marks.reference(
            name, [min(max(spot.x, places[0]), places[-1]) for spot in curve.spots], values, text, curve.style.dash
        )
    points = [(spot.x, spot.y / y.unit, f"{spot.words}: {y.text(spot.y)}{spot.after}") for spot in curve.spots]
    whiskers = _whiskers([(spot.y, spot.bar) for spot in curve.spots], y, thickness=1, width=3)
    return marks.line(name, curve.style, points, mode=curve.mode, error_y=whiskers).update(line_shape=curve.shape)


def _whiskers(
    values: Iterable[tuple[float, tuple[float, float] | None]], scale: Scale, **look: str | int
) -> dict[str, object] | None:
    """Error bars as Plotly wants them: how far they reach above and below the values."""
    known = [(at, *bar) for at, bar in values if bar]
    above, below = (
        [(high - at) / scale.unit for at, _, high in known],
        [(at - low) / scale.unit for at, low, _ in known],
    )
    return {"type": "data", "array": above, "arrayminus": below, **look} if known else None


def _end(name: str, spots: Sequence[Spot], y: Scale) -> marks.End:
    last = spots[-1]
    rises = len(spots) > 1 and spots[-2].y < 0.9 * last.y  # a flat end has room below
    return marks.End(name, y.text(last.y), last.x, last.y / y.unit, rises)


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
    times: Mapping[str, Sequence[float | None]],
    alt: str,
    *,
    least: float | None = None,
    ends: Mapping[str, str] | None = None,
    axis: Scale | None = None,
    side_by_side: bool = False,
) -> marks.Chart:
    """A bar for each name, made up of parts.

    Args:
        key, title, caption: of the chart.
        parts: from the left.
        times: name of a bar → seconds of each part; ``None``: it has no such part.
        alt: what is drawn, for those who do not see it.
        least: dotted at each bar: the least possible, in seconds.
        ends: name of a bar → what stands at its end; by default its whole, or its parts where they lie apart.
        axis: where the whole is no time.
        side_by_side: the parts lie below each other instead, and nothing stands at their ends.
    """
    wholes = {name: sum(filter(None, seconds)) for name, seconds in times.items()}
    if axis is None:
        longest = max((max(filter(None, seconds), default=0.0) for seconds in times.values()), default=0.0)
        scale, unit = seconds_unit(longest if side_by_side else max(wholes.values(), default=0.0))
        axis = Scale(f"Time ({unit})", scale, format_seconds)
    drawn = [
        (part, values)
        for place, part in enumerate(parts)
        if (values := {name: value for name, seconds in times.items() if (value := seconds[place]) is not None})
    ]
    row_pixels = marks.ROW_PIXELS + (12 * (len(drawn) - 1) if side_by_side else 0)
    figure = panels([""], [marks.AROUND_PIXELS + row_pixels * len(times)])
    for part, values in drawn:
        texts = list(map(axis.text, values.values()))
        bar = _bar(part, values, axis, texts, "%{fullData.name}: ", width=None if side_by_side else _THICKNESS)
        figure.add_trace(bar)
    figure.update_layout(
        barmode="group" if side_by_side else "stack",
        hovermode="y unified",
        bargap=_BAR_GAP,
        legend_traceorder="reversed" if side_by_side else "normal",
    )
    marks.names_above(figure, 1, list(times), *([(1 - _BAR_GAP) / 2] if side_by_side else []))
    figure.update_xaxes(title_text=axis.title, rangemode="tozero")
    if ends is None:
        ends = {name: axis.text(whole) for name, whole in wholes.items()}
        if side_by_side:
            ends = {f"{name}, {part.name}": axis.text(values[name]) for part, values in drawn for name in values}
    if not side_by_side:
        marks.end_labels(figure, 1, {name: (wholes[name] / axis.unit, words) for name, words in ends.items()})
    if least is not None:
        marks.limit_marks(figure, 1, len(times), least / axis.unit)
    return marks.Chart(key, title, caption, figure, marks.alt_text(alt, ends.items()))


def _bar(
    look: TimePart, values: Mapping[str, float], scale: Scale, texts: Sequence[str], before: str = "", **more: Any
) -> go.Bar:
    """Bars of one look, by name; ``before`` its text: what else a reader sees who points at one."""
    return go.Bar(
        orientation="h",
        y=list(values),
        x=[value / scale.unit for value in values.values()],
        name=look.name,
        customdata=texts,
        marker={"color": COLOURS[look.colour], "pattern": {"shape": look.pattern, "fillmode": "replace"}},
        hovertemplate=f"{before}%{{customdata}}<extra></extra>",
        **more,
    )


class Bar(NamedTuple):
    """A bar: its name, its length in SI units, its look, what stands at its end, and what a reader sees who points.

    ``end`` and ``words``: empty, as the axis says the length; ``interval``: the ends of its whisker.
    """

    name: str
    value: float
    look: TimePart
    end: str = ""
    words: str = ""
    interval: tuple[float, float] | None = None


def bars(
    key: str,
    title: str,
    caption: str,
    panes: Mapping[str, Sequence[Bar]],
    scale: Scale,
    alt: str,
    *,
    limit: float | None = None,
) -> marks.Chart:
    """A bar for each name, a panel for each pane; the legend names the looks that have a name, where there are several.

    Args:
        key, title, caption: of the chart.
        panes: title of a panel → its bars, the first on top.
        scale: the horizontal axis.
        alt: what is drawn, for those who do not see it.
        limit: dotted at each bar, in SI units; what stood at the ends of the bars then follows their names.
    """
    said = {
        title: [bar._replace(end=bar.end or scale.text(bar.value)) for bar in some] for title, some in panes.items()
    }
    figure = panels(list(said), [marks.ROW_PIXELS * len(pane) for pane in said.values()])
    for row, pane in enumerate(said.values(), start=1):
        if limit is None:
            _bars(figure, row, pane, scale)
            reach = {bar.name: max(bar.value, *(bar.interval or (0.0,))) for bar in pane}
            marks.end_labels(figure, row, {bar.name: (reach[bar.name] / scale.unit, bar.end) for bar in pane})
        else:
            _bars(figure, row, [bar._replace(name=f"{bar.name}: {bar.end}") for bar in pane], scale)
            marks.limit_marks(figure, row, len(pane), limit / scale.unit)
            top = max(limit, *(bar.value for bar in pane))
            figure.update_xaxes(range=[0, 1.04 * top / scale.unit], row=row, col=1)
    looks = {bar.look.name for pane in said.values() for bar in pane} - {""}
    figure.update_layout(barmode="stack", hovermode="y unified", showlegend=len(looks) > 1)
    figure.update_xaxes(title_text=scale.title, row=len(said), col=1)
    ends = [(", ".join(filter(None, (pane, bar.name))), bar.end) for pane, some in said.items() for bar in some]
    return marks.Chart(key, title, caption, figure, marks.alt_text(alt, ends))


def _bars(figure: go.Figure, row: int, pane: Sequence[Bar], scale: Scale) -> None:
    for look, alike in grouped(pane, lambda bar: bar.look).items():
        texts = [bar.words or scale.text(bar.value) for bar in alike]
        whiskers = _whiskers([(bar.value, bar.interval) for bar in alike], scale, color=COLOURS["reference"])
        values = {bar.name: bar.value for bar in alike}
        marks.put(figure, row, _bar(look, values, scale, texts, width=_THICKNESS, error_x=whiskers))
    marks.names_above(figure, row, [bar.name for bar in pane])
