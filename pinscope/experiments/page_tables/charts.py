"""What a page_tables run looks like: page tables over pinned memory beside the formula, and where the time goes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import plotly.graph_objects as go

from pinscope.analysis.page_table_model import GPU_PAGE_SIZES, page_table_bytes
from pinscope.charts.chart import Chart
from pinscope.charts.theme import COLOURS, DASHES, panels
from pinscope.experiments.page_tables.arithmetic import GIB, Cost, costs
from pinscope.records.run import ExperimentRun
from pinscope.units import format_bytes, format_seconds

MIB = 2**20
BACKING_SYMBOLS: Mapping[str, str] = {
    "": "circle",
    "4k": "triangle-down-open",
    "thp": "square-open",
    "hugetlb": "diamond-open",
    "shm": "cross-open",
}
"""Backing → marker; the first is memory that CUDA allocates itself."""
_REFERENCES = (("solid", GPU_PAGE_SIZES[0]), ("dash", GPU_PAGE_SIZES[1]), ("dot", GPU_PAGE_SIZES[2]))
_ROW_PIXELS = 44


def draw(run: ExperimentRun, rows: Sequence[Mapping[str, Any]]) -> list[Chart]:
    """The charts of a page_tables run; none for a run without a step."""
    found = costs(rows)
    own = [cost for cost in found if cost.way.device == run.device]
    if not own:
        return []
    charts = [_growth(run, own)]
    if len({cost.way.device for cost in found}) > 1:
        charts.append(_devices(found))
    timed = [cost for cost in own if cost.pin_seconds]
    return [*charts, *([_times(timed)] if timed else [])]


def words(cost: Cost) -> str:
    """The way in a legend."""
    return f"registered, {cost.way.backing}" if cost.way.backing else "allocated pinned"


def _line(cost: Cost, name: str) -> go.Scatter:
    colour = COLOURS[cost.way.memory]
    return go.Scatter(
        x=[size / GIB for size in cost.growth.bytes], y=[grown / MIB for grown in cost.growth.table_bytes],
        name=name, mode="lines+markers", line={"color": colour, "width": 1.5, "shape": "hv"},
        marker={"color": colour, "symbol": BACKING_SYMBOLS[cost.way.backing], "size": 7, "maxdisplayed": 40},
        customdata=[
            f"{format_bytes(size)} pinned: {format_bytes(grown)}"
            for size, grown in zip(cost.growth.bytes, cost.growth.table_bytes, strict=True)
        ],
        hovertemplate=f"{name}<br>%{{customdata}}<extra></extra>",
    )  # fmt: skip


def _growth(run: ExperimentRun, own: Sequence[Cost]) -> Chart:
    figure = panels(["Page tables"], [300])
    largest = max(cost.growth.bytes[-1] for cost in own)
    for dash, size in _REFERENCES:
        figure.add_trace(
            go.Scatter(
                x=[0, largest / GIB], y=[0, page_table_bytes(largest, size) / MIB], mode="lines",
                name=f"formula, {format_bytes(size)} pages",
                line={"color": COLOURS["reference"], "dash": dash, "width": 1.5}, hoverinfo="skip",
            ),
            row=1, col=1,
        )  # fmt: skip
    for cost in own:
        figure.add_trace(_line(cost, words(cost)), row=1, col=1)
    what = f"memory of GPU {run.device}" if run.lab == "cuda" else "the kernel's page tables of the process"
    figure.update_yaxes(title_text="Growth (MiB)", rangemode="tozero")
    figure.update_xaxes(title_text="Pinned (GiB)", rangemode="tozero")
    return Chart(
        "page-tables",
        "Page tables over pinned memory",
        f"What {what} grew by, in steps as memory was pinned. Grey lines: bytes ÷ page size × 8. Ways that cost the "
        "same lie on one line.",
        figure,
    )


def _devices(found: Sequence[Cost]) -> Chart:
    """The first way of each GPU."""
    figure = panels(["Page tables on each GPU"], [260])
    first = found[0].way
    dashes = [*DASHES.values()]
    members = [cost for cost in found if (cost.way.memory, cost.way.backing) == (first.memory, first.backing)]
    for number, cost in enumerate(members):
        trace = _line(cost, f"GPU {cost.way.device}")
        trace.line.dash = dashes[number % len(dashes)]
        trace.marker.symbol = list(BACKING_SYMBOLS.values())[number % len(BACKING_SYMBOLS)]
        figure.add_trace(trace, row=1, col=1)
    figure.update_yaxes(title_text="Growth (MiB)", rangemode="tozero")
    figure.update_xaxes(title_text="Pinned (GiB)", rangemode="tozero")
    return Chart(
        "page-tables-devices",
        "What each GPU pays",
        f"The same pinned memory ({words(members[0])}) as each GPU with a context of the process grew by.",
        figure,
    )


def _times(timed: Sequence[Cost]) -> Chart:
    figure = panels(["Time for a GiB"], [_ROW_PIXELS * len(timed)])
    names = [words(cost) for cost in timed]
    parts = (
        ("touching", COLOURS["compute"], [cost.touch_seconds.median if cost.touch_seconds else 0.0 for cost in timed]),
        ("pinning", COLOURS["pinned"], [cost.pin_seconds.median if cost.pin_seconds else 0.0 for cost in timed]),
    )
    for name, colour, seconds in parts:
        figure.add_trace(
            go.Bar(
                orientation="h", y=names, x=seconds, name=name, marker={"color": colour},
                customdata=[format_seconds(value) for value in seconds],
                hovertemplate=f"%{{y}}<br>{name}: %{{customdata}} a GiB<extra></extra>",
            ),
            row=1, col=1,
        )  # fmt: skip
    figure.update_layout(barmode="stack")
    figure.update_yaxes(type="category", categoryorder="array", categoryarray=names[::-1], showgrid=False)
    figure.update_xaxes(title_text="Time per GiB<br>(seconds)", rangemode="tozero")
    return Chart(
        "pinning-times",
        "Where the time goes",
        "Touching is writing to each page for the first time, by one thread. Memory that is allocated pinned is "
        "touched by the driver: its bar is one.",
        figure,
    )
