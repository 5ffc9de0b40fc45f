"""Runs as the tables hold them: their records, observations and parts of attachments.

Each record is read by itself, so that a damaged one hides no other. Observations are written and read a few hundred at
a time, parts one at a time, however many a run has.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from datetime import UTC
from itertools import islice
from typing import Any, overload

from pydantic import ValidationError
from sqlalchemy import ColumnElement, Connection, Select, Text, cast, func, insert, select, update

from pinscope.errors import StoreFailed
from pinscope.records.run import Attachment, Run, parse_run
from pinscope.store.attachments import Parts
from pinscope.store.tables import OBSERVATIONS, PARTS, RUNS, Damage, DamagedRun, Row, first_complaint

Reading = Callable[[], AbstractContextManager[Connection]]
"""Opens a transaction that reads."""
BATCH = 250
"""Observations in memory at a time."""
OWN_COLUMNS = frozenset({"status", "progress", "observations", "recording"})
"""Fields of a run that do not stand in its document."""
RUN_COLUMNS = (RUNS.c.id, RUNS.c.status, RUNS.c.progress, RUNS.c.observations, RUNS.c.document)


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
    connection.execute(insert(RUNS).values(**as_columns(run), observations=0))


def change_run(connection: Connection, run_id: str, **columns: Any) -> None:
    """Give some columns of its row other values."""
    connection.execute(update(RUNS).where(RUNS.c.id == run_id).values(columns))


def read_run(connection: Connection, run_id: str, lock: bool = False) -> Run | None:
    """The run of exactly that id.

    Raises:
        StoreFailed: it cannot be read.
    """
    query: Select[Any] = select(*RUN_COLUMNS).where(RUNS.c.id == run_id)
    row = connection.execute(query.with_for_update() if lock else query).mappings().one_or_none()
    run = None if row is None else _run_or_damage(row)
    if isinstance(run, DamagedRun):
        raise StoreFailed(str(run))
    return run


def read_runs(connection: Connection, ids: Sequence[str]) -> list[Run | DamagedRun]:
    """The runs of these ids, in no order."""
    rows = connection.execute(select(*RUN_COLUMNS).where(RUNS.c.id.in_(ids))).mappings().all()
    return [_run_or_damage(row) for row in rows]


def _run_or_damage(row: Mapping[Any, Any]) -> Run | DamagedRun:
    """A stored run, or why it cannot be read."""
    name, document = row["id"], row["document"]
    for part in (document, row["progress"]):
        if isinstance(part, Damage):
            return DamagedRun(name, part.why)
    try:
        return parse_run({**document, **{key: row[key] for key in ("id", "status", "progress", "observations")}})
    except ValidationError as error:
        return DamagedRun(name, first_complaint(error))
    except TypeError:
        return DamagedRun(name, "it is not a document")


class StoredRows(Sequence[Row]):
    """The observations of one run in the order in which they were measured, read from the database when asked for.

    Equal to any sequence of equal rows. Reading raises :class:`StoreFailed` where a row cannot be read, or where the
    run was deleted meanwhile.

    Args:
        reading: opens a transaction that reads.
        run_id: the run.
        start: number of the first row.
        count: how many rows.
    """

    def __init__(self, reading: Reading, run_id: str, start: int, count: int) -> None:
        self._reading = reading
        self._run_id = run_id
        self._start = start
        self._count = max(count, 0)

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Row]:
        for first in range(0, self._count, BATCH):
            yield from self._read(first, min(BATCH, self._count - first))

    @overload
    def __getitem__(self, place: int) -> Row: ...
    @overload
    def __getitem__(self, place: slice) -> Sequence[Row]: ...
    def __getitem__(self, place: int | slice) -> Row | Sequence[Row]:
        if isinstance(place, int):
            return self._read(range(self._count)[place], 1)[0]
        places = range(self._count)[place]
        if places.step != 1:
            return [self[number] for number in places]
        return StoredRows(self._reading, self._run_id, self._start + places.start, len(places))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Sequence) or isinstance(other, str):
            return NotImplemented
        return len(self) == len(other) and all(own == theirs for own, theirs in zip(self, other, strict=True))

    __hash__ = None  # type: ignore[assignment]  # as of a list

    def characters(self) -> int:
        """Of the JSON of all these rows, as they are stored."""
        with self._reading() as connection:
            length = func.sum(func.length(cast(OBSERVATIONS.c.row, Text)))
            return int(connection.scalar(select(length).where(*self._among(0, self._count))) or 0)

    def _among(self, first: int, count: int) -> tuple[ColumnElement[bool], ...]:
        """Chooses so many rows from the ``first`` of these on."""
        begin = self._start + first
        sequence = OBSERVATIONS.c.sequence
        return OBSERVATIONS.c.run_id == self._run_id, sequence >= begin, sequence < begin + count

    def _read(self, first: int, count: int) -> list[Row]:
        query = select(OBSERVATIONS.c.sequence, OBSERVATIONS.c.row).where(*self._among(first, count))
        with self._reading() as connection:
            rows = connection.execute(query.order_by(OBSERVATIONS.c.sequence)).all()
        for sequence, row in rows:
            if not isinstance(row, dict):
                why = row.why if isinstance(row, Damage) else "it is not a document"
                raise StoreFailed(
                    f"observation {sequence} of run {self._run_id} in the database cannot be read ({why})"
                )
        if len(rows) < count:
            raise StoreFailed(f"observations of run {self._run_id} are missing; it may have been deleted meanwhile")
        return [row for _, row in rows]


def insert_rows(connection: Connection, run_id: str, first: int, rows: Iterable[Row]) -> int:
    """Add rows from number ``first`` on, and count them. How many rows the run has then."""
    count, left = first, iter(rows)
    while batch := list(islice(left, BATCH)):
        records: list[dict[str, Any]] = [
            {"run_id": run_id, "sequence": place, "row": row} for place, row in enumerate(batch, start=count)
        ]
        connection.execute(insert(OBSERVATIONS), records)
        count += len(batch)
    if count > first:
        change_run(connection, run_id, observations=count)
    return count


def insert_part(connection: Connection, run_id: str, name: str, number: int, content: bytes) -> None:
    """Add one part of an attachment."""
    connection.execute(insert(PARTS).values(run_id=run_id, name=name, sequence=number, content=content))


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
        query = select(PARTS.c.content).where(
            PARTS.c.run_id == run.id, PARTS.c.name == attachment.name, PARTS.c.sequence == number
        )
        with reading() as connection:
            content = connection.scalar(query)
        if content is None:
            raise StoreFailed(f"part {number} of {attachment.name} of run {run.id} is missing in the database")
        yield content
