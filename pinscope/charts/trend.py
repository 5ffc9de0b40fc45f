"""A figure over runs, drawn: each run, the median between steps, and by how much it steps."""

from __future__ import annotations

from pinscope.analysis.cells import LineStyle
from pinscope.analysis.trend import Trend
from pinscope.charts.marks import Chart
from pinscope.charts.plot import Curve, Spot, curves, linear, scale_of
from pinscope.charts.theme import COLOURS
from pinscope.units import format_value

_RUNS, _MEDIAN = LineStyle("copy"), LineStyle("reference")


def draw(trend: Trend) -> Chart:
    """The runs in their order, the oldest first."""
    values, figure = trend.values, trend.figure
    runs = [
        Spot(place, value, f"{run.created_at:%Y-%m-%d %H:%M}, {run.id}")
        for place, (run, value) in enumerate(zip(trend.runs, values, strict=True), start=1)
    ]
    medians = {
        f"Median from {begin + 1}": Curve(_MEDIAN, [Spot(place, middle, "") for place in (begin + 1, end)], rule=True)
        for begin, end, middle in trend.levels
    }
    said = [(f"run {step.place + 1}", step.change) for step in trend.steps]
    chart = curves(
        "trend",
        figure.name,
        "Each run, the oldest first; grey: the median between steps. The axis does not begin at 0.",
        {"": {"Runs": Curve(_RUNS, runs), **medians}},
        scale_of(figure.name, figure.unit, max(values)),
        linear("Run, the oldest first", "Run %{x}"),
        f"{figure.name} over {len(values)} runs",
        ends=[*said, ("last run", format_value(values[-1], figure.unit))],
    )
    # A step of some percent is seen, which an axis from 0 would hide.
    chart.figure.update_yaxes(autorange=True, rangemode="normal").update_layout(showlegend=False)
    for step in trend.steps:
        side = {"xanchor": "right", "xshift": -6} if step.place > len(values) / 2 else {"xanchor": "left", "xshift": 6}
        chart.figure.add_vline(
            step.place + 0.5,
            line={"color": COLOURS["corrupted"], "dash": "dot", "width": 2},
            annotation={"text": step.change, "showarrow": False, **side},
        )
    return chart
