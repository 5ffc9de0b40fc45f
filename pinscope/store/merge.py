"""What becomes of a run that is imported where a run of its id is already."""

from __future__ import annotations

import json
from itertools import islice
from typing import Any

from pinscope.records.run import Run
from pinscope.store.rows import Rows, dump_json

_ORIGIN = frozenset({"kind", "id", "experiment", "lab", "device", "quick", "params", "created_at"})
"""Fields that tell one run from another: set when it starts, never changed."""


_RENAMED = frozenset({"experiment", "params"})
"""Fields of a recording that differ from an older version's where its experiment has become part of another."""


def as_imported(run: Run, rows: Rows) -> Run:
    """A run from elsewhere: nothing here works on it any more."""
    changes: dict[str, Any] = {"recording": False, "observations": len(rows)}
    if run.status == "running":
        note = "It was still running when it was exported."
        changes |= {"status": "interrupted", "process": None, "notes": (*run.notes, note)}
    return run.model_copy(update=changes)


def knows_all(stored: Run, here: Rows, incoming: Run, rows: Rows, has_ended: bool) -> bool:
    """Whether a run that is here already has nothing to learn from the bundle."""
    renamed = _RENAMED if stored.recording else frozenset()
    same = _facts(stored, without=renamed) == _facts(incoming, without=renamed)
    if same or (stored.status == "cancelled" and _is_same_run(stored, incoming)):
        return len(here) == len(rows) and _begin_alike(here, rows, len(rows))
    # The bundle was exported while the run went on.
    return not has_ended and _is_same_run(stored, incoming) and _begin_alike(here, rows, len(rows))


def is_completed_by(stored: Run, here: Rows, incoming: Run, rows: Rows, has_ended: bool) -> bool:
    """Whether the bundle knows how a run went on that is here already."""
    open_here = stored.status in ("interrupted", "cancelled") or (stored.status == "running" and has_ended)
    if stored.recording or not open_here or not _is_same_run(stored, incoming):
        return False
    return _begin_alike(here, rows, len(here))


def _is_same_run(stored: Run, incoming: Run) -> bool:
    return _facts(stored, only=_ORIGIN) == _facts(incoming, only=_ORIGIN)


def _facts(run: Run, only: frozenset[str] | None = None, without: frozenset[str] = frozenset()) -> str:
    """What a run says of itself, comparable as text. Its verdict depends on the version that read it."""
    left_out = {"recording", "verdict", *without}
    return dump_json(run.model_dump(mode="json", include=only, exclude=left_out))  # type: ignore[arg-type]


def _begin_alike(here: Rows, rows: Rows, count: int) -> bool:
    """Whether both have so many observations at least, and the first so many are the same."""
    if min(len(here), len(rows)) < count:
        return False
    pairs = zip(islice(here, count), islice(rows, count), strict=True)
    return all(mine == other or _canonical(mine) == _canonical(other) for mine, other in pairs)


def _canonical(row: dict[str, Any]) -> str:
    return json.dumps(row, sort_keys=True)
