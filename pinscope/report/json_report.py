"""What PinScope says as JSON: a run, a snapshot, a plan. Values are SI units, named in the key or beside the value."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from pinscope.analysis.page_table_model import GPU_PAGE_SIZES, page_table_bytes
from pinscope.records.finding import Finding, Reading
from pinscope.records.snapshot import Snapshot

if TYPE_CHECKING:  # what a live view needs not wait for
    from pinscope.analysis.pinning_strategy import Recipe
    from pinscope.planning.plan import Pace, Plan
    from pinscope.report.document import Document


def run_document(document: Document) -> dict[str, Any]:
    """``{"format", "run", "observations"}``: the run's fields, what was concluded, and every row as stored.

    Values are SI units, named in the key or beside the value. Additive: later versions may add keys.
    """
    return {**run_without_rows(document), "observations": [dict(row) for row in document.rows]}


def run_without_rows(document: Document) -> dict[str, Any]:
    """The same but the observations, which may be many."""
    words = {"title": document.title, "question": document.question, "method": document.method}
    run = document.run.model_dump(mode="json")
    return {"format": document.run.format, "run": {**run, **words, **_concluded(document.reading)}}


def json_pieces(documents: Sequence[Document]) -> Iterator[bytes]:
    """One run's document; several stand in ``{"format", "documents": […]}``. An observation at a time."""
    if len(documents) > 1:
        newest = max(document.run.format for document in documents)
        yield f'{{"format": {newest}, "documents": ['.encode()
    for number, document in enumerate(documents):
        yield (b", " if number else b"") + _text(run_without_rows(document))[:-1] + b', "observations": ['
        for place, row in enumerate(document.rows):
            yield (b", " if place else b"") + _text(row)
        yield b"]}"
    yield b"]}\n" if len(documents) > 1 else b"\n"


def _concluded(reading: Reading) -> dict[str, Any]:
    fields = reading.model_dump(mode="json")
    return {key: fields[key] for key in ("verdict", "headline", "findings", "tables")}


def _text(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False, allow_nan=False).encode()


def snapshot_document(snapshot: Snapshot, findings: Sequence[Finding]) -> dict[str, Any]:
    """The snapshot's fields (``format``, ``taken_at``, ``host``, ``holders``, ``devices`` …) and ``findings``.

    Values are SI units, named in the key. Additive: later versions may add keys.
    """
    return {**snapshot.model_dump(mode="json"), "findings": [finding.model_dump(mode="json") for finding in findings]}


def render_snapshot(snapshot: Snapshot, findings: Sequence[Finding]) -> bytes:
    """The document as a file's content."""
    return (json.dumps(snapshot_document(snapshot, findings), ensure_ascii=False, allow_nan=False) + "\n").encode()


FORMAT = 1
"""Version of the document; additive changes keep it."""


def plan_document(plan: Plan, reading: Reading) -> dict[str, Any]:
    """The plan's figures, in SI units, and what was concluded."""
    from pinscope.planning.prices import safety_of  # noqa: PLC0415 - a live view needs not wait for it

    pinned = plan.demand.pinned_bytes
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
        "safety": asdict(safety_of(plan)),
        **_concluded(reading),
    }


def _pinning(pace: Pace, pinned: int) -> dict[str, Any]:
    """A strategy for this amount; waits are known only for the amount that was measured."""
    return {**asdict(pace), "seconds": pace.seconds_for(pinned), "longest_wait_seconds": pace.wait_for(pinned)}


def _recommended(recipe: Recipe | None, pinned: int) -> dict[str, Any] | None:
    if recipe is None:
        return None
    return {"strategy": recipe.strategy, "chunk_bytes": recipe.chunk_bytes, "call": recipe.call(pinned)}
