"""What an allocation run looks like: time to get and give back a buffer, and copies until a pinned one has paid."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from pinscope.analysis.rows import grouped, median
from pinscope.analysis.ways import LineStyle
from pinscope.charts.bars import Part, bars
from pinscope.charts.chart import Chart, alt_text
from pinscope.charts.lines import line, put
from pinscope.charts.theme import (
    DASHES,
    DIRECTION_TITLES,
    DIRECTIONS,
    GAP_PIXELS,
    count_axis,
    panels,
    seconds_axis,
    seconds_unit,
    size_axis,
)
from pinscope.experiments.allocation.arithmetic import BreakEven, BufferCell, break_evens, buffer_cells, copy_times
from pinscope.experiments.allocation.chart_pool import draw_pool
from pinscope.experiments.allocation.reading import way_titles
from pinscope.experiments.allocation.reading_pool import pool_uses
from pinscope.records.run import ExperimentRun
from pinscope.units import format_bytes, format_seconds

_LOOKS: Mapping[str, LineStyle] = {
    "malloc": LineStyle("pageable", "circle-open", "dot"),
    "malloc_touch": LineStyle("pageable", "diamond-open", "dash"),
    "fresh_4k": LineStyle("pageable", "diamond"),
    "fresh_thp": LineStyle("pageable", "hexagon", "dashdot"),
    "pinned": LineStyle("pinned"),
    "write_combined": LineStyle("write_combined", "square"),
    "registered_4k": LineStyle("registered", "triangle-down"),
    "registered_thp": LineStyle("registered", "triangle-up", "dash"),
    "registered_hugetlb": LineStyle("registered", "pentagon", "dot"),
    "pool": LineStyle("pinned", "star", "dash"),
    "cupy_pool": LineStyle("pinned", "cross", "dot"),
    "registered_portable": LineStyle("registered", "triangle-left", "dash"),
    "registered_shm_open": LineStyle("registered", "x", "dot"),
    "registered_hugetlb_1g": LineStyle("registered", "hexagon2", "dashdot"),
    "created": LineStyle("driver", "square"),
    "host_pool": LineStyle("driver", "diamond"),
    "host_pool_kept": LineStyle("driver", "star", "dash"),
}


def draw(run: ExperimentRun, rows: Sequence[Mapping[str, Any]]) -> list[Chart]:
    """The charts of a run, also of one that still goes on; only those for which something was measured."""
    found, titles = buffer_cells(rows), way_titles(run)
    cells = sorted(found.values(), key=lambda cell: cell.bytes)
    drawn = (
        _parts(cells, titles),
        _times(cells, titles),
        _copies(break_evens(found, copy_times(rows)), titles),
        draw_pool(pool_uses(rows)),
    )
    return [chart for chart in drawn if chart]


def _times(cells: Sequence[BufferCell], titles: Mapping[str, str]) -> Chart | None:
    if not cells:
        return None
    figure = panels(["Until the buffer was there", "Until it was gone"], [300, 300], gap=GAP_PIXELS + 40)
    for row, part in enumerate(("get_seconds", "give_back_seconds"), start=1):
        for way, curve in grouped(cells, lambda cell: cell.way).items():
            times = [(cell.bytes, getattr(cell, part).median) for cell in curve]
            points = [(size, time, f"{format_bytes(size)}: {format_seconds(time)}") for size, time in times]
            put(figure, row, line(titles[way], _LOOKS[way], points))
    seconds_axis(figure)
    size_axis(figure, [cell.bytes for cell in cells], "Buffer size (bytes, log scale)")
    return Chart(
        "buffer-times",
        "What a buffer costs to get and to give back",
        "Medians. Lines that rise with the size are paid page by page; flat ones reuse memory that is there.",
        figure,
        alt_text(f"Over the size; at {format_bytes(cells[-1].bytes)} both together", _wholes(cells, titles).items()),
    )


def _wholes(cells: Sequence[BufferCell], titles: Mapping[str, str]) -> Mapping[str, str]:
    """What a buffer of the largest size takes to get and to give back, by way."""
    size = cells[-1].bytes
    return {titles[cell.way]: format_seconds(cell.both_seconds.median) for cell in cells if cell.bytes == size}


def _parts(cells: Sequence[BufferCell], titles: Mapping[str, str]) -> Chart | None:
    """What the largest buffer takes, in parts."""
    if not cells:
        return None
    size = cells[-1].bytes
    shown = {titles[cell.way]: cell for cell in cells if cell.bytes == size}
    touch = {name: median(cell.touch_seconds) or 0.0 for name, cell in shown.items()}
    register = {name: median(cell.register_seconds) or 0.0 for name, cell in shown.items()}
    rest = {name: max(cell.get_seconds.median - touch[name] - register[name], 0.0) for name, cell in shown.items()}
    back = {name: cell.give_back_seconds.median for name, cell in shown.items()}
    parts = (
        Part("touch", "touch", touch, "/"),
        Part("register", "registered", register, "x"),
        Part("allocate", "pinned", rest),
        Part("give back", "reference", back, "."),
    )
    scale, unit = seconds_unit(max(cell.both_seconds.median for cell in shown.values()))
    wholes = _wholes(cells, titles)
    return Chart(
        "buffer-parts",
        f"What a buffer of {format_bytes(size)} takes to get and free",
        "Medians, in parts: touching pages by one thread, pinning memory that is there, everything else until the "
        "buffer is there, and giving it back.",
        bars(list(shown), parts, f"Time ({unit})", format_seconds, scale=scale, ends=wholes),
        alt_text(f"Time to get and free a buffer of {format_bytes(size)}", wholes.items()),
    )


def _copies(evens: Sequence[BreakEven], titles: Mapping[str, str]) -> Chart | None:
    pay = sorted((even for even in evens if even.usual and even.copies), key=lambda even: even.bytes)
    shown = [way for way in DIRECTIONS if any(even.direction == way for even in pay)]
    if not shown:
        return None
    figure = panels([DIRECTION_TITLES[way] for way in shown], [260] * len(shown))
    curves = grouped(pay, lambda even: (even.direction, even.way))
    for (direction, way), curve in curves.items():
        points = [
            (even.bytes, even.copies or 0, f"{format_bytes(even.bytes)}: {even.copies:,} copies") for even in curve
        ]
        look = replace(_LOOKS[way], dash=DASHES[direction])
        put(figure, shown.index(direction) + 1, line(titles[way], look, points))
    count_axis(figure, max(even.copies or 0 for even in pay), "Copies")
    size_axis(figure, [even.bytes for even in pay], "Buffer size (bytes, log scale)")
    return Chart(
        "break-even",
        "Copies until a pinned buffer has paid for itself",
        "Extra cost over fresh pageable memory in 4 KiB pages (a registration: over the same memory unregistered), "
        "divided by what each copy gains. Sizes at which pinned copies are not "
        "faster, or a buffer costs nothing extra, have no mark.",
        figure,
        alt_text(
            "Copies until a pinned buffer has paid, over its size; at the largest",
            [(f"{titles[way]}, {direction}", f"{curve[-1].copies:,}") for (direction, way), curve in curves.items()],
        ),
    )
