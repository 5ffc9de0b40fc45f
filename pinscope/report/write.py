"""Reports as bytes and as files; the suffix tells the format."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from importlib import import_module
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pyarrow as pa
import pyarrow.parquet as pq

from pinscope.analysis.models import GPU_PAGE_SIZES, page_table_bytes
from pinscope.errors import BadInput
from pinscope.records.base import FIELD_NAMES
from pinscope.records.run import Finding, Reading
from pinscope.records.snapshot import Snapshot
from pinscope.report.facts import Document
from pinscope.store.new_file import check_new, write_new
from pinscope.text import quoted

if TYPE_CHECKING:
    from pinscope.planning.plan import Plan

# By name: most reports need neither Plotly nor Arrow, which take their time to import.
_RENDERERS: Mapping[str, tuple[str, str]] = {
    ".html": ("pinscope.report.html", "render_html"),
    ".md": ("pinscope.report.markdown", "render_markdown"),
    ".csv": ("pinscope.report.write", "csv_pieces"),
    ".parquet": ("pinscope.report.write", "render_parquet"),
    ".json": ("pinscope.report.write", "json_pieces"),
    ".perfetto.json": ("pinscope.report.perfetto", "perfetto_pieces"),
}
SUFFIXES = tuple(_RENDERERS)
"""Suffixes of the formats that can be written."""


def render(documents: Sequence[Document], suffix: str) -> bytes:
    """The report of one or several runs in the format of ``suffix``.

    Raises:
        BadInput: unknown suffix, no run, or the runs have nothing that this format could hold.
    """
    return b"".join(_pieces(documents, known_suffix(Path(f"report{suffix}"))))


def _pieces(documents: Sequence[Document], suffix: str) -> Iterable[bytes]:
    """The report a piece at a time: text as the observations are read, what is compressed in one piece."""
    module, function = _RENDERERS[suffix]
    if not documents:
        raise BadInput("a report needs at least one run")
    content = getattr(import_module(module), function)(documents)
    return (content,) if isinstance(content, bytes) else cast("Iterable[bytes]", content)


def write_report(path: Path, documents: Sequence[Document]) -> None:
    """Write a report to a file that is not there yet; on any error nothing is left behind.

    Raises:
        BadInput: as for :func:`render`, or the folder is missing or may not be written to.
        PathExists: there is a file of that name.
        PinScopeError: the disk is full or fails.
    """
    suffix = known_suffix(path)
    check_new(path)  # before the work of rendering; write_new holds it for good
    write_new(path, _pieces(documents, suffix))


def known_suffix(path: Path) -> str:
    """The format's suffix that ends the file's name: the longest one, so ``.perfetto.json`` goes before ``.json``.

    Raises:
        BadInput: none does; the message lists those there are.
    """
    name = path.name.lower()
    fitting = [suffix for suffix in SUFFIXES if name.endswith(suffix)]
    if not fitting:
        raise BadInput(f"{path.name}: the suffix tells the format; there are: {', '.join(SUFFIXES)}")
    return max(fitting, key=len)


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


def column_kinds(documents: Sequence[Document]) -> dict[str, set[type]]:
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


def rows_of(documents: Sequence[Document]) -> Iterator[dict[str, Any]]:
    for document in documents:
        run = document.run
        for row in document.rows:
            yield {**row, "run_id": run.id, "experiment": run.experiment, "lab": run.lab}


def csv_pieces(documents: Sequence[Document]) -> Iterator[bytes]:
    """The observations as :func:`csv_lines`."""
    columns = list(column_kinds(documents))
    return csv_lines(columns, ([row.get(name) for name in columns] for row in rows_of(documents)))


def csv_lines(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> Iterator[bytes]:
    """CSV (RFC 4180, UTF-8), with cells as :func:`csv_cell` writes them."""
    writer = csv.writer(_Encoder())
    return (writer.writerow(map(csv_cell, row)) for row in chain([columns], rows))


class _Encoder:
    """Gives each line back as bytes: what ``write`` returns, ``writerow`` returns."""

    def write(self, text: str) -> bytes:
        return text.encode()


def run_document(document: Document) -> dict[str, Any]:
    """``{"format", "run", "observations"}``: the run's fields, what was concluded, and every row as stored.

    Values are SI units, named in the key or beside the value. Additive: later versions may add keys.
    """
    return {**run_without_rows(document), "observations": [dict(row) for row in document.rows]}


def run_without_rows(document: Document) -> dict[str, Any]:
    """The document without its observations, which may be many."""
    words = {"title": document.title, "question": document.question, "method": document.method}
    run = document.run.model_dump(mode="json")
    return {"format": document.run.format, "run": {**run, **words, **_concluded(document.reading)}}


def json_pieces(documents: Sequence[Document]) -> Iterator[bytes]:
    """One run's document; several stand in ``{"format", "runs": […]}``. An observation at a time."""
    if len(documents) > 1:
        newest = max(document.run.format for document in documents)
        yield f'{{"format": {newest}, "runs": ['.encode()
    for number, document in enumerate(documents):
        yield (b", " if number else b"") + _text(run_without_rows(document))[:-1] + b', "observations": ['
        for place, row in enumerate(document.rows):
            yield (b", " if place else b"") + _text(row)
        yield b"]}"
    yield b"]}\n" if len(documents) > 1 else b"\n"


