"""What an access run looks like: time over the number of uses, and over the share of the data that is used."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import plotly.graph_objects as go

from pinscope.analysis.link_model import link_limit
from pinscope.analysis.ways import LineStyle
from pinscope.charts.chart import Chart, alt_text
from pinscope.charts.lines import End, line, name_ends, put, reference
from pinscope.charts.theme import GAP_PIXELS, panels, seconds_axis
from pinscope.experiments.access.arithmetic import (
    PATTERN_TITLES,
    WAY_TITLES,
    Cell,
    cells,
    over_spacing,
    over_uses,
    winners,
)
from pinscope.experiments.access.verdict import times_as_long, zero_copy_pairs
from pinscope.records.run import ExperimentRun
from pinscope.units import format_bandwidth, format_bytes, format_seconds, format_share

_BEST_SIZE, _SIZE = 12, 7
"""Pixels of a marker: of the best way and those as good as it, and of the others."""
_MARKS = "Large markers: the best way, and those as good as it."
_LOOKS: Mapping[str, LineStyle] = {
    "copy": LineStyle("copy"),
    "copy_part": LineStyle("copy", "circle-open", "dash"),
    "mapped": LineStyle("mapped", "triangle-up"),
    "managed": LineStyle("managed", "pentagon"),
    "prefetched": LineStyle("managed", "pentagon-open", "dash"),
}


def draw(run: ExperimentRun, rows: Sequence[Mapping[str, Any]]) -> list[Chart]:
    """The charts of a run, also of one that still goes on."""
    found = cells(rows)
    if not found:
        return []
    uses, spacing = min(cell.uses for cell in found), min(cell.spacing for cell in found)
    size = format_bytes(found[0].bytes)
    limit = link_limit(run)
    least = None if limit is None else found[0].bytes / limit
    dotted = "" if least is None else " Dotted: all of it over the link once, at the most that it can carry."
    charts = [*_answer(found, size, least)]
    if len({cell.uses for cell in found}) > 1:
        curves = {pattern: over_uses(found, pattern, spacing) for pattern in PATTERN_TITLES}
        share = "all of it" if spacing == 1 else f"one part of {spacing}"
        charts.append(
            Chart(
                "access-uses",
                "Time over the number of uses",
                f"{size} on the host, {share} used by each kernel; until the result can be used. {_MARKS}{dotted}",
                _panels(curves, "uses", least),
                _alt(curves, "uses"),
            )
        )
    if len({cell.spacing for cell in found}) > 1:
        curves = {pattern: over_spacing(found, pattern, uses) for pattern in PATTERN_TITLES}
        charts.append(
            Chart(
                "access-share",
                "Time over the share of the data that is used",
                f"{size} on the host, used {'once' if uses == 1 else f'{uses} times'}. An explicit copy moves "
                f"all of it, a 2D copy what is used. {_MARKS}{dotted}",
                _panels(curves, "spacing", least),
                _alt(curves, "spacing"),
            )
        )
    return charts


def _answer(found: Sequence[Cell], size: str, least: float | None) -> list[Chart]:
    """The pattern for which zero-copy differs most from a copy, over both: what the verdict speaks of."""
    pairs = [pair for pair in zero_copy_pairs(found) if pair[0].spacing == 1]
    if not pairs or len({cell.pattern for cell in found}) == 1:  # then the other charts show no more than it
        return []
    worst, copy = max(pairs, key=lambda pair: abs(math.log(times_as_long(pair))))
    pattern = PATTERN_TITLES[worst.pattern]
    curves = {by: curves(found, worst.pattern, 1) for by, curves in (("uses", over_uses), ("spacing", over_spacing))}
    shown = [by for by, ways in curves.items() if any(len(curve) > 1 for curve in ways.values())]
    if not shown:
        return []
    titles = {"uses": "All of it used, by number of uses", "spacing": "Used once, by share used"}
    figure = panels([titles[by] for by in shown], [240] * len(shown), gap=GAP_PIXELS + 20).update_xaxes(matches=None)
    for row, by in enumerate(shown, start=1):
        _panel(figure, row, curves[by], by, least)
    seconds_axis(figure)
    for row, by in enumerate(shown, start=1):
        name_ends(figure, row, [_end(way, curve, by) for way, curve in curves[by].items()])
    seconds = [format_seconds(cell.wall_seconds.median) for cell in (worst, copy)]
    caption = f"{size} on the host, until the result can be used: the pattern for which zero-copy differs most."
    return [
        Chart(
            "access-answer",
            f"Zero-copy and copies: {pattern}",
            caption,
            figure,
            f"{pattern.capitalize()} of {size}, {worst.uses} uses: zero-copy {seconds[0]}, explicit copy {seconds[1]}. "
            + _alt({worst.pattern: curves[shown[-1]]}, shown[-1]),
        )
    ]


def _end(way: str, curve: Sequence[Cell], by: str) -> End:
    last, seconds = curve[-1], [cell.wall_seconds.median for cell in curve]
    rises = len(curve) > 1 and seconds[-1] > 1.2 * seconds[-2]
    return End(WAY_TITLES[way], format_seconds(seconds[-1]), getattr(last, by), seconds[-1], rises)


def _panels(curves: Mapping[str, Mapping[str, Sequence[Cell]]], by: str, least: float | None) -> go.Figure:
    drawn = {pattern: ways for pattern, ways in curves.items() if ways}
    figure = panels([PATTERN_TITLES[pattern].capitalize() for pattern in drawn])
    for row, ways in enumerate(drawn.values(), start=1):
        _panel(figure, row, ways, by, least)
    seconds_axis(figure)
    return figure


def _panel(figure: go.Figure, row: int, ways: Mapping[str, Sequence[Cell]], by: str, least: float | None) -> None:
    """Each way over the number of uses, or over the share that is used."""
    ticks = sorted({getattr(cell, by) for curve in ways.values() for cell in curve})
    best = {id(cell) for tick in ticks for cell in _best_at(ways, by, tick)}
    for way, curve in ways.items():
        look = replace(_LOOKS[way], size=[_BEST_SIZE if id(cell) in best else _SIZE for cell in curve])
        put(figure, row, line(WAY_TITLES[way], look, [_point(cell, by) for cell in curve]))
    if least is not None:
        put(figure, row, reference("link limit", [ticks[0], ticks[-1]], [least] * 2, f", {format_seconds(least)}"))
    figure.update_xaxes(
        type="log",
        tickmode="array",
        tickvals=ticks,
        ticktext=[_tick(by, tick) for tick in ticks],
        title_text={"uses": "Uses (log scale)", "spacing": "Share of the data used (log scale)"}[by],
        unifiedhovertitle_text={"uses": "%{x} uses", "spacing": "one part of %{x}"}[by],
        row=row,
        col=1,
    )


def _tick(by: str, tick: int) -> str:
    return str(tick) if by == "uses" else f"{100 / tick:.{0 if tick < 16 else 1}f} %"


def _alt(curves: Mapping[str, Mapping[str, Sequence[Cell]]], by: str) -> str:
    """The times at the right end of each panel."""
    at = max(getattr(cell, by) for ways in curves.values() for curve in ways.values() for cell in curve)
    where = f"{at} uses" if by == "uses" else f"{_tick(by, at)} of the data used"
    ends = [
        (f"{PATTERN_TITLES[pattern]}, {WAY_TITLES[way]}", format_seconds(curve[-1].wall_seconds.median))
        for pattern, ways in curves.items()
        for way, curve in ways.items()
    ]
    return alt_text(f"Time at {where}", ends)


def _best_at(ways: Mapping[str, Sequence[Cell]], by: str, tick: int) -> Sequence[Cell]:
    return winners([cell for curve in ways.values() for cell in curve if getattr(cell, by) == tick])


def _point(cell: Cell, by: str) -> tuple[int, float, str]:
    at, seconds, rate = getattr(cell, by), cell.wall_seconds.median, cell.useful_bytes_per_second
    where = f"{at} uses" if by == "uses" else f"{format_share(1 / at)} used"
    return at, seconds, f"{where}: {format_seconds(seconds)}, {format_bandwidth(rate)}"
