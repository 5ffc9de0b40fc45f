"""A fleet, drawn: which racks, or other labels, are worse in what; and how a figure is spread, with who is out."""

from __future__ import annotations

import math
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
    charts = [chart for chart in [label_map(fleet, label)] if chart] if label else []
    return [*charts, *(spread(fleet, at) for at in figures_to_draw(fleet)[:MOST_SPREADS])]


def figures_to_draw(fleet: Fleet) -> list[int]:
    """Places of the figures that stand for cells: those in which most are out first."""
    out = [at for outlier in fleet.outliers for at in outlier.figures]
    counts = {at: out.count(at) for at in fleet.firsts}
    return sorted(fleet.firsts, key=lambda at: -counts[at])


def label_map(fleet: Fleet, label: str) -> Chart | None:
    """Label by figure: by how much the GPUs are worse; ``None`` where no GPU has the label."""
    names, worse = fleet.by_label(label)
    if not names:
        return None
    with np.errstate(all="ignore"):
        changes = np.expm1(worse)
    rows, columns = ({name: place for place, name in enumerate(some)} for some in (names, fleet.firsts))
    for outlier in fleet.outliers:
        row = rows.get(fleet.gpus[outlier.place].label(label) or "")
        for at in outlier.figures if row is not None else ():
            if at in columns:
                changes[row, columns[at]] = np.fmax(changes[row, columns[at]], np.expm1(fleet.worse[outlier.place, at]))
    worst = np.nanmax(np.where(np.isfinite(changes), changes, -1.0), axis=1)
    shown = sorted(sorted(range(len(names)), key=lambda place: -worst[place])[:MOST_LABELS])
    figures = [fleet.figures[at] for at in fleet.firsts]
    figure = panels([""], [120 + 16 * len(shown)])
    texts = [
        [f"{label} {names[place]}: {figure.words} {_change(changes[place, at])}" for at, figure in enumerate(figures)]
        for place in shown
    ]
    figure.add_trace(
        go.Heatmap(
            x=[figure.words for figure in figures],
            y=[names[place] for place in shown],
            z=changes[shown],
            customdata=np.array(texts),
            zmin=-FULL,
            zmax=FULL,
            zmid=0.0,
            colorscale=[[0.0, COLOURS["intact"]], [0.5, "rgba(128,128,128,0.08)"], [1.0, COLOURS["corrupted"]]],
            showscale=False,
            hovertemplate="%{customdata}<extra></extra>",
        )
    )
    figure.update_xaxes(
        showticklabels=len(figures) <= MOST_TICKS, showgrid=False, ticks="", title_text="Figures, one a cell"
    )
    figure.update_yaxes(type="category", autorange="reversed", showgrid=False, title_text=label)
    some = sorted(shown, key=lambda place: -worst[place])[:3]
    left = f" The {len(shown)} of {len(names)} that are worst." if len(shown) < len(names) else ""
    return Chart(
        "labels",
        f"By {label}",
        f"The median of the GPUs of each {label} against all like them, or a GPU that is worse: red, full from "
        f"{FULL:.0%} on.{left}",
        figure,
        alt_text(f"Worst by {label}", [(names[place], _change(worst[place])) for place in some]),
    )


def _change(change: float) -> str:
    return "unknown" if math.isnan(change) else f"{format_change(1 + change)} worse" if change > 0 else "no worse"


def spread(fleet: Fleet, at: int) -> Chart:
    """How many GPUs have which value of a figure, and who is out."""
    shown, values = fleet.figures[at], fleet.values[:, at]
    known = values[np.isfinite(values)].astype(float)
    counts, edges = np.histogram(known, BINS)
    unit = shown.value.unit
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
    out = [one for one in fleet.outliers if at in one.figures]
    figure.add_trace(
        go.Scatter(
            x=[float(values[one.place]) for one in out],
            y=[1] * len(out),
            mode="markers",
            name="worse than others like them",
            text=[fleet.gpus[one.place].words for one in out],
            marker={"color": COLOURS["corrupted"], "symbol": "triangle-down", "size": 11},
            hovertemplate="%{text}<extra></extra>",
        )
    )
    ticks = np.linspace(edges[0], edges[-1], 5)
    figure.update_xaxes(tickmode="array", tickvals=ticks, ticktext=[format_value(float(tick), unit) for tick in ticks])
    figure.update_yaxes(type="log", title_text="GPUs (log scale)")
    listed = [(fleet.gpus[one.place].words, format_value(float(values[one.place]), unit)) for one in out[:5]]
    return Chart(
        f"spread-{at}",
        shown.words,
        f"Median {format_value(float(np.median(known)), unit)} of {len(known):,} GPUs.",
        figure,
        alt_text(f"{shown.words} over {len(known):,} GPUs; worse", listed),
    )
