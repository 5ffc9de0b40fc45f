"""What a data loader run looks like: steps a second of each combination, and what bounds it."""

from __future__ import annotations

from collections.abc import Sequence

from pinscope.analysis.statistics import Summary
from pinscope.charts.marks import Chart
from pinscope.charts.plot import Bar, Scale, TimePart, bars, parts_of_time
from pinscope.experiments.dataloader.reading import Cell, Loops
from pinscope.experiments.dataloader.ways import PARTS
from pinscope.records.run import ExperimentRun
from pinscope.units import format_precision, format_share


def draw(run: ExperimentRun, loops: Loops) -> list[Chart]:
    """The charts of a run, also of one that still goes on."""
    del run
    cells = loops.steady
    steps = [_steps(cells)] if cells else []
    return [*steps, _busy(cells)] if cells and all(cell.busy for cell in cells) else steps


def _steps(cells: Sequence[Cell]) -> Chart:
    """A bar for each combination, with its interval."""
    drawn = [
        Bar(
            _name(cell),
            pace.median,
            TimePart(cell.title, "pinned" if cell.pin_memory else "pageable", "" if cell.non_blocking else "/"),
            _pace(pace),
            _pace(pace),
            pace.interval,
        )
        for cell in cells
        if (pace := cell.steps_per_second)
    ]
    return bars(
        "loader-steps",
        "Steps a second of each combination",
        "In the steady state; whiskers: ±, where there are 8 rounds. With 0 workers the training program makes the "
        "batches itself. Hatched: blocking copies.",
        {"": drawn},
        Scale("Steps/s", 1.0, "{:.1f}".format),
        "Steps a second",
    )


def _pace(pace: Summary) -> str:
    """``65.8 ± 2.0 %``, ``65.8 (4 repeats)``."""
    return f"{pace.median:.1f} {format_precision(pace.spread, pace.few)}"


def _name(cell: Cell) -> str:
    return f"{cell.workers} workers · {cell.title}"


def _busy(cells: Sequence[Cell]) -> Chart:
    shares = {_name(cell): {busy.part: busy.share for busy in cell.busy} for cell in cells}
    chart = parts_of_time(
        "loader-busy",
        "What bounds each combination",
        "The part that is busy for the largest share of a step sets the pace; the program only where no other is busy, "
        "as it may wait for the GPU. Copying and computing: the GPU's stream, under the longer of the two.",
        [TimePart(way.title, colour, "/" if part == "program" else "") for part, (way, colour) in PARTS.items()],
        {name: [parts.get(part) for part in PARTS] for name, parts in shares.items()},
        "The busiest part of each combination",
        ends={_name(cell): f"{cell.busy[0].title} {format_share(cell.busy[0].share)}" for cell in cells},
        axis=Scale("Busy, share of a step", 1.0, lambda share: f"{format_share(share)} of a step"),
        side_by_side=True,
    )
    chart.figure.update_xaxes(range=[0, 1.02], tickformat=".0%")
    return chart
