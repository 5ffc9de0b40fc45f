"""What a data loader run looks like: steps a second over workers, and where a step's time goes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pinscope.analysis.rows import grouped
from pinscope.charts.bars import Part, bars
from pinscope.charts.chart import Chart
from pinscope.charts.lines import Look, line, put
from pinscope.charts.theme import panels
from pinscope.experiments.dataloader.arithmetic import Combination, combinations
from pinscope.experiments.dataloader.bound import TITLES, busy
from pinscope.experiments.dataloader.bound import Part as LoopPart
from pinscope.records.run import ExperimentRun
from pinscope.units import format_seconds, format_share

_PART_COLOURS: Mapping[LoopPart, str] = {
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
    by_workers = sorted(found, key=lambda one: one.workers)
    for title, curve in grouped(by_workers, lambda one: one.title).items():
        pinned, dash = curve[0].pin_memory, "solid" if curve[0].non_blocking else "dash"
        look = Look("pinned", dash=dash, size=9) if pinned else Look("pageable", "diamond", dash, 9)
        paces = [one.steps_per_second for one in curve]
        points = [(one.workers, pace.value, f"{one.workers} workers: {pace.value:.3g} steps/s")
                  for one, pace in zip(curve, paces, strict=True)]  # fmt: skip
        intervals = {
            "array": [(pace.high or pace.value) - pace.value for pace in paces],
            "arrayminus": [pace.value - (pace.low or pace.value) for pace in paces],
        }
        put(figure, 1, line(title, look, points, error_y=intervals))
    figure.update_xaxes(title_text="Workers", tickmode="array", tickvals=sorted({one.workers for one in found}))
    figure.update_yaxes(title_text="Steps/s", rangemode="tozero")
    return Chart(
        "loader-steps", "Steps a second over workers",
        "In the steady state; bars: 95 % intervals. 0 workers: the training program makes the batches itself.", figure,
    )  # fmt: skip


def _name(one: Combination) -> str:
    return f"{one.workers}: {one.title}"


def _parts(found: Sequence[Combination]) -> Chart:
    parts = (
        Part("compute", "compute", {_name(one): one.seconds("compute_seconds") or 0.0 for one in found}),
        Part("GPU idle", "stall", {_name(one): one.seconds("stall_seconds") or 0.0 for one in found}),
    )
    return Chart(
        "loader-parts", "Where a step's time goes",
        "On average, in the steady state. Workers first. GPU idle: between the last kernel of one step and the first "
        "of the next, for the loader, the copy or the program.",
        bars(list(map(_name, found)), parts, "Time of a step (ms)", format_seconds, scale=1e-3),
    )  # fmt: skip


def _busy(found: Sequence[Combination]) -> Chart:
    shares = {
        part: {_name(one): each.share for one in found for each in busy(one) or () if each.part == part}
        for part in _PART_COLOURS
    }
    parts = [Part(TITLES[part], colour, shares[part]) for part, colour in _PART_COLOURS.items() if shares[part]]
    figure = bars(
        list(map(_name, found)), parts, "Busy, share of a step", lambda share: f"{format_share(share)} of a step",
        side_by_side=True,
    )  # fmt: skip
    figure.update_xaxes(range=[0, 1.02], tickformat=".0%")
    return Chart(
        "loader-busy", "What bounds each combination",
        "The part that is busy for the largest share of a step sets the pace; the program only where no other is busy, "
        "as it may wait for the GPU. Copying and computing: the GPU's stream, under the longer of the two.",
        figure,
    )  # fmt: skip
