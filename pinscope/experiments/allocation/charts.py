"""What an allocation run looks like: time to get and give back a buffer."""

from __future__ import annotations

from collections.abc import Sequence

from pinscope.analysis.read_rows import median
from pinscope.charts.marks import Chart
from pinscope.charts.plot import TimePart, curves, parts_of_time, seconds, sizes, way_curves
from pinscope.experiments.allocation.reading import Buffers, Cell
from pinscope.records.run import ExperimentRun
from pinscope.units import format_bytes, format_seconds

SIZES = sizes("Buffer size (bytes, log scale)")


def draw(run: ExperimentRun, buffers: Buffers) -> list[Chart]:
    """The charts of a run, also of one that still goes on; only those for which something was measured."""
    cells = sorted(buffers.cells, key=lambda cell: cell.bytes)
    return [_parts(buffers, cells), _times(buffers, cells)] if cells else []


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
