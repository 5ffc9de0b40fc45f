"""The store: runs and their observations, in any database that SQLAlchemy speaks to."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC
from types import TracebackType
from typing import Any, Self

from pydantic import ValidationError
from sqlalchemy import Connection, RowMapping, Select, delete, func, insert, select, update

from pinscope.errors import BadInput, StoreFailed, UnknownName
from pinscope.records.limits import RUN_BYTES
from pinscope.records.run import LabKind, Run, Status
from pinscope.store.bounded import RECORD, RECORD_LENGTH
from pinscope.store.database import Database
from pinscope.store.observations import BATCH, StoredRows, insert_rows, read_batch
from pinscope.store.recordings import recorded_observations, recorded_run, recorded_runs
from pinscope.store.rows import (
    Row,
    Rows,
    RunWithRows,
    changed_run,
    check_rows,
    check_run,
    checked,
    dump_json,
    first_complaint,
    is_run_id,
)
from pinscope.store.tables import ObservationTable, RunTable
from pinscope.text import quoted
from pinscope.units import format_bytes

_OWN_COLUMNS = frozenset({"status", "progress", "observations", "recording"})
"""Fields of a run that do not stand in its document."""
_RUN_COLUMNS = (
    RunTable.id, RunTable.status, RunTable.progress, RunTable.observations,
    RECORD.label("document"), RECORD_LENGTH.label("length"),
)  # fmt: skip
_RUNS_AT_ONCE = 100
_ENDING = frozenset({"status", "error", "finished_at", "progress"})
"""Fields that tell how a run ended."""
_ORIGIN = frozenset({"id", "experiment", "lab", "device", "quick", "params", "created_at"})
"""Fields that tell one run from another: set when it starts, never changed."""


@dataclass(frozen=True)
class Imported:
    """What became of the runs of a bundle, by id.

    Attributes:
        added: new here.
        completed: were here, interrupted; the bundle knew how they went on.
        skipped: the same run with the same observations was here already.
    """

    added: tuple[str, ...]
    completed: tuple[str, ...]
    skipped: tuple[str, ...]


@dataclass(frozen=True)
class LargeRun:
    """A run that an older version stored, whose record is too large to be read."""

    id: str
    bytes: int

    def __str__(self) -> str:
        return (
            f"run {self.id} is too large to show: its record, without its observations, is "
            f"{format_bytes(self.bytes)}, and at most {format_bytes(RUN_BYTES)} are read; "
            f"`pinscope runs delete {self.id}` removes it"
        )


class Store:
    """Runs and their observations. Safe to share between threads; processes each open their own.

    The recordings that ship with PinScope stand in the same lists and are read-only.

    Args:
        url: any SQLAlchemy URL. Default: ``PINSCOPE_DATABASE``, or a SQLite file in the user's data folder.

    Raises:
        BadInput: no database URL, or the database was made by a newer PinScope.
        NotPossible: the driver of that database is not installed.
        StoreFailed: the database cannot be reached, opened or written. Every method may raise it.
    """

    def __init__(self, url: str | None = None) -> None:
        self._database = Database(url)

    @property
    def url(self) -> str:
        """The whole address, password included: for a child's ``PINSCOPE_DATABASE``, never for display."""
        return self._database.url

    @property
    def name(self) -> str:
        """Where the runs are, for display: no password in it."""
        return self._database.name

    def __repr__(self) -> str:
        return f"Store({self.name!r})"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close all connections."""
        self._database.close()

    # Writing

    def add(self, run: Run) -> Run:
        """Store a new run, without observations so far.

        Raises:
            BadInput: a run of that id is here already, or it could not be stored everywhere.
        """
        run = run.model_copy(update={"observations": 0, "recording": False})
        check_run(run)
        with self._database.writing() as connection:
            if _read_run(connection, run.id) is not None:
                raise BadInput(f"run {run.id} is in the database already")
            _insert_run(connection, run)
        return run

    def update(self, run_id: str, **changes: Any) -> Run:
        """Change fields of a run (``status``, ``progress``, ``notes``, ``error``, ``process`` …).

        The row is locked meanwhile, and only the fields named are written: what another process changes at the
        same time stays. A run ends once: if its status is no longer ``running``, a different ``status`` is
        not taken, nor are the ``error``, ``progress`` and ``finished_at`` that come with it. The run returned tells.

        Raises:
            UnknownName: no such run.
            BadInput: a field that cannot be changed, a value that does not fit it, or a recording.
        """
        with self._database.writing() as connection:
            run = self._locked(connection, run_id)
            if run.status != "running" and changes.get("status", run.status) != run.status:
                changes = {field: value for field, value in changes.items() if field not in _ENDING}
            changed = changed_run(run, changes)
            columns = _columns(changed)
            if not set(changes) - _OWN_COLUMNS:
                del columns["document"]  # some kilobytes that did not change
            connection.execute(update(RunTable).where(RunTable.id == run_id).values(columns))
        return changed

    def append(self, run_id: str, rows: Sequence[Mapping[str, Any]], start: int | None = None) -> int:
        """Store observations after those that are there: all of them or none. Returns how many there are now.

        Args:
            run_id: the run they belong to.
            rows: flat mappings, labels and values in SI units.
            start: sequence number of the first row, where the caller counts himself. Rows that are stored
                already from there on are skipped, so a call whose answer was lost may be repeated.

        Raises:
            UnknownName: no such run.
            BadInput: a row that is not an observation, a gap before ``start``, or a recording.
        """
        accepted = check_rows(rows)
        with self._database.writing() as connection:
            count = connection.scalar(select(RunTable.observations).where(RunTable.id == run_id).with_for_update())
            if count is None:
                raise self._no_such_run(run_id)
            if start is not None:
                if start > count:
                    raise BadInput(f"run {run_id} has {count} observations; none can be number {start}")
                accepted = accepted[count - start :]
            return insert_rows(connection, run_id, int(count), accepted)

    def delete(self, run_id: str) -> None:
        """Remove a run and its observations, also one that can no longer be read.

        Raises:
            UnknownName: no such run.
            BadInput: a recording, or a run that is still running.
        """
        with self._database.writing() as connection:
            try:
                run = self._locked(connection, run_id)
            except (StoreFailed, json.JSONDecodeError):
                run = None
            if run is not None and run.status == "running":
                raise BadInput(f"run {run_id} is still running; cancel it first")
            connection.execute(delete(ObservationTable).where(ObservationTable.run_id == run_id))
            connection.execute(delete(RunTable).where(RunTable.id == run_id))

    def import_runs(self, items: Iterable[RunWithRows]) -> Imported:
        """Store the runs of a bundle, all of them or none.

        A run that is here with the same observations is skipped. One that was interrupted here and whose
        observations are the first ones of the bundle's is completed from it. One that still ran when it was
        exported arrives as interrupted. Observations are read and stored a few at a time.

        Raises:
            BadInput: a different run of the same id is here.
        """
        outcome: dict[str, list[str]] = {"added": [], "completed": [], "skipped": []}
        with self._database.writing() as connection:
            for run, rows in items:
                incoming = _as_imported(run, rows)
                outcome[self._import_run(connection, incoming, rows)].append(run.id)
        return Imported(**{key: tuple(ids) for key, ids in outcome.items()})

    def _import_run(self, connection: Connection, incoming: Run, rows: Rows) -> str:
        check_run(incoming)
        stored = _read_run(connection, incoming.id, lock=True)
        if stored is not None:
            here = _each_row(connection, stored)
        else:
            stored = recorded_run(incoming.id)
            if stored is None:
                _insert_run(connection, incoming)
                insert_rows(connection, incoming.id, 0, checked(rows))
                return "added"
            here = iter(recorded_observations(stored.id))
        there = checked(rows)
        same_rows = all(_canonical(row) == _canonical(next(there, {})) for row in here)
        if same_rows and stored.observations == len(rows) and _facts(stored) == _facts(incoming):
            return "skipped"
        same_origin = _facts(stored, only=_ORIGIN) == _facts(incoming, only=_ORIGIN)
        if not (same_rows and same_origin and stored.status == "interrupted" and not stored.recording):
            raise BadInput(f"a different run {incoming.id} is in the database already; nothing was imported")
        insert_rows(connection, stored.id, stored.observations, there)
        connection.execute(update(RunTable).where(RunTable.id == stored.id).values(_columns(incoming)))
        return "completed"

    # Reading

    def run(self, run_id: str) -> Run:
        """The run of that id, or of the only id that begins so; recordings included.

        Raises:
            UnknownName: no such run, or several.
        """
        if not is_run_id(run_id):  # some databases fail on characters that no id has
            raise self._no_such_run(run_id)
        with self._database.reading() as connection:
            found = _read_run(connection, run_id) or recorded_run(run_id)
            if found is not None:
                return found
            begins = func.substr(RunTable.id, 1, len(run_id)) == run_id
            ids = list(connection.scalars(select(RunTable.id).where(begins).order_by(RunTable.id)))
            ids += [run.id for run in recorded_runs() if run.id.startswith(run_id) and run.id not in ids]
            if len(ids) > 1 and run_id:
                shown = ", ".join(ids[:4]) + (" …" if len(ids) > 4 else "")
                raise UnknownName(f"{quoted(run_id)} begins {len(ids)} runs: {shown}; write more of the id")
            found = _read_run(connection, ids[0]) or recorded_run(ids[0]) if ids and run_id else None
        if found is None:
            raise UnknownName(f"no run {quoted(run_id)}; `pinscope runs list` shows what there is")
        return found

    def runs(
        self,
        experiment: str | None = None,
        lab: LabKind | None = None,
        status: Status | None = None,
        recordings: bool = True,
    ) -> list[Run]:
        """Runs that match, newest first; the recordings that ship with PinScope come last.

        Without those whose record is too large to be read: :meth:`large_runs` has them.
        """
        return list(self.each_run(experiment, lab, status, recordings))

    def each_run(
        self,
        experiment: str | None = None,
        lab: LabKind | None = None,
        status: Status | None = None,
        recordings: bool = True,
    ) -> Iterator[Run]:
        """The same one after the other: a database may hold more than fit into memory."""
        wanted = {"experiment": experiment, "lab": lab, "status": status}
        wanted = {field: value for field, value in wanted.items() if value is not None}
        query = select(RunTable.id).order_by(RunTable.created_at.desc(), RunTable.id.desc())
        for field, value in wanted.items():
            query = query.where(getattr(RunTable, field) == value)
        with self._database.reading() as connection:
            ids = list(connection.scalars(query))
            stored = set(connection.scalars(select(RunTable.id))) if recordings else set()
        for batch in (ids[first : first + _RUNS_AT_ONCE] for first in range(0, len(ids), _RUNS_AT_ONCE)):
            yield from self._some_runs(batch)
        if recordings:
            for run in recorded_runs():
                if run.id not in stored and all(getattr(run, field) == value for field, value in wanted.items()):
                    yield run

    def _some_runs(self, ids: Sequence[str]) -> list[Run]:
        """Those of the ids that are there still, in their order."""
        query = select(*_RUN_COLUMNS).where(RunTable.id.in_(ids), RECORD_LENGTH <= RUN_BYTES)
        with self._database.reading() as connection:
            try:
                found = {row["id"]: _as_run(row) for row in connection.execute(query).mappings()}
            except json.JSONDecodeError:
                raise _first_damaged(connection) from None
        return [found[run_id] for run_id in ids if run_id in found]

    def large_runs(self) -> list[LargeRun]:
        """Runs of the database whose record is too large to be read, by id."""
        query = select(RunTable.id, RECORD_LENGTH).where(RECORD_LENGTH > RUN_BYTES).order_by(RunTable.id)
        with self._database.reading() as connection:
            return [LargeRun(run_id, length) for run_id, length in connection.execute(query)]

    def unfinished(self) -> list[Run]:
        """Runs whose status is ``running``, whether or not their child still lives."""
        return self.runs(status="running", recordings=False)

    def observations(self, run_id: str, start: int = 0) -> Sequence[Row]:
        """The rows of a run in the order in which they were measured, from number ``start`` on.

        Those of the database are read when they are asked for, a few at a time; see :class:`StoredRows`.

        Raises:
            UnknownName: no such run.
        """
        with self._database.reading() as connection:
            count = connection.scalar(select(RunTable.observations).where(RunTable.id == run_id))
        if count is not None:
            return StoredRows(self._database.reading, run_id, start, int(count) - start)
        if recorded_run(run_id) is None:
            raise self._no_such_run(run_id)
        return recorded_observations(run_id)[start:]

    def _locked(self, connection: Connection, run_id: str) -> Run:
        run = _read_run(connection, run_id, lock=True)
        if run is None:
            raise self._no_such_run(run_id)
        return run

    def _no_such_run(self, run_id: str) -> BadInput:
        if recorded_run(run_id) is not None:
            return BadInput(f"run {run_id} is a recording that ships with PinScope; it cannot be changed or deleted")
        return UnknownName(f"no run {quoted(run_id)}; `pinscope runs list` shows what there is")


def _columns(run: Run) -> dict[str, Any]:
    """A run as the values of its row, without the count of its observations."""
    document = run.model_dump(mode="json", exclude=set(_OWN_COLUMNS))
    created = run.created_at.astimezone(UTC).replace(tzinfo=None)
    return {
        "id": run.id,
        "experiment": run.experiment,
        "lab": run.lab,
        "status": run.status,
        "created_at": created,
        "progress": run.progress.model_dump(mode="json"),
        "document": document,
    }


def _as_run(row: RowMapping) -> Run:
    fields = {key: row[key] for key in ("id", "status", "progress", "observations")}
    if row["length"] > RUN_BYTES:
        raise StoreFailed(str(LargeRun(str(row["id"]), row["length"])))
    try:
        return Run.model_validate({**row["document"], **fields})
    except (ValidationError, TypeError) as error:
        why = first_complaint(error) if isinstance(error, ValidationError) else "it is not a document"
        raise _unreadable(str(row["id"]), why) from None


def _unreadable(run_id: str, why: str) -> StoreFailed:
    return StoreFailed(
        f"run {run_id} in the database cannot be read ({why}); `pinscope runs delete {run_id}` removes it"
    )


def _first_damaged(connection: Connection) -> StoreFailed:
    """Which run holds the text that is not JSON: a list of all of them cannot tell."""
    for run_id in connection.scalars(select(RunTable.id)).all():
        try:
            connection.execute(select(RunTable.progress, RunTable.document).where(RunTable.id == run_id)).all()
        except json.JSONDecodeError as error:
            return _unreadable(run_id, f"it is not JSON: {error}")
    return StoreFailed("a run in the database cannot be read")


def _read_run(connection: Connection, run_id: str, lock: bool = False) -> Run | None:
    query: Select[Any] = select(*_RUN_COLUMNS).where(RunTable.id == run_id)
    row = connection.execute(query.with_for_update() if lock else query).mappings().one_or_none()
    return None if row is None else _as_run(row)


def _insert_run(connection: Connection, run: Run) -> None:
    connection.execute(insert(RunTable).values(**_columns(run), observations=0))


def _each_row(connection: Connection, run: Run) -> Iterator[Row]:
    """The rows of a run within a transaction."""
    for first in range(0, run.observations, BATCH):
        yield from read_batch(connection, run.id, first)


def _as_imported(run: Run, rows: Rows) -> Run:
    """A run from elsewhere: nothing here works on it any more."""
    changes: dict[str, Any] = {"recording": False, "observations": len(rows)}
    if run.status == "running":
        note = "It was still running when it was exported."
        changes |= {"status": "interrupted", "process": None, "notes": (*run.notes, note)}
    return run.model_copy(update=changes)


def _facts(run: Run, only: frozenset[str] | None = None) -> str:
    """What a run says of itself, comparable as text."""
    return dump_json(run.model_dump(mode="json", include=only, exclude={"recording"}))  # type: ignore[arg-type]


def _canonical(row: Row) -> str:
    return json.dumps(row, sort_keys=True)
