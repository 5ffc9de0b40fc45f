"""A matrix of names by names: each cell coloured by its share of the best, with its figures written in it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import plotly.graph_objects as go
from plotly.colors import find_intermediate_color, hex_to_rgb

from pinscope.charts.theme import COLOURS, ink, panels

LEAST_SHARE = 0.5
"""And below: the colour of the worst."""
_WORST, _BEST = "stall", "copy"
_ROW_PIXELS, _AROUND_PIXELS = 52, 24


@dataclass(frozen=True)
class Square:
    """One cell.

    Attributes:
        share: of the best, 0 to 1.
        text: written in it; ``<br>`` breaks the line.
        hover: what a reader sees who points at it.
    """

    share: float
    text: str
    hover: str


def matrices(
    titles: Sequence[str],
    columns: Sequence[str],
    rows: Sequence[str],
    squares: Sequence[Mapping[tuple[str, str], Square]],
    axes: tuple[str, str],
) -> go.Figure:
    """A figure of matrices, one below the other.

    Args:
        titles: one for each.
        columns, rows: names, the first row on top.
        squares: for each matrix (row, column) → its cell; one that is left out stays empty.
        axes: titles of the x and the y axis.
    """
    figure = panels(list(titles), [_AROUND_PIXELS + _ROW_PIXELS * len(rows)] * len(titles))
    words = list(figure.layout.annotations)
    for number, cells in enumerate(squares, start=1):
        grid = [[cells.get((row, column)) for column in columns] for row in rows]
        figure.add_trace(
            go.Heatmap(
                x=list(columns),
                y=list(rows),
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
        axis = "" if number == 1 else number
        words += [
            go.layout.Annotation(
                x=column,
                y=row,
                text=cell.text,
                xref=f"x{axis}",
                yref=f"y{axis}",
                showarrow=False,
                font={"size": 12, "color": ink(colour(cell.share))},
            )
            for (row, column), cell in cells.items()
        ]
        figure.update_yaxes(
            type="category",
            categoryorder="array",
            categoryarray=list(rows)[::-1],
            showgrid=False,
            title_text=axes[1],
            row=number,
            col=1,
        )
    figure.update_xaxes(type="category", categoryorder="array", categoryarray=list(columns), showgrid=False)
    figure.update_xaxes(title_text=axes[0], row=len(titles), col=1)
    figure.update_layout(hovermode="closest", annotations=words)  # each added alone would copy all before it
    return figure


def colour(share: float) -> str:
    """Of a cell, ``#rrggbb``."""
    part = min(max((share - LEAST_SHARE) / (1 - LEAST_SHARE), 0.0), 1.0)
    mixed = find_intermediate_color(hex_to_rgb(COLOURS[_WORST]), hex_to_rgb(COLOURS[_BEST]), part)
    return "#" + "".join(f"{round(value):02x}" for value in mixed)
