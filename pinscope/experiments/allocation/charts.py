"""What an allocation run looks like: time to get and give back a buffer, and copies until a pinned one has paid."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import plotly.graph_objects as go

from pinscope.charts.chart import Chart
from pinscope.charts.theme import (
    COLOURS,
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

_LOOKS: Mapping[str, tuple[str, str]] = {
    "malloc": ("reference", "circle-open"),
    "malloc_touch": ("stall", "diamond-open"),
    "fresh_4k": ("pageable", "diamond"),
    "fresh_thp": ("issue", "hexagon"),
    "pinned": ("pinned", "circle"),
    "write_combined": ("write_combined", "square"),
    "registered_4k": ("registered", "triangle-down"),
    "registered_thp": ("mapped", "triangle-up"),
    "registered_hugetlb": ("managed", "pentagon"),
    "pool": ("intact", "star"),
    "cupy_pool": ("compute", "cross"),
}
"""Way → its colour's meaning and its marker."""


def draw(run: ExperimentRun, rows: Sequence[Mapping[str, Any]]) -> list[Chart]:
    """The charts of a run, also of one that still goes on; only those for which something was measured."""
    cells = buffer_cells(rows)
    titles = way_titles(run)
    drawn = (_times(cells, titles), _parts(cells, titles), _copies(break_evens(cells, copy_times(rows)), titles))
    return [chart for chart in drawn if chart]


def _line(way: str) -> dict[str, Any]:
    colour, symbol = _LOOKS[way]
    return {
        "mode": "lines+markers",
        "line": {"color": COLOURS[colour], "width": 2},
        "marker": {"color": COLOURS[colour], "symbol": symbol, "size": 8},
    }


def _times(cells: Mapping[tuple[str, int], BufferCell], titles: Mapping[str, str]) -> Chart | None:
    if not cells:
        return None
    figure = panels(["Until the buffer was there", "Until it was gone"], [300, 300], gap=GAP_PIXELS + 40)
    for row, part in enumerate(("get_seconds", "give_back_seconds"), start=1):
        for way in dict.fromkeys(name for name, _ in cells):
            curve = sorted((cell for (name, _), cell in cells.items() if name == way), key=lambda cell: cell.bytes)
            medians = [getattr(cell, part).median for cell in curve]
            figure.add_trace(
                go.Scatter(
                    **_line(way), x=[cell.bytes for cell in curve], y=medians, name=titles[way], legendgroup=way,
                    showlegend=row == 1,
                    customdata=[f"{format_bytes(cell.bytes)}: {format_seconds(seconds)}"
                                for cell, seconds in zip(curve, medians, strict=True)],
                    hovertemplate="%{fullData.name}, %{customdata}<extra></extra>",
                ),
                row=row, col=1,
            )  # fmt: skip
    seconds_axis(figure)
    size_axis(figure, [cell.bytes for cell in cells.values()], "Buffer size (bytes, log scale)")
    return Chart(
        "buffer-times",
        "What a buffer costs to get and to give back",
        "Medians. Lines that rise with the size are paid page by page; flat ones reuse memory that is there.",
        figure,
    )


def _parts(cells: Mapping[tuple[str, int], BufferCell], titles: Mapping[str, str]) -> Chart | None:
    """Seconds per GiB at the largest size, in parts."""
    size = max((nbytes for _, nbytes in cells), default=None)
    shown = [cell for cell in cells.values() if cell.bytes == size]
    if not size or not shown:
        return None
    figure = panels([""], [60 + 36 * len(shown)])
    names = [titles[cell.way] for cell in shown]
    for name, colour, pattern, seconds in (
        ("touch", "pageable", "/", [cell.touch_seconds.median if cell.touch_seconds else 0.0 for cell in shown]),
        ("register", "registered", "x", [cell.register_seconds.median if cell.register_seconds else 0.0
                                         for cell in shown]),
        ("allocate", "pinned", "", [_rest(cell) for cell in shown]),
        ("give back", "reference", ".", [cell.give_back_seconds.median for cell in shown]),
    ):  # fmt: skip
        figure.add_trace(
            go.Bar(
                y=names, x=[per_gib(value, size) for value in seconds], orientation="h", name=name,
                marker={"color": COLOURS[colour], "pattern": {"shape": pattern, "fillmode": "replace"}},
                customdata=[format_seconds(per_gib(value, size)) for value in seconds],
                hovertemplate="%{y}, %{fullData.name}: %{customdata} per GiB<extra></extra>",
            )
        )  # fmt: skip
    figure.update_layout(barmode="stack")
    figure.update_yaxes(autorange="reversed", title_text="")
    figure.update_xaxes(title_text="Time per GiB<br>(seconds)", rangemode="tozero")
    return Chart(
        "per-gib",
        f"Seconds per GiB, at {format_bytes(size)}",
        "Medians at the largest size, in parts: touching pages by one thread, pinning memory that is there, everything "
        "else until the buffer is there, and giving it back.",
        figure,
    )


def _rest(cell: BufferCell) -> float:
    """Getting, less its parts."""
    parts = sum(part.median for part in (cell.touch_seconds, cell.register_seconds) if part)
    return max(cell.get_seconds.median - parts, 0.0)


def _copies(evens: Sequence[BreakEven], titles: Mapping[str, str]) -> Chart | None:
    pay = [even for even in evens if even.usual and even.copies]
    shown = [way for way in DIRECTIONS if any(even.direction == way for even in pay)]
    if not shown:
        return None
    figure = panels([DIRECTION_TITLES[way] for way in shown], [260] * len(shown))
    named: set[str] = set()
    for row, direction in enumerate(shown, start=1):
        for way in dict.fromkeys(even.way for even in pay):
            curve = sorted(
                (even for even in pay if (even.way, even.direction) == (way, direction)), key=lambda even: even.bytes
            )
            if not curve:
                continue
            look = _line(way)
            look["line"] = {**look["line"], "dash": DASHES[direction]}
            figure.add_trace(
                go.Scatter(
                    **look, x=[even.bytes for even in curve], y=[even.copies for even in curve], name=titles[way],
                    legendgroup=way, showlegend=way not in named,
                    customdata=[f"{format_bytes(even.bytes)}: {even.copies:,} copies" for even in curve],
                    hovertemplate="%{fullData.name}, %{customdata}<extra></extra>",
                ),
                row=row, col=1,
            )  # fmt: skip
            named.add(way)
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
