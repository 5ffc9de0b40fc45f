"""The runs that ship with PinScope: bundles in ``pinscope/recordings``, read once and never written."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable

from pinscope.errors import BadBundle, StoreFailed
from pinscope.records.run import Attachment, Run, parse_run
from pinscope.store.bundle import SUFFIX, BundleReader
from pinscope.store.documents import StoredRow

VERDICTS = "verdicts.json"
"""Id of a recording → what this version reads as its verdict and its first figure. ``scripts/write-verdicts`` makes the
file anew."""


def folder() -> Traversable:
    """Where the shipped bundles are."""
    return files("pinscope") / "recordings"


def recorded_runs() -> list[Run]:
    """All recordings, newest first.

    Raises:
        StoreFailed: a shipped bundle is damaged.
    """
    return [run for run, _ in _recordings().values()]


def recorded_run(run_id: str) -> Run | None:
    """The recording of exactly that id."""
    return _recordings()[run_id][0] if run_id in _recordings() else None


def recording_name(run: Run) -> str:
    """What pages call a recording, and its file: ``bandwidth-h200``."""
    return _recordings()[run.id][1].name.removesuffix(SUFFIX)


def recording_called(name: str) -> Run | None:
    """The recording of that name."""
    return next((run for run in recorded_runs() if recording_name(run) == name), None)


def recording_names() -> list[str]:
    """Of all recordings, sorted."""
    return sorted(map(recording_name, recorded_runs()))


def newest_recordings() -> dict[str, Run]:
    """Experiment → its newest recording with an experiment's own settings.

    One with others is called ``EXPERIMENT-VARIANT-HOST``; it answers a part of the question.
    """
    usual = (
        run for run in reversed(recorded_runs()) if recording_name(run) == f"{run.experiment}-{run.environment.host}"
    )
    return {run.experiment: run for run in usual}


def recorded_answer(experiment: str) -> str:
    """Where a run on a GPU answers the same question, as the end of a sentence; nothing where none is recorded."""
    run = newest_recordings().get(experiment)
    return f"; recorded on a GPU: pinscope runs show {recording_name(run)}" if run else ""


def recorded_observations(run_id: str) -> list[StoredRow]:
    """The rows of a recording.

    Raises:
        KeyError: no such recording.
        StoreFailed: a shipped bundle is damaged.
    """
    return [dict(row) for row in _rows(run_id)]  # the caller may change his


def recorded_parts(run: Run, attachment: Attachment) -> Iterator[bytes]:
    """The parts of a recording's attachment. Errors as of its rows."""
    with _opened(_recordings()[run.id][1]) as bundle:
        yield from bundle.parts(run, attachment)


@cache
def _recordings() -> Mapping[str, tuple[Run, Traversable]]:
    """Id → recording, and the bundle that holds it."""
    with _plain_errors():
        files = {file.name: file for file in folder().iterdir()}
        answers = json.loads(files[VERDICTS].read_text("utf-8")) if VERDICTS in files else {}
    recordings: list[tuple[Run, Traversable]] = []
    for name in sorted(files):
        if name.endswith(SUFFIX):
            with _opened(files[name]) as bundle:
                for run in bundle.runs():
                    answer = answers.get(run.id, {"verdict": None, "figure": None})
                    recordings.append((parse_run({**dict(run), **answer, "recording": True}), files[name]))
    recordings.sort(key=lambda recording: recording[0].created_at, reverse=True)
    return {run.id: (run, file) for run, file in recordings}


@cache
def _rows(run_id: str) -> tuple[StoredRow, ...]:
    with _opened(_recordings()[run_id][1]) as bundle:
        return tuple(bundle.observations(run_id))


@contextmanager
def _opened(file: Traversable) -> Iterator[BundleReader]:
    with _plain_errors(), BundleReader(io.BytesIO(file.read_bytes()), file.name) as bundle:
        yield bundle


@contextmanager
def _plain_errors() -> Iterator[None]:
    try:
        yield
    except (BadBundle, OSError) as error:
        raise StoreFailed(
            f"a recording that ships with PinScope cannot be read ({error}); install PinScope again"
        ) from None
