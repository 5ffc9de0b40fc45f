"""What a plan looks like: the time to pin, where a run measured it."""

from __future__ import annotations

from pinscope.analysis.pinning_strategy import TITLES
from pinscope.charts.marks import Chart
from pinscope.charts.plot import Length, Scale, TimePart, lengths
from pinscope.charts.theme import seconds_unit
from pinscope.planning.plan import Plan
from pinscope.units import format_bytes, format_seconds

_PARTS = {True: TimePart("cudaHostAlloc", "pinned"), False: TimePart("registered", "registered")}


def draw_plan(plan: Plan) -> list[Chart]:
    """How long each strategy takes; none where no run measured one."""
    if not plan.paces:
        return []
    amount = format_bytes(plan.demand.pinned_bytes)
    seconds = {pace.strategy: pace.seconds_for(plan.demand.pinned_bytes) for pace in plan.paces}
    scale, unit = seconds_unit(max(seconds.values()))
    bars = [Length(TITLES[name], time, _PARTS[name.startswith("host_alloc")]) for name, time in seconds.items()]
    chart = lengths(
        "plan-times",
        f"How long {amount} take to pin",
        "One process, at the pace that was measured over the amount in the table below.",
        {"": bars},
        Scale(f"Time ({unit})", scale, format_seconds),
        f"Time to pin {amount}",
    )
    return [chart]
