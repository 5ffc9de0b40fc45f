"""What charts are made of: lines and their names, labels and limits of bars; and rows of marks and matrices, whole."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import plotly.graph_objects as go
from plotly.colors import find_intermediate_color, hex_to_rgb

from pinscope.analysis.cells import LineStyle
from pinscope.charts.theme import COLOURS, DASHES, FRAME_PIXELS, ink, panel_values, panels, short_seconds
from pinscope.text import one_line
from pinscope.units import format_seconds


@dataclass(frozen=True)
class Chart:
    """A figure with the words that belong to it.

    Attributes:
        key: stable name, unique within a run.
        title: one line.
        caption: how to read it, one or two sentences.
        figure: the drawing.
        alt: what it shows, with the figures that decide: for those who do not see it.
    """

    key: str
    title: str
    caption: str
    figure: go.Figure
    alt: str


def alt_text(what: str, values: Iterable[tuple[str, str]] = ()) -> str:
    """A sentence for those who do not see the chart: what it draws, then names with what they come to."""
    listed = "; ".join(f"{one_line(name).replace('<br>', ' ')} {one_line(value)}" for name, value in values)
    return f"{what}: {listed}." if listed else f"{what}."


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


def name_ends(figure: go.Figure, row: int, ends: Iterable[End]) -> None:
    """Write the names of lines at their right ends, inside the panel, each with its own value.

    Names that would lie on each other are stacked. The axes must have their types and ranges.
    """
    x_axis, y_axis = (next(iter(axes)) for axes in (figure.select_xaxes(row=row), figure.select_yaxes(row=row)))
    log_x, log_y = x_axis.type == "log", y_axis.type == "log"
    placed = sorted((_placed(end, log_x, log_y) for end in ends if end.y > 0 or not log_y), key=lambda end: end.y)
    if not placed:
        return
    low, high = y_axis.range or (0.0, max(panel_values(figure, y_axis)) * 1.06)
    domain = y_axis.domain or (0.0, 1.0)
    line_height = (high - low) * _LABEL_PIXELS / ((figure.layout.height - FRAME_PIXELS) * (domain[1] - domain[0]))
    groups = [[placed[0]]]
    for end in placed[1:]:
        if end.y - groups[-1][-1].y < 1.2 * line_height:
            groups[-1].append(end)
        else:
            groups.append([end])
    taken = low
    texts = []
    for group in groups:
        height = (len(group) + 0.6) * line_height
        below = group[0].y - taken > height and not group[0].rises
        texts.append(
            {
                "text": "<br>".join(f"{end.name} {end.value}" for end in reversed(group)),
                "x": max(end.x for end in group),
                "y": group[0].y if below else group[-1].y,
                "xanchor": "right",
                "yanchor": "top" if below else "bottom",
                "yshift": -5 if below else 5,
                "align": "right",
                "font": {"size": 12},
            }
        )
        taken = group[-1].y + (0.0 if below else height)
    write(figure, row, texts)
    figure.update_yaxes(range=[low, max(high, taken)], row=row, col=1)


def write(figure: go.Figure, row: int, texts: Iterable[Mapping[str, Any]]) -> None:
    """Write annotations into a panel, at once: each added alone would copy all before it."""
    common = {**_axes(row), "showarrow": False}
    figure.layout.annotations += tuple({**common, **text} for text in texts)


def _axes(row: int) -> Mapping[str, str]:
    """Of a panel, as annotations and shapes name them."""
    number = "" if row == 1 else row
    return {"xref": f"x{number}", "yref": f"y{number}"}


def _placed(end: End, log_x: bool, log_y: bool) -> End:
    """An end where Plotly places an annotation."""
    return replace(end, x=math.log10(end.x) if log_x else end.x, y=math.log10(end.y) if log_y else end.y)


ROW_PIXELS, AROUND_PIXELS = 46, 20
_NAME_FOOT = 0.25
"""Of a row, from its middle: where the name above a bar begins."""
_NAME_LETTERS = 46
_LETTER_PIXELS, _PHONE_PIXELS = 7.0, 285
"""Width of a letter, and of a panel on a phone: there the text at a bar's end must have room."""


