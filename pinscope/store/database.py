"""One open database: its address, its connections and transactions, and plain words for what goes wrong."""

from __future__ import annotations

import logging
import os
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, Self

import platformdirs
from sqlalchemy import URL, Connection, Engine, create_engine, delete, event, insert, inspect, make_url, select, text
from sqlalchemy.dialects import sqlite
from sqlalchemy.exc import (
    ArgumentError,
    DBAPIError,
    NoSuchModuleError,
    OperationalError,
    SQLAlchemyError,
    StatementError,
)
from sqlalchemy.pool import NullPool
from sqlalchemy.schema import CreateTable

import pinscope
from pinscope.errors import BadInput, NotPossible, StoreFailed
from pinscope.probes.environment import install_command
from pinscope.store.documents import dump_json, load_json
from pinscope.store.new_file import keep_private, make_private_file
from pinscope.store.tables import ADDED_IN, META, METADATA, SCHEMA_VERSION
from pinscope.text import quoted

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
    asked = [(there, os.R_OK, "read"), (there, os.W_OK, "write to"), (there.parent, os.W_OK, "write to")]
    if there != file:
        asked = [(there, os.X_OK, "enter"), (there, os.W_OK, "write to")]
    return next((f"this user may not {do} {path}" for path, mode, do in asked if not os.access(path, mode)), None)


def open_read_only(file: Path) -> sqlite3.Connection:
    """A database file that is read as it lies there, and never written to; without one, a database without runs.

    Raises:
        sqlite3.Error: it cannot be read either.
        PermissionError: this user may not look.
        StoreFailed: its last changes stand in a log that SQLite cannot read where it may not write.
    """
    if not _size(file):
        return _empty()
    log = file.with_name(f"{file.name}-wal")
    if _size(log) != _LOG_HEADER_BYTES:
        try:
            # With the log's index that a writer left or uses, the log is read too.
            return _opened(f"{file.as_uri()}?mode=ro&readonly_shm=1")
        except sqlite3.OperationalError as error:
            if not hinders_writing(error):
                raise
    for changes in (log, file.with_name(f"{file.name}-journal")):
        if _size(changes) > _LOG_HEADER_BYTES:
            raise StoreFailed(
                f"database {file}: its last changes stand in {changes.name}, which cannot be read where nothing may be "
                "written; copy both files to a folder of your own"
            )
    # SQLite then takes no lock and makes no file, and does not look at a log: there is none.
    return _opened(f"{file.as_uri()}?immutable=1")


def _size(path: Path) -> int:
    """Bytes of a file; 0 if there is none."""
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def _empty() -> sqlite3.Connection:
    """A database in memory with PinScope's tables and nothing in them."""
    connection = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
    for table in METADATA.sorted_tables:
        connection.execute(str(CreateTable(table).compile(dialect=sqlite.dialect())))
    connection.execute(f"INSERT INTO {META.name} VALUES ({SCHEMA_VERSION})")  # noqa: S608 - a number of ours
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


VARIABLE = "PINSCOPE_DATABASE"
CONNECT_SECONDS = 10
_NOTICE_A_CUT_LINE = {
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 30_000,
}
"""Of libpq: a server that cannot be reached is given up after 25 to 30 s; one that is paused is waited for."""
_PREPARE_LOCK = 0x50494E53
"""Key of PostgreSQL's advisory lock while tables are made; any number that nobody else uses."""
_DRIVERS = {"postgresql": "postgresql+psycopg", "postgres": "postgresql+psycopg"}
_EXAMPLES = "write sqlite:////path/to/pinscope.db or postgresql://user:password@host/database"
_REASON_LENGTH = 300
_SILENT = logging.NullHandler()
"""SQLAlchemy's pool would print a traceback of what it also raises, where nobody has set up logging."""


def _binary_cursor(connection: Any, **options: Any) -> Any:
    """What the server sends as it stands there: bytes written as text take twice as long."""
    cursor = import_module("psycopg").Cursor(connection, **options)
    cursor.format = 1
    return cursor


