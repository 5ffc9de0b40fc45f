"""What a run reports of itself: progress, notes and that it lives while it goes on, and how it went."""

from __future__ import annotations

import os
import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Self

from pinscope.errors import Cancelled, PinScopeError
from pinscope.records.run import Progress, Run, Status
from pinscope.store.rescue import SafeWriter

PROGRESS_SECONDS = 0.2
"""Progress is written at most this often."""
BEAT_SECONDS = 2.0
"""Progress is written at least this often, unless the database fails."""


@dataclass(frozen=True)
class Outcome:
    """How a run went."""

    status: Status
    error: str | None = None
    """Why it failed, one line."""
    exit_code: int = 0

    @classmethod
    def of(cls, work: Callable[[], Status]) -> Outcome:
        """Do the work, which gives the run's status. Whatever it raises, the run must say so."""
        try:
            return cls(work())
        except Cancelled as error:
            return cls("cancelled", exit_code=error.exit_code)
        except PinScopeError as error:
            return cls("failed", str(error), error.exit_code)
        except Exception as error:  # noqa: BLE001 - whatever it was, the run says so
            if os.environ.get("PINSCOPE_DEBUG"):
                traceback.print_exc()
            return cls("failed", f"unexpected {type(error).__name__}: {error}".splitlines()[0], 1)


class Reporter:
    """Writes progress and notes of a run: progress not too often, and now and then though nothing happens."""

    def __init__(self, writer: SafeWriter, run: Run) -> None:
        self._writer = writer
        self._notes = list(run.notes)
        self._written = -PROGRESS_SECONDS
        self._last = Progress()
        self._storing = threading.Lock()
        self._ended = threading.Event()
        self._heart = threading.Thread(target=self._beat, name="pinscope-heart", daemon=True)

    def __enter__(self) -> Self:
        self._heart.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._ended.set()
        self._heart.join()

    def progress(self, fraction: float, message: str) -> None:
        """Store how far the run is."""
        if time.monotonic() - self._written >= PROGRESS_SECONDS or fraction >= 1:
            self._store(Progress(fraction=fraction, message=message))

    def waiting(self, holder: str) -> None:
        """Store what the run waits for."""
        if time.monotonic() - self._written >= PROGRESS_SECONDS:
            self._store(Progress(message=f"waiting for {holder}", waiting_for=holder))

    def _store(self, progress: Progress | None) -> None:
        with self._storing:
            self._last = progress or self._last
            self._written = time.monotonic()
            self._writer.update(progress=self._last.model_copy(update={"at": self._written}))

    def _beat(self) -> None:
        """Others who cannot see this process learn from it that it lives, and it learns whether they cancelled it."""
        while not self._ended.wait(BEAT_SECONDS):
            if time.monotonic() - self._written >= BEAT_SECONDS:
                self._store(None)

    def note(self, text: str) -> None:
        """Store what a reader of the run must know, once."""
        if text not in self._notes:
            self._notes.append(text)
            self._writer.update(notes=tuple(self._notes))
