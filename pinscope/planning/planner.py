"""From what is asked for and what is known to a plan."""

from __future__ import annotations

from pinscope.analysis.page_table_model import ENTRY_BYTES
from pinscope.lab.budget import binding_limit, safe_pinned_bytes
from pinscope.planning.parameters import PAGE_SIZES, PlanParams
from pinscope.planning.plan import HostBudget, Origin, PagePrice, Plan, make_plan
from pinscope.planning.prices import Prices
from pinscope.records.environment import Environment


def plan_for(params: PlanParams, prices: Prices, environment: Environment) -> Plan:
    """What the parameters take at these prices, beside what is safe on this host."""
    size = PAGE_SIZES[params.page_size]
    price = PagePrice(ENTRY_BYTES / size, Origin("given")) if size else prices.page
    limits = environment.limits
    budget = HostBudget(
        safe_bytes=safe_pinned_bytes(limits, "cuda"),
        limit=binding_limit(limits, "cuda"),
        total_bytes=limits.host_total_bytes,
        has_gpu=bool(environment.devices),
    )
    return make_plan(params.demand(), price, prices.context, prices.paces, budget, recipes=prices.recipes)
