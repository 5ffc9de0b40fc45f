"""Lines in panels: the same look, legend and hover text in every figure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import plotly.graph_objects as go

from pinscope.charts.theme import COLOURS, DASHES

Point = tuple[float, float | str, str]
"""x, y (a number or a category), and the text that a reader sees who points at it."""


@dataclass(frozen=True)
class Look:
    """How a line is drawn.

    Attributes:
        colour: its meaning, a key of :data:`COLOURS`.
        symbol: of its markers.
        dash: of the line itself.
        size: pixels of a marker, or of each.
    """

    colour: str
    symbol: str = "circle"
    dash: str = "solid"
    size: int | Sequence[int] = 8


def line(name: str, look: Look, points: Iterable[Point], **more: Any) -> go.Scatter:
    """A line with markers; ``more`` are Plotly's own properties."""
    x, y, texts = zip(*points, strict=True)
    colour = COLOURS[look.colour]
    return go.Scatter(
        **{
            "x": x, "y": y, "name": name, "mode": "lines+markers", "customdata": texts,
            "line": {"color": colour, "dash": look.dash, "width": 2},
            "marker": {"color": colour, "symbol": look.symbol, "size": look.size},
            "hovertemplate": "%{fullData.name}, %{customdata}<extra></extra>",
        }
        | more
    )  # fmt: skip


def reference(
    name: str, x: Sequence[float], y: Sequence[float], text: str | None = None, dash: str = DASHES["reference"]
) -> go.Scatter:
    """A grey line beside the measurement, such as what a link can carry; ``text`` follows its name where one points."""
    return go.Scatter(
        x=x, y=y, mode="lines", name=name, line={"color": COLOURS["reference"], "dash": dash, "width": 2},
        hoverinfo="skip" if text is None else None,
        hovertemplate=None if text is None else f"{name}{text}<extra></extra>",
    )  # fmt: skip


def put(figure: go.Figure, row: int, *traces: go.Scatter | go.Bar) -> None:
    """Add traces to a panel. Of those with the same name the legend shows the first, and switches all."""
    for trace in traces:
        known = any(other.name == trace.name for other in figure.data)
        figure.add_trace(trace.update(legendgroup=trace.name, showlegend=not known), row=row, col=1)
