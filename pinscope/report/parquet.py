"""Runs as Parquet, for programs that compute with their rows."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import islice
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from pinscope.errors import BadInput
from pinscope.report.facts import Document
from pinscope.report.write import PIECE_ROWS, column_kinds, rows_of
from pinscope.text import quoted


def render_parquet(documents: Sequence[Document]) -> bytes:
    """Parquet with typed columns; the runs themselves are JSON in the file's metadata under ``pinscope``.

    Raises:
        BadInput: a column holds both text and numbers.
    """
    types: dict[str, pa.DataType] = {}
    for name, kinds in column_kinds(documents).items():
        samples = [kind() for kind in sorted(kinds - {type(None)}, key=str)]
        types[name] = _column(name, samples or [0.0]).type  # nothing known: readers disagree on Parquet's own type
    runs = json.dumps([document.run.model_dump(mode="json") for document in documents])
    schema = pa.schema(list(types.items()), metadata={"pinscope": runs})
    sink, rows = pa.BufferOutputStream(), rows_of(documents)
    with pq.ParquetWriter(sink, schema, compression="zstd") as writer:
        while batch := list(islice(rows, PIECE_ROWS)):
            columns = [_column(name, [row.get(name) for row in batch], kind) for name, kind in types.items()]
            writer.write_table(pa.table(columns, schema=schema))
    return bytes(sink.getvalue().to_pybytes())


def _column(name: str, values: list[Any], kind: pa.DataType | None = None) -> pa.Array:
    try:
        return pa.array(values, type=kind)
    except pa.ArrowInvalid:
        mixed = f"column {quoted(name)} mixes kinds of values, which Parquet cannot hold; write .csv or .json"
        raise BadInput(mixed) from None
