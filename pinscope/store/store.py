"""The store: runs and their observations, in any database that SQLAlchemy speaks to."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from itertools import chain, islice
from typing import TYPE_CHECKING, Any, Unpack

from pydantic import ValidationError
from sqlalchemy import Connection, Select, Table, Text, cast, delete, func, insert, select, update

from pinscope.analysis.read_rows import Attached
from pinscope.errors import BadInput, StoreFailed, UnknownName
from pinscope.records.base import MIB
from pinscope.records.labels import LABELS
from pinscope.records.run import Attachment, Run, parse_run
from pinscope.store import documents, tables
from pinscope.store.attachments import AttachmentWriter, Parts, attached_by, no_parts, parts_alike, with_part
from pinscope.store.bundle import as_imported, is_completed_by, knows_all
from pinscope.store.choice import COLUMNS, Wanted, fits, stands_for
from pinscope.store.database import Database
from pinscope.store.figures import FigureTable, row_of
from pinscope.store.packed import pack
from pinscope.store.recordings import (
    recorded_observations,
    recorded_parts,
    recorded_run,
    recorded_runs,
    recording_called,
    recording_names,
)
from pinscope.store.rows import BATCH, Reading, StoredRows
from pinscope.text import first_of, quoted

if TYPE_CHECKING:
    import pyarrow as pa

OWN_COLUMNS = frozenset({"status", "progress", "observations", "recording", "figures"})
"""Fields of a run that do not stand in its document."""
RUN_COLUMNS = (
    tables.RUNS.c.id,
    tables.RUNS.c.status,
    tables.RUNS.c.progress,
    tables.RUNS.c.observations,
    tables.RUNS.c.document,
)


def as_columns(run: Run) -> dict[str, Any]:
    """A run as the values of its row, without the count of its observations."""
    return {
        "id": run.id,
        "experiment": run.experiment,
        "lab": run.lab,
        "status": run.status,
        "created_at": run.created_at.astimezone(UTC).replace(tzinfo=None),
        "progress": run.progress.model_dump(mode="json"),
        "document": run.model_dump(mode="json", exclude=set(OWN_COLUMNS)),
    }


def insert_run(connection: Connection, run: Run) -> None:
    """Add a run, without observations so far."""
    connection.execute(insert(tables.RUNS).values(**as_columns(run), observations=0))


def change_run(connection: Connection, run_id: str, **columns: Any) -> None:
    """Give some columns of its row other values."""
    connection.execute(update(tables.RUNS).where(tables.RUNS.c.id == run_id).values(columns))


def read_run(connection: Connection, run_id: str, lock: bool = False) -> Run | None:
    """The run of exactly that id.

    Raises:
        StoreFailed: it cannot be read.
    """
    query: Select[Any] = select(*RUN_COLUMNS).where(tables.RUNS.c.id == run_id)
    row = connection.execute(query.with_for_update() if lock else query).mappings().one_or_none()
    run = None if row is None else _run_or_damage(row)
    if isinstance(run, documents.DamagedRun):
        raise StoreFailed(str(run))
    return run


def _run_or_damage(row: Mapping[Any, Any]) -> Run | documents.DamagedRun:
    """A stored run, or why it cannot be read."""
    name, document = row["id"], row["document"]
    for part in (document, row["progress"]):
        if isinstance(part, documents.Damage):
            return documents.DamagedRun(name, part.why)
    try:
        return parse_run({**document, **{key: row[key] for key in ("id", "status", "progress", "observations")}})
    except ValidationError as error:
        return documents.DamagedRun(name, documents.first_complaint(error))
    except TypeError:
        return documents.DamagedRun(name, "it is not a document")


def insert_rows(connection: Connection, run_id: str, first: int, rows: Iterable[documents.StoredRow]) -> int:
    """Add rows from number ``first`` on, and count them. How many rows the run has then."""
    count, left = first, iter(rows)
    while batch := list(islice(left, BATCH)):
        records: list[dict[str, Any]] = [
            {"run_id": run_id, "sequence": place, "row": row} for place, row in enumerate(batch, start=count)
        ]
        connection.execute(insert(tables.OBSERVATIONS), records)
        count += len(batch)
    if count > first:
        change_run(connection, run_id, observations=count)
    return count


class NewRows:
    """Rows of new runs, stored together: each table's in one call, a few megabytes at a time, the runs first."""

    MOST_BYTES = 4 * MIB

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self._waiting: dict[Table, list[dict[str, Any]]] = {}
        self._bytes = 0

    def add(self, table: Table, row: dict[str, Any]) -> None:
        """A row, to be stored with others."""
        self._waiting.setdefault(table, []).append(row)
        self._bytes += len(row.get("content", b""))
        if self._bytes > self.MOST_BYTES:
            self.write()

    def write(self) -> None:
        """Store what waits."""
        for table in tables.METADATA.sorted_tables:
            if rows := self._waiting.get(table):
                self.connection.execute(insert(table), rows)
        self._waiting, self._bytes = {}, 0


