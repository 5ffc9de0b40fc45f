"""Horizontal bars, one below the other: how a whole is made up of parts, for each of several names."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from textwrap import wrap

import plotly.graph_objects as go

from pinscope.charts.theme import COLOURS, DASHES, panels

ROW_PIXELS, AROUND_PIXELS = 46, 20
THICKNESS = 0.42
"""Of a bar, of its row: its name stands above it."""
_NAME_FOOT = 0.25
"""Of a row, from its middle: where the name above a bar begins."""
_BAR_GAP = 0.35
"""Of a row, what bars that lie below each other leave."""
_LABEL_LETTERS = 26
_NAME_LETTERS = 46
_LETTER_PIXELS, _PHONE_PIXELS = 7.0, 285
"""Width of a letter, and of a panel on a phone: there the text at a bar's end must have room."""


@dataclass(frozen=True)
class Part:
    """Bars of one colour.

    Attributes:
        name: in the legend.
        colour: its meaning, a key of :data:`COLOURS`.
        values: name of a bar → its length, in SI units; a bar that is left out has no such part.
        pattern: Plotly's name of a hatching.
    """

    name: str
    colour: str
    values: Mapping[str, float]
    pattern: str = ""


def bars(
    names: Sequence[str],
    parts: Iterable[Part],
    axis: str,
    text: Callable[[float], str],
    *,
    scale: float = 1.0,
    side_by_side: bool = False,
    ends: Mapping[str, str] | None = None,
) -> go.Figure:
    """A figure of bars, the first name on top.

    Args:
        names: of the bars.
        parts: stacked, in this order.
        axis: title of the x axis.
        text: a length as a reader sees it who points at a part.
        scale: SI units of one unit of the axis.
        side_by_side: parts lie below each other instead.
        ends: name of a bar → what is written at its end, such as its whole.
    """
    parts = list(parts)
    row_pixels = ROW_PIXELS + (12 * (len(parts) - 1) if side_by_side else 0)
    figure = panels([""], [AROUND_PIXELS + row_pixels * len(names)])
    for part in parts:
        figure.add_trace(
            go.Bar(
                orientation="h",
                y=list(part.values),
                width=None if side_by_side else THICKNESS,
                x=[value / scale for value in part.values.values()],
                name=part.name,
                customdata=[text(value) for value in part.values.values()],
                marker={"color": COLOURS[part.colour], "pattern": {"shape": part.pattern, "fillmode": "replace"}},
                hovertemplate="%{fullData.name}: %{customdata}<extra></extra>",
            )
        )
    figure.update_layout(
        barmode="group" if side_by_side else "stack",
        hovermode="y unified",
        bargap=_BAR_GAP,
        legend_traceorder="reversed" if side_by_side else "normal",
    )
    names_above(figure, 1, names, (1 - _BAR_GAP) / 2 if side_by_side else _NAME_FOOT)
    figure.update_xaxes(title_text=axis, rangemode="tozero")
    if ends:
        wholes = {name: sum(part.values.get(name, 0.0) for part in parts) / scale for name in ends}
        end_labels(figure, 1, {name: (wholes[name], words) for name, words in ends.items()})
    return figure


def limit_marks(figure: go.Figure, row: int, count: int, length: float) -> None:
    """Mark a length at each of so many bars of a panel by a dotted line, which leaves the names above them free."""
    for place in range(count):
        figure.add_shape(
            type="line",
            x0=length,
            x1=length,
            y0=place - 0.4,
            y1=place + 0.24,
            row=row,
            col=1,
            line={"color": COLOURS["reference"], "dash": DASHES["reference"], "width": 2},
        )


def end_labels(figure: go.Figure, row: int, ends: Mapping[str, tuple[float, str]]) -> None:
    """Write beside the ends of bars what they come to, by name of the bar; and make room for it, also on a phone."""
    for name, (length, words) in ends.items():
        figure.add_annotation(
            x=length,
            y=name,
            text=words,
            row=row,
            col=1,
            showarrow=False,
            xanchor="left",
            xshift=4,
            align="left",
            font={"size": 12},
        )
    needed = (
        length / (1 - (len(_plain(words)) * _LETTER_PIXELS + 8) / _PHONE_PIXELS) for length, words in ends.values()
    )
    top = max(*needed, *(length for length, _ in ends.values())) or 1.0
    known = next(iter(figure.select_xaxes(row=row))).range
    figure.update_xaxes(range=[0, max(top, known[1] if known else 0.0)], row=row, col=1)


def _plain(words: str) -> str:
    return words.replace("<b>", "").replace("</b>", "")


def names_above(figure: go.Figure, row: int, names: Sequence[str], foot: float = _NAME_FOOT) -> None:
    """Make a panel's y axis one of names, the first on top; each stands above its bar, so that a phone has room.

    ``foot``: where the names begin, in rows from a row's middle.
    """
    category_rows(figure, row, names)
    figure.update_yaxes(showticklabels=False, ticks="", range=[-0.55, len(names) - 0.3], row=row, col=1)
    for place, name in enumerate(reversed(names)):
        figure.add_annotation(
            x=0,
            xref="x domain" if row == 1 else f"x{row} domain",
            xanchor="left",
            showarrow=False,
            align="left",
            y=place + foot,
            yref="y" if row == 1 else f"y{row}",
            yanchor="bottom",
            text=name.replace("<br>", " "),
            font={"size": 12 if len(name) <= _NAME_LETTERS else 11},
        )


def category_rows(figure: go.Figure, row: int, names: Sequence[str]) -> None:
    """Make a panel's y axis one of names, the first on top."""
    figure.update_yaxes(
        type="category", categoryorder="array", categoryarray=list(names)[::-1], showgrid=False, row=row, col=1
    )


def label(title: str) -> str:
    """A long title in lines that fit beside bars on a phone."""
    return "<br>".join(wrap(title, _LABEL_LETTERS))
