"""A writer that loses nothing: what the database does not take is appended to a file, from where the next command
takes it."""

from __future__ import annotations

import fcntl
import json
import os
import stat
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from pinscope.errors import PinScopeError, StoreFailed
from pinscope.records.run import Run, parse_run
from pinscope.store.documents import StoredRow, changed_run, checked, dump_json, storable
from pinscope.store.new_file import PRIVATE_FILE, SHARED_FOLDERS, check_private, make_private, own_folder
from pinscope.store.store import Store

FLUSH_SECONDS = 0.2
"""How often :meth:`SafeWriter.flush` is to be called, so that no row waits longer though no other follows."""


class SafeWriter:
    """Stores the observations of one run as they come.

    A row is stored before :meth:`append` returns. Where rows come faster than the store takes them, they are stored
    together: the writer spends at most half of the time in the store.

    If the store fails (disk full, server gone, file deleted), the whole run is written to a file, where
    :func:`bring_in` finds it: each row before :meth:`append` returns. The rows of the whole run are kept in memory for
    that, less than 1 KB each.

    Args:
        store: where the rows belong.
        run: the run they belong to, as it stands in the store, without observations so far.
        clock: seconds, monotonic.
    """

    def __init__(self, store: Store, run: Run, clock: Callable[[], float] = time.monotonic) -> None:
        self.run = storable(run)
        """The run as it was last stored, or as it should have been."""
        self.rows: list[StoredRow] = []
        """All observations so far, stored or not."""
        self.problem: str | None = None
        """Why rows or changes wait, one line; ``None`` while the store takes them."""
        self.cancelled = False
        """Whether somebody marked the run as cancelled, as of the last change that was stored."""
        self._store = store
        self._clock = clock
        self._stored = 0
        self._changes: dict[str, Any] = {}
        self._next_try = clock()
        self._closed = False
        self._file: _File | None = None
        self._lock = threading.Lock()

    def append(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Store rows, now or soon.

        Raises:
            BadInput: a row that is not an observation. A failing store raises nothing here.
        """
        accepted = list(checked(rows))
        with self._lock:
            self.rows += accepted
            self._take_turn()

    def update(self, **changes: Any) -> None:
        """Change fields of the run as :meth:`Store.update` does, now or soon.

        Raises:
            BadInput: a value that does not fit its field.
        """
        with self._lock:
            self._change(changes)
            self._take_turn()

    def flush(self) -> None:
        """Store what waits."""
        with self._lock:
            self._take_turn()

    def close(self, **changes: Any) -> Path | None:
        """Store what is left and the last changes of the run. The path of the file if the store did not take them.

        Raises:
            BadInput: changes that do not fit the run.
            StoreFailed: the rows could be put nowhere.
        """
        with self._lock:
            if self._closed:
                return None
            self._change(changes)
            self._closed = True
            if self.problem is not None:
                self._keep(is_last=True)  # first: a user who waits for this process may lose patience
            self._flush()
            if self.problem is None:
                if self._file is not None:
                    self._file.remove()
                return None
            if not self._keep(is_last=True) or self._file is None:
                raise StoreFailed(f"{len(self.rows)} observations are lost, no file could take them: {self.problem}")
            self._file.close()
            return self._file.path

    def _change(self, changes: dict[str, Any]) -> None:
        self.run = changed_run(self.run, changes)
        self._changes |= changes

    def _take_turn(self) -> None:
        """Store what waits if the store has rested as long as the last call took."""
        if self._closed:
            return
        if (self._stored < len(self.rows) or self._changes) and self._clock() >= self._next_try:
            self._flush()
        if self.problem is not None:
            self._keep()

    def _flush(self) -> None:
        begun = self._clock()
        try:
            if self._stored < len(self.rows):
                # With its start the call may be repeated, even if it had succeeded and only the answer was lost.
                self._store.append(self.run.id, self.rows[self._stored :], start=self._stored)
                self._stored = len(self.rows)
            if self._changes:
                self.run = self._store.update(self.run.id, **self._changes)
                self.cancelled = self.run.status == "cancelled"
                self._changes = {}
            self.problem = None
        except PinScopeError as error:  # rows and changes were checked: it is the store, or the run is not in it
            self.problem = str(error)
        now = self._clock()
        self._next_try = now + (now - begun)

    def _keep(self, is_last: bool = False) -> bool:
        """Write what is in no file yet; a file that takes no more is replaced by one elsewhere. Whether it is kept."""
        if self._file is not None and self._file.takes(self.run, self.rows, is_last):
            return True
        for folder in _folders(self._store):
            with suppress(OSError):
                another = _File(folder, self._store.name, self.run.id)
                if another.takes(self.run, self.rows, is_last):
                    if self._file is not None:
                        self._file.remove()
                    self._file = another
                    return True
                another.remove()
        return False


class _File:
    """The file of one run: lines of JSON, of which the last run counts. Locked as long as this process lives.

    Raises:
        OSError: it is there already, or the folder is not this user's alone.
    """

    def __init__(self, folder: Path, database: str, run_id: str) -> None:
        make_private(folder)
        check_private(folder)
        self.path = folder / _name(run_id)
        self._file = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC, PRIVATE_FILE)
        with suppress(OSError):  # a file system without locks: two commands may store it then, which does no harm
            fcntl.flock(self._file, fcntl.LOCK_EX)
        self._database = database
        self._size = 0
        self._rows = 0

    def takes(self, run: Run, rows: Sequence[StoredRow], is_last: bool) -> bool:
        """Append the rows that it does not hold, and first and last the run; whether it holds all now."""
        lines: list[Any] = [[row] for row in rows[self._rows :]]
        if is_last or not self._size:
            lines.insert(0, {"database": self._database, "run": run.model_dump(mode="json")})
        content = "".join(f"{dump_json(line)}\n" for line in lines).encode()
        try:
            left = memoryview(content)
            while left:
                left = left[os.write(self._file, left) :]
        except OSError:
            with suppress(OSError):
                os.ftruncate(self._file, self._size)  # else what follows would stand in a line that is not whole
            return False
        self._size, self._rows = self._size + len(content), len(rows)
        return True

    def close(self) -> None:
        """Release its lock: the next command may store the run."""
        with suppress(OSError):
            os.fsync(self._file)
        os.close(self._file)

    def remove(self) -> None:
        """The database has it all."""
        _remove(self.path)
        os.close(self._file)


def saved_line(path: Path) -> str:
    """What to tell somebody whose run is in a file."""
    return f"the database accepts nothing more; the run was saved to {path}, from where the next command stores it"


def find_saved(store: Store, run_id: str) -> tuple[Run, list[StoredRow]] | None:
    """The run that a writer of this user, which has ended, saved; ``None`` if there is none."""
    for folder in _folders(store):
        with suppress(OSError), _opened(folder / _name(run_id)) as lines:
            if saved := _read(store, lines):
                return saved
    return None


def bring_in(store: Store) -> None:
    """Store what writers that have ended saved. What the store does not take now stays where it is."""
    for folder in _folders(store):
        for path in folder.glob(_name("*")):
            with suppress(OSError, PinScopeError), _opened(path) as lines:
                if saved := _read(store, lines):
                    store.restore(*saved)
                    _remove(path)


def _read(store: Store, lines: Iterator[bytes]) -> tuple[Run, list[StoredRow]] | None:
    """A run of this database with its observations, as far as its writer came; ``None``: it is of another one."""
    run: Run | None = None
    rows: list[StoredRow] = []
    with suppress(ValueError, LookupError, TypeError):  # its writer was killed while it wrote the last line
        for line in lines:
            held = json.loads(line)
            if isinstance(held, list):
                rows += held
            elif held["database"] == store.name:
                run = parse_run(held["run"])
    return None if run is None else (run, rows)


@contextmanager
def _opened(path: Path) -> Iterator[Iterator[bytes]]:
    """The lines of a file that only this user can have written.

    Raises:
        OSError: there is none, it is another's, or its writer lives.
    """
    check_private(path.parent)
    with open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NOFOLLOW | os.O_NONBLOCK)) as file:
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid():
            raise PermissionError(f"{path} is not a file of this user")
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield file


def _name(run_id: str) -> str:
    return f"unsaved-{run_id}.jsonl"


def _remove(path: Path) -> None:
    with suppress(OSError):  # something else of this user's is in the folder
        path.unlink(missing_ok=True)
        path.parent.rmdir()


def _folders(store: Store) -> Iterator[Path]:
    """Folders of this user alone, of which none need be there, in the order to try: beside the database first."""
    others = (os.environ.get("TMPDIR"), *SHARED_FOLDERS, os.environ.get("HOME"))
    places = [store.folder, *(Path(folder).absolute() for folder in others if folder and os.path.isdir(folder))]  # noqa: PTH112
    return (own_folder(place) for place in dict.fromkeys(places) if place)
