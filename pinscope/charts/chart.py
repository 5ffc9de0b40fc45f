"""What a chart is, apart from what it shows."""

from __future__ import annotations

from dataclasses import dataclass

import plotly.graph_objects as go


@dataclass(frozen=True)
class Chart:
    """A figure with the words that belong to it.

    Attributes:
        key: stable name, unique within a run.
        title: one line.
        caption: how to read it, one or two sentences.
        figure: the drawing.
    """

    key: str
    title: str
    caption: str
    figure: go.Figure
