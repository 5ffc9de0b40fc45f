"""A plan as one JSON document: what ``pinscope plan --json`` prints."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from pinscope.analysis.page_table_model import GPU_PAGE_SIZES, page_table_bytes
from pinscope.analysis.pinning_recipe import Recipe
from pinscope.planning.plan import Pace, Plan
from pinscope.records.finding import Reading

FORMAT = 1
"""Version of the document; additive changes keep it."""


def plan_document(plan: Plan, reading: Reading) -> dict[str, Any]:
    """The plan's figures, in SI units, and what was concluded."""
    pinned = plan.demand.pinned_bytes
    told = reading.model_dump(mode="json")
    return {
        "format": FORMAT,
        "demand": asdict(plan.demand),
        "page": {
            "page_bytes": plan.price.page_bytes,
            "table_bytes": plan.price.table_bytes(pinned),
            "origin": asdict(plan.price.origin),
        },
        "page_sizes": [
            {"page_bytes": size, "entries": -(-pinned // size), "table_bytes": page_table_bytes(pinned, size)}
            for size in GPU_PAGE_SIZES
        ],
        "context": asdict(plan.context) if plan.context else None,
        "strategies": [asdict(sharing) for sharing in plan.sharings],
        "pinning": [_pinning(pace, pinned) for pace in plan.paces],
        "recommended": _recommended(plan.recipe, pinned),
        "budget": asdict(plan.budget),
        "headline": told["headline"],
        "tables": told["tables"],
        "findings": told["findings"],
    }


def _pinning(pace: Pace, pinned: int) -> dict[str, Any]:
    """A strategy for this amount; waits are known only for the amount that was measured."""
    return {**asdict(pace), "seconds": pace.seconds_for(pinned), "longest_wait_seconds": pace.wait_for(pinned)}


def _recommended(recipe: Recipe | None, pinned: int) -> dict[str, Any] | None:
    if recipe is None:
        return None
    return {"strategy": recipe.strategy, "chunk_bytes": recipe.chunk_bytes, "call": recipe.call(pinned)}
