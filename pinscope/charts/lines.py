"""Lines in panels: the same look, legend and hover text in every figure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import plotly.graph_objects as go

from pinscope.analysis.cells import LineStyle
from pinscope.charts.theme import COLOURS, DASHES

Point = tuple[float, float | str, str]
"""x, y (a number or a category), and the text that a reader sees who points at it."""


@dataclass(frozen=True)
class End:
    """The right end of a line, in the axes' units.

    Attributes:
        name, value: what is written there.
        x, y: where it is.
        rises: whether the line comes from below, so that its name belongs above.
    """

    name: str
    value: str
    x: float
    y: float
    rises: bool = False


def line(name: str, look: LineStyle, points: Iterable[Point], **more: Any) -> go.Scatter:
    """A line with markers; ``more`` are Plotly's own properties."""
    x, y, texts = zip(*points, strict=True)
    colour = COLOURS[look.colour]
    return go.Scatter(
        **{
            "x": x,
            "y": y,
            "name": name,
            "mode": "lines+markers",
            "customdata": texts,
            "line": {"color": colour, "dash": look.dash, "width": 2},
            "marker": {"color": colour, "symbol": look.symbol, "size": look.size},
            "hovertemplate": "%{fullData.name}, %{customdata}<extra></extra>",
        }
        | more
    )


def reference(
    name: str, x: Sequence[float], y: Sequence[float], text: str | None = None, dash: str = DASHES["reference"]
) -> go.Scatter:
    """A grey line beside the measurement, such as what a link can carry; ``text`` follows its name where one points."""
    return go.Scatter(
        x=x,
        y=y,
        mode="lines",
        name=name,
        line={"color": COLOURS["reference"], "dash": dash, "width": 2},
        hoverinfo="skip" if text is None else None,
        hovertemplate=None if text is None else f"{name}{text}<extra></extra>",
    )


def put(figure: go.Figure, row: int, *traces: go.Scatter | go.Bar) -> None:
    """Add traces to a panel. Of those with the same name the legend shows the first, and switches all."""
    for trace in traces:
        known = any(other.name == trace.name for other in figure.data)
        figure.add_trace(trace.update(legendgroup=trace.name, showlegend=not known), row=row, col=1)


_LABEL_PIXELS = 17
"""Height of a line of a label."""
_FRAME_PIXELS = 116


def name_ends(figure: go.Figure, row: int, ends: Iterable[End]) -> None:
    """Write the names of lines at their right ends, inside the panel, each with its own value.

    Names that would lie on each other are stacked. The axes must have their types and ranges.
    """
    x_axis, y_axis = (next(iter(axes)) for axes in (figure.select_xaxes(row=row), figure.select_yaxes(row=row)))
    log_x, log_y = x_axis.type == "log", y_axis.type == "log"
    shown = sorted((_placed(end, log_x, log_y) for end in ends if end.y > 0 or not log_y), key=lambda end: end.y)
    if not shown:
        return
    low, high = y_axis.range or (0.0, _highest(figure, y_axis) * 1.06)
    domain = y_axis.domain or (0.0, 1.0)
    line_height = (high - low) * _LABEL_PIXELS / ((figure.layout.height - _FRAME_PIXELS) * (domain[1] - domain[0]))
    groups = [[shown[0]]]
    for end in shown[1:]:
        if end.y - groups[-1][-1].y < 1.2 * line_height:
            groups[-1].append(end)
        else:
            groups.append([end])
    taken = low
    for group in groups:
        height = (len(group) + 0.6) * line_height
        below = group[0].y - taken > height and not group[0].rises
        figure.add_annotation(
            text="<br>".join(f"{end.name} {end.value}" for end in reversed(group)),
            x=max(end.x for end in group),
            y=group[0].y if below else group[-1].y,
            row=row,
            col=1,
            showarrow=False,
            xanchor="right",
            yanchor="top" if below else "bottom",
            yshift=-5 if below else 5,
            align="right",
            font={"size": 12},
        )
        taken = group[-1].y + (0.0 if below else height)
    figure.update_yaxes(range=[low, max(high, taken)], row=row, col=1)


def _highest(figure: go.Figure, axis: Any) -> float:
    """What the lines of a linear panel reach."""
    own = [trace for trace in figure.data if (trace.yaxis or "y") == axis.plotly_name.replace("axis", "")]
    return max(float(value) for trace in own for value in trace.y if value is not None)


def _placed(end: End, log_x: bool, log_y: bool) -> End:
    """An end where Plotly places an annotation."""
    return replace(end, x=math.log10(end.x) if log_x else end.x, y=math.log10(end.y) if log_y else end.y)
