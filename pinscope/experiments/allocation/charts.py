"""What an allocation run looks like: time to get and give back a buffer, and copies until a pinned one has paid."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from pinscope.analysis.rows import grouped, median
from pinscope.charts.bars import Part, bars
from pinscope.charts.chart import Chart
from pinscope.charts.lines import Look, line, put
from pinscope.charts.theme import (
    DASHES,
    DIRECTION_TITLES,
    DIRECTIONS,
    GAP_PIXELS,
    count_axis,
    panels,
    seconds_axis,
    size_axis,
)
from pinscope.experiments.allocation.arithmetic import (
    BreakEven,
    BufferCell,
    break_evens,
    buffer_cells,
    copy_times,
    per_gib,
)
from pinscope.experiments.allocation.reading import way_titles
from pinscope.records.run import ExperimentRun
from pinscope.units import format_bytes, format_seconds

_LOOKS: Mapping[str, Look] = {
    "malloc": Look("reference", "circle-open"),
    "malloc_touch": Look("stall", "diamond-open"),
    "fresh_4k": Look("pageable", "diamond"),
    "fresh_thp": Look("issue", "hexagon"),
    "pinned": Look("pinned"),
    "write_combined": Look("write_combined", "square"),
    "registered_4k": Look("registered", "triangle-down"),
    "registered_thp": Look("mapped", "triangle-up"),
    "registered_hugetlb": Look("managed", "pentagon"),
    "pool": Look("intact", "star"),
    "cupy_pool": Look("compute", "cross"),
}


def draw(run: ExperimentRun, rows: Sequence[Mapping[str, Any]]) -> list[Chart]:
    """The charts of a run, also of one that still goes on; only those for which something was measured."""
    found, titles = buffer_cells(rows), way_titles(run)
    cells = sorted(found.values(), key=lambda cell: cell.bytes)
    drawn = (_times(cells, titles), _parts(cells, titles), _copies(break_evens(found, copy_times(rows)), titles))
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
    )


def _parts(cells: Sequence[BufferCell], titles: Mapping[str, str]) -> Chart | None:
    """Seconds per GiB at the largest size, in parts."""
    if not cells:
        return None
    size = cells[-1].bytes
    shown = {titles[cell.way]: cell for cell in cells if cell.bytes == size}
    touch = {name: per_gib(median(cell.touch_seconds) or 0.0, size) for name, cell in shown.items()}
    register = {name: per_gib(median(cell.register_seconds) or 0.0, size) for name, cell in shown.items()}
    rest = {
        name: max(per_gib(cell.get_seconds.median, size) - touch[name] - register[name], 0.0)
        for name, cell in shown.items()
    }
    back = {name: per_gib(cell.give_back_seconds.median, size) for name, cell in shown.items()}
    parts = (
        Part("touch", "pageable", touch, "/"),
        Part("register", "registered", register, "x"),
        Part("allocate", "pinned", rest),
        Part("give back", "reference", back, "."),
    )
    return Chart(
        "per-gib",
        f"Seconds per GiB, at {format_bytes(size)}",
        "Medians at the largest size, in parts: touching pages by one thread, pinning memory that is there, everything "
        "else until the buffer is there, and giving it back.",
        bars(list(shown), parts, "Time per GiB<br>(seconds)", lambda seconds: f"{format_seconds(seconds)} per GiB"),
    )


def _copies(evens: Sequence[BreakEven], titles: Mapping[str, str]) -> Chart | None:
    pay = sorted((even for even in evens if even.usual and even.copies), key=lambda even: even.bytes)
    shown = [way for way in DIRECTIONS if any(even.direction == way for even in pay)]
    if not shown:
        return None
    figure = panels([DIRECTION_TITLES[way] for way in shown], [260] * len(shown))
    for (direction, way), curve in grouped(pay, lambda even: (even.direction, even.way)).items():
        points = [(even.bytes, even.copies or 0, f"{format_bytes(even.bytes)}: {even.copies:,} copies")
                  for even in curve]  # fmt: skip
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
    )
