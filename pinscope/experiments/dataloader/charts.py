"""What a data loader run looks like: steps a second over workers, and where a step's time goes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any

import plotly.graph_objects as go

from pinscope.charts.bars import AROUND_PIXELS, ROW_PIXELS, THICKNESS, Part, bars, end_labels, names_above
from pinscope.charts.chart import Chart, alt_text
from pinscope.charts.theme import COLOURS, panels
from pinscope.experiments.dataloader.arithmetic import Combination, combinations
from pinscope.experiments.dataloader.bound import TITLES, busy
from pinscope.experiments.dataloader.bound import Part as LoopPart
from pinscope.records.run import ExperimentRun
from pinscope.units import format_seconds, format_share, format_spread

_PART_COLOURS: Mapping[LoopPart, str] = {
    "workers": "workers",
    "program": "issue",
    "pinning": "pinned",
    "copy": "copy",
    "compute": "compute",
}


def draw(run: ExperimentRun, rows: Sequence[Mapping[str, Any]]) -> list[Chart]:
    """The charts of a run, also of one that still goes on."""
    found = [one for one in combinations(rows) if one.steady]
    if not found:
        return []
    return [_steps(found), _parts(found), *([_busy(found)] if all(map(busy, found)) else [])]


def _steps(found: Sequence[Combination]) -> Chart:
    """A bar for each combination, with its interval."""
    figure = panels([""], [AROUND_PIXELS + ROW_PIXELS * len(found)])
    for pinned, non_blocking in product((False, True), repeat=2):
        shown = [one for one in found if (one.pin_memory, one.non_blocking) == (pinned, non_blocking)]
        if not shown:
            continue
        colour, paces = COLOURS["pinned" if pinned else "pageable"], [one.steps_per_second for one in shown]
        figure.add_trace(
            go.Bar(
                orientation="h",
                y=list(map(_name, shown)),
                x=[pace.value for pace in paces],
                name=shown[0].title,
                width=THICKNESS,
                marker={
                    "color": colour,
                    "pattern": {
                        "shape": "" if non_blocking else "/",
                        "fillmode": "overlay",
                        "fgcolor": "rgba(255, 255, 255, 0.35)",
                        "size": 6,
                    },
                },
                error_x={
                    "array": [(pace.high or pace.value) - pace.value for pace in paces],
                    "arrayminus": [pace.value - (pace.low or pace.value) for pace in paces],
                    "color": COLOURS["reference"],
                },
                customdata=[_pace(one) for one in shown],
                hovertemplate="%{customdata} steps/s<extra></extra>",
            )
        )
    names_above(figure, 1, list(map(_name, found)))
    tops = {_name(one): ((pace := one.steps_per_second).high or pace.value, _pace(one)) for one in found}
    end_labels(figure, 1, tops)
    figure.update_layout(hovermode="y unified", barmode="overlay")
    figure.update_xaxes(title_text="Steps/s")
    return Chart(
        "loader-steps",
        "Steps a second of each combination",
        "In the steady state; whiskers: 95 % intervals. With 0 workers the training program makes the batches "
        "itself. Hatched: blocking copies.",
        figure,
        alt_text("Steps a second", [(_name(one), _pace(one)) for one in found]),
    )


def _pace(one: Combination) -> str:
    """``65.8``, with its interval if there is one."""
    pace = one.steps_per_second
    return f"{pace.value:.1f}" + (f" ± {format_spread(pace.uncertainty)}" if pace.uncertainty is not None else "")


def _name(one: Combination) -> str:
    return f"{one.workers} workers · {one.title}"


def _parts(found: Sequence[Combination]) -> Chart:
    wholes = {
        _name(one): f"{format_seconds(one.seconds('step_seconds'))}, computes {format_share(share)}"
        for one in found
        if (share := one.computes) is not None
    }
    parts = (
        Part("compute", "compute", {_name(one): one.seconds("compute_seconds") or 0.0 for one in found}),
        Part("no kernel runs", "stall", {_name(one): one.seconds("stall_seconds") or 0.0 for one in found}),
    )
    return Chart(
        "loader-parts",
        "Where a step's time goes",
        "On average, in the steady state. No kernel runs between the last kernel of one step and the first "
        "of the next, for the loader, the copy or the program. Copies run in that time.",
        bars(list(map(_name, found)), parts, "Time of a step (ms)", format_seconds, scale=1e-3, ends=wholes),
        alt_text("Time of a step, and the share of it in which the GPU computes", wholes.items()),
    )


def _busy(found: Sequence[Combination]) -> Chart:
    shares = {
        part: {_name(one): each.share for one in found for each in busy(one) or () if each.part == part}
        for part in _PART_COLOURS
    }
    parts = [
        Part(TITLES[part], colour, shares[part], "/" if part == "program" else "")
        for part, colour in _PART_COLOURS.items()
        if shares[part]
    ]
    figure = bars(
        list(map(_name, found)),
        parts,
        "Busy, share of a step",
        lambda share: f"{format_share(share)} of a step",
        side_by_side=True,
    )
    figure.update_xaxes(range=[0, 1.02], tickformat=".0%")
    return Chart(
        "loader-busy",
        "What bounds each combination",
        "The part that is busy for the largest share of a step sets the pace; the program only where no other is busy, "
        "as it may wait for the GPU. Copying and computing: the GPU's stream, under the longer of the two.",
        figure,
        alt_text(
            "The busiest part of each combination",
            [(_name(one), f"{each[0].title} {format_share(each[0].share)}") for one in found if (each := busy(one))],
        ),
    )
