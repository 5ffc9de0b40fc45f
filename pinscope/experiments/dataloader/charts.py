"""What a data loader run looks like: steps a second over workers, and where a step's time goes."""

from __future__ import annotations

from collections.abc import Sequence

from pinscope.analysis.rows import Row, grouped
from pinscope.charts.bars import Part, bars, end_labels
from pinscope.charts.chart import Chart, alt_text
from pinscope.charts.theme import COLOURS
from pinscope.experiments.dataloader.reading import Cell, Estimate, Loops, PoolUse
from pinscope.experiments.dataloader.ways import PARTS
from pinscope.records.run import ExperimentRun
from pinscope.units import format_bytes, format_seconds, format_share, format_spread


def draw(run: ExperimentRun, rows: Sequence[Row]) -> list[Chart]:
    """The charts of a run, also of one that still goes on."""
    loops = Loops(rows)
    cells = loops.steady
    drawn = [_steps(cells), _parts(cells)] if cells else []
    busy = [_busy(cells)] if cells and all(cell.busy for cell in cells) else []
    return [*drawn, *busy, *_pool(loops.uses)]


def _steps(cells: Sequence[Cell]) -> Chart:
    """A bar for each combination, with its interval."""
    paces = {_name(cell): cell.pace for cell in cells if cell.pace}
    ends = {name: _pace(pace) for name, pace in paces.items()}
    parts = [
        Part(
            alike[0].title,
            "pinned" if pinned else "pageable",
            {_name(cell): cell.pace.value for cell in alike if cell.pace},
            "" if non_blocking else "/",
        )
        for (pinned, non_blocking), alike in sorted(
            grouped(cells, lambda cell: (cell.pin_memory, cell.non_blocking)).items()
        )
    ]
    figure = bars(list(paces), parts, "Steps/s", lambda pace: f"{pace:.1f}")
    for trace in figure.data:
        drawn = [paces[name] for name in trace.y]
        trace.update(
            customdata=list(map(_pace, drawn)),
            error_x={
                "array": [(pace.high or pace.value) - pace.value for pace in drawn],
                "arrayminus": [pace.value - (pace.low or pace.value) for pace in drawn],
                "color": COLOURS["reference"],
            },
        )
    end_labels(figure, 1, {name: (pace.high or pace.value, ends[name]) for name, pace in paces.items()})
    return Chart(
        "loader-steps",
        "Steps a second of each combination",
        "In the steady state; whiskers: 95 % intervals. With 0 workers the training program makes the batches "
        "itself. Hatched: blocking copies.",
        figure,
        alt_text("Steps a second", ends.items()),
    )


def _pace(pace: Estimate) -> str:
    """``65.8``, with its interval if there is one."""
    return f"{pace.value:.1f}" + (f" ± {format_spread(pace.uncertainty)}" if pace.uncertainty is not None else "")


def _name(cell: Cell) -> str:
    return f"{cell.workers} workers · {cell.title}"


def _parts(cells: Sequence[Cell]) -> Chart:
    wholes = {
        _name(cell): f"{format_seconds(cell.step_seconds)}, computes {format_share(share)}"
        for cell in cells
        if (share := cell.computes_share) is not None
    }
    parts = (
        Part("compute", "compute", {_name(cell): cell.compute_seconds or 0.0 for cell in cells}),
        Part("no kernel runs", "stall", {_name(cell): cell.seconds("stall_seconds") or 0.0 for cell in cells}),
    )
    return Chart(
        "loader-parts",
        "Where a step's time goes",
        "On average, in the steady state. No kernel runs between the last kernel of one step and the first "
        "of the next, for the loader, the copy or the program. Copies run in that time.",
        bars(list(map(_name, cells)), parts, "Time of a step (ms)", format_seconds, scale=1e-3, ends=wholes),
        alt_text("Time of a step, and the share of it in which the GPU computes", wholes.items()),
    )


def _busy(cells: Sequence[Cell]) -> Chart:
    shares = {
        part: {_name(cell): busy.share for cell in cells for busy in cell.busy if busy.part == part} for part in PARTS
    }
    parts = [
        Part(name.title, colour, shares[part], "/" if part == "program" else "")
        for part, (name, colour) in PARTS.items()
        if shares[part]
    ]
    figure = bars(
        list(map(_name, cells)),
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
            [(_name(cell), f"{cell.busy[0].title} {format_share(cell.busy[0].share)}") for cell in cells],
        ),
    )


def _pool(uses: Sequence[PoolUse]) -> list[Chart]:
    """What PyTorch's pool pins for one batch, beside what was asked for; nothing where that is not known."""
    taken = {use.title: use.taken for use in uses if use.taken is not None}
    if not taken:
        return []
    asked = {title: min(uses[0].batch_bytes, amount) for title, amount in taken.items()}
    parts = (
        Part("asked for", "pinned", asked),
        Part("rounded up", "stall", {title: amount - asked[title] for title, amount in taken.items()}, "/"),
    )
    ends = {title: format_bytes(amount) for title, amount in taken.items()}
    words = f"What PyTorch pins for a batch of {format_bytes(uses[0].batch_bytes)}"
    chart = Chart(
        "pytorch-pool",
        words,
        "What the host's count of pinned pages grew by, with each setting in a process of its own.",
        bars(list(taken), parts, "Pinned (MiB)", format_bytes, scale=2**20, ends=ends),
        alt_text(words, ends.items()),
    )
    return [chart]
