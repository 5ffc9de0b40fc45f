"""What one copy and one more copy take over the size, with the fitted line and what the link needs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import plotly.graph_objects as go

from pinscope.analysis.link_model import link_limit
from pinscope.charts.chart import Chart
from pinscope.charts.theme import COLOURS, DASHES, SYMBOLS, memory_line, seconds_axis, words
from pinscope.experiments.bandwidth.arithmetic import Cell, Line, fit_latency
from pinscope.experiments.bandwidth.chart_panels import Curves, stack
from pinscope.records.run import ExperimentRun
from pinscope.units import format_bandwidth, format_bytes, format_seconds

_FITTED = ("pinned", "pageable")
"""Kinds whose latency–bandwidth line is drawn; the table has all of them."""


def draw_times(run: ExperimentRun, engine: Curves) -> Chart | None:
    """The chart, of one copier's compared curves; ``None`` where there is no fit."""
    chosen = {line: curve for line, curve in engine.items() if line.memory in _FITTED and fit_latency(curve)}

    def one_more(line: Line, curve: Sequence[Cell]) -> go.Scatter:
        what = "one more" if _in_a_row(curve) else "one copy"
        return _times(line, curve, what, [cell.one_more.median for cell in curve], "")

    stacked = stack(chosen, one_more)
    if stacked is None:
        return None
    figure, shown = stacked
    for line, curve in chosen.items():
        row = shown.index(line.direction) + 1
        if _in_a_row(curve):
            trace = _times(line, curve, "one copy", [cell.one_copy.median for cell in curve], "-open")
            names = {item.name for item in figure.data}
            trace.update(legendgroup=trace.name, showlegend=trace.name not in names)
            figure.add_trace(trace, row=row, col=1)
        _add_fit(figure, row, line, curve)
    limited = _add_time_limit(run, figure, shown, chosen)
    seconds_axis(figure, "Device time")
    return Chart(
        "latency-fit",
        "What one copy and one more copy take",
        "Open markers: one copy from an idle stream. Filled: one more, of many in a row. Lines: t = α + bytes ÷ β "
        "through one more copy, with α the time of an empty one and β the rate of an endless one."
        + (" Dotted: the least that the link needs." if limited else ""),
        figure,
    )


def _in_a_row(curve: Sequence[Cell]) -> bool:
    """Whether one more copy was measured; runs of 0.1.0 have one copy only."""
    return any(cell.copies > 1 for cell in curve)


def _times(line: Line, curve: Sequence[Cell], what: str, seconds: Sequence[float], open_marker: str) -> go.Scatter:
    properties: dict[str, Any] = memory_line(line.memory, line.direction) | {"mode": "markers"}
    marker = {**properties["marker"], "symbol": SYMBOLS[line.memory] + open_marker}
    return go.Scatter(
        **properties | {"marker": marker},
        x=[cell.bytes for cell in curve],
        y=list(seconds),
        name=f"{words(line.memory)}, {what}",
        customdata=[
            f"{format_bytes(cell.bytes)}: {format_seconds(value)}" for cell, value in zip(curve, seconds, strict=True)
        ],
        hovertemplate="%{fullData.name}, %{customdata}<extra></extra>",
    )


def _add_time_limit(run: ExperimentRun, figure: go.Figure, shown: Sequence[str], curves: Curves) -> bool:
    """Draw the time in which the link could carry the payload; each direction has a link's capacity of its own."""
    limit = link_limit(run)
    if limit is None:
        return False
    sizes = [cell.bytes for curve in curves.values() for cell in curve]
    ends = [min(sizes), max(sizes)]
    for row in range(1, len(shown) + 1):
        figure.add_trace(
            go.Scatter(
                x=ends, y=[size / limit for size in ends], mode="lines", name="link limit",
                legendgroup="link limit", showlegend=row == 1,
                line={"color": COLOURS["reference"], "dash": DASHES["reference"], "width": 2},
                hovertemplate=f"link limit, {format_bandwidth(limit)}<extra></extra>",
            ),
            row=row, col=1,
        )  # fmt: skip
    return True


def _add_fit(figure: go.Figure, row: int, line: Line, curve: Sequence[Cell]) -> None:
    fit = fit_latency(curve)
    if fit is None:
        return
    sizes = np.geomspace(curve[0].bytes, curve[-1].bytes, 60)
    moved = sizes * (curve[0].moved_bytes / curve[0].bytes)
    label = (
        f"α {format_seconds(fit.alpha_seconds)}, β {format_bandwidth(fit.beta_bytes_per_second)}, "
        f"half of β at {format_bytes(fit.half_size_bytes)}, R² {fit.r_squared:.3f}"
    )
    figure.add_trace(
        go.Scatter(
            x=sizes, y=fit.alpha_seconds + moved / fit.beta_bytes_per_second, mode="lines",
            name=f"{words(line.memory)}, fit", legendgroup=f"{line.memory} fit",
            legendrank=len(SYMBOLS) + list(SYMBOLS).index(line.memory),
            showlegend=not any(trace.legendgroup == f"{line.memory} fit" for trace in figure.data),
            line={"color": COLOURS[line.memory], "dash": DASHES[line.direction], "width": 1.5},
            hovertemplate=f"{words(line.memory)}: {label}<extra></extra>",
        ),
        row=row, col=1,
    )  # fmt: skip
