"""What a data loader run looks like: steps a second over workers, and where a step's time goes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import plotly.graph_objects as go

from pinscope.charts.chart import Chart
from pinscope.charts.theme import COLOURS, panels
from pinscope.experiments.dataloader.arithmetic import Combination, combinations
from pinscope.experiments.dataloader.bound import TITLES, Part, busy
from pinscope.records.run import ExperimentRun
from pinscope.units import format_seconds, format_share

_ROW_PIXELS = 34
_PART_COLOURS: Mapping[Part, str] = {
    "workers": "managed", "program": "mapped", "pinning": "pinned", "copy": "copy", "compute": "compute",
}  # fmt: skip


def draw(run: ExperimentRun, rows: Sequence[Mapping[str, Any]]) -> list[Chart]:
    """The charts of a run, also of one that still goes on."""
    found = [one for one in combinations(rows) if one.steady]
    if not found:
        return []
    return [_steps(found), _parts(found), *([_busy(found)] if all(map(busy, found)) else [])]


def _steps(found: Sequence[Combination]) -> Chart:
    figure = panels(["Steps a second"], [260])
    for title in dict.fromkeys(one.title for one in found):
        line = sorted((one for one in found if one.title == title), key=lambda one: one.workers)
        memory = "pinned" if line[0].pin_memory else "pageable"
        paces = [one.steps_per_second for one in line]
        figure.add_trace(
            go.Scatter(
                x=[one.workers for one in line], y=[pace.value for pace in paces], name=title,
                error_y={
                    "array": [(pace.high or pace.value) - pace.value for pace in paces],
                    "arrayminus": [pace.value - (pace.low or pace.value) for pace in paces],
                },
                mode="lines+markers",
                line={"color": COLOURS[memory], "dash": "solid" if line[0].non_blocking else "dash", "width": 2},
                marker={"color": COLOURS[memory], "symbol": "circle" if line[0].pin_memory else "diamond", "size": 9},
                hovertemplate=f"{title}, %{{x}} workers: %{{y:.3g}} steps/s<extra></extra>",
            ),
            row=1, col=1,
        )  # fmt: skip
    counts = sorted({one.workers for one in found})
    figure.update_xaxes(title_text="Workers", tickmode="array", tickvals=counts)
    figure.update_yaxes(title_text="Steps/s", rangemode="tozero")
    return Chart(
        "loader-steps", "Steps a second over workers",
        "In the steady state; bars: 95 % intervals. 0 workers: the training program makes the batches itself.", figure,
    )  # fmt: skip


def _parts(found: Sequence[Combination]) -> Chart:
    figure = panels([""], [60 + _ROW_PIXELS * len(found)])
    names = _names(found)
    parts = (
        ("compute", "compute", [one.seconds("compute_seconds") for one in found]),
        ("GPU idle", "stall", [one.seconds("stall_seconds") for one in found]),
    )
    for name, colour, seconds in parts:
        figure.add_trace(
            go.Bar(
                orientation="h", y=names, x=seconds, name=name, marker={"color": COLOURS[colour]},
                customdata=[format_seconds(value) for value in seconds],
                hovertemplate=f"%{{y}}<br>{name}: %{{customdata}}<extra></extra>",
            )
        )  # fmt: skip
    figure.update_layout(barmode="stack")
    figure.update_yaxes(autorange="reversed", title_text="", type="category")
    figure.update_xaxes(title_text="Time of a step (seconds)", rangemode="tozero")
    return Chart(
        "loader-parts", "Where a step's time goes",
        "On average, in the steady state. Workers first. GPU idle: between the last kernel of one step and the first "
        "of the next, for the loader, the copy or the program.",
        figure,
    )  # fmt: skip


def _busy(found: Sequence[Combination]) -> Chart:
    figure = panels([""], [60 + 2 * _ROW_PIXELS * len(found)])
    for part, colour in _PART_COLOURS.items():
        shares = {name: each.share for name, one in zip(_names(found), found, strict=True) for each in busy(one) or ()
                  if each.part == part}  # fmt: skip
        if shares:
            figure.add_trace(
                go.Bar(
                    orientation="h", y=list(shares), x=list(shares.values()), name=TITLES[part],
                    marker={"color": COLOURS[colour]},
                    customdata=[format_share(share) for share in shares.values()],
                    hovertemplate=f"%{{y}}<br>{TITLES[part]}: %{{customdata}} of a step<extra></extra>",
                )
            )  # fmt: skip
    figure.update_layout(barmode="group")
    figure.update_yaxes(autorange="reversed", title_text="", type="category")
    figure.update_yaxes(categoryorder="array", categoryarray=_names(found))  # no part is busy in all of them
    figure.update_xaxes(title_text="Busy, share of a step", range=[0, 1.02], tickformat=".0%")
    return Chart(
        "loader-busy", "What bounds each combination",
        "The part that is busy for the largest share of a step sets the pace; the program only where no other is busy, "
        "as it may wait for the GPU. Copying and computing: the GPU's stream, under the longer of the two.",
        figure,
    )  # fmt: skip


def _names(found: Sequence[Combination]) -> list[str]:
    return [f"{one.workers}: {one.title}" for one in found]
