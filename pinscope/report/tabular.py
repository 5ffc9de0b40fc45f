"""Observations as one table: a row each, with the run they belong to. Values equal the stored ones exactly."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from pinscope.errors import BadInput
from pinscope.report.csv_cell import csv_cell
from pinscope.report.document import Document
from pinscope.text import quoted

RUN_COLUMNS = ("run_id", "experiment", "lab")
"""Columns before those of the observations."""


def _columns(documents: Sequence[Document]) -> list[str]:
    """All labels and values of all runs, each once, in the order in which they first appear."""
    names = dict.fromkeys(RUN_COLUMNS)
    for document in documents:
        for row in document.rows:
            names.update(dict.fromkeys(row))
    return list(names)


def _rows(documents: Sequence[Document]) -> Iterator[dict[str, Any]]:
    for document in documents:
        run = document.run
        for row in document.rows:
            yield {**row, "run_id": run.id, "experiment": run.experiment, "lab": run.lab}


def render_csv(documents: Sequence[Document]) -> bytes:
    """CSV (RFC 4180, UTF-8), with cells as :func:`csv_cell` writes them."""
    columns = _columns(documents)
    text = io.StringIO(newline="")
    writer = csv.writer(text)
    writer.writerow([csv_cell(name) for name in columns])
    for row in _rows(documents):
        writer.writerow([csv_cell(row.get(name)) for name in columns])
    return text.getvalue().encode()


def render_parquet(documents: Sequence[Document]) -> bytes:
    """Parquet with typed columns; the runs themselves are JSON in the file's metadata under ``pinscope``.

    Raises:
        BadInput: a column holds both text and numbers.
    """
    rows = list(_rows(documents))
    table = pa.table({name: _column(name, [row.get(name) for row in rows]) for name in _columns(documents)})
    runs = json.dumps([document.run.model_dump(mode="json") for document in documents])
    table = table.replace_schema_metadata({"pinscope": runs})
    buffer = io.BytesIO()
    pq.write_table(table, buffer, compression="zstd")
    return buffer.getvalue()


def _column(name: str, values: list[Any]) -> pa.Array:
    kinds = {type(value) for value in values if value is not None}
    types = {
        frozenset[type](): pa.float64(),  # nothing known: readers disagree on Parquet's own type for that
        frozenset({bool}): pa.bool_(),
        frozenset({int}): pa.int64(),
        frozenset({float}): pa.float64(),
        frozenset({int, float}): pa.float64(),
        frozenset({str}): pa.string(),
    }
    try:
        return pa.array(values, type=types[frozenset(kinds)])
    except (KeyError, pa.ArrowInvalid):
        raise BadInput(
            f"column {quoted(name)} mixes kinds of values, which Parquet cannot hold; write .csv or .json"
        ) from None