def insert_part(connection: Connection, run_id: str, name: str, number: int, content: bytes) -> None:
    """Add one part of an attachment."""
    connection.execute(insert(tables.PARTS).values(run_id=run_id, name=name, sequence=number, content=content))


def insert_parts(connection: Connection, run: Run, parts: Parts, stored: Run | None = None) -> None:
    """Add the parts of a run that are not stored yet."""
    there = stored.parts if stored else {}
    for attachment in run.attachments:
        for number, content in enumerate(parts(run, attachment)):
            if number >= there.get(attachment.name, 0):
                insert_part(connection, run.id, attachment.name, number, content)


def stored_parts(reading: Reading, run: Run, attachment: Attachment) -> Iterator[bytes]:
    """As many parts as the attachment says.

    Raises:
        StoreFailed: one is missing.
    """
    for number in range(attachment.parts):
        query = select(tables.PARTS.c.content).where(
            tables.PARTS.c.run_id == run.id, tables.PARTS.c.name == attachment.name, tables.PARTS.c.sequence == number
        )
        with reading() as connection:
            content = connection.scalar(query)
        if content is None:
            raise StoreFailed(f"part {number} of {attachment.name} of run {run.id} is missing in the database")
        yield content


_ENDING = frozenset({"status", "error", "finished_at", "progress"})
"""Fields that tell how a run ended."""
_RUNS_AT_ONCE = 100
_FIRST_IDS = 1000


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


