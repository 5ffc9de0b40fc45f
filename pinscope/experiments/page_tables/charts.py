"""What a page_tables run looks like: page tables over pinned memory beside the formula, and where the time goes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import plotly.graph_objects as go

from pinscope.analysis.page_table_model import GPU_PAGE_SIZES, page_table_bytes
from pinscope.analysis.rows import median
from pinscope.charts.bars import Part, bars
from pinscope.charts.chart import Chart
from pinscope.charts.lines import Look, line, put, reference
from pinscope.charts.theme import DASHES, panels
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
    points = [
        (size / GIB, grown / MIB, f"{format_bytes(size)} pinned: {format_bytes(grown)}")
        for size, grown in zip(cost.growth.bytes, cost.growth.table_bytes, strict=True)
    ]
    made = line(name, Look(cost.way.memory, BACKING_SYMBOLS[cost.way.backing], size=7), points)
    return made.update(line={"width": 1.5, "shape": "hv"}, marker={"maxdisplayed": 40})


def _over_pinned(figure: go.Figure) -> go.Figure:
    figure.update_yaxes(title_text="Growth (MiB)", rangemode="tozero")
    return figure.update_xaxes(title_text="Pinned (GiB)", rangemode="tozero")


def _growth(run: ExperimentRun, own: Sequence[Cost]) -> Chart:
    figure = panels(["Page tables"], [300])
    largest = max(cost.growth.bytes[-1] for cost in own)
    for dash, size in zip(("solid", "dash", "dot"), GPU_PAGE_SIZES, strict=True):
        ends = [0, page_table_bytes(largest, size) / MIB]
        put(figure, 1, reference(f"formula, {format_bytes(size)} pages", [0, largest / GIB], ends, dash=dash))
    put(figure, 1, *(_line(cost, words(cost)) for cost in own))
    what = f"memory of GPU {run.device}" if run.lab == "cuda" else "the kernel's page tables of the process"
    return Chart(
        "page-tables",
        "Page tables over pinned memory",
        f"What {what} grew by, in steps as memory was pinned. Grey lines: bytes ÷ page size × 8. Ways that cost the "
        "same lie on one line.",
        _over_pinned(figure),
    )


def _devices(found: Sequence[Cost]) -> Chart:
    """The first way of each GPU."""
    figure = panels(["Page tables on each GPU"], [260])
    first, dashes, symbols = found[0].way, list(DASHES.values()), list(BACKING_SYMBOLS.values())
    members = [cost for cost in found if (cost.way.memory, cost.way.backing) == (first.memory, first.backing)]
    for number, cost in enumerate(members):
        trace = _line(cost, f"GPU {cost.way.device}")
        trace.line.dash, trace.marker.symbol = dashes[number % len(dashes)], symbols[number % len(symbols)]
        put(figure, 1, trace)
    return Chart(
        "page-tables-devices",
        "What each GPU pays",
        f"The same pinned memory ({words(members[0])}) as each GPU with a context of the process grew by.",
        _over_pinned(figure),
    )


def _times(timed: Sequence[Cost]) -> Chart:
    parts = (
        Part("touching", "compute", {words(cost): median(cost.touch_seconds) or 0.0 for cost in timed}),
        Part("pinning", "pinned", {words(cost): median(cost.pin_seconds) or 0.0 for cost in timed}),
    )
    return Chart(
        "pinning-times",
        "Where the time goes",
        "Touching is writing to each page for the first time, by one thread. Memory that is allocated pinned is "
        "touched by the driver: its bar is one.",
        bars([words(cost) for cost in timed], parts, "Time per GiB<br>(seconds)", format_seconds),
    )
