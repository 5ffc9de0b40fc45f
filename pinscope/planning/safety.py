"""Whether what a plan asks for is safe on this host: one word, and the sentence that says why."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from pinscope.analysis.rules.gpu_memory import page_table_severity
from pinscope.analysis.rules.host_memory import RAM_NOTE
from pinscope.planning.plan import Plan
from pinscope.units import format_bytes, format_share

Level = Literal["safe", "care", "not_safe", "elsewhere"]
LEVEL_WORDS: Mapping[Level, str] = {
    "safe": "Safe", "care": "With care", "not_safe": "Not safe", "elsewhere": "For another host",
}  # fmt: skip
"""How a plan's verdict begins: never by colour alone."""
_SAME_SHARE = 0.05
"""Memory of two GPUs differs by less: they may be alike. People round."""


@dataclass(frozen=True)
class Safety:
    """The judgement.

    Attributes:
        level: ``safe``, ``care`` (safe, but much), ``not_safe``, or ``elsewhere``: the plan is for another host.
        reason: a sentence without its full stop.
    """

    level: Level
    reason: str


def safety_of(plan: Plan) -> Safety:
    """How safe the plan is here."""
    pinned, budget, share = plan.demand.pinned_bytes, plan.budget, plan.sharings[0].gpu_share
    amount, safe = format_bytes(pinned), f"up to {format_bytes(budget.safe_bytes)} is safe"
    if elsewhere := _why_elsewhere(plan):
        return Safety("elsewhere", elsewhere)
    if pinned > budget.safe_bytes:
        return Safety("not_safe", f"do not pin {amount} here, {safe}")
    if share >= 1:
        return Safety("not_safe", "the page tables would take more than a GPU's memory when each process registers")
    if page_table_severity(share) in ("warning", "critical"):
        return Safety("care", f"page tables take {format_share(share)} of a GPU's memory when each process registers")
    if pinned >= RAM_NOTE * budget.total_bytes:
        of_host = format_share(pinned / budget.total_bytes)
        return Safety("care", f"{amount} is {of_host} of this host's memory, and {safe}")
    return Safety("safe", f"this host bears {amount}, {safe}")


def _why_elsewhere(plan: Plan) -> str | None:
    """What the plan's host has and this one has not; ``None`` where it may be this one."""
    here, demand = plan.budget.gpu_memory_bytes, plan.demand
    if not plan.budget.has_gpu:
        return "this one has no GPU"
    if demand.used_gpus > len(here) > 0:
        return f"the plan is for {demand.used_gpus} GPUs, this host has {len(here)}"
    if here and not any(abs(size / demand.gpu_memory_bytes - 1) <= _SAME_SHARE for size in here):
        sizes = " and ".join(dict.fromkeys(map(format_bytes, here)))
        return f"the plan is for GPUs of {format_bytes(demand.gpu_memory_bytes)}, this host's have {sizes}"
    return None
