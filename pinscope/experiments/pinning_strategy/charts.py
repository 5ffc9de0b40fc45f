"""What a pinning strategy run looks like: how long each strategy took, and how long other processes waited."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pinscope.analysis.pinning_strategy import CALLS, IDLE, PHASES, TITLES, StrategyCell, recommend, strategy_cells
from pinscope.analysis.ways import LineStyle
from pinscope.charts.bars import Part, bars, label
from pinscope.charts.chart import Chart, alt_text
from pinscope.charts.marks import Marks, marks_of_seconds
from pinscope.charts.theme import seconds_unit
from pinscope.records.run import ExperimentRun
from pinscope.units import format_bytes, format_seconds

_WAIT_LOOKS = (
    LineStyle("issue"),
    LineStyle("issue", "triangle-down"),
    LineStyle("compute", "square"),
    LineStyle("issue", "diamond"),
)


def draw(run: ExperimentRun, rows: Sequence[Mapping[str, Any]]) -> list[Chart]:
    """The charts of a run, also of one that still goes on."""
    cells = strategy_cells(rows)
    measured = [cell for name, cell in cells.items() if name != IDLE]
    if not measured:
        return []
    best = recommend(cells)
    return [_times(measured, best.array or best.chunks), _waits(list(cells.values()))]


def _label(cell: StrategyCell) -> str:
    return label(TITLES[cell.strategy])


def _times(cells: Sequence[StrategyCell], best: StrategyCell | None) -> Chart:
    touch = {_label(cell): cell.touch_seconds or 0.0 for cell in cells}
    pin = {_label(cell): cell.total_seconds.median - (cell.touch_seconds or 0.0) for cell in cells}
    parts = (Part("touch", "touch", touch, "/"), Part("pin", "pinned", pin))
    ends = {_label(cell): format_seconds(cell.total_seconds.median) for cell in cells}
    marked = {
        label: f"<b>{text}, recommended</b>" if best and label == _label(best) else text for label, text in ends.items()
    }
    scale, unit = seconds_unit(max(cell.total_seconds.median for cell in cells))
    return Chart(
        "strategy-times",
        f"How long {format_bytes(cells[0].bytes)} take to pin",
        "Medians. Touching is faulting and zeroing pages; where it is not apart, the driver does it while it pins, or "
        "threads do it at the same time." + _why_not_the_fastest(cells, best),
        bars(list(touch), parts, f"Time ({unit})", format_seconds, scale=scale, ends=marked),
        alt_text(
            f"Time to pin {format_bytes(cells[0].bytes)}",
            [(name, text.replace("<b>", "").replace("</b>", "")) for name, text in marked.items()],
        ),
    )


def _why_not_the_fastest(cells: Sequence[StrategyCell], best: StrategyCell | None) -> str:
    fastest = min(cells, key=lambda cell: cell.total_seconds.median)
    if best is None or best is fastest or best.chunk_bytes is not None or fastest.chunk_bytes is None:
        return ""
    return " Recommended is one piece, which any copy may use whole; chunks must be copied one by one."


def _waits(cells: Sequence[StrategyCell]) -> Chart:
    pinning, giving_back = PHASES.values()
    series = [
        *(
            Marks(call, look, {TITLES[cell.strategy]: cell.wait(pinning, call) for cell in cells})
            for call, look in zip(CALLS.values(), _WAIT_LOOKS, strict=True)
        ),
        Marks(
            f"any, memory {giving_back}",
            LineStyle("stall", "star"),
            {TITLES[cell.strategy]: cell.wait(giving_back) for cell in cells},
        ),
        Marks(
            "no driver calls",
            LineStyle("reference", "x"),
            {TITLES[cell.strategy]: cell.longest_control for cell in cells},
        ),
    ]
    return Chart(
        "neighbour-waits",
        "How long other processes waited meanwhile",
        "The longest single call of each kind in other processes while memory was pinned, and of all kinds while it "
        "was given back. No driver calls: how late a process woke that makes none. Idle: the same with nothing going "
        "on.",
        marks_of_seconds([TITLES[cell.strategy] for cell in cells], series, "Longest wait"),
        alt_text(
            "Longest wait of other processes while memory was pinned",
            [(_label(cell), format_seconds(cell.wait(pinning))) for cell in cells],
        ),
    )
