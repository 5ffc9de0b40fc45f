"""The observations of a run as they lie in the database: row by row, or packed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from operator import itemgetter
from typing import Any, overload

from sqlalchemy import ColumnElement, Connection, Text, cast, func, select

from pinscope.errors import StoreFailed
from pinscope.store import documents, tables
from pinscope.store.packed import unpack

Reading = Callable[[], AbstractContextManager[Connection]]
"""Opens a transaction that reads."""
BATCH = 1000
"""Observations in memory at a time."""
LINES = 16 * BATCH
"""The same, as text."""


class StoredRows(Sequence[documents.StoredRow]):
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

    def __iter__(self) -> Iterator[documents.StoredRow]:
        for first in range(0, self._count, BATCH):
            yield from self._read(first, min(BATCH, self._count - first))

    @overload
    def __getitem__(self, place: int) -> documents.StoredRow: ...
    @overload
    def __getitem__(self, place: slice) -> Sequence[documents.StoredRow]: ...
    def __getitem__(self, place: int | slice) -> documents.StoredRow | Sequence[documents.StoredRow]:
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

    def lines(self) -> Iterator[bytes]:
        """The JSON of the rows as it is stored, a line each, some thousands at a time; fewer where rows are missing."""
        for first in range(0, self._count, LINES):
            yield self._text(first, min(LINES, self._count - first))

    def _among(self, first: int, count: int) -> tuple[ColumnElement[bool], ...]:
        """Chooses so many rows from the ``first`` of these on."""
        begin = self._start + first
        sequence = tables.OBSERVATIONS.c.sequence
        return tables.OBSERVATIONS.c.run_id == self._run_id, sequence >= begin, sequence < begin + count

    def _packed(self, connection: Connection, first: int, count: int) -> Iterator[tuple[int, bytes]]:
        """Those that stand in blocks: of each block the number of its first row, and the lines of those among these.

        Raises:
            StoreFailed: a block is damaged.
        """
        begin, blocks = self._start + first, tables.BLOCKS.c
        query = select(blocks.sequence, blocks.rows, blocks.characters, blocks.content).where(
            blocks.run_id == self._run_id, blocks.sequence < begin + count, blocks.sequence + blocks.rows > begin
        )
        for sequence, rows, characters, content in connection.execute(query.order_by(blocks.sequence)):
            try:
                text = unpack(content, characters)
            except (ValueError, OSError, TypeError) as error:
                raise self._unreadable(sequence, str(error)) from None
            if sequence < begin or sequence + rows > begin + count:
                lines = text.split(b"\n")[max(begin - sequence, 0) : begin + count - sequence]
                text = b"\n".join(lines)
            yield max(sequence, begin), text

    def _text(self, first: int, count: int) -> bytes:
        """The lines of rows; one text, as an object a row takes longer."""
        row = cast(tables.OBSERVATIONS.c.row, Text).label("row")
        query = select(tables.OBSERVATIONS.c.sequence, row).where(*self._among(first, count))
        query = query.order_by(tables.OBSERVATIONS.c.sequence)
        rows = query.subquery()
        with self._reading() as connection:
            packed = list(self._packed(connection, first, count))
            if not packed:
                text = connection.scalar(select(func.aggregate_strings(rows.c.row, "\n")))
                return (text or "").encode("utf-8", "surrogatepass")
            alone = [(number, line.encode("utf-8", "surrogatepass")) for number, line in connection.execute(query)]
            return b"\n".join(lines for _, lines in sorted([*alone, *packed]))

    def _read(self, first: int, count: int) -> list[documents.StoredRow]:
        query = select(tables.OBSERVATIONS.c.sequence, tables.OBSERVATIONS.c.row).where(*self._among(first, count))
        with self._reading() as connection:
            found = connection.execute(query.order_by(tables.OBSERVATIONS.c.sequence))
            rows: list[tuple[int, Any]] = [(number, row) for number, row in found]
            if len(rows) < count:
                for begin, text in self._packed(connection, first, count):
                    rows += enumerate(map(documents.load_json, text.split(b"\n")), begin)
                rows.sort(key=itemgetter(0))
        for sequence, row in rows:
            if not isinstance(row, dict):
                raise self._unreadable(
                    sequence, row.why if isinstance(row, documents.Damage) else "it is not a document"
                )
        if len(rows) < count:
            raise StoreFailed(f"observations of run {self._run_id} are missing; it may have been deleted meanwhile")
        return [row for _, row in rows]

    def _unreadable(self, sequence: int, why: str) -> StoreFailed:
        return StoreFailed(f"observation {sequence} of run {self._run_id} in the database cannot be read ({why})")
