"""What an allocation run looks like: time to get and give back a buffer, and copies until a pinned one has paid."""

from __future__ import annotations

from collections.abc import Sequence

from pinscope.analysis.read_rows import median
from pinscope.charts.marks import Chart
from pinscope.charts.plot import Scale, TimePart, curves, parts_of_time, seconds, sizes, way_curves
from pinscope.charts.theme import DIRECTION_TITLES, DIRECTIONS, count_axis
from pinscope.experiments.allocation.reading import BreakEven, Buffers, Cell
from pinscope.records.run import ExperimentRun
from pinscope.units import format_bytes, format_seconds

SIZES = sizes("Buffer size (bytes, log scale)")
COPIES = Scale("Copies", 1.0, lambda copies: f"{copies:,.0f} copies")


def draw(run: ExperimentRun, buffers: Buffers) -> list[Chart]:
    """The charts of a run, also of one that still goes on; only those for which something was measured."""
    cells = sorted(buffers.cells, key=lambda cell: cell.bytes)
    evens = sorted((even for even in buffers.evens if even.usual and even.copies), key=lambda even: even.bytes)
    drawn = [_parts(buffers, cells), _times(buffers, cells)] if cells else []
    return [*drawn, _copies(buffers, evens)] if evens else drawn


def _wholes(buffers: Buffers, cells: Sequence[Cell]) -> dict[str, str]:
    """What a buffer of the largest size takes to get and to give back, by way."""
    largest = [cell for cell in cells if cell.bytes == cells[-1].bytes]
    return {buffers.ways[cell.way].title: format_seconds(cell.both_seconds.median) for cell in largest}


def _times(buffers: Buffers, cells: Sequence[Cell]) -> Chart:
    return curves(
        "buffer-times",
        "What a buffer costs to get and to give back",
        "Medians. Lines that rise with the size are paid page by page; flat ones reuse memory that is there.",
        {
            "Until the buffer was there": way_curves(cells, buffers.ways, lambda cell: cell.get_seconds.median),
            "Until it was gone": way_curves(cells, buffers.ways, lambda cell: cell.give_back_seconds.median),
        },
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
            times[buffers.ways[cell.way].title] = (touch, register, rest, cell.give_back_seconds.median)
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


def _copies(buffers: Buffers, evens: Sequence[BreakEven]) -> Chart:
    by_direction = {
        direction: way_curves(
            [even for even in evens if even.direction == direction], buffers.ways, lambda even: even.copies or 0
        )
        for direction in DIRECTIONS
    }
    chart = curves(
        "break-even",
        "Copies until a pinned buffer has paid for itself",
        "Extra cost over fresh pageable memory in 4 KiB pages (a registration: over the same memory unregistered), "
        "divided by what each copy gains. Sizes at which pinned copies are not faster, a buffer costs nothing "
        "extra or the count cannot be told have no mark.",
        {DIRECTION_TITLES[direction]: pane for direction, pane in by_direction.items() if pane},
        COPIES,
        SIZES,
        "Copies until a pinned buffer has paid, over its size; at the largest",
        pixels=260,
        ends=[
            (f"{name}, {direction}", f"{curve.spots[-1].y:,}")
            for direction, pane in by_direction.items()
            for name, curve in pane.items()
        ],
    )
    count_axis(chart.figure, max(even.copies or 0 for even in evens), COPIES.title)
    return chart
