"""What a while_serving run looks like: longest wait and total time over the length of a chunk, and each call's wait."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from pinscope.analysis.cells import LineStyle
from pinscope.charts.marks import Chart, Marks, marks_of_seconds
from pinscope.charts.plot import Curve, Spot, curves, level, seconds, sizes
from pinscope.experiments.while_serving.reading import AUTO, GIVEN_BACK, IDLE, TAKEN, TOUCH, Cell, Serving
from pinscope.experiments.while_serving.ways import CALLS, WAYS
from pinscope.records.run import ExperimentRun
from pinscope.units import format_bytes, format_seconds

CHUNKS, GIVING_BACK = LineStyle("registered", "triangle-down"), LineStyle("stall", "circle", "dash")
Value = Callable[[Cell], float | None]


def draw(run: ExperimentRun, serving: Serving) -> list[Chart]:
    """The charts of a run, also of one that still goes on."""
    del run
    over_chunks = [_over_chunks(serving)] if serving.registered else []
    return [*over_chunks, *([_calls(serving.cells)] if serving.fastest else [])]


def _over_chunks(serving: Serving) -> Chart:
    """Longest wait and total time: chunks and one registration as lines, the other ways as marks, controls in grey."""
    drawn = [*serving.registered, *filter(None, map(serving.way, ("host_alloc", AUTO)))]
    marked = [cell for cell in drawn if cell.pins and cell not in serving.registered]
    controls = [(cell, dash) for way, dash in ((TOUCH, "dash"), (IDLE, "dot")) if (cell := serving.way(way))]

    def pane(value: Value, lines: Mapping[str, tuple[LineStyle, Value]]) -> dict[str, Curve]:
        marks = {cell.title: _curve([cell], WAYS[cell.way].style, value) for cell in marked}
        return {name: _curve(serving.registered, style, of) for name, (style, of) in lines.items()} | marks

    def grey(dash: str, seconds: float) -> Curve:
        return level(seconds, format_seconds(seconds), dash)

    waits, times = "Longest wait of a call", f"Time until all {format_bytes(drawn[0].bytes)} are pinned"
    return curves(
        "serving-waits",
        "How long calls of the same process wait, and how long pinning takes, by chunk length",
        "The longest single call of all repeats, and the median time. At the right end of the lines one call registers "
        "everything. Grey: the limit (solid), while threads only touch memory (dashed), and no other work (dotted).",
        {
            waits: pane(
                lambda cell: cell.wait(),
                {
                    "chunks, while pinning": (CHUNKS, lambda cell: cell.wait(TAKEN)),
                    "chunks, while giving back": (GIVING_BACK, lambda cell: cell.wait(GIVEN_BACK)),
                },
            )
            | {"limit": grey("solid", serving.limit)}
            | {cell.title: grey(dash, cell.longest_wait.seconds) for cell, dash in controls},
            times: pane(_total, {"chunks": (CHUNKS, _total)})
            | {cell.title: grey(dash, _total(cell)) for cell, dash in controls if cell.way == TOUCH},
        },
        seconds("Time"),
        sizes("What one call pins (bytes, log scale)"),
        f"Longest wait of a call, and time until all is pinned; the limit is {format_seconds(serving.limit)}",
        ends=[(cell.title, f"{format_seconds(cell.wait())}, {format_seconds(_total(cell))}") for cell in drawn],
    )


def _total(cell: Cell) -> float:
    return cell.total_seconds.median


def _curve(cells: Sequence[Cell], style: LineStyle | None, value: Value) -> Curve:
    known = [(cell.piece_bytes, height) for cell in cells if (height := value(cell)) is not None]
    return Curve(style or CHUNKS, [Spot(float(size), height, format_bytes(size)) for size, height in known])


def _calls(cells: Sequence[Cell]) -> Chart:
    """Each call's longest wait in each way."""
    series = [
        Marks(call.title, call.style or LineStyle("issue"), {cell.title: cell.wait(call=call.title) for cell in cells})
        for call in CALLS.values()
    ]
    return marks_of_seconds(
        "serving-calls",
        "Which calls wait",
        "The longest single call of each kind over all repeats, while memory is pinned or given back. A stream "
        "synchronize waits for the kernel and the copy of its round, also when nothing else goes on.",
        [cell.title for cell in cells],
        series,
        "Longest call in each way",
        [(cell.title, f"{cell.longest_wait.call}, {format_seconds(cell.longest_wait.seconds)}") for cell in cells],
    )
