"""A fleet, drawn: which racks, or other labels, are worse in what; and how a figure is spread, with who is out."""

from __future__ import annotations

import numpy as np
import plotly.graph_objects as go

from pinscope.analysis.cells import LineStyle
from pinscope.analysis.outliers import Fleet
from pinscope.charts.marks import Chart, alt_text
from pinscope.charts.plot import Curve, Spot, curves, linear, scale_of
from pinscope.charts.theme import COLOURS, FRAME_PIXELS, template
from pinscope.units import format_change, format_share

MOST_LABELS, MOST_TICKS = 25, 24
"""Rows of the map, those that are worst first; and figures that are written below it."""
FULL = 0.25
"""A difference from which on a colour is full."""
MOST_SPOTS = 100
"""Of a figure's GPUs, closer to each other at both ends; those that are out are all drawn."""
MOST_SPREADS = 3
"""Figures whose spread is drawn."""


def draw(fleet: Fleet, label: str | None) -> list[Chart]:
    """The map where there is a label, then the figures in which most GPUs are out."""
    by_label = label_map(fleet, label) if label else None
    return [*([by_label] if by_label else ()), *(spread(fleet, at) for at in fleet.most_out[:MOST_SPREADS])]


def label_map(fleet: Fleet, label: str) -> Chart | None:
    """Label by figure: by how much the GPUs are worse, the worst first; ``None`` where no GPU has the label."""
    named = {place: name for place, gpu in enumerate(fleet.gpus) if (name := gpu.label(label)) is not None}
    if not named:
        return None
    names, rows_of = np.unique(list(named.values()), return_inverse=True)
    values = fleet.worse[np.ix_(list(named), fleet.firsts)].T
    sums, counts = (
        [np.bincount(rows_of, own) for own in some] for some in (np.nan_to_num(values), np.isfinite(values))
    )
    with np.errstate(invalid="ignore"):  # of a figure that no GPU of a label has
        worse = np.divide(sums, counts).T
    for outlier in fleet.outliers:
        own = np.where(np.isin(fleet.firsts, outlier.figures), fleet.worse[outlier.place, fleet.firsts], np.nan)
        row = names == named.get(outlier.place)
        worse[row] = np.fmax(worse[row], own)
    changes = np.expm1(worse)
    worst = np.nan_to_num(changes, nan=-1.0).max(axis=1)
    drawn = np.argsort(-worst, kind="stable")[:MOST_LABELS]
    words = [fleet.figures[at].full_words for at in fleet.firsts]
    heat = go.Heatmap(
        x=words,
        y=names[drawn],
        z=changes[drawn],
        zmin=-FULL,
        zmax=FULL,
        colorscale=[[0.0, COLOURS["intact"]], [0.5, "rgba(128,128,128,0.08)"], [1.0, COLOURS["corrupted"]]],
        showscale=False,
        hovertemplate=f"{label} %{{y}}: %{{x}} worse by %{{z:.1%}}<extra></extra>",
        hoverongaps=False,
    )
    title = {"text": "Figures, one a cell"}
    figures = {"showticklabels": len(words) <= MOST_TICKS, "title": title, "showgrid": False}
    rows = {"type": "category", "autorange": "reversed", "title": {"text": label}, "showgrid": False}
    pixels = FRAME_PIXELS + 120 + 16 * len(drawn)
    figure = go.Figure([heat], {"template": template(), "height": pixels, "xaxis": figures, "yaxis": rows})
    ends = [(str(names[row]), f"{format_change(1 + max(worst[row], 0.0))} worse") for row in drawn[:3]]
    left = f" The {len(drawn)} of {len(names)} that are worst." if len(drawn) < len(names) else ""
    return Chart(
        "labels",
        f"By {label}",
        f"The mean of the GPUs of each {label} against all like them, or a GPU that is worse: red, full from "
        f"{format_share(FULL)} on.{left}",
        figure,
        alt_text(f"Worst by {label}", ends),
    )


def spread(fleet: Fleet, at: int) -> Chart:
    """All GPUs by what they have of a figure, and who is out."""
    drawn, values = fleet.figures[at], fleet.values[:, at].astype(float)
    order = np.argsort(values)[: np.isfinite(values).sum()]  # what is not known comes last
    ranks = dict(zip(order.tolist(), range(len(order)), strict=True))
    shares = (1 - np.cos(np.linspace(0, np.pi, MOST_SPOTS))) / 2
    some = order[np.unique((shares * (len(order) - 1)).astype(int))].tolist()
    out = [outlier.place for outlier in fleet.outliers if at in outlier.figures]
    all_gpus, worse = (
        [Spot(ranks[place], values[place], fleet.gpus[place].words) for place in places] for places in (some, out)
    )
    scale = scale_of(drawn.value.title, drawn.value.unit, values[order[-1]])
    return curves(
        f"spread-{at}",
        drawn.full_words,
        f"Median {scale.text(float(np.median(values[order])))} of {len(order):,} GPUs.",
        {
            "": {
                "GPUs": Curve(LineStyle("copy"), all_gpus, mode="lines"),
                "worse than others like them": Curve(LineStyle("corrupted", "triangle-down"), worse, mode="markers"),
            }
        },
        scale,
        linear("GPUs, the lowest first", "%{x:.0f}"),
        f"{drawn.full_words} over {len(order):,} GPUs; worse",
        ends=[(spot.words, scale.text(spot.y)) for spot in worse[:5]],
    )
