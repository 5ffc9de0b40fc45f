"""Observations as one table: a row each, with the run they belong to. Values equal the stored ones exactly."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator, Sequence, Set
from itertools import islice
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from pinscope.errors import BadInput
from pinscope.records.limits import FIELD_NAMES
from pinscope.report.document import Document
from pinscope.text import quoted

_FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r", "\n", "＝", "＋", "－", "＠")
"""As OWASP lists them, the full-width ones too: spreadsheets set to Japanese take them alike."""


def csv_cell(value: Any) -> str:
    """Floats with the digits that give back the same value, ``None`` as nothing, truth values ``true`` and ``false``.

    Text that a spreadsheet would take for a formula gets an apostrophe in front (OWASP, CSV Injection); numbers
    never do.
    """
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return f"'{value}" if value.startswith(_FORMULA_STARTS) else value
    return repr(value)


RUN_COLUMNS = ("run_id", "experiment", "lab")
"""Columns before those of the observations."""


PIECE_ROWS = 10_000
"""Rows in memory at a time."""


def _kinds(documents: Sequence[Document]) -> dict[str, set[type]]:
    """All labels and values of all runs, each once, in the order in which they first appear, with their types.

    Raises:
        BadInput: they are more than a table has columns.
    """
    kinds: dict[str, set[type]] = {name: {str} for name in RUN_COLUMNS}
    for document in documents:
        for row in document.rows:
            for name, value in row.items():
                kinds.setdefault(name, set()).add(type(value))
            if len(kinds) > FIELD_NAMES:
                raise BadInput(
                    f"the observations have more than {FIELD_NAMES} different fields, too many for a table; write .json"
                )
    return kinds


def _rows(documents: Sequence[Document]) -> Iterator[dict[str, Any]]:
    for document in documents:
        run = document.run
        for row in document.rows:
            yield {**row, "run_id": run.id, "experiment": run.experiment, "lab": run.lab}


def csv_pieces(documents: Sequence[Document]) -> Iterator[bytes]:
    """CSV (RFC 4180, UTF-8), with cells as :func:`csv_cell` writes them."""
    columns = list(_kinds(documents))
    text = io.StringIO(newline="")
    writer = csv.writer(text)
    writer.writerow([csv_cell(name) for name in columns])
    for row in _rows(documents):
        writer.writerow([csv_cell(row.get(name)) for name in columns])
        yield text.getvalue().encode()
        text.seek(0)
        text.truncate()
    yield text.getvalue().encode()


def parquet_pieces(documents: Sequence[Document]) -> Iterator[bytes]:
    """Parquet with typed columns; the runs themselves are JSON in the file's metadata under ``pinscope``.

    Raises:
        BadInput: a column holds both text and numbers.
    """
    types = {name: _type(name, kinds - {type(None)}) for name, kinds in _kinds(documents).items()}
    runs = json.dumps([document.run.model_dump(mode="json") for document in documents])
    schema = pa.schema(list(types.items()), metadata={"pinscope": runs})
    sink, rows = _Sink(), _rows(documents)
    with pq.ParquetWriter(sink, schema, compression="zstd") as writer:
        while batch := list(islice(rows, PIECE_ROWS)):
            columns = [_column(name, [row.get(name) for row in batch], kind) for name, kind in types.items()]
            writer.write_table(pa.table(columns, schema=schema))
            yield sink.take()
    yield sink.take()


class _Sink(io.RawIOBase):
    """Takes what Arrow writes until somebody takes it away."""

    def __init__(self) -> None:
        self._pieces: list[bytes] = []
        self._written = 0

    def writable(self) -> bool:
        """It is for writing."""
        return True

    def write(self, content: Any) -> int:
        """Keep a copy."""
        piece = bytes(content)
        self._pieces.append(piece)
        self._written += len(piece)
        return len(piece)

    def tell(self) -> int:
        """Bytes written so far, taken or not."""
        return self._written

    def take(self) -> bytes:
        """What was written since the last time."""
        taken, self._pieces = b"".join(self._pieces), []
        return taken


def _type(name: str, kinds: Set[type]) -> pa.DataType:
    types = {
        frozenset[type](): pa.float64(),  # nothing known: readers disagree on Parquet's own type for that
        frozenset({bool}): pa.bool_(),
        frozenset({int}): pa.int64(),
        frozenset({float}): pa.float64(),
        frozenset({int, float}): pa.float64(),
        frozenset({str}): pa.string(),
    }
    if frozenset(kinds) not in types:
        raise _mixed(name)
    return types[frozenset(kinds)]


def _column(name: str, values: list[Any], kind: pa.DataType) -> pa.Array:
    try:
        return pa.array(values, type=kind)
    except pa.ArrowInvalid:
        raise _mixed(name) from None


def _mixed(name: str) -> BadInput:
    return BadInput(f"column {quoted(name)} mixes kinds of values, which Parquet cannot hold; write .csv or .json")
