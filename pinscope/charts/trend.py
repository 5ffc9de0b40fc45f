"""A figure over runs, drawn: each run, the median between steps, and what changed in the machine where it steps."""

from __future__ import annotations

from itertools import pairwise

from pinscope.analysis.cells import LineStyle
from pinscope.analysis.machine_keys import key_words
from pinscope.analysis.trend import Step, Trend
from pinscope.charts.marks import Chart
from pinscope.charts.plot import Curve, Spot, curves, linear, scale_of
from pinscope.charts.theme import COLOURS
from pinscope.units import format_change, format_value

_RUNS, _MEDIAN = LineStyle("copy"), LineStyle("reference")
ROOM = 0.15
"""Above and below what is drawn, of its height: a step of some percent is seen, which an axis from 0 would hide."""
MOST_LETTERS = 40
"""Of the words beside a step, which a phone has room for; the page has them whole."""


def draw(trend: Trend) -> Chart:
    """The runs in their order, the oldest first."""
    points, values = trend.points, [point.value for point in trend.points]
    axis = scale_of(trend.figure.name, trend.figure.unit, max(values))
    spots = [
        Spot(place, point.value, f"{point.run.created_at:%Y-%m-%d %H:%M}, {point.run.id}")
        for place, point in enumerate(points, start=1)
    ]
    pane = {"Runs": Curve(_RUNS, spots)}
    ends = [0, *(step.place for step in trend.steps), len(points)]
    medians = [trend.steps[0].before, *(step.after for step in trend.steps)] if trend.steps else []
    for number, ((begin, end), middle) in enumerate(zip(pairwise(ends), medians, strict=bool(medians)), start=1):
        across = [Spot(place, middle, "") for place in (begin + 1, end)]
        pane[f"Median {number}"] = Curve(_MEDIAN, across, rule=True)
    said = [(f"run {step.place + 1}", _step_words(step)) for step in trend.steps]
    chart = curves(
        "trend",
        trend.figure.name,
        "Each run, the oldest first; grey: the median between steps. The axis does not begin at 0.",
        {"": pane},
        axis,
        linear("Run, the oldest first", "Run %{x}"),
        f"{trend.figure.name} over {len(points)} runs",
        ends=[*said, ("last run", format_value(values[-1], trend.figure.unit))],
    )
    low, high = min(values) / axis.unit, max(values) / axis.unit
    room = ROOM * ((high - low) or abs(high) or 1.0)
    chart.figure.update_yaxes(range=[low - room, high + room], rangemode="normal")
    chart.figure.update_layout(showlegend=False)
    for step in trend.steps:
        chart.figure.add_vline(
            step.place + 0.5,
            line={"color": COLOURS["corrupted"], "dash": "dot", "width": 2},
            annotation={
                "text": _step_words(step),
                "xanchor": "right" if step.place > len(points) / 2 else "left",
                "xshift": -6 if step.place > len(points) / 2 else 6,
                "showarrow": False,
            },
        )
    return chart


def _step_words(step: Step) -> str:
    words = " · ".join(filter(None, (format_change(step.ratio) if step.ratio else "step", key_words(step.changed))))
    return words if len(words) <= MOST_LETTERS else f"{words[: MOST_LETTERS - 1]}…"