def default_url() -> str:
    """Where runs are kept unless something else is asked for: ``PINSCOPE_DATABASE``, or a file of the user's own.

    Raises:
        NotPossible: there is no folder of the user's own.
    """
    named = os.environ.get(VARIABLE, "").strip()
    if named:
        return named
    try:
        folder = _own_folder()
    except RuntimeError:
        raise NotPossible(
            "there is no place for runs, because this user has no home folder; set HOME, or set PINSCOPE_DATABASE to a "
            "database URL such as sqlite:////var/tmp/pinscope.db"
        ) from None
    return URL.create("sqlite", database=str(folder / "pinscope.db")).render_as_string()


def _own_folder() -> Path:
    """Where this user's database is by default.

    Raises:
        RuntimeError: there is no HOME, and no file of users names one.
    """
    return platformdirs.user_data_path("pinscope", appauthor=False).absolute()


def place_of_runs() -> str:
    """The database that is used unless another is named, without a password; it is not opened.

    Raises:
        BadInput: PINSCOPE_DATABASE is not a database URL.
        NotPossible: there is no folder of the user's own.
    """
    return _display_name(_parse(default_url()))


class Database:
    """Connections to one database whose tables are known to fit. Safe to share between threads.

    A SQLite file that cannot be written to (a read-only file system, another user's folder, a full disk) is read all
    the same, and :attr:`refusal` says why nothing can be stored. Where there is no file yet, it reads as empty.

    Args:
        url: any SQLAlchemy URL; ``None`` means :func:`default_url`.
        at_once: open it now; else when it is first used, and again at each use until that succeeds.

    Raises:
        BadInput: no database URL, or the database was made by a newer PinScope.
        NotPossible: the driver of that database is not installed.
        StoreFailed: it cannot be reached, opened or made, or holds something else.
    """

    def __init__(self, url: str | None = None, at_once: bool = True) -> None:
        self._url = _parse(default_url() if url is None else url)
        self.name = _display_name(self._url)
        self.refusal: str | None = None
        """Why nothing can be stored here, as the last reading found; ``None`` if nothing is known to prevent it."""
        self._file = Path(self._url.database) if _is_file(self._url) and self._url.database else None
        self._identity: tuple[int, int] | None = None
        self._is_open = False
        self._version: int | None = None
        """Of the tables, as they were when they were last looked at."""
        self._opening = threading.RLock()
        self._engine = self._create_engine()
        self._writing = self._engine.execution_options(writes=True)
        if at_once:
            try:
                with self.reading():
                    pass
            except BaseException:
                self.close()
                raise

    @property
    def url(self) -> str:
        """The whole address, password included: for a child's environment, never for display."""
        return self._url.render_as_string(hide_password=False)

    @property
    def folder(self) -> Path | None:
        """Where the file lies; of a server, this user's own folder for data."""
        with suppress(RuntimeError):  # there is none
            return self._file.parent if self._file else _own_folder()
        return None

    def close(self) -> None:
        """Close all connections. Those of other threads close when they are given back."""
        self._engine.dispose()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        """A transaction that only reads."""
        with self._plain_errors(), self._readable().connect() as connection:
            yield connection  # nothing to commit; of a damaged file that would fail as well

    @contextmanager
    def writing(self) -> Iterator[Connection]:
        """A transaction that writes: all of it or nothing. SQLite's write lock is held from its beginning.

        The first one brings the tables of an older version up to date; reading leaves them as they are.
        """
        with self._plain_errors():
            self._open()
            if self._version != SCHEMA_VERSION:
                self._bring_up_to_date()
            with self._writing.begin() as connection:
                yield connection

    def _create_engine(self) -> Engine:
        logging.getLogger("sqlalchemy").addHandler(_SILENT)
        options: dict[str, Any] = {"json_serializer": dump_json, "json_deserializer": load_json}
        if self._url.get_backend_name() == "postgresql":
            options["pool_pre_ping"] = True  # a restarted server must not fail the next statement
            given = self._url.query
            # Else psycopg takes the server's, and from one that has none (SQL_ASCII) gives bytes for text.
            arguments: dict[str, Any] = {} if "client_encoding" in given else {"client_encoding": "utf8"}
            if self._url.get_driver_name() == "psycopg":
                arguments["cursor_factory"] = _binary_cursor
            if "connect_timeout" not in given:
                arguments |= {"connect_timeout": CONNECT_SECONDS, **_NOTICE_A_CUT_LINE}
            options["connect_args"] = arguments
        try:
            engine = create_engine(self._url, **options)
        except NoSuchModuleError:
            raise BadInput(f"no database of kind {quoted(self._url.drivername)}; {_EXAMPLES}") from None
        except ImportError as error:
            missing = f"{self._url.drivername} needs a Python package that is not installed: {error.name or error}"
            if self._url.drivername == "postgresql+psycopg":
                missing = f"PostgreSQL needs the package psycopg; install it with: {install_command('postgresql')}"
            raise NotPossible(missing) from None
        except (SQLAlchemyError, TypeError, ValueError) as error:
            raise BadInput(f"database {self.name}: {self._hide(_one_line(error))}") from None
        return with_sqlite_rules(engine) if engine.dialect.name == "sqlite" else engine

    def _open(self) -> None:
        """Make the database if it is not there, and see that its tables fit; once, unless its file is replaced.

        SQLite would go on writing, without complaint, to a file that has been deleted.
        """
        with self._opening:
            if self._is_open and self._file_identity() == self._identity:
                return
            self._engine.dispose()
            self._is_open = False
            if self._file is not None:
                self._make_file(self._file)
                use_write_ahead_log(self._engine)
            with self._engine.begin() as connection:
                self._version = self._version_of(connection)
            if self._version is None:
                self._bring_up_to_date()
            self._identity = self._file_identity()
            self._is_open = True

    def _make_file(self, file: Path) -> None:
        """Make the file, of this user alone, if it is not there. PinScope's own folder is, too; of another one, and of
        a file in it, the user decides who may."""
        with suppress(RuntimeError):  # there is no such folder
            if file.parent == _own_folder():
                keep_private(file.parent)
        file.parent.mkdir(parents=True, exist_ok=True)
        make_private_file(file)

    def _readable(self) -> Engine:
        """What to read from: a SQLite file that cannot be opened for writing now is opened for reading only."""
        if self._file is None:
            self._open()
            return self._engine
        with self._opening:
            try:
                self._open()
                with self._engine.connect() as connection:  # opens the file's log, which may take room on the disk
                    connection.exec_driver_sql("SELECT 1 FROM sqlite_schema LIMIT 1")
                self.refusal = obstacle(self._file)
            except (SQLAlchemyError, sqlite3.Error, OSError) as error:
                if not hinders_writing(error):
                    raise
                self.refusal = obstacle(self._file) or _one_line(error)
                engine = _read_only_engine(self._file)
                with engine.connect() as connection:
                    self._version_of(connection)
                return engine
            return self._engine

    def _version_of(self, connection: Connection) -> int | None:
        """Version of the tables that are there; ``None`` if there are none.

        Raises:
            BadInput: a newer PinScope made them.
            StoreFailed: somebody else made them.
        """
        inspector = inspect(connection)
        there = set(inspector.get_table_names()) & set(METADATA.tables)
        if not there:
            return None
        version: Any = None
        if META.name in there:
            # Not the inspector's: it fails on a type that is no text.
            columns = [*connection.execute(select(text("*")).select_from(META).limit(0)).keys()]
            version = connection.scalar(select(META.c.schema_version)) if columns == ["schema_version"] else None
        known = isinstance(version, int) and version >= 1
        later = {name for since, names in ADDED_IN.items() if known and since > version for name in names}
        if not known or there - later != set(METADATA.tables) - later:
            raise StoreFailed(f"{self.name} is not a PinScope database: it has tables that PinScope did not make")
        if version > SCHEMA_VERSION:
            raise BadInput(
                f"{self.name} has schema version {version}; PinScope {pinscope.__version__} reads up to "
                f"{SCHEMA_VERSION}: install a newer PinScope, or point {VARIABLE} to another database"
            )
        return int(version)

    def _bring_up_to_date(self) -> None:
        """Make the tables that are missing, all or none; what older versions stored stays as it is."""
        with self._writing.begin() as connection:
            if connection.dialect.name == "postgresql":
                connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _PREPARE_LOCK})
            if self._version_of(connection) != SCHEMA_VERSION:  # else another process was faster
                METADATA.create_all(connection)
                connection.execute(delete(META))
                connection.execute(insert(META).values(schema_version=SCHEMA_VERSION))
        self._version = SCHEMA_VERSION

    def _file_identity(self) -> tuple[int, int] | None:
        try:
            status = self._file.stat() if self._file else None
        except FileNotFoundError:
            return None
        return (status.st_dev, status.st_ino) if status else None

    @contextmanager
    def _plain_errors(self) -> Iterator[None]:
        """Turn the database's exceptions into one line each, without a password in it."""
        try:
            yield
        except (SQLAlchemyError, sqlite3.Error, OSError, UnicodeError) as error:
            why = obstacle(self._file) if self._file is not None and hinders_writing(error) else None
            raise StoreFailed(f"database {self.name}: {self._hide(_one_line(error, why))}") from error

    def _hide(self, message: str) -> str:
        for secret in (self._url.password, self._url.query.get("password")):
            if isinstance(secret, str) and secret:
                message = message.replace(secret, "***")
        return message


