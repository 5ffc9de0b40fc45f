"""What a plan looks like: page tables over the pinned amount up to the GPU's memory, and the time to pin."""

from __future__ import annotations

import plotly.graph_objects as go

from pinscope.analysis.page_table_model import GPU_PAGE_SIZES, page_table_bytes
from pinscope.analysis.pinning_strategy import TITLES
from pinscope.charts.bars import Part, bars
from pinscope.charts.chart import Chart, alt_text
from pinscope.charts.theme import COLOURS, panels, seconds_unit, size_axis
from pinscope.planning.plan import Pace, Plan, Sharing
from pinscope.units import format_bytes, format_seconds

_LOOKS = {"each_registers": ("registered", "triangle-down"), "one_owner": ("pinned", "circle")}
_REFERENCES = (("dash", GPU_PAGE_SIZES[0]), ("dashdot", GPU_PAGE_SIZES[1]), ("dot", GPU_PAGE_SIZES[2]))
_AROUND = 64
"""The chart reaches from this part of the planned amount to this many times it."""


def draw_plan(plan: Plan) -> list[Chart]:
    """The charts of a plan; times only where a run measured them."""
    return [_tables(plan), *([_times(plan)] if plan.paces else [])]


def _tables(plan: Plan) -> Chart:
    figure = panels(["Page tables on the busiest GPU"], [320])
    demand = plan.demand
    low, high = max(demand.pinned_bytes // _AROUND, 2**21), demand.pinned_bytes * _AROUND
    for dash, size in _REFERENCES:
        figure.add_trace(
            go.Scatter(
                x=[low, high],
                y=[page_table_bytes(low, size), page_table_bytes(high, size)],
                mode="lines",
                name=f"one process, {format_bytes(size)} pages",
                line={"color": COLOURS["reference"], "dash": dash, "width": 1.5},
                hoverinfo="skip",
            )
        )
    for sharing in plan.sharings:
        figure.add_trace(_sharing(plan, sharing, low, high))
    memory = demand.gpu_memory_bytes
    figure.add_trace(
        go.Scatter(
            x=[low, high],
            y=[memory, memory],
            mode="lines",
            name=f"memory of one GPU, {format_bytes(memory)}",
            line={"color": COLOURS["reference"], "width": 2.5},
            hoverinfo="skip",
        )
    )
    size_axis(figure, [low, high], "Pinned by each process (bytes, log scale)")
    lowest = page_table_bytes(low, GPU_PAGE_SIZES[-1])
    ticks = [16**power for power in range(16) if lowest <= 16**power <= 4 * memory]
    figure.update_yaxes(
        type="log",
        title_text="Page tables (bytes, log scale)",
        tickmode="array",
        tickvals=ticks,
        ticktext=[format_bytes(tick) for tick in ticks],
    )
    return Chart(
        "plan-tables",
        "Page tables over the pinned amount",
        "Markers: the planned amount. The lines follow the page size of the plan, in steps of 2 MiB; the grey ones are "
        "the formula, bytes ÷ page size × 8.",
        figure,
        alt_text(
            f"Page tables for {format_bytes(demand.pinned_bytes)} on a GPU of {format_bytes(memory)}",
            [(sharing.title, format_bytes(_taken(plan, sharing, demand.pinned_bytes))) for sharing in plan.sharings],
        ),
    )


def _sharing(plan: Plan, sharing: Sharing, low: int, high: int) -> go.Scatter:
    """A way to share over the amount; the marker is the plan."""
    colour, symbol = _LOOKS[sharing.strategy]
    planned, name = plan.demand.pinned_bytes, sharing.title
    amounts = sorted({planned, high, *(low << power for power in range(14) if low << power <= high)})
    sizes = [_taken(plan, sharing, amount) for amount in amounts]
    return go.Scatter(
        x=amounts,
        y=sizes,
        mode="lines+markers",
        name=name,
        line={"color": COLOURS[colour], "width": 2},
        marker={
            "color": COLOURS[colour],
            "symbol": symbol,
            "opacity": 1,
            "size": [11 if amount == planned else 0 for amount in amounts],
        },
        customdata=[
            f"{format_bytes(amount)} pinned: {format_bytes(size)}" for amount, size in zip(amounts, sizes, strict=True)
        ],
        hovertemplate=f"{name}, %{{customdata}}<extra></extra>",
    )


def _taken(plan: Plan, sharing: Sharing, amount: int) -> int:
    """Page tables on the busiest GPU if each process pins this much."""
    taken, registers = plan.price.taken_bytes, sharing.strategy == "each_registers"
    return taken(amount) * plan.demand.on_one_gpu if registers else taken(amount * plan.demand.copies)


def _times(plan: Plan) -> Chart:
    pinned = plan.demand.pinned_bytes
    seconds = {TITLES[pace.strategy]: pace.seconds_for(pinned) for pace in plan.paces}
    parts = [
        Part(title, colour, {name: seconds[name] for name in names})
        for title, colour, names in (
            ("cudaHostAlloc", "pinned", [TITLES[pace.strategy] for pace in plan.paces if _is_allocated(pace)]),
            ("registered", "registered", [TITLES[pace.strategy] for pace in plan.paces if not _is_allocated(pace)]),
        )
        if names
    ]
    scale, unit = seconds_unit(max(seconds.values()))
    ends = {name: format_seconds(value) for name, value in seconds.items()}
    figure = bars(list(seconds), parts, f"Time ({unit})", format_seconds, scale=scale, ends=ends)
    return Chart(
        "plan-times",
        f"How long {format_bytes(pinned)} take to pin",
        "One process, at the pace that was measured over the amount in the table below.",
        figure,
        alt_text(f"Time to pin {format_bytes(pinned)}", ends.items()),
    )


def _is_allocated(pace: Pace) -> bool:
    return pace.strategy.startswith("host_alloc")