def limit_marks(figure: go.Figure, row: int, count: int, length: float) -> None:
    """Mark a length at each of so many bars of a panel by a dotted line, which leaves the names above them free."""
    look = {"color": COLOURS["reference"], "dash": DASHES["reference"], "width": 2}
    mark = {**_axes(row), "type": "line", "x0": length, "x1": length, "line": look}
    figure.layout.shapes += tuple({**mark, "y0": place - 0.4, "y1": place + 0.24} for place in range(count))


def end_labels(figure: go.Figure, row: int, ends: Mapping[str, tuple[float, str]]) -> None:
    """Write beside the ends of bars what they come to, by name of the bar; and make room for it, also on a phone."""
    look = {"xanchor": "left", "xshift": 4, "align": "left", "font": {"size": 12}}
    write(figure, row, ({**look, "x": length, "y": name, "text": words} for name, (length, words) in ends.items()))
    needed = (length / (1 - (len(words) * _LETTER_PIXELS + 8) / _PHONE_PIXELS) for length, words in ends.values())
    top = max(*needed, *(length for length, _ in ends.values())) or 1.0
    known = next(iter(figure.select_xaxes(row=row))).range
    figure.update_xaxes(range=[0, max(top, known[1] if known else 0.0)], row=row, col=1)


def names_above(figure: go.Figure, row: int, names: Sequence[str], foot: float = _NAME_FOOT) -> None:
    """Make a panel's y axis one of names, the first on top; each stands above its bar, so that a phone has room.

    ``foot``: where the names begin, in rows from a row's middle.
    """
    category_rows(figure, row, names)
    figure.update_yaxes(showticklabels=False, ticks="", range=[-0.55, len(names) - 0.3], row=row, col=1)
    look = {"x": 0, "xref": f"{_axes(row)['xref']} domain", "xanchor": "left", "align": "left", "yanchor": "bottom"}
    write(
        figure,
        row,
        (
            {**look, "y": place + foot, "text": name, "font": {"size": 12 if len(name) <= _NAME_LETTERS else 11}}
            for place, name in enumerate(reversed(names))
        ),
    )


def category_rows(figure: go.Figure, row: int, names: Sequence[str]) -> None:
    """Make a panel's y axis one of names, the first on top."""
    figure.update_yaxes(
        type="category", categoryorder="array", categoryarray=list(names)[::-1], showgrid=False, row=row, col=1
    )


_DECADES = [10.0**power for power in range(-6, 3)]


@dataclass(frozen=True)
class Marks:
    """Marks of one look.

    Attributes:
        name: in the legend.
        look: colour and symbol.
        seconds: name of a row → where its mark lies; none where that is ``None``.
    """

    name: str
    look: LineStyle
    seconds: Mapping[str, float | None]


def marks_of_seconds(
    key: str,
    title: str,
    caption: str,
    names: Sequence[str],
    series: Iterable[Marks],
    alt: str,
    ends: Iterable[tuple[str, str]],
) -> Chart:
    """A row of marks for each name: longest waits, on a logarithmic axis.

    Args:
        key, title, caption: of the chart.
        names: of the rows, the first on top.
        series: the marks.
        alt: what is drawn, for those who do not see it.
        ends: what follows ``alt``: names with what they come to.
    """
    figure = panels([""], [AROUND_PIXELS + ROW_PIXELS * len(names)])
    for marks in series:
        points = [(at, name, format_seconds(at)) for name, at in marks.seconds.items() if at is not None]
        if points:
            hover = "%{fullData.name}: %{customdata}<extra></extra>"
            figure.add_trace(line(marks.name, marks.look, points, mode="markers", hovertemplate=hover))
    names_above(figure, 1, names)
    figure.update_xaxes(
        type="log",
        tickmode="array",
        tickvals=_DECADES,
        ticktext=list(map(short_seconds, _DECADES)),
        title_text="Longest wait (log scale)",
    )
    return Chart(key, title, caption, figure.update_layout(hovermode="y unified"), alt_text(alt, ends))


