"""What a chart is, apart from what it shows."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import plotly.graph_objects as go

from pinscope.text import one_line


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
