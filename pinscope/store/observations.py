"""Observations in the database: written and read a few hundred at a time, however many a run has."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from itertools import islice
from typing import Any, overload

from sqlalchemy import Connection, func, insert, select, update

from pinscope.errors import StoreFailed
from pinscope.records.limits import ROW_BYTES
from pinscope.store.bounded import ROW, ROW_LENGTH
from pinscope.store.damage import Damage
from pinscope.store.rows import Row
from pinscope.store.tables import ObservationTable, RunTable

BATCH = 250
"""Rows in memory at a time."""


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

    def __init__(
        self, reading: Callable[[], AbstractContextManager[Connection]], run_id: str, start: int, count: int
    ) -> None:
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
            return [self[each] for each in places]
        return StoredRows(self._reading, self._run_id, self._start + places.start, len(places))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Sequence) or isinstance(other, str):
            return NotImplemented
        return len(self) == len(other) and all(one == another for one, another in zip(self, other, strict=True))

    __hash__ = None  # type: ignore[assignment]  # as of a list

    def __repr__(self) -> str:
        return f"StoredRows({self._run_id!r}, {self._count} from {self._start} on)"

    def characters(self) -> int:
        """Of the JSON of all these rows, as they are stored."""
        query = select(func.sum(ROW_LENGTH)).where(
            ObservationTable.run_id == self._run_id,
            ObservationTable.sequence >= self._start,
            ObservationTable.sequence < self._start + self._count,
        )
        with self._reading() as connection:
            return int(connection.scalar(query) or 0)

    def _read(self, first: int, count: int) -> list[Row]:
        with self._reading() as connection:
            found = read_batch(connection, self._run_id, self._start + first, count)
        if len(found) < count:
            raise StoreFailed(f"observations of run {self._run_id} are missing; it may have been deleted meanwhile")
        return found


def read_batch(connection: Connection, run_id: str, start: int, count: int = BATCH) -> list[Row]:
    """So many rows from number ``start`` on, or those there are.

    Raises:
        StoreFailed: one is larger than an observation may be, which is not loaded, or is damaged.
    """
    found = connection.execute(
        select(ObservationTable.sequence, ROW)
        .where(
            ObservationTable.run_id == run_id,
            ObservationTable.sequence >= start,
            ObservationTable.sequence < start + count,
        )
        .order_by(ObservationTable.sequence)
    ).all()
    for sequence, row in found:
        if row is None:
            raise StoreFailed(
                f"observation {sequence} of run {run_id} is larger than {ROW_BYTES >> 10} KiB, too large to read"
            )
        if not isinstance(row, dict):
            why = row.why if isinstance(row, Damage) else "it is not a document"
            raise StoreFailed(f"observation {sequence} of run {run_id} in the database cannot be read ({why})")
    return [row for _, row in found]


def insert_rows(connection: Connection, run_id: str, first: int, rows: Iterable[Row]) -> int:
    """Add rows from number ``first`` on, and count them. How many rows the run has then."""
    count, left = first, iter(rows)
    while batch := list(islice(left, BATCH)):
        records: list[dict[str, Any]] = [
            {"run_id": run_id, "sequence": place, "row": row} for place, row in enumerate(batch, start=count)
        ]
        connection.execute(insert(ObservationTable), records)
        count += len(batch)
    if count > first:
        connection.execute(update(RunTable).where(RunTable.id == run_id).values(observations=count))
    return count
