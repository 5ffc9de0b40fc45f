"""What a plan looks like: page tables over the pinned amount up to the GPU's memory, and the time to pin."""

from __future__ import annotations

from pinscope.analysis.cells import LineStyle
from pinscope.analysis.models import GPU_PAGE_SIZES, page_table_bytes
from pinscope.analysis.pinning_strategy import TITLES
from pinscope.charts.chart import Chart
from pinscope.charts.plot import Curve, Length, Scale, Spot, TimePart, curves, lengths, level, sizes
from pinscope.charts.theme import seconds_unit
from pinscope.planning.plan import Plan, Sharing
from pinscope.units import format_bytes, format_seconds

_LOOKS = {"each_registers": ("registered", "triangle-down"), "one_owner": ("pinned", "circle")}
_DASHES = ("dash", "dashdot", "dot")
_PLANNED_PIXELS = 11
_AROUND = 64
"""The chart reaches from this part of the planned amount to this many times it."""


def draw_plan(plan: Plan) -> list[Chart]:
    """The charts of a plan; times only where a run measured them."""
    return [_tables(plan), *([_times(plan)] if plan.paces else [])]


def _tables(plan: Plan) -> Chart:
    planned, memory = plan.demand.pinned_bytes, plan.demand.gpu_memory_bytes
    low, high = max(planned // _AROUND, 2**21), planned * _AROUND
    pane = {
        f"one process, {format_bytes(size)} pages": Curve(
            LineStyle("reference", dash=dash),
            [Spot(amount, page_table_bytes(amount, size), "") for amount in (low, high)],
            rule=True,
        )
        for dash, size in zip(_DASHES, GPU_PAGE_SIZES, strict=True)
    }
    pane |= {sharing.title: _sharing(plan, sharing, low, high) for sharing in plan.sharings}
    pane[f"memory of one GPU, {format_bytes(memory)}"] = level(memory, dash="solid")
    chart = curves(
        "plan-tables",
        "Page tables over the pinned amount",
        "Markers: the planned amount. The lines follow the page size of the plan, in steps of 2 MiB; the grey ones are "
        "the formula, bytes ÷ page size × 8.",
        {"Page tables on the busiest GPU": pane},
        Scale("Page tables (bytes, log scale)", 1, lambda amount: format_bytes(int(amount))),
        sizes("Pinned by each process (bytes, log scale)"),
        f"Page tables for {format_bytes(planned)} on a GPU of {format_bytes(memory)}",
        pixels=320,
        ends=[(sharing.title, format_bytes(_taken(plan, sharing, planned))) for sharing in plan.sharings],
    )
    lowest = page_table_bytes(low, GPU_PAGE_SIZES[-1])
    ticks = [16**power for power in range(16) if lowest <= 16**power <= 4 * memory]
    chart.figure.update_yaxes(type="log", tickmode="array", tickvals=ticks, ticktext=list(map(format_bytes, ticks)))
    return chart


def _sharing(plan: Plan, sharing: Sharing, low: int, high: int) -> Curve:
    """A way to share over the amount; the marker is the plan."""
    colour, symbol = _LOOKS[sharing.strategy]
    planned = plan.demand.pinned_bytes
    amounts = sorted({planned, high, *(low << power for power in range(14) if low << power <= high)})
    markers = [_PLANNED_PIXELS if amount == planned else 0 for amount in amounts]
    spots = [Spot(amount, _taken(plan, sharing, amount), f"{format_bytes(amount)} pinned") for amount in amounts]
    return Curve(LineStyle(colour, symbol, size=markers), spots)


def _taken(plan: Plan, sharing: Sharing, amount: int) -> int:
    """Page tables on the busiest GPU if each process pins this much."""
    taken, registers = plan.price.taken_bytes, sharing.strategy == "each_registers"
    return taken(amount) * plan.demand.on_one_gpu if registers else taken(amount * plan.demand.copies)


def _times(plan: Plan) -> Chart:
    amount = format_bytes(plan.demand.pinned_bytes)
    seconds = {pace.strategy: pace.seconds_for(plan.demand.pinned_bytes) for pace in plan.paces}
    parts = {True: TimePart("cudaHostAlloc", "pinned"), False: TimePart("registered", "registered")}
    scale, unit = seconds_unit(max(seconds.values()))
    bars = [
        Length(TITLES[strategy], time, parts[strategy.startswith("host_alloc")]) for strategy, time in seconds.items()
    ]
    return lengths(
        "plan-times",
        f"How long {amount} take to pin",
        "One process, at the pace that was measured over the amount in the table below.",
        {"": bars},
        Scale(f"Time ({unit})", scale, format_seconds),
        f"Time to pin {amount}",
    )
