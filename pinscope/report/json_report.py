"""A run as one JSON document: the same that ``pinscope run --json`` prints."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from pinscope.records.run import FORMAT
from pinscope.report.document import Document


def run_document(document: Document) -> dict[str, Any]:
    """``{"format", "run", "observations"}``: the run's fields, what was concluded, and every row as stored.

    Values are SI units, named in the key or beside the value. Additive: later versions may add keys.
    """
    reading = document.reading.model_dump(mode="json")
    return {
        "format": FORMAT,
        "run": {
            **document.run.model_dump(mode="json"),
            "title": document.title,
            "question": document.question,
            "method": document.method,
            "headline": reading["headline"],
            "findings": reading["findings"],
            "tables": reading["tables"],
        },
        "observations": [dict(row) for row in document.rows],
    }


def render_json(documents: Sequence[Document]) -> bytes:
    """One run's document; several stand in ``{"format", "documents": […]}``."""
    found = [run_document(document) for document in documents]
    whole = found[0] if len(found) == 1 else {"format": FORMAT, "documents": found}
    return (json.dumps(whole, ensure_ascii=False, allow_nan=False) + "\n").encode()