LEAST_SHARE = 0.5
"""And below: the colour of the worst."""
MOST_SQUARES = 60
"""Squares whose words the alt text says, for those who do not see a matrix."""
MOST_WIDE = 4
"""With more columns a phone has room for a few letters in each."""
_WORST, _BEST = "stall", "copy"
_SQUARE_PIXELS, _AROUND_SQUARES = 52, 24


@dataclass(frozen=True)
class Square:
    """One cell.

    Attributes:
        share: of the best, 0 to 1.
        text: written in it; ``<br>`` breaks the line.
        hover: what a reader sees who points at it.
        short: written in its place where there are more than :data:`MOST_WIDE` columns.
    """

    share: float
    text: str
    hover: str
    short: str = ""


def matrix(
    key: str,
    title: str,
    caption: str,
    panes: Mapping[str, Mapping[tuple[int, int], Square]],
    gpus: Sequence[int],
    axes: tuple[str, str],
    alt: str,
) -> Chart:
    """GPUs by GPUs, one matrix below the other.

    Args:
        key, title, caption: of the chart.
        panes: title of a matrix → (row, column) → its cell; one that is left out stays empty.
        gpus: in their order, the first row on top.
        axes: titles of the x and the y axis.
        alt: what is drawn, for those who do not see it; the cells' words follow.
    """
    columns, rows = list(map(str, gpus)), [f"GPU {gpu}" for gpu in gpus]
    figure = panels(list(panes), [_AROUND_SQUARES + _SQUARE_PIXELS * len(rows)] * len(panes))
    for number, cells in enumerate(panes.values(), start=1):
        grid = [[cells.get((row, column)) for column in gpus] for row in gpus]
        figure.add_trace(
            go.Heatmap(
                x=columns,
                y=rows,
                z=[[cell.share if cell else None for cell in line] for line in grid],
                customdata=[[cell.hover if cell else "" for cell in line] for line in grid],
                zmin=LEAST_SHARE,
                zmax=1.0,
                colorscale=[[0.0, COLOURS[_WORST]], [1.0, COLOURS[_BEST]]],
                showscale=False,
                hovertemplate="%{customdata}<extra></extra>",
                xgap=2,
                ygap=2,
                hoverongaps=False,
            ),
            row=number,
            col=1,
        )
        words = (
            {
                "x": str(column),
                "y": f"GPU {row}",
                "text": cell.short if len(gpus) > MOST_WIDE else cell.text,
                "font": {"size": 12, "color": ink(colour(cell.share))},
            }
            for (row, column), cell in cells.items()
        )
        write(figure, number, words)
        category_rows(figure, number, rows)
    figure.update_yaxes(title_text=axes[1])
    figure.update_xaxes(type="category", categoryorder="array", categoryarray=columns, showgrid=False)
    figure.update_xaxes(title_text=axes[0], row=len(panes), col=1)
    figure.update_layout(hovermode="closest")
    hovers = list(dict.fromkeys(square.hover for cells in panes.values() for square in cells.values()))
    ends = (hover.partition(": ")[::2] for hover in hovers[:MOST_SQUARES])
    return Chart(key, title, caption, figure, alt_text(alt, ends))


def colour(share: float) -> str:
    """Of a cell, ``#rrggbb``."""
    part = min(max((share - LEAST_SHARE) / (1 - LEAST_SHARE), 0.0), 1.0)
    mixed = find_intermediate_color(hex_to_rgb(COLOURS[_WORST]), hex_to_rgb(COLOURS[_BEST]), part)
    return "#" + "".join(f"{round(value):02x}" for value in mixed)
