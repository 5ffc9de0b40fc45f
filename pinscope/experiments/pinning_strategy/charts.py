"""What a pinning strategy run looks like: how long each strategy took, and how long other processes waited."""

from __future__ import annotations

from collections.abc import Sequence

from pinscope.analysis.cells import LineStyle
from pinscope.analysis.pinning_strategy import CALLS, PHASES, StrategyCell
from pinscope.charts.marks import Chart, Marks, marks_of_seconds
from pinscope.charts.plot import TimePart, parts_of_time
from pinscope.experiments.pinning_strategy.reading import NEIGHBOURS, Pinnings
from pinscope.records.run import ExperimentRun
from pinscope.units import format_bytes, format_seconds


def draw(run: ExperimentRun, pinnings: Pinnings) -> list[Chart]:
    """The charts of a run, also of one that still goes on."""
    del run
    return [_times(pinnings), _waits(pinnings.cells)]


def _times(pinnings: Pinnings) -> Chart:
    cells, best = pinnings.strategies, pinnings.recommended.array or pinnings.recommended.chunks
    size, fastest = format_bytes(cells[0].bytes), min(cells, key=lambda cell: cell.total_seconds.median)
    ends = {cell.title: format_seconds(cell.total_seconds.median) for cell in cells}
    if best:
        ends[best.title] = f"{ends[best.title]}, recommended"
    note = "Recommended is one piece, which any copy may use whole; chunks must be copied one by one."
    piece = best is not None and best is not fastest and best.chunk_bytes is None and fastest.chunk_bytes is not None
    return parts_of_time(
        "strategy-times",
        f"How long {size} take to pin",
        "Medians. Touching is faulting and zeroing pages; where it is not apart, the driver does it while it pins, or "
        "threads do it at the same time." + (f" {note}" if piece else ""),
        (TimePart("touch", "touch", "/"), TimePart("pin", "pinned")),
        {
            cell.title: (cell.touch_seconds or 0.0, cell.total_seconds.median - (cell.touch_seconds or 0.0))
            for cell in cells
        },
        f"Time to pin {size}",
        ends=ends,
    )


def _waits(cells: Sequence[StrategyCell]) -> Chart:
    pinning, giving_back = PHASES.values()
    names = [cell.title for cell in cells]

    def marks(name: str, style: LineStyle | None, seconds: Sequence[float | None]) -> Marks:
        return Marks(name, style or LineStyle("wait"), dict(zip(names, seconds, strict=True)))

    series = [
        *(
            marks(call, NEIGHBOURS[name].style, [cell.wait(pinning, call) for cell in cells])
            for name, call in CALLS.items()
        ),
        marks(f"any, memory {giving_back}", LineStyle("stall", "star"), [cell.wait(giving_back) for cell in cells]),
        marks(NEIGHBOURS["control"].title, NEIGHBOURS["control"].style, [cell.longest_control for cell in cells]),
    ]
    return marks_of_seconds(
        "neighbour-waits",
        "How long other processes waited meanwhile",
        "The longest single call of each kind in other processes while memory was pinned, and of all kinds while it "
        "was given back. No driver calls: how late a process woke that makes none. Idle: the same with nothing going "
        "on.",
        names,
        series,
        "Longest wait of other processes while memory was pinned",
        [(cell.title, format_seconds(cell.wait(pinning))) for cell in cells],
    )
