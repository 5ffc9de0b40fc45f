"""Panels of a bandwidth run: one per direction, a trace per kind of memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import plotly.graph_objects as go

from pinscope.charts.theme import DIRECTION_TITLES, DIRECTIONS, SYMBOLS, panels, size_axis
from pinscope.experiments.bandwidth.arithmetic import Cell, Line

Curves = Mapping[Line, Sequence[Cell]]
Trace = Callable[[Line, Sequence[Cell]], go.Scatter | None]


def stack(curves: Curves, trace: Trace) -> tuple[go.Figure, list[str]] | None:
    """A figure with one panel per direction that has something to show, and those directions."""
    traces = [(line, made) for line, curve in curves.items() if (made := trace(line, curve)) is not None]
    shown = [way for way in DIRECTIONS if any(line.direction == way for line, _ in traces)]
    if not shown:
        return None
    figure = panels([DIRECTION_TITLES[way] for way in shown])
    named: set[str] = set()
    # Kinds that copy equally fast lie on each other: pinned is drawn last, on top, and named first.
    ranks = {memory: rank for rank, memory in enumerate(SYMBOLS)}
    traces.sort(key=lambda item: (-ranks[item[0].memory], DIRECTIONS.index(item[0].direction)))
    for line, made in traces:
        made.update(legendgroup=made.name, showlegend=made.name not in named, legendrank=ranks[line.memory])
        named.add(made.name)
        figure.add_trace(made, row=shown.index(line.direction) + 1, col=1)
    sizes = [cell.bytes for curve in curves.values() for cell in curve]
    size_axis(figure, sizes)
    return figure, shown
