"""What a page_tables run looks like: page tables over pinned memory beside the formula."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import cycle

import plotly.graph_objects as go

from pinscope.analysis.cells import LineStyle
from pinscope.analysis.models import GPU_PAGE_SIZES, GRANULE_BYTES, page_table_bytes
from pinscope.analysis.read_rows import grouped
from pinscope.charts.marks import Chart, End, name_ends
from pinscope.charts.plot import Curve, Scale, Spot, curves
from pinscope.charts.theme import DASHES
from pinscope.experiments.page_tables.reading import Cell, PageTableCosts
from pinscope.experiments.page_tables.ways import BACKINGS, WAYS
from pinscope.records.run import ExperimentRun
from pinscope.units import GIB, MIB, format_bytes

GROWTH = Scale("Growth (MiB)", MIB, format_bytes)


def draw(run: ExperimentRun, costs: PageTableCosts) -> list[Chart]:
    """The charts of a run."""
    del run
    return [_growth(costs)]


def _name(cost: Cell) -> str:
    """The way in a legend."""
    return cost.way.replace(" (", ", ").removesuffix(")")


def _curve(cost: Cell, dash: str = "solid") -> Curve:
    style = WAYS[cost.memory].style or BACKINGS[cost.backing].style or LineStyle("pinned")
    grown = zip(cost.sizes, cost.grown, strict=True)
    spots = [Spot(size / GIB, taken, f"{format_bytes(size)} pinned") for size, taken in grown]
    return Curve(replace(style, dash=dash), spots, mode="lines", shape="hv")


def _pinned(figure: go.Figure, places: Sequence[float]) -> None:
    figure.update_xaxes(title_text="Pinned (GiB)", rangemode="tozero")


def _growth(costs: PageTableCosts) -> Chart:
    """Of each way, and of the first way on each GPU where there are several."""
    own, most = costs.own, max(cost.table_bytes for cost in costs.own)
    alike = grouped(own, lambda cost: cost.table_bytes // GRANULE_BYTES).values()
    drawn = {_way_count(members, len(own)): members[0] for members in alike}
    sharing = "; ".join(", ".join(cost.way for cost in members) for members in alike if len(members) > 1)
    what = f"memory of GPU {costs.run.device}" if costs.run.lab == "cuda" else "the kernel's page tables of the process"
    pinned = max(cost.pinned_bytes for cost in own)
    formula = {
        f"formula, {format_bytes(size)} pages": Curve(
            LineStyle("reference", dash=dash),
            [Spot(pinned * part / GIB, page_table_bytes(pinned, size) * part, "") for part in (0, 1)],
            rule=True,
        )
        for dash, size in zip(("solid", "dash", "dot"), GPU_PAGE_SIZES, strict=True)
    }
    panes = {"Page tables": formula | {name: _curve(cost) for name, cost in drawn.items()}}
    gpus = [cost for cost in costs.cells if cost.way == own[0].way]
    if len(gpus) > 1:
        lines = {f"GPU {cost.device}": _curve(cost, dash) for cost, dash in zip(gpus, cycle(DASHES.values()))}
        panes[f"On each GPU: {_name(own[0])}"] = lines
    chart = curves(
        "page-tables",
        "Page tables over pinned memory",
        f"What {what} grew by as memory was pinned. Grey lines: bytes ÷ page size × 8."
        + (f" Ways to pin that take the same share one line: {sharing}." if sharing else ""),
        panes,
        GROWTH,
        _pinned,
        "Page tables over pinned memory",
        ends=[(_name(cost), _price(cost)) for cost in own],
    )
    chart.figure.update_yaxes(range=[0, 1.25 * most / MIB or 1.0], row=1, col=1)
    name_ends(chart.figure, 1, [_end(cost, name, max(GRANULE_BYTES, most // 8)) for name, cost in drawn.items()])
    return chart


def _price(cost: Cell) -> str:
    known = cost.bytes_per_gib
    return format_bytes(cost.table_bytes) if known is None else f"{format_bytes(known)} a GiB"


def _end(cost: Cell, name: str, near: int) -> End:
    """Above the line, and above each grey line that ends less than ``near`` bytes above it."""
    pinned, taken = cost.pinned_bytes, cost.table_bytes
    close = [size for page in GPU_PAGE_SIZES if (size := page_table_bytes(pinned, page)) <= taken + near]
    return End(f"{name}:", _price(cost), pinned / GIB, max([taken, *close]) / MIB, rises=True)


def _way_count(members: Sequence[Cell], of: int) -> str:
    """The way, or how many of all share a line."""
    if len(members) == 1:
        return _name(members[0])
    return f"all {of} ways" if len(members) == of else f"{len(members)} of {of} ways"
