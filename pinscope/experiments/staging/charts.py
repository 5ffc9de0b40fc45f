"""What a staging run looks like: what each way takes, its rate over the size, and what it holds the CPU for."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pinscope.analysis.link_model import link_limit
from pinscope.analysis.ways import LineStyle
from pinscope.charts.bars import Part, bars, limit_marks
from pinscope.charts.chart import Chart, alt_text
from pinscope.charts.lines import line, put, reference
from pinscope.charts.theme import panels, seconds_axis, seconds_unit, size_axis
from pinscope.experiments.staging.arithmetic import (
    HALVES,
    WAY_TITLES,
    Cell,
    by_way,
    cells,
    numbers_of_uses,
    pipelines,
    sizes,
    usual_size,
)
from pinscope.records.run import ExperimentRun
from pinscope.units import format_bandwidth, format_bytes, format_seconds

_LOOKS: Mapping[str, LineStyle] = {
    "plain": LineStyle("pageable", "diamond"),
    "pin_then_copy": LineStyle("stall", "x"),
    "register": LineStyle("registered", "triangle-down"),
    "reused_buffer": LineStyle("compute", "square"),
    "two_buffers": LineStyle("copy", "star"),
    "in_place": LineStyle("pinned"),
    "in_place_spin": LineStyle("pinned", "circle-open", "dot"),
    "torch_to": LineStyle("workers", "diamond-open", "dash"),
    "torch_pin_then_to_first": LineStyle("page_table", "triangle-up", "dot"),
    "torch_pin_then_to": LineStyle("intact", "pentagon", "dash"),
}
"""Ways that are drawn as lines."""
_ALIKE = ("plain_async", "plain_fresh", "in_place_spin")
"""Ways that take about as long as another one; they are in the table."""
_PARTS = (("before the first copy", "touch", "/"), ("copies", "copy", ""), ("after the last", "reference", "."))


def draw(run: ExperimentRun, rows: Sequence[Mapping[str, Any]]) -> list[Chart]:
    """The charts of a run, also of one that still goes on."""
    found = cells(rows)
    if not found:
        return []
    limit = link_limit(run)
    charts = [_answer(found, limit)]
    if len(sizes(found)) > 1:
        charts += [_rates(found, limit), _processor(found)]
    return [*charts, *_threads(found, limit)]


def _answer(found: Sequence[Cell], limit: float | None) -> Chart:
    """Every way for the usual size, once, in parts."""
    size = usual_size(found)
    uses = numbers_of_uses([cell for cell in found if cell.bytes == size])[0]
    ways = by_way(found, size, uses)
    shown = sorted(
        (cell for way, cell in ways.items() if way not in (*HALVES, *_ALIKE)), key=lambda cell: cell.wall_seconds.median
    )
    lengths: Sequence[Callable[[Cell], float]] = (
        lambda cell: cell.prepare_seconds,
        lambda cell: max(cell.wall_seconds.median - cell.prepare_seconds - cell.finish_seconds, 0.0),
        lambda cell: cell.finish_seconds,
    )
    parts = [
        Part(name, colour, {cell.title: length(cell) for cell in shown}, pattern)
        for (name, colour, pattern), length in zip(_PARTS, lengths, strict=True)
    ]
    ends = {cell.title: format_seconds(cell.wall_seconds.median) for cell in shown}
    longest = max((cell.wall_seconds.median for cell in shown), default=0.0)
    scale, unit = seconds_unit(longest)
    names = [cell.title for cell in shown]
    figure = bars(names, parts, f"Time ({unit})", format_seconds, scale=scale, ends=ends)
    dotted = ""
    if limit is not None:
        least = size * uses / limit
        limit_marks(figure, names, least / scale)
        dotted = f" Dotted: the least time that the link takes, {format_seconds(least)}."
    return Chart(
        "staging-answer",
        f"{format_bytes(size)} to the GPU, {'once' if uses == 1 else f'{uses} times'}",
        "Medians, in parts: until the first copy begins (allocating, filling or registering), copies, and what is "
        f"given back after them. Where copies begin at once, filling is part of them.{dotted}",
        figure,
        alt_text(f"Time to bring {format_bytes(size)} to the GPU", ends.items()),
    )


def _rates(found: Sequence[Cell], limit: float | None) -> Chart:
    """Rate over the size, a panel for each number of uses."""
    counts = numbers_of_uses(found)
    figure = panels([_uses_title(uses) for uses in counts], [300] * len(counts))
    for row, uses in enumerate(counts, start=1):
        for way, curve in _curves(found, uses).items():
            rates = [(cell.bytes, cell.bytes_per_second / 1e9, _hover(cell, cell.bytes_per_second)) for cell in curve]
            put(figure, row, line(WAY_TITLES[way], _LOOKS[way], rates))
        if limit is not None:
            ends = [min(sizes(found)), max(sizes(found))]
            put(figure, row, reference("link limit", ends, [limit / 1e9] * 2, f", {format_bandwidth(limit)}"))
    figure.update_yaxes(title_text="Rate (GB/s)", rangemode="tozero")
    size_axis(figure, sizes(found), "Size (bytes, log scale)")
    largest = max(sizes(found))
    ends_words = [
        (WAY_TITLES[way], format_bandwidth(curve[-1].bytes_per_second))
        for way, curve in _curves(found, counts[0]).items()
        if curve[-1].bytes == largest
    ]
    return Chart(
        "staging-rates",
        "Rate from ready data to data on the GPU",
        "Bytes brought, over the time from ready data until it is on the GPU. Ways with threads: the best number of "
        "them." + (" Dotted: the most that the link can carry." if limit is not None else ""),
        figure,
        alt_text(f"Rate over the size; at {format_bytes(largest)}, {_uses_title(counts[0]).lower()}", ends_words),
    )


def _processor(found: Sequence[Cell]) -> Chart:
    """Processor time of a copy over the size."""
    uses = numbers_of_uses(found)[0]
    figure = panels([""], [420])  # as high as its legend of ten lines needs on a phone
    curves = _curves(found, uses)
    for way, curve in curves.items():
        points = [
            (cell.bytes, seconds, f"{format_bytes(cell.bytes)}: {format_seconds(seconds)}")
            for cell in curve
            if (seconds := cell.copy_cpu_seconds) > 0
        ]
        if points:
            put(figure, 1, line(WAY_TITLES[way], _LOOKS[way], points))
    seconds_axis(figure, "Processor time of a copy")
    size_axis(figure, sizes(found), "Size (bytes, log scale)")
    ends = [(WAY_TITLES[way], format_seconds(curve[-1].copy_cpu_seconds)) for way, curve in curves.items()]
    return Chart(
        "staging-processor",
        "Processor time of each way",
        "Of all threads of the process, also the driver's, for one copy. A copy from pinned memory costs the "
        "CPU the call and the waking of a thread, and hardly more when it is large.",
        figure,
        alt_text("Processor time of a copy over the size; at the largest of each", ends),
    )


def _threads(found: Sequence[Cell], limit: float | None) -> list[Chart]:
    """Two buffers in turn beside their halves, over the number of threads."""
    size = usual_size(found)
    mine = sorted((one for one in pipelines(found) if one.whole.bytes == size), key=lambda one: one.whole.threads)
    if len(mine) < 2:
        return []
    figure = panels([""], [300])
    counts = [one.whole.threads for one in mine]
    curves = {
        "two pinned buffers in turn": (_LOOKS["two_buffers"], [one.whole for one in mine]),
        "filling alone": (LineStyle("touch", "square", "dash"), [one.filling for one in mine]),
        "copying alone": (LineStyle("pinned", "circle", "dash"), [one.copying for one in mine]),
    }
    for name, (look, curve) in curves.items():
        points = [(cell.threads, cell.bytes_per_second / 1e9, _hover(cell, cell.bytes_per_second)) for cell in curve]
        put(figure, 1, line(name, look, points))
    if limit is not None:
        ends = [counts[0], counts[-1]]
        put(figure, 1, reference("link limit", ends, [limit / 1e9] * 2, f", {format_bandwidth(limit)}"))
    figure.update_yaxes(title_text="Rate (GB/s)", rangemode="tozero")
    figure.update_xaxes(
        type="log",
        tickmode="array",
        tickvals=counts,
        ticktext=[str(count) for count in counts],
        title_text="CPU threads (log scale)",
        unifiedhovertitle_text="%{x} threads",
    )
    return [
        Chart(
            "staging-threads",
            f"Two buffers in turn, and each half alone: {format_bytes(size)}",
            "No pipeline can be faster than the slower of its halves; each was timed apart.",
            figure,
            alt_text(
                f"Rate with {counts[-1]} threads",
                [(name, format_bandwidth(curve[-1].bytes_per_second)) for name, (_, curve) in curves.items()],
            ),
        )
    ]


def _curves(found: Sequence[Cell], uses: int) -> dict[str, list[Cell]]:
    """Way that is drawn → its cells over the size, with the best number of threads."""
    curves: dict[str, list[Cell]] = {}
    for size in sizes(found):
        ways = by_way(found, size, uses)
        for way in _LOOKS:
            if way in ways:
                curves.setdefault(way, []).append(ways[way])
    return curves


def _uses_title(uses: int) -> str:
    return "Used once" if uses == 1 else f"The same data {uses} times"


def _hover(cell: Cell, rate: float) -> str:
    return f"{format_bytes(cell.bytes)}, {cell.title}: {format_bandwidth(rate)}"
