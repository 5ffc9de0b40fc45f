"""A database file of SQLite: its connections, and reading it where it cannot be written to."""

from __future__ import annotations

import os
import shutil
import sqlite3
import threading
from contextlib import closing, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from sqlalchemy import Connection, Engine, event
from sqlalchemy.dialects import sqlite
from sqlalchemy.exc import DBAPIError
from sqlalchemy.schema import CreateTable

from pinscope.store.new_file import check_private
from pinscope.store.tables import METADATA

BUSY_SECONDS = 30
"""How long a writer waits for another process's transaction before it gives up."""
_HINDERING = (
    sqlite3.SQLITE_READONLY,
    sqlite3.SQLITE_IOERR,
    sqlite3.SQLITE_FULL,
    sqlite3.SQLITE_CANTOPEN,
    sqlite3.SQLITE_PROTOCOL,  # it tried again and again to work the log in, and could not
)
"""What SQLite answers where a file, or the log beside it, cannot be written."""
BESIDE = ("-wal", "-shm", "-journal")
"""Files that SQLite makes beside a database, with what may be done with that."""
_CHANGES = ("-wal", "-journal")
"""Files beside a database that hold changes which are not in it yet, or no longer."""
_LOG_HEADER_BYTES = 32
"""A log of this size holds no change; a writer that was killed at its beginning leaves one, and SQLite, where it may
not write, tries it for 10 s in vain (sqlite.org/fileformat.html, "The Write-Ahead Log")."""


def with_sqlite_rules(engine: Engine) -> Engine:
    """The engine, whose connections and transactions behave as they must everywhere here."""
    event.listen(engine, "connect", _configure)
    event.listen(engine, "begin", _begin_transaction)
    return engine


def _configure(connection: Any, _record: Any) -> None:
    # The driver's own rules for beginning transactions are switched off: _begin_transaction does it.
    connection.isolation_level = None
    with closing(connection.cursor()) as cursor:
        cursor.execute(f"PRAGMA busy_timeout={BUSY_SECONDS * 1000}")
        cursor.execute("PRAGMA foreign_keys=ON")
        # With the write-ahead log NORMAL survives a killed process; only a power cut may take the last moments.
        cursor.execute("PRAGMA synchronous=NORMAL")


def _begin_transaction(connection: Connection) -> None:
    """Begin as the option ``writes`` says."""
    # IMMEDIATE: a transaction that reads first and writes later could not wait for its turn any more.
    writes = connection.get_execution_options().get("writes", False)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")


def use_write_ahead_log(engine: Engine) -> None:
    """Readers and the writer then do not wait for each other. The file remembers the mode."""
    # Not in a transaction, where the mode cannot be changed.
    with (
        closing(engine.raw_connection()) as connection,
        closing(connection.cursor()) as cursor,
        # Refused where the file cannot be written, or while another process does the same: it works without.
        suppress(sqlite3.OperationalError),
    ):
        if cursor.execute("PRAGMA journal_mode").fetchone() != ("wal",):
            cursor.execute("PRAGMA journal_mode=WAL")


def hinders_writing(error: BaseException) -> bool:
    """Whether an error says that a file cannot be written here, which may leave it readable."""
    cause = error.orig if isinstance(error, DBAPIError) else error
    if isinstance(cause, sqlite3.Error):
        return (getattr(cause, "sqlite_errorcode", 0) & 0xFF) in _HINDERING
    # Of a folder that cannot be made: not NotADirectoryError and its like, which say that the name is wrong.
    return isinstance(cause, OSError) and not isinstance(cause, FileExistsError | NotADirectoryError)


def obstacle(file: Path) -> str | None:
    """What keeps the file from being written, as far as the file system tells without trying."""
    there = file
    while not os.path.exists(there) and there != there.parent:  # noqa: PTH110 - Path.exists raises where it may not look
        there = there.parent
    disk = os.statvfs(there)
    if disk.f_flag & os.ST_RDONLY:
        return f"the file system of {there} is read-only"
    if disk.f_blocks and not (disk.f_bavail if os.geteuid() else disk.f_bfree):
        return f"the disk of {there} is full"
    if there == file and not os.access(there, os.R_OK):
        return f"this user may not read {there}"
    if there != file and not os.access(there, os.X_OK):
        return f"this user may not enter {there}"
    for path in (there, there.parent) if there == file else (there,):
        if not os.access(path, os.W_OK):
            return f"this user may not write to {path}"
    return None


class ReadOnlyFile:
    """A database file that is read as it lies there, and never written to.

    Args:
        file: the database; if there is none, or an empty one, it reads as a database without tables.
    """

    def __init__(self, file: Path) -> None:
        self._file = file
        self._lock = threading.Lock()
        self._copy: TemporaryDirectory[str] | None = None
        self._copied: list[tuple[int, int]] = []

    def connect(self) -> sqlite3.Connection:
        """A new connection.

        Raises:
            sqlite3.Error: it cannot be read either.
            OSError: its copy could not be made.
        """
        if not self._size(""):
            return sqlite3.connect(":memory:", check_same_thread=False)
        uri = self._file.as_uri()
        if self._size("-wal") != _LOG_HEADER_BYTES:
            try:
                # With the log's index that a writer left or uses, the log is read too.
                return _opened(f"{uri}?mode=ro&readonly_shm=1")
            except sqlite3.OperationalError as error:
                if not hinders_writing(error):
                    raise
        if self._size("-wal") > _LOG_HEADER_BYTES or self._size("-journal"):
            return _opened(self._copied_file().as_uri())
        # SQLite then takes no lock and makes no file, and does not look at a log: there is none.
        return _opened(f"{uri}?immutable=1")

    def close(self) -> None:
        """Remove the copy, if one was made."""
        with self._lock:
            if self._copy is not None:
                self._copy.cleanup()
                self._copy = None

    def _size(self, suffix: str) -> int:
        """Bytes of the database or a file beside it; 0 if there is none.

        Raises:
            PermissionError: this user may not look.
        """
        try:
            return self._with(suffix).stat().st_size
        except FileNotFoundError:
            return 0

    def _with(self, suffix: str) -> Path:
        return self._file.with_name(self._file.name + suffix)

    def _copied_file(self) -> Path:
        """A copy with its log, where SQLite can work the log in: without it the last changes would be missing."""
        files = [self._file, *(self._with(suffix) for suffix in _CHANGES if self._size(suffix))]
        with self._lock:
            state = [(path.stat().st_size, path.stat().st_mtime_ns) for path in files]
            if self._copy is None or state != self._copied:
                if self._copy is not None:
                    self._copy.cleanup()
                self._copy = TemporaryDirectory(prefix="pinscope-")
                check_private(Path(self._copy.name))
                for path in files:
                    shutil.copyfile(path, Path(self._copy.name) / path.name)
                self._copied = state
            return Path(self._copy.name) / self._file.name


def connect_empty() -> sqlite3.Connection:
    """A database in memory with PinScope's tables and nothing in them."""
    connection = sqlite3.connect(":memory:", check_same_thread=False)
    for table in METADATA.sorted_tables:
        connection.execute(str(CreateTable(table).compile(dialect=sqlite.dialect())))
    return connection


def _opened(uri: str) -> sqlite3.Connection:
    connection = sqlite3.connect(uri, uri=True, check_same_thread=False)
    try:
        with closing(connection.execute("SELECT 1 FROM sqlite_schema LIMIT 1")) as cursor:  # opens the log, too
            cursor.fetchone()
    except BaseException:
        connection.close()
        raise
    return connection
