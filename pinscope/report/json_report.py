"""A run as one JSON document: the same that ``pinscope run --json`` prints."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

from pinscope.report.document import Document


def run_document(document: Document) -> dict[str, Any]:
    """``{"format", "run", "observations"}``: the run's fields, what was concluded, and every row as stored.

    Values are SI units, named in the key or beside the value. Additive: later versions may add keys.
    """
    return {**run_without_rows(document), "observations": [dict(row) for row in document.rows]}


def run_without_rows(document: Document) -> dict[str, Any]:
    """The same but the observations, which may be many."""
    reading = document.reading.model_dump(mode="json")
    return {
        "format": document.run.format,
        "run": {
            **document.run.model_dump(mode="json"),
            "title": document.title,
            "question": document.question,
            "method": document.method,
            "headline": reading["headline"],
            "findings": reading["findings"],
            "tables": reading["tables"],
        },
    }


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


def render_json(documents: Sequence[Document]) -> bytes:
    """The same in memory."""
    return b"".join(json_pieces(documents))


def _text(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False, allow_nan=False).encode()