def _parse(address: str) -> URL:
    try:
        url = make_url(address)
    except (ArgumentError, ValueError):
        # The text is not repeated: it may hold a password.
        raise BadInput(f"{VARIABLE} is not a database URL; {_EXAMPLES}") from None
    url = url.set(drivername=_DRIVERS.get(url.drivername, url.drivername))
    if _is_file(url):
        if url.database in (None, "", ":memory:"):
            raise BadInput(
                "an in-memory database would lose every run; name a file, as in sqlite:////path/to/pinscope.db"
            )
        url = url.set(database=str(Path(str(url.database)).absolute()))
    return url


def _is_file(url: URL) -> bool:
    """Whether the database is a file whose path stands in the URL (SQLite's own ``file:`` URIs are left alone)."""
    return url.get_backend_name() == "sqlite" and not str(url.database or "").startswith("file:")


def _display_name(url: URL) -> str:
    if url.get_backend_name() == "sqlite":
        return str(url.database)
    public = URL.create(url.get_backend_name(), url.username, None, url.host, url.port, url.database)
    return public.render_as_string()


def _read_only_engine(file: Path) -> Engine:
    """Each transaction connects anew: what keeps a file from being written may pass at any time."""
    connect = partial(open_read_only, file)
    return with_sqlite_rules(
        create_engine("sqlite://", creator=connect, poolclass=NullPool, json_deserializer=load_json)
    )


def _one_line(error: BaseException, why: str | None = None) -> str:
    """What went wrong; ``why`` is said in the place of SQLite's own words for a file that it cannot write."""
    if isinstance(error, OperationalError) and "database is locked" in str(error.orig):
        return f"locked by another process for {BUSY_SECONDS} s"
    cause = error.orig if isinstance(error, StatementError) and error.orig is not None else error
    if why is None and isinstance(cause, OSError) and cause.strerror:
        return f"{cause.strerror}: {cause.filename}" if cause.filename else cause.strerror
    text = why or " ".join(str(cause).split())
    if why or (isinstance(cause, sqlite3.OperationalError) and ("readonly" in text or "unable to open" in text)):
        return f"{text}; {VARIABLE} can name another place, such as sqlite:////path/to/pinscope.db"
    return text[:_REASON_LENGTH] or type(cause).__name__
