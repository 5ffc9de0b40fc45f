"""Whether what a plan asks for is safe on this host: one word, and the sentence that says why."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from pinscope.analysis.pytorch_pinned import rounded_up
from pinscope.analysis.rules.gpu_memory import TABLES_CRITICAL, page_table_severity
from pinscope.analysis.rules.host_memory import RAM_NOTE, RAM_WARNING
from pinscope.lab.budget import CONTEXT_BYTES, SAFE_DEVICE_SHARE
from pinscope.planning.plan import Demand, Plan
from pinscope.units import format_bytes, format_share

Level = Literal["safe", "care", "not_safe", "unknown", "elsewhere"]
LEVEL_WORDS: Mapping[Level, str] = {
    "safe": "Safe",
    "care": "With care",
    "not_safe": "Not safe",
    "unknown": "Not known",
    "elsewhere": "For another host",
}
"""How a plan's verdict begins: never by colour alone."""
_SAME_SHARE = 0.05
"""Memory of two GPUs differs by less: they may be alike. People round."""


@dataclass(frozen=True)
class Safety:
    """The judgement.

    Attributes:
        level: ``safe``, ``care`` (safe, but much), ``not_safe``, ``unknown`` or ``elsewhere`` (it is for another host).
        reason: a sentence without its full stop.
    """

    level: Level
    reason: str


def taken_of_gpu(plan: Plan) -> int:
    """Bytes that contexts and page tables take of the busiest GPU, where each process registers."""
    context = plan.context.bytes if plan.context else CONTEXT_BYTES
    return plan.sharings[0].tables_per_gpu_bytes + plan.demand.on_one_gpu * context


def safety_of(plan: Plan) -> Safety:
    """How safe the plan is on its host: the first judgement that applies."""
    demand, budget, tables = plan.demand, plan.budget, plan.sharings[0]
    asked, amount, elsewhere = demand.copies * demand.pinned_bytes, amount_words(demand), why_elsewhere(plan)
    total, memory, capped = budget.total_bytes, demand.gpu_memory_bytes, budget.safe_bytes is None
    safe, of_host = budget.safe_bytes or 0, f"{format_share(asked / total)} of the memory of {budget.host}"
    up_to = f"WSL2 allows far less than {format_bytes(total)}" if capped else f"up to {format_bytes(safe)} is safe"
    taken = taken_of_gpu(plan)
    on_gpu = f"contexts and page tables take {format_bytes(taken)} of a GPU's {format_bytes(memory)}"
    of_gpu = f"page tables take {format_share(tables.gpu_share)} of a GPU's memory when each process registers"
    rounded, bears = demand.copies * rounded_up(demand.pinned_bytes), f"{budget.host} bears {amount}"
    judgements: tuple[tuple[bool, Level, str], ...] = (
        (taken > SAFE_DEVICE_SHARE * memory, "not_safe", on_gpu),
        (elsewhere is not None, "elsewhere", elsewhere or ""),
        (capped and asked < RAM_WARNING * total, "unknown", f"{up_to}, and how much is not known"),
        (asked > safe, "not_safe", f"do not pin {amount} on {budget.host}, {up_to}"),
        (rounded > safe, "care", f"{bears} but not the {format_bytes(rounded)} that PyTorch makes of it, {up_to}"),
        (page_table_severity(tables.gpu_share) is not None, "care", of_gpu),
        (taken >= TABLES_CRITICAL * memory, "care", on_gpu),
        (asked >= RAM_NOTE * total, "care", f"{amount} is {of_host}, and {up_to}"),
        (True, "safe", f"{bears}, {up_to}"),
    )
    return next(Safety(level, reason) for applies, level, reason in judgements if applies)


def amount_words(demand: Demand) -> str:
    """What the host must carry, such as ``480 GiB (8 processes, 60 GiB each)``."""
    single, together = (format_bytes(count * demand.pinned_bytes) for count in (1, demand.copies))
    return single if demand.copies == 1 else f"{together} ({demand.processes} processes, {single} each)"


def why_elsewhere(plan: Plan) -> str | None:
    """What the plan's host has and this one has not; ``None`` where it may be this one."""
    here, demand = plan.budget.gpu_memory_bytes, plan.demand
    if not plan.budget.has_gpu:
        return "this one has no GPU"
    if demand.used_gpus > len(here) > 0:
        return f"the plan is for {demand.used_gpus} GPUs, this host has {len(here)}"
    off = [size / demand.gpu_memory_bytes - 1 for size in here]
    if here and (min(map(abs, off)) > _SAME_SHARE or sum(share >= -_SAME_SHARE for share in off) < demand.used_gpus):
        sizes = " and ".join(dict.fromkeys(map(format_bytes, here)))
        return f"the plan is for GPUs of {format_bytes(demand.gpu_memory_bytes)}, this host's have {sizes}"
    return None
