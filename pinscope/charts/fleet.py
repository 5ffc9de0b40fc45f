"""A fleet, drawn: which racks, or other labels, are worse in what; and how a figure is spread, with who is out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from pinscope.analysis.outliers import Fleet
from pinscope.charts.marks import Chart, alt_text
from pinscope.charts.theme import COLOURS, FRAME_PIXELS, template
from pinscope.units import format_change, format_value

MOST_LABELS, MOST_TICKS = 60, 24
"""Rows of the map, those that are worst first; and figures that are written below it."""
FULL = 0.25
"""A difference from which on a colour is full."""
BINS = 60
MOST_SPREADS = 3
"""Figures whose spread is drawn."""


def draw(fleet: Fleet, label: str | None) -> list[Chart]:
    """The map where there is a label, then the figures in which most GPUs are out."""
    by_label = label_map(fleet, label) if label else None
    return [*([by_label] if by_label else ()), *(spread(fleet, at) for at in figures_to_draw(fleet)[:MOST_SPREADS])]


def figures_to_draw(fleet: Fleet) -> list[int]:
    """Places of the figures that stand for cells: those in which most are out first."""
    counts = Counter(at for outlier in fleet.outliers for at in outlier.figures)
    return sorted(fleet.firsts, key=lambda at: -counts[at])


def label_map(fleet: Fleet, label: str) -> Chart | None:
    """Label by figure: by how much the GPUs are worse, the worst first; ``None`` where no GPU has the label."""
    worse = pd.DataFrame(fleet.worse[:, fleet.firsts], columns=[fleet.figures[at].words for at in fleet.firsts])
    labels = [gpu.label(label) for gpu in fleet.gpus]
    by_label = worse.groupby(np.array(labels, object)).median()
    if by_label.empty:
        return None
    for outlier in fleet.outliers:
        if (name := labels[outlier.place]) is not None:
            own = worse.loc[outlier.place].where(np.isin(fleet.firsts, outlier.figures))
            by_label.loc[name] = np.fmax(by_label.loc[name], own)
    changes = np.expm1(by_label)
    worst = changes.max(axis=1).sort_values(ascending=False, kind="stable")
    drawn = changes.loc[worst.index[:MOST_LABELS]]
    heat = go.Heatmap(
        x=drawn.columns,
        y=drawn.index,
        z=drawn.to_numpy(),
        zmin=-FULL,
        zmax=FULL,
        zmid=0.0,
        colorscale=[[0.0, COLOURS["intact"]], [0.5, "rgba(128,128,128,0.08)"], [1.0, COLOURS["corrupted"]]],
        showscale=False,
        hovertemplate=f"{label} %{{y}}: %{{x}} worse by %{{z:.1%}}<extra></extra>",
        hoverongaps=False,
    )
    figures = {
        "showticklabels": len(worse.columns) <= MOST_TICKS,
        "ticks": "",
        "title": {"text": "Figures, one a cell"},
    }
    names = {"type": "category", "autorange": "reversed", "title": {"text": label}}
    figure = _drawing([heat], 120 + 16 * len(drawn), {**figures, "showgrid": False}, {**names, "showgrid": False})
    ends = [
        (name, f"{format_change(1 + change)} worse" if change > 0 else "no worse")
        for name, change in worst.head(3).items()
    ]
    left = f" The {len(drawn)} of {len(worst)} that are worst." if len(drawn) < len(worst) else ""
    return Chart(
        "labels",
        f"By {label}",
        f"The median of the GPUs of each {label} against all like them, or a GPU that is worse: red, full from "
        f"{FULL:.0%} on.{left}",
        figure,
        alt_text(f"Worst by {label}", ends),
    )


def _drawing(traces: Sequence[Any], pixels: int, xaxis: Mapping[str, Any], yaxis: Mapping[str, Any]) -> go.Figure:
    """A figure of one panel; to be made whole takes a quarter of the time."""
    layout = {"template": template(), "height": pixels + FRAME_PIXELS, "xaxis": xaxis, "yaxis": yaxis}
    return go.Figure(traces, layout)


def spread(fleet: Fleet, at: int) -> Chart:
    """How many GPUs have which value of a figure, and who is out."""
    drawn, values = fleet.figures[at], fleet.values[:, at]
    known = values[np.isfinite(values)].astype(float)
    counts, edges = np.histogram(known, BINS)
    unit = drawn.value.unit
    bars = go.Bar(
        x=(edges[:-1] + edges[1:]) / 2,
        y=counts,
        width=np.diff(edges),
        name="GPUs",
        customdata=[f"{format_value(low, unit)} to {format_value(high, unit)}" for low, high in pairwise(edges)],
        marker={"color": COLOURS["copy"]},
        hovertemplate="%{customdata}: %{y} GPUs<extra></extra>",
    )
    out = [(of.gpu.words, float(values[of.place])) for of in fleet.outliers if at in of.figures]
    marks = go.Scatter(
        x=[value for _, value in out],
        y=[1] * len(out),
        mode="markers",
        name="worse than others like them",
        text=[name for name, _ in out],
        marker={"color": COLOURS["corrupted"], "symbol": "triangle-down", "size": 11},
        hovertemplate="%{text}<extra></extra>",
    )
    ticks = np.linspace(edges[0], edges[-1], 5)
    words = [format_value(float(tick), unit) for tick in ticks]
    axis = {"tickmode": "array", "tickvals": ticks, "ticktext": words}
    figure = _drawing([bars, marks], 320, axis, {"type": "log", "title": {"text": "GPUs (log scale)"}})
    listed = [(name, format_value(value, unit)) for name, value in out[:5]]
    return Chart(
        f"spread-{at}",
        drawn.words,
        f"Median {format_value(float(np.median(known)), unit)} of {len(known):,} GPUs.",
        figure,
        alt_text(f"{drawn.words} over {len(known):,} GPUs; worse", listed),
    )
