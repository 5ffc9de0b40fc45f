"""What a while_serving run looks like: longest wait and total time over the length of a chunk, and each call's wait."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pinscope.analysis.ways import LineStyle
from pinscope.charts.chart import Chart, alt_text
from pinscope.charts.lines import line, put, reference
from pinscope.charts.marks import Marks, marks_of_seconds
from pinscope.charts.theme import panels, seconds_axis, size_axis
from pinscope.experiments.while_serving.arithmetic import (
    AUTO,
    CALLS,
    GIVEN_BACK,
    IDLE,
    TAKEN,
    TOUCH,
    Cell,
    cells,
    chunk,
    of_way,
    registered,
)
from pinscope.experiments.while_serving.reading import limit_of
from pinscope.records.run import ExperimentRun
from pinscope.units import format_bytes, format_seconds

_CHUNKS = "What one call pins (bytes, log scale)"
_MARKED: Mapping[str, LineStyle] = {
    "host_alloc": LineStyle("pinned", "diamond", size=12),
    AUTO: LineStyle("copy", "star", size=15),
}
"""Ways that stand beside the line of chunks."""
_CALL_LOOKS = (
    LineStyle("issue"),
    LineStyle("copy", "triangle-down"),
    LineStyle("compute", "square"),
    LineStyle("stall", "diamond"),
)


def draw(run: ExperimentRun, rows: Sequence[Mapping[str, Any]]) -> list[Chart]:
    """The charts of a run, also of one that still goes on."""
    found = cells(rows)
    line_of = registered(found)
    over_chunks = [_waits(found, line_of, limit_of(run)), _times(found, line_of)] if line_of else []
    return [*over_chunks, *_calls(found)]


def _ends(found: Sequence[Cell], line_of: Sequence[Cell]) -> tuple[int, int]:
    shown = [*line_of, *(cell for way in _MARKED if (cell := of_way(found, way)))]
    return min(map(chunk, shown)), max(map(chunk, shown))


def _waits(found: Sequence[Cell], line_of: Sequence[Cell], limit: float) -> Chart:
    figure, (low, high) = panels([""], [340]), _ends(found, line_of)
    for name, look, phase in (
        ("chunks, while pinning", LineStyle("registered", "triangle-down"), TAKEN),
        ("chunks, while giving back", LineStyle("stall", "circle", "dash"), GIVEN_BACK),
    ):
        points = [(float(chunk(cell)), wait, _said(cell, wait)) for cell in line_of if (wait := cell.wait(phase))]
        if points:
            put(figure, 1, line(name, look, points))
    for way, look in _MARKED.items():
        if (cell := of_way(found, way)) and cell.pins:
            wait = cell.longest.seconds
            put(figure, 1, line(cell.title, look, [(chunk(cell), wait, _said(cell, wait))], mode="markers"))
    for way, dash in ((TOUCH, "dash"), (IDLE, "dot")):
        if cell := of_way(found, way):
            wait = cell.longest.seconds
            put(figure, 1, reference(cell.title, [low, high], [wait, wait], f": {format_seconds(wait)}", dash))
    put(figure, 1, reference("limit", [low, high], [limit, limit], f": {format_seconds(limit)}", "solid"))
    size_axis(figure, [low, high], _CHUNKS)
    seconds_axis(figure, "Longest wait of a call")
    shown = [*line_of, *(cell for way in _MARKED if (cell := of_way(found, way)))]
    return Chart(
        "serving-waits",
        "How long calls of the same process wait, by chunk length",
        "The longest single call of all repeats. At the right end of the lines one call registers everything. Grey: "
        "the limit (solid), the longest call while threads only touch memory (dashed), and with no other work "
        "(dotted).",
        figure,
        alt_text(
            f"Longest wait of a call; the limit is {format_seconds(limit)}",
            [(cell.title, format_seconds(cell.longest.seconds)) for cell in shown],
        ),
    )


def _said(cell: Cell, seconds: float) -> str:
    return f"{format_bytes(chunk(cell))}: {format_seconds(seconds)}"


def _times(found: Sequence[Cell], line_of: Sequence[Cell]) -> Chart:
    figure, (low, high) = panels([""], [280]), _ends(found, line_of)
    look = LineStyle("registered", "triangle-down")
    points = [(float(chunk(cell)), cell.seconds.median, _said(cell, cell.seconds.median)) for cell in line_of]
    put(figure, 1, line("chunks", look, points))
    for way, marked in _MARKED.items():
        if (cell := of_way(found, way)) and cell.pins:
            seconds = cell.seconds.median
            put(figure, 1, line(cell.title, marked, [(chunk(cell), seconds, _said(cell, seconds))], mode="markers"))
    if touch := of_way(found, TOUCH):
        seconds = touch.seconds.median
        put(figure, 1, reference(touch.title, [low, high], [seconds, seconds], f": {format_seconds(seconds)}", "dash"))
    size_axis(figure, [low, high], _CHUNKS)
    seconds_axis(figure, "Time until all is pinned")
    shown = [*line_of, *(cell for way in _MARKED if (cell := of_way(found, way)))]
    return Chart(
        "serving-times",
        f"How long it takes to pin {format_bytes(line_of[0].bytes)} meanwhile, by chunk length",
        "Medians. Short chunks take many calls; a single piece is not registered until all pages are touched. Dashed: "
        "only touching, which every way has to do.",
        figure,
        alt_text(
            f"Time to pin {format_bytes(line_of[0].bytes)} while serving",
            [(cell.title, format_seconds(cell.seconds.median)) for cell in shown],
        ),
    )


def _calls(found: Sequence[Cell]) -> Iterator[Chart]:
    """Each call's longest wait in each way."""
    if not any(cell.pins for cell in found):
        return
    series = [
        Marks(call, look, {cell.title: cell.wait(None, call) for cell in found})
        for call, look in zip(CALLS.values(), _CALL_LOOKS, strict=True)
    ]
    yield Chart(
        "serving-calls",
        "Which calls wait",
        "The longest single call of each kind over all repeats, while memory is pinned or given back. A stream "
        "synchronize waits for the kernel and the copy of its round, also when nothing else goes on.",
        marks_of_seconds([cell.title for cell in found], series, "Longest wait"),
        alt_text(
            "Longest call in each way",
            [(cell.title, f"{cell.longest.call}, {format_seconds(cell.longest.seconds)}") for cell in found],
        ),
    )
