"""A fleet, drawn: which racks, or other labels, are worse in what; and how a figure is spread, with who is out."""

from __future__ import annotations

import math
from collections import Counter
from itertools import pairwise

import numpy as np
import plotly.graph_objects as go

from pinscope.analysis.outliers import Fleet
from pinscope.charts.marks import Chart, alt_text
from pinscope.charts.theme import COLOURS, panels
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
    """Label by figure: by how much the GPUs are worse; ``None`` where no GPU has the label."""
    names, worse = fleet.by_label(label)
    if not names:
        return None
    with np.errstate(all="ignore"):
        changes = np.expm1(worse)
    rows = {name: row for row, name in enumerate(names)}
    for outlier in fleet.outliers:
        if (row := rows.get(outlier.gpu.label(label) or "")) is not None:
            own = np.where(np.isin(fleet.firsts, outlier.figures), fleet.worse[outlier.place, fleet.firsts], np.nan)
            changes[row] = np.fmax(changes[row], np.expm1(own))
    worst = np.nanmax(np.where(np.isfinite(changes), changes, -1.0), axis=1)
    worst_first = np.argsort(-worst, kind="stable")
    drawn = sorted(worst_first[:MOST_LABELS])
    words = [fleet.figures[at].words for at in fleet.firsts]
    figure = panels([""], [120 + 16 * len(drawn)])
    figure.add_trace(
        go.Heatmap(
            x=words,
            y=[names[row] for row in drawn],
            z=changes[drawn],
            customdata=[
                [
                    f"{label} {names[row]}: {of} {_change(change)}"
                    for of, change in zip(words, changes[row], strict=True)
                ]
                for row in drawn
            ],
            zmin=-FULL,
            zmax=FULL,
            zmid=0.0,
            colorscale=[[0.0, COLOURS["intact"]], [0.5, "rgba(128,128,128,0.08)"], [1.0, COLOURS["corrupted"]]],
            showscale=False,
            hovertemplate="%{customdata}<extra></extra>",
        )
    )
    figure.update_xaxes(
        showticklabels=len(words) <= MOST_TICKS, showgrid=False, ticks="", title_text="Figures, one a cell"
    )
    figure.update_yaxes(type="category", autorange="reversed", showgrid=False, title_text=label)
    left = f" The {len(drawn)} of {len(names)} that are worst." if len(drawn) < len(names) else ""
    return Chart(
        "labels",
        f"By {label}",
        f"The median of the GPUs of each {label} against all like them, or a GPU that is worse: red, full from "
        f"{FULL:.0%} on.{left}",
        figure,
        alt_text(f"Worst by {label}", [(names[row], _change(worst[row])) for row in worst_first[:3]]),
    )


def _change(change: float) -> str:
    return "unknown" if math.isnan(change) else f"{format_change(1 + change)} worse" if change > 0 else "no worse"


def spread(fleet: Fleet, at: int) -> Chart:
    """How many GPUs have which value of a figure, and who is out."""
    drawn, values = fleet.figures[at], fleet.values[:, at]
    known = values[np.isfinite(values)].astype(float)
    counts, edges = np.histogram(known, BINS)
    unit = drawn.value.unit
    figure = panels([""], [320])
    hover = [f"{format_value(low, unit)} to {format_value(high, unit)}" for low, high in pairwise(edges)]
    figure.add_trace(
        go.Bar(
            x=(edges[:-1] + edges[1:]) / 2,
            y=counts,
            width=np.diff(edges),
            name="GPUs",
            customdata=hover,
            marker={"color": COLOURS["copy"]},
            hovertemplate="%{customdata}: %{y} GPUs<extra></extra>",
        )
    )
    out = [(of.gpu.words, float(values[of.place])) for of in fleet.outliers if at in of.figures]
    figure.add_trace(
        go.Scatter(
            x=[value for _, value in out],
            y=[1] * len(out),
            mode="markers",
            name="worse than others like them",
            text=[name for name, _ in out],
            marker={"color": COLOURS["corrupted"], "symbol": "triangle-down", "size": 11},
            hovertemplate="%{text}<extra></extra>",
        )
    )
    ticks = np.linspace(edges[0], edges[-1], 5)
    figure.update_xaxes(tickmode="array", tickvals=ticks, ticktext=[format_value(float(tick), unit) for tick in ticks])
    figure.update_yaxes(type="log", title_text="GPUs (log scale)")
    listed = [(name, format_value(value, unit)) for name, value in out[:5]]
    return Chart(
        f"spread-{at}",
        drawn.words,
        f"Median {format_value(float(np.median(known)), unit)} of {len(known):,} GPUs.",
        figure,
        alt_text(f"{drawn.words} over {len(known):,} GPUs; worse", listed),
    )
