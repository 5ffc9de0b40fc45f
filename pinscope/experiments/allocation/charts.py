"""What an allocation run looks like: time to get and give back a buffer, and copies until a pinned one has paid."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from pinscope.analysis.cells import LineStyle
from pinscope.analysis.read_rows import grouped, median
from pinscope.charts.chart import Chart
from pinscope.charts.plot import Curve, Scale, Spot, TimePart, curves, parts_of_time, seconds, sizes
from pinscope.charts.theme import DASHES, DIRECTION_TITLES, DIRECTIONS, count_axis
from pinscope.experiments.allocation.reading import Buffers, Cell
from pinscope.experiments.allocation.ways import WAYS
from pinscope.records.run import ExperimentRun
from pinscope.units import format_bytes, format_seconds

SIZES = sizes("Buffer size (bytes, log scale)")
COPIES = Scale("Copies", 1.0, lambda copies: f"{copies:,.0f} copies")


def draw(run: ExperimentRun, buffers: Buffers) -> list[Chart]:
    """The charts of a run, also of one that still goes on; only those for which something was measured."""
    del run
    cells = sorted(buffers.cells.values(), key=lambda cell: cell.bytes)
    drawn = [_parts(buffers, cells), _times(buffers, cells)] if cells else []
    return [chart for chart in (*drawn, _copies(buffers)) if chart]


def _style(way: str) -> LineStyle:
    return WAYS[way].style or LineStyle("reference")


def _wholes(buffers: Buffers, cells: Sequence[Cell]) -> dict[str, str]:
    """What a buffer of the largest size takes to get and to give back, by way."""
    largest = [cell for cell in cells if cell.bytes == cells[-1].bytes]
    return {buffers.titles[cell.way]: format_seconds(cell.both_seconds.median) for cell in largest}


def _times(buffers: Buffers, cells: Sequence[Cell]) -> Chart:
    def pane(part: str) -> dict[str, Curve]:
        return {
            buffers.titles[way]: Curve(
                _style(way), [Spot(cell.bytes, getattr(cell, part).median, format_bytes(cell.bytes)) for cell in curve]
            )
            for way, curve in grouped(cells, lambda cell: cell.way).items()
        }

    return curves(
        "buffer-times",
        "What a buffer costs to get and to give back",
        "Medians. Lines that rise with the size are paid page by page; flat ones reuse memory that is there.",
        {"Until the buffer was there": pane("get_seconds"), "Until it was gone": pane("give_back_seconds")},
        seconds("Time"),
        SIZES,
        f"Over the size; at {format_bytes(cells[-1].bytes)} both together",
        ends=_wholes(buffers, cells).items(),
    )


def _parts(buffers: Buffers, cells: Sequence[Cell]) -> Chart:
    """What the largest buffer takes, in parts."""
    size, times = cells[-1].bytes, {}
    for cell in cells:
        if cell.bytes == size:
            touch, register = median(cell.touch_seconds) or 0.0, median(cell.register_seconds) or 0.0
            rest = max(cell.get_seconds.median - touch - register, 0.0)
            times[buffers.titles[cell.way]] = (touch, register, rest, cell.give_back_seconds.median)
    return parts_of_time(
        "buffer-parts",
        f"What a buffer of {format_bytes(size)} takes to get and free",
        "Medians, in parts: touching pages by one thread, pinning memory that is there, everything else until the "
        "buffer is there, and giving it back.",
        [
            TimePart("touch", "touch", "/"),
            TimePart("register", "registered", "x"),
            TimePart("allocate", "pinned"),
            TimePart("give back", "reference", "."),
        ],
        times,
        f"Time to get and free a buffer of {format_bytes(size)}",
        ends=_wholes(buffers, cells),
    )


def _copies(buffers: Buffers) -> Chart | None:
    evens = sorted((even for even in buffers.evens if even.usual and even.copies), key=lambda even: even.bytes)
    if not evens:
        return None
    paying = grouped(evens, lambda even: (even.direction, even.way))
    chart = curves(
        "break-even",
        "Copies until a pinned buffer has paid for itself",
        "Extra cost over fresh pageable memory in 4 KiB pages (a registration: over the same memory unregistered), "
        "divided by what each copy gains. Sizes at which pinned copies are not faster, or a buffer costs nothing "
        "extra, have no mark.",
        {
            DIRECTION_TITLES[direction]: {
                buffers.titles[way]: Curve(
                    replace(_style(way), dash=DASHES[direction]),
                    [Spot(even.bytes, even.copies or 0, format_bytes(even.bytes)) for even in curve],
                )
                for (towards, way), curve in paying.items()
                if towards == direction
            }
            for direction in DIRECTIONS
            if any(even.direction == direction for even in evens)
        },
        COPIES,
        SIZES,
        "Copies until a pinned buffer has paid, over its size; at the largest",
        pixels=260,
        ends=[
            (f"{buffers.titles[way]}, {direction}", f"{curve[-1].copies:,}")
            for (direction, way), curve in paying.items()
        ],
    )
    count_axis(chart.figure, max(even.copies or 0 for even in evens), COPIES.title)
    return chart
