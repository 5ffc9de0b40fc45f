"""A snapshot as one JSON document: what ``pinscope live --once --json`` prints and the page Now hands out."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from pinscope.records.finding import Finding
from pinscope.records.snapshot import Snapshot


def snapshot_document(snapshot: Snapshot, findings: Sequence[Finding]) -> dict[str, Any]:
    """The snapshot's fields (``format``, ``taken_at``, ``host``, ``holders``, ``devices`` …) and ``findings``.

    Values are SI units, named in the key. Additive: later versions may add keys.
    """
    return {
        **snapshot.model_dump(mode="json"),
        "findings": [finding.model_dump(mode="json") for finding in findings],
    }


def render_snapshot(snapshot: Snapshot, findings: Sequence[Finding]) -> bytes:
    """The document as a file's content."""
    return (json.dumps(snapshot_document(snapshot, findings), ensure_ascii=False, allow_nan=False) + "\n").encode()
