"""Real runs that ship with PinScope, as bundles in ``pinscope/recordings``. Read once, never changed."""

from __future__ import annotations

import io
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable

from pinscope.errors import BadBundle, StoreFailed
from pinscope.records.attachment import Attachment
from pinscope.records.run import Run
from pinscope.store.bundle import SUFFIX, BundleReader
from pinscope.store.rows import Row


@dataclass(frozen=True)
class _Recording:
    run: Run
    file: Traversable


def folder() -> Traversable:
    """Where the shipped bundles are."""
    return files("pinscope") / "recordings"


def recorded_runs() -> list[Run]:
    """All recordings, newest first.

    Raises:
        StoreFailed: a shipped bundle is damaged.
    """
    return [recording.run for recording in _recordings()]


def recorded_run(run_id: str) -> Run | None:
    """The recording of exactly that id."""
    return next((run for run in recorded_runs() if run.id == run_id), None)


def recorded_observations(run_id: str) -> list[Row]:
    """The rows of a recording.

    Raises:
        KeyError: no such recording.
        StoreFailed: a shipped bundle is damaged.
    """
    return [dict(row) for row in _rows(run_id)]  # the caller may change his


def recorded_parts(run: Run, attachment: Attachment) -> Iterator[bytes]:
    """The parts of a recording's attachment.

    Raises:
        KeyError: no such recording.
        StoreFailed: a shipped bundle is damaged.
    """
    recording = {one.run.id: one for one in _recordings()}[run.id]
    try:
        yield from _open(recording.file).parts(run, attachment)
    except BadBundle as error:
        raise _damaged(error) from None


@cache
def _recordings() -> tuple[_Recording, ...]:
    there = folder()
    shipped = sorted(there.iterdir(), key=lambda file: file.name) if there.is_dir() else []
    found = [
        _Recording(run.model_copy(update={"recording": True}), file)
        for file in shipped
        if file.name.endswith(SUFFIX)
        for run in _open(file).runs()
    ]
    return tuple(sorted(found, key=lambda recording: recording.run.created_at, reverse=True))


@cache
def _rows(run_id: str) -> tuple[Row, ...]:
    recording = {one.run.id: one for one in _recordings()}[run_id]
    try:
        return tuple(_open(recording.file).rows(recording.run))
    except BadBundle as error:
        raise _damaged(error) from None


def _open(file: Traversable) -> BundleReader:
    try:
        return BundleReader(io.BytesIO(file.read_bytes()), file.name)
    except (BadBundle, OSError) as error:
        raise _damaged(error) from None


def _damaged(error: Exception) -> StoreFailed:
    return StoreFailed(f"a recording that ships with PinScope cannot be read ({error}); install PinScope again")