def _concluded(reading: Reading) -> dict[str, Any]:
    fields = reading.model_dump(mode="json")
    return {key: fields[key] for key in ("verdict", "headline", "findings", "tables")}


def _text(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False, allow_nan=False).encode()


def snapshot_document(snapshot: Snapshot, findings: Sequence[Finding]) -> dict[str, Any]:
    """The snapshot's fields (``format``, ``taken_at``, ``host``, ``holders``, ``devices`` …) and ``findings``.

    Values are SI units, named in the key. Additive: later versions may add keys.
    """
    return {**snapshot.model_dump(mode="json"), "findings": [finding.model_dump(mode="json") for finding in findings]}


def render_snapshot(snapshot: Snapshot, findings: Sequence[Finding]) -> bytes:
    """The document as a file's content."""
    return (json.dumps(snapshot_document(snapshot, findings), ensure_ascii=False, allow_nan=False) + "\n").encode()


FORMAT = 1
"""Version of the document; additive changes keep it."""


def plan_document(plan: Plan, reading: Reading) -> dict[str, Any]:
    """The plan's figures, in SI units, and what was concluded."""
    from pinscope.planning.plan import safety_of  # noqa: PLC0415 - a live view needs not wait for it

    pinned, total, recipe = plan.demand.pinned_bytes, plan.demand.total_bytes, plan.recipe
    return {
        "format": FORMAT,
        "demand": asdict(plan.demand),
        "page": {
            "page_bytes": plan.price.page_bytes,
            "table_bytes": plan.price.table_bytes(pinned),
            "origin": asdict(plan.price.origin),
        },
        "page_sizes": [
            {"page_bytes": size, "entries": -(-pinned // size), "table_bytes": page_table_bytes(pinned, size)}
            for size in GPU_PAGE_SIZES
        ],
        "context": asdict(plan.context) if plan.context else None,
        "strategies": [asdict(sharing) for sharing in plan.sharings],
        # Waits are known only of one process, for the amount that was measured.
        "pinning": [
            {
                **asdict(pace),
                "seconds": pace.seconds_for(total),
                "longest_wait_seconds": pace.wait_for(pinned) if plan.demand.copies == 1 else None,
            }
            for pace in plan.paces
        ],
        "recommended": recipe
        and {"strategy": recipe.strategy, "chunk_bytes": recipe.chunk_bytes, "call": recipe.call(plan.demand.asked)},
        "budget": asdict(plan.budget),
        "safety": asdict(safety_of(plan)),
        **_concluded(reading),
    }


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
