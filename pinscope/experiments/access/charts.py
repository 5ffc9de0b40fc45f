"""What an access run looks like: time over the number of uses, and over the share of the data that is used."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import plotly.graph_objects as go

from pinscope.analysis.link_model import link_limit
from pinscope.charts.chart import Chart
from pinscope.charts.lines import Look, line, put, reference
from pinscope.charts.theme import panels, seconds_axis
from pinscope.experiments.access.arithmetic import (
    PATTERN_TITLES,
    WAY_TITLES,
    Cell,
    cells,
    over_spacing,
    over_uses,
    winners,
)
from pinscope.records.run import ExperimentRun
from pinscope.units import format_bandwidth, format_bytes, format_seconds

_BEST_SIZE, _SIZE = 12, 7
"""Pixels of a marker: of the best way and those as good as it, and of the others."""
_MARKS = "Large markers: the best way, and those as good as it."
_LOOKS: Mapping[str, Look] = {
    "copy": Look("copy"),
    "copy_part": Look("copy", "circle-open", "dash"),
    "mapped": Look("mapped", "triangle-up"),
    "managed": Look("managed", "pentagon"),
    "prefetched": Look("managed", "pentagon-open", "dash"),
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
    charts = []
    if len({cell.uses for cell in found}) > 1:
        curves = {pattern: over_uses(found, pattern, spacing) for pattern in PATTERN_TITLES}
        share = "all of it" if spacing == 1 else f"one part of {spacing}"
        charts.append(
            Chart(
                "access-uses", "Time over the number of uses",
                f"{size} on the host, {share} used by each kernel; until the result can be used. {_MARKS}{dotted}",
                _panels(curves, "uses", "Uses (log scale)", least),
            )
        )  # fmt: skip
    if len({cell.spacing for cell in found}) > 1:
        curves = {pattern: over_spacing(found, pattern, uses) for pattern in PATTERN_TITLES}
        charts.append(
            Chart(
                "access-share", "Time over the share of the data that is used",
                f"{size} on the host, used {'once' if uses == 1 else f'{uses} times'}. An explicit copy moves "
                f"all of it, a 2D copy what is used. {_MARKS}{dotted}",
                _panels(curves, "spacing", "One block or word used of … (log scale)", least),
            )
        )  # fmt: skip
    return charts


def _panels(
    curves: Mapping[str, Mapping[str, Sequence[Cell]]], by: str, x_title: str, least: float | None
) -> go.Figure:
    drawn = {pattern: ways for pattern, ways in curves.items() if ways}
    figure = panels([PATTERN_TITLES[pattern].capitalize() for pattern in drawn])
    ticks = sorted({getattr(cell, by) for ways in drawn.values() for curve in ways.values() for cell in curve})
    for row, ways in enumerate(drawn.values(), start=1):
        best = {id(cell) for tick in ticks for cell in _best_at(ways, by, tick)}
        for way, curve in ways.items():
            look = replace(_LOOKS[way], size=[_BEST_SIZE if id(cell) in best else _SIZE for cell in curve])
            put(figure, row, line(WAY_TITLES[way], look, [_point(cell, by) for cell in curve]))
        if least is not None:
            put(figure, row, reference("link limit", [ticks[0], ticks[-1]], [least] * 2, f", {format_seconds(least)}"))
    figure.update_xaxes(type="log", tickmode="array", tickvals=ticks, ticktext=[str(tick) for tick in ticks])
    figure.update_xaxes(title_text=x_title, row=len(drawn), col=1)
    seconds_axis(figure, "Time", fine=True)
    return figure


def _best_at(ways: Mapping[str, Sequence[Cell]], by: str, tick: int) -> Sequence[Cell]:
    return winners([cell for curve in ways.values() for cell in curve if getattr(cell, by) == tick])


def _point(cell: Cell, by: str) -> tuple[int, float, str]:
    at, seconds, rate = getattr(cell, by), cell.wall_seconds.median, cell.useful_bytes_per_second
    return at, seconds, f"{by} {at}: {format_seconds(seconds)}, {format_bandwidth(rate)}"