class Store(Database):
    """Runs and their observations. Safe to share between threads; processes each open their own.

    The recordings that ship with PinScope stand in the same lists and are read-only. Every method may raise
    :class:`StoreFailed`: the database cannot be reached, opened or written.

    Args:
        url: any SQLAlchemy URL. Default: ``PINSCOPE_DATABASE``, or a SQLite file in the user's data folder.
        at_once: open it now; else when it is first used, and again at each use until that succeeds.
    """

    def __init__(self, url: str | None = None, at_once: bool = True) -> None:
        super().__init__(url, at_once)
        self.figures = FigureTable()
        self.presumed: dict[str, dict[str, Any]] = {}
        """Changes that runs are shown with though the database does not take them, until it says how they ended."""

    # Writing

    def add(self, run: documents.RunT) -> documents.RunT:
        """Store a new run, without observations so far.

        Raises:
            BadInput: a run of that id is here already, or it could not be stored everywhere.
        """
        run = documents.storable(run.model_copy(update={"observations": 0, "recording": False}))
        with self.writing() as connection:
            if read_run(connection, run.id) is not None:
                raise BadInput(f"run {run.id} is in the database already")
            insert_run(connection, run)
        return run

    def update(self, run_id: str, **changes: Any) -> Run:
        """Change fields of a run (``status``, ``progress``, ``notes``, ``error``, ``process`` …).

        The row is locked meanwhile, and only the fields named are written: what another process changes at the
        same time stays. A run ends once: if its status is no longer ``running``, a different ``status`` is
        not taken, nor are the ``error``, ``progress`` and ``finished_at`` that come with it. The run returned tells.

        Raises:
            UnknownName: no such run.
            BadInput: a value that does not fit its field, or a recording.
        """
        with self.writing() as connection:
            run = self._locked(connection, run_id)
            if run.status != "running" and changes.get("status", run.status) != run.status:
                changes = {field: value for field, value in changes.items() if field not in _ENDING}
            changed = documents.changed_run(run, changes)
            columns = as_columns(changed)
            if not set(changes) - OWN_COLUMNS:
                del columns["document"]  # some kilobytes that did not change
            change_run(connection, run_id, **columns)
            if changed.figures:
                self.figures.keep(connection, changed)
            elif "tags" in changes:
                self.figures.keep_tags(connection, changed)
        return changed.model_copy(update={"figures": None})

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
        accepted = list(documents.checked(rows))
        with self.writing() as connection:
            count = connection.scalar(
                select(tables.RUNS.c.observations).where(tables.RUNS.c.id == run_id).with_for_update()
            )
            if count is None:
                raise self._no_such_run(run_id)
            if start is not None:
                if start > count:
                    raise BadInput(f"run {run_id} has {count} observations; none can be number {start}")
                accepted = accepted[count - start :]
            return insert_rows(connection, run_id, int(count), accepted)

    def attach(self, run_id: str, name: str, schema: pa.Schema) -> AttachmentWriter:
        """A writer of a table that the run carries beside its observations. What it stored stays if it is killed.

        Raises:
            UnknownName: no such run.
            BadInput: an attachment of that name is there already.
        """
        run = self.run(run_id)
        if run.attachment(name):
            raise BadInput(f"run {run.id} has an attachment {quoted(name)} already")
        return AttachmentWriter(partial(self._append_part, run.id, name), schema)

    def _append_part(self, run_id: str, name: str, number: int, content: bytes, rows: int) -> None:
        """Store the next part of an attachment; one that is there already is left as it is."""
        with self.writing() as connection:
            run = self._locked(connection, run_id)
            if (stored := run.attachment(name)) and number < stored.parts:
                return
            insert_part(connection, run_id, name, number, content)
            changed = as_columns(with_part(run, name, rows, len(content)))
            change_run(connection, run_id, document=changed["document"])

    def delete(self, run_id: str) -> None:
        """Remove a run with its observations and attachments, also one that can no longer be read.

        Raises:
            UnknownName: no such run.
            BadInput: a recording, or a run that is still running.
        """
        with self.writing() as connection:
            try:
                run = self._locked(connection, run_id)
            except StoreFailed:
                run = None
            if run is not None and run.status == "running":
                raise BadInput(f"run {run_id} is still running; cancel it first")
            connection.execute(delete(tables.RUNS).where(tables.RUNS.c.id == run_id))  # what belongs to it goes with it

    def older_than(self, moment: datetime) -> list[str]:
        """Ids of the runs that began before, but for those that still run and those that are starred; the oldest
        first."""
        columns = tables.RUNS.c
        is_starred = cast(columns.document, Text).contains('"baseline":true')  # quotes in a text are escaped
        began_before = columns.created_at < moment.astimezone(UTC).replace(tzinfo=None)
        query = select(columns.id).where(began_before, columns.status != "running", ~is_starred)
        with self.reading() as connection:
            return list(connection.scalars(query.order_by(columns.created_at)))

    def delete_many(self, ids: Sequence[str]) -> int:
        """Remove runs that do not run, a hundred in one transaction; how many there were."""
        deleted = 0
        for first in range(0, len(ids), _RUNS_AT_ONCE):
            some = tables.RUNS.c.id.in_(ids[first : first + _RUNS_AT_ONCE])
            with self.writing() as connection:
                ended = connection.execute(delete(tables.RUNS).where(some, tables.RUNS.c.status != "running"))
            deleted += ended.rowcount
        return deleted

    def restore(self, run: Run, rows: Sequence[documents.StoredRow]) -> None:
        """Store what a writer of this database kept in a file: the run, unless it is here, and rows that are not.

        Raises:
            BadInput: the run could not be stored.
        """
        run = documents.storable(run)
        with self.writing() as connection:
            stored = read_run(connection, run.id, lock=True)
            if stored is None:
                insert_run(connection, run)
                stored = run.model_copy(update={"observations": 0})
            self._complete(connection, stored, run, rows, "attachments")

    def _complete(
        self, connection: Connection, stored: Run, run: Run, rows: Iterable[documents.StoredRow], *kept: str
    ) -> None:
        """Add the rows that are not here, and what is known of the run but for fields that stay as they are here."""
        insert_rows(connection, run.id, stored.observations, islice(documents.checked(rows), stored.observations, None))
        # A run ends once, and one whose writer was killed says nothing of its end.
        ending = _ENDING if stored.status == "cancelled" or run.status == "running" else ()
        run = run.model_copy(update={field: getattr(stored, field) for field in (*kept, *LABELS, *ending)})
        change_run(connection, run.id, **as_columns(run))
        self.figures.keep(connection, run)

    def import_runs(self, items: Iterable[documents.RunWithRows], parts: Parts = no_parts) -> Imported:
        """Store the runs of a bundle, all of them or none.

        A run is skipped if the database knows all that the bundle does. It is completed if its observations here are
        the first ones of the bundle's, and it was interrupted or cancelled. One that still ran when it was exported
        arrives as interrupted. Observations and parts of attachments are read and stored a few at a time.

        Args:
            items: the runs as a bundle gives them, with their observations.
            parts: gives the parts of their attachments.

        Raises:
            BadInput: a different run of the same id is here.
        """
        outcome: dict[str, list[str]] = {"added": [], "completed": [], "skipped": []}
        left = iter(items)
        with self.writing() as connection:
            while some := list(islice(left, _RUNS_AT_ONCE)):
                here = self._stored_of(connection, [run.id for run, _ in some])
                new = NewRows(connection)
                for run, rows in some:
                    incoming, has_ended = as_imported(run, rows), run.status != "running"
                    if incoming.id in here or recorded_run(incoming.id):
                        word = self._import_known(connection, incoming, rows, has_ended, parts)
                    else:
                        word = self._import_new(new, incoming, rows, parts)
                    outcome[word].append(run.id)
                new.write()
        return Imported(**{key: tuple(ids) for key, ids in outcome.items()})

    @staticmethod
    def _stored_of(connection: Connection, ids: Sequence[str]) -> set[str]:
        return set(connection.scalars(select(tables.RUNS.c.id).where(tables.RUNS.c.id.in_(ids))))

    def _import_new(self, new: NewRows, incoming: Run, rows: documents.RowSource, parts: Parts) -> str:
        new.add(tables.RUNS, {**as_columns(incoming), "observations": len(rows)})
        for block in pack(rows):
            new.add(tables.BLOCKS, {"run_id": incoming.id, **block})
        if known := row_of(incoming):
            self.figures.keep_texts(new.connection, known[1])
            new.add(tables.FIGURES, known[0])
        for attachment in incoming.attachments:
            for number, content in enumerate(parts(incoming, attachment)):
                part = {"run_id": incoming.id, "name": attachment.name, "sequence": number, "content": content}
                new.add(tables.PARTS, part)
        return "added"

    def _import_known(
        self, connection: Connection, incoming: Run, rows: documents.RowSource, has_ended: bool, parts: Parts
    ) -> str:
        here: Sequence[documents.StoredRow]
        stored = read_run(connection, incoming.id, lock=True)
        if stored is not None:
            here = StoredRows(lambda: nullcontext(connection), stored.id, 0, stored.observations)
        elif stored := recorded_run(incoming.id):
            here = recorded_observations(stored.id)
        else:
            raise StoreFailed(f"run {incoming.id} was deleted meanwhile; nothing was imported")
        there = recorded_parts if stored.recording else partial(stored_parts, lambda: nullcontext(connection))
        alike = partial(parts_alike, stored, there, incoming, parts)
        if knows_all(stored, here, incoming, rows, has_ended) and alike(incoming.attachments):
            return "skipped"
        if not (is_completed_by(stored, here, incoming, rows) and alike(stored.attachments)):
            raise BadInput(f"a different run {incoming.id} is in the database already; nothing was imported")
        insert_parts(connection, incoming, parts, stored)
        self._complete(connection, stored, incoming, rows)
        return "completed"

    # Reading

    def run(self, run_id: str) -> Run:
        """The run of that id, of the only id that begins so, or of that name; recordings too, which are called as their
        files. Words that may stand there instead: :data:`pinscope.store.choice.WORDS`.

        Raises:
            UnknownName: no such run, or several.
        """
        if word := stands_for(run_id):
            back, wanted = word
            run = next(islice(self.each_run(**wanted), back, None), None)
        else:
            run = self._by_id(run_id) or self._by_name(run_id)
        if run is None:
            raise self._no_such_run(run_id)
        return self._as_presumed(run)

    def _by_id(self, run_id: str) -> Run | None:
        if not documents.is_run_id(run_id):  # some databases fail on characters that no id has
            return None
        with self.reading() as connection:
            run = read_run(connection, run_id) or recorded_run(run_id)
            if run is None and (only := self._only_id(connection, run_id)):
                run = read_run(connection, only) or recorded_run(only)
            return run

    def _by_name(self, name: str) -> Run | None:
        called = [run for run in self.each_run(recordings=False) if run.name == name]
        if len(called) > 1:
            some = first_of([run.id for run in called])
            raise UnknownName(f"{len(called)} runs are called {quoted(name)}: {some}; write an id")
        return called[0] if called else recording_called(name)

    def _only_id(self, connection: Connection, beginning: str) -> str | None:
        """The id that begins so, if there is one; UnknownName if there are several."""
        begins = func.substr(tables.RUNS.c.id, 1, len(beginning)) == beginning
        ids = list(connection.scalars(select(tables.RUNS.c.id).where(begins).order_by(tables.RUNS.c.id)))
        ids += [run.id for run in recorded_runs() if run.id.startswith(beginning) and run.id not in ids]
        if len(ids) > 1:
            raise UnknownName(f"{len(ids)} runs begin with {quoted(beginning)}: {first_of(ids)}; write more of the id")
        return ids[0] if ids else None

    def listed(self, **wanted: Unpack[Wanted]) -> Iterator[Run | documents.DamagedRun]:
        """Runs that match, and those that cannot be read, one after the other: there may be more than fit into memory.

        Newest first; the recordings that ship with PinScope come last.
        """
        recordings = wanted.get("recordings", True)
        query = select(tables.RUNS.c.id).order_by(tables.RUNS.c.created_at.desc(), tables.RUNS.c.id.desc())
        for field in COLUMNS:
            value = wanted.get(field)
            if value is not None and (field != "status" or not self.presumed):
                query = query.where(tables.RUNS.c[field] == value)
        with self.reading() as connection:
            stored = self._stored_of(connection, [run.id for run in recorded_runs()]) if recordings else set()
        ids = islice(self._ids(query), wanted.get("most"))
        groups = iter(lambda: list(islice(ids, _RUNS_AT_ONCE)), [])
        own = chain.from_iterable(map(self._read_runs, groups))
        shipped = (run for run in recorded_runs() if run.id not in stored) if recordings else ()
        for run in chain(own, shipped):
            if isinstance(run, documents.DamagedRun) or fits(run, wanted):
                yield run

    def _ids(self, query: Select[Any]) -> Iterator[str]:
        """Those that a query gives: the first ones at once, for who wants no more of a million."""
        with self.reading() as connection:
            first = list(connection.scalars(query.limit(_FIRST_IDS)))
        yield from first
        if len(first) == _FIRST_IDS:
            with self.reading() as connection:
                ids, seen = list(connection.scalars(query)), set(first)
            yield from (run_id for run_id in ids if run_id not in seen)

    def each_run(self, **wanted: Unpack[Wanted]) -> Iterator[Run]:
        """Those that can be read."""
        return (run for run in self.listed(**wanted) if isinstance(run, Run))

    def runs(self, **wanted: Unpack[Wanted]) -> list[Run]:
        """All that :meth:`each_run` gives, as a list."""
        return list(self.each_run(**wanted))

    def _read_runs(self, ids: Sequence[str]) -> list[Run | documents.DamagedRun]:
        """Those of the ids that are there still, in their order."""
        with self.reading() as connection:
            rows = connection.execute(select(*RUN_COLUMNS).where(tables.RUNS.c.id.in_(ids))).mappings().all()
        read = map(_run_or_damage, rows)
        by_id = {run.id: self._as_presumed(run) if isinstance(run, Run) else run for run in read}
        return [by_id[run_id] for run_id in ids if run_id in by_id]

    def unfinished(self) -> list[Run]:
        """Runs whose status is ``running``, whether or not their child still lives."""
        return self.runs(status="running", recordings=False)

    def observations(self, run_id: str, start: int = 0) -> Sequence[documents.StoredRow]:
        """The rows of a run in the order in which they were measured, from number ``start`` on.

        Those of the database are read when they are asked for, a few at a time; see :class:`StoredRows`.

        Raises:
            UnknownName: no such run.
        """
        with self.reading() as connection:
            count = connection.scalar(select(tables.RUNS.c.observations).where(tables.RUNS.c.id == run_id))
        if count is not None:
            return StoredRows(self.reading, run_id, start, int(count) - start)
        if recorded_run(run_id) is None:
            raise self._no_such_run(run_id)
        return recorded_observations(run_id)[start:]

    def parts(self, run: Run, attachment: Attachment) -> Iterator[bytes]:
        """The parts of a run's attachment, each a Parquet file, read one after the other.

        Raises:
            StoreFailed: one is missing: the run may have been deleted meanwhile.
        """
        return recorded_parts(run, attachment) if run.recording else stored_parts(self.reading, run, attachment)

    def attached(self, run: Run) -> Attached:
        """All attachments of a run, as readings and charts take them."""
        return attached_by(run, self.parts)

    def _as_presumed(self, run: Run) -> Run:
        changes = self.presumed.get(run.id)
        return run.model_copy(update=changes) if changes and run.status == "running" else run

    def _locked(self, connection: Connection, run_id: str) -> Run:
        run = read_run(connection, run_id, lock=True)
        if run is None:
            raise self._no_such_run(run_id)
        return run

    def _no_such_run(self, run_id: str) -> BadInput:
        if recorded_run(run_id) is not None:
            return BadInput(f"run {run_id} is a recording that ships with PinScope; it cannot be changed or deleted")
        if run_id.endswith(".pinscope"):
            return UnknownName(f"no run {quoted(run_id)}; `pinscope import FILE` reads the runs of a bundle")
        names = [name for name in recording_names() if run_id.casefold() in name]
        known = (
            f"there are recordings called {first_of(names)}" if names else "`pinscope runs list` shows what there is"
        )
        return UnknownName(f"no run {quoted(run_id)}; {known}")
