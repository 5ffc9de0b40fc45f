"""A writer that loses nothing: what the store will not take is kept, tried again, and saved to a bundle at last."""

from __future__ import annotations

import os
import stat
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from pinscope.errors import PathExists, PinScopeError, StoreFailed
from pinscope.records.run import Run
from pinscope.store.bundle import SUFFIX, write_bundle
from pinscope.store.new_file import (
    AS_UMASK_SAYS,
    PRIVATE_FILE,
    PRIVATE_FOLDER,
    SHARED_FOLDERS,
    check_private,
    own_folder,
)
from pinscope.store.store import Store
from pinscope.store.tables import Row, changed_run, checked

FLUSH_SECONDS = 0.2
"""No row waits longer than this to be stored, unless the store fails or is slower than that."""
LAST_TRIES = 3
"""How often the store is asked at the end before the run goes into a bundle."""


class SafeWriter:
    """Stores the observations of one run as they come.

    A row is stored before :meth:`append` returns, so a killed process has lost nothing. Where rows come
    faster than the store takes them, they are stored together: the writer spends at most half of the time in
    the store, and a thread stores what has waited for :data:`FLUSH_SECONDS`.

    If the store fails (disk full, server gone, file deleted), rows stay in memory and are tried again, and
    :meth:`close` saves the whole run to a bundle if nothing helped. The rows of the whole run are kept in
    memory for that, less than 1 KB each.

    Args:
        store: where the rows belong.
        run: the run they belong to, as it stands in the store, without observations so far.
        clock: seconds, monotonic.
        refuge: where that bundle goes first, if nothing is there.
    """

    def __init__(
        self, store: Store, run: Run, clock: Callable[[], float] = time.monotonic, refuge: Path | None = None
    ) -> None:
        self.run = run
        """The run as it was last stored, or as it should have been."""
        self.rows: list[Row] = []
        """All observations so far, stored or not."""
        self.problem: str | None = None
        """Why rows or changes wait in memory, one line; ``None`` while the store takes them."""
        self.cancelled = False
        """Whether somebody marked the run as cancelled, as of the last change that was stored."""
        self._store = store
        self._clock = clock
        self._refuge = refuge
        self._stored = 0
        self._changes: dict[str, Any] = {}
        self._waiting_since: float | None = None
        self._next_try = clock()
        self._closed = False
        self._changed = threading.Condition()
        self._flusher = threading.Thread(target=self._store_leftovers, name="pinscope-writer", daemon=True)
        self._flusher.start()

    def append(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Store rows, now or soon.

        Raises:
            BadInput: a row that is not an observation. A failing store raises nothing here.
        """
        accepted = list(checked(rows))
        with self._changed:
            self.rows += accepted
            self._take_turn()

    def update(self, **changes: Any) -> None:
        """Change fields of the run as :meth:`Store.update` does, now or soon.

        Raises:
            BadInput: a field that cannot be changed, or a value that does not fit it.
        """
        with self._changed:
            self._change(changes)
            self._take_turn()

    def close(self, **changes: Any) -> Path | None:
        """Store what is left and the last changes of the run. The path of a bundle if the store did not take them.

        Raises:
            BadInput: changes that do not fit the run.
            StoreFailed: the rows could be put nowhere.
        """
        with self._changed:
            if self._closed:
                return None
            self._change(changes)
            self._closed = True
            self._changed.notify()
        self._flusher.join()
        saved: Path | None = None
        for attempt in range(LAST_TRIES):
            if self.problem is not None and saved is None and self._has_something:
                with suppress(StoreFailed):  # tried again when the database has been
                    saved = self._save()  # first: a user who waits for this process may lose patience
            time.sleep(FLUSH_SECONDS * attempt)
            self._flush()
            if self._all_stored():
                if saved is not None:
                    self._remove(saved)
                return None
        return saved or (self._save() if self._has_something else None)

    def _change(self, changes: dict[str, Any]) -> None:
        self.run = changed_run(self.run, changes)
        self._changes |= changes

    def _take_turn(self) -> None:
        """Store what waits if the store has rested as long as the last call took; else leave it to the thread."""
        now = self._clock()
        if now >= self._next_try:
            self._flush()
        if self._waits and self._waiting_since is None:
            self._waiting_since = now
            self._changed.notify()

    def _store_leftovers(self) -> None:
        """The thread: what has waited long enough is stored though nobody appends."""
        with self._changed:
            while not self._closed:
                if self._waiting_since is None:
                    self._changed.wait()
                    continue
                due = max(self._waiting_since + FLUSH_SECONDS, self._next_try)
                if due > self._clock():
                    self._changed.wait(due - self._clock())
                else:
                    self._flush()
                    if self._waits:
                        self._waiting_since = self._clock()

    @property
    def _waits(self) -> bool:
        return self._stored < len(self.rows) or bool(self._changes)

    def _flush(self) -> None:
        begun = self._clock()
        try:
            if self._stored < len(self.rows):
                # With its start the call may be repeated, even if it had succeeded and only the answer was lost.
                self._store.append(self.run.id, self.rows[self._stored :], start=self._stored)
                self._stored = len(self.rows)
            if self._changes:
                stored = self._store.update(self.run.id, **self._changes)
                self.cancelled = stored.status == "cancelled"
                self._changes = {}
            self.problem = self._waiting_since = None
        except PinScopeError as error:  # rows and changes were checked: it is the store, or the run is not in it
            self.problem = str(error)
        now = self._clock()
        self._next_try = now + (now - begun)

    def _all_stored(self) -> bool:
        try:
            if self._waits:
                return False
            stored = self._store.run(self.run.id)
        except PinScopeError as error:
            self.problem = str(error)
            return False
        if stored.observations < len(self.rows):
            self.problem = f"run {self.run.id} has lost observations in the database"
            return False
        self.run = stored
        return True

    @property
    def _has_something(self) -> bool:
        """Whether there is anything that must not be lost: observations, or how the run ended."""
        return bool(self.rows or self._changes)

    def _save(self) -> Path:
        """Save the whole run to a bundle, where there is room for it."""
        if self._refuge is not None and self._is_written(self._refuge, AS_UMASK_SAYS):
            return self._refuge
        for folder in _folders():
            try:
                with suppress(FileExistsError):
                    folder.mkdir(PRIVATE_FOLDER)
                check_private(folder)
            except OSError as error:
                self.problem = f"{self.problem}; cannot write to {folder}: {error.strerror or error}"
                continue
            for path in _names(self.run.id, folder):
                if self._is_written(path, PRIVATE_FILE):
                    return path
            _remove_empty(folder)
        raise StoreFailed(f"{len(self.rows)} observations are lost, no file could take them: {self.problem}")

    def _is_written(self, path: Path, mode: int) -> bool:
        """Whether the file could be made, and holds the whole run now."""
        try:
            write_bundle(path, [(self.run, self.rows)], mode=mode)
        except PathExists:
            return False
        except PinScopeError as error:
            self.problem = f"{self.problem}; {error}"
            return False
        return True

    def _remove(self, saved: Path) -> None:
        saved.unlink(missing_ok=True)
        if saved != self._refuge:
            _remove_empty(saved.parent)


def saved_line(path: Path) -> str:
    """What to tell somebody whose run was saved to a bundle."""
    return f"the database accepts nothing more; the run was saved to {path}: import it with `pinscope import {path}`"


def find_saved(run_id: str) -> Path | None:
    """The bundle that a writer of this user saved the run to; ``None`` if there is none."""
    for folder in _folders():
        for path in _names(run_id, folder):
            with suppress(OSError):  # no such file, or no such folder of this user alone
                check_private(folder)
                status = path.lstat()
                if stat.S_ISREG(status.st_mode) and status.st_uid == os.geteuid():
                    return path
    return None


def _names(run_id: str, folder: Path) -> Iterator[Path]:
    """Paths for a bundle, in the order to try."""
    yield folder / f"pinscope-{run_id}{SUFFIX}"
    yield from (folder / f"pinscope-{run_id}-{number}{SUFFIX}" for number in range(2, 10))


def _folders() -> Iterator[Path]:
    """Folders of this user alone, of which none need be there, in the order to try."""
    return map(own_folder, _shared_folders())


def _remove_empty(folder: Path) -> None:
    with suppress(OSError):  # something else of this user's is in it
        folder.rmdir()


def _shared_folders() -> Iterator[Path]:
    """Temporary folders first. :mod:`tempfile` tries one by a file, which would stay where this process is killed."""
    yield from (Path(folder).absolute() for folder in (os.environ.get("TMPDIR"), *SHARED_FOLDERS) if folder)
    for folder in (Path.home, Path.cwd):
        try:
            place = folder()
        except (OSError, RuntimeError):
            continue  # no such folder on this machine
        yield place
