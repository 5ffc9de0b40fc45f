"""A plan as one JSON document: what ``pinscope plan --json`` prints."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from pinscope.analysis.page_table_model import GPU_PAGE_SIZES, page_table_bytes
from pinscope.analysis.plan import Plan
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
        "pinning": [{**asdict(pace), "seconds": pace.seconds_for(pinned)} for pace in plan.paces],
        "budget": asdict(plan.budget),
        "headline": told["headline"],
        "tables": told["tables"],
        "findings": told["findings"],
    }
