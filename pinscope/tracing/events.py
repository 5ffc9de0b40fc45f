"""The single events of a trace as columnar tables, a piece at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from pinscope.tracing.joined import Joined, Process
from pinscope.tracing.summed import DIRECTIONS, MEMORY, Summed

if TYPE_CHECKING:  # it takes a fifth of a second to import
    import pyarrow as pa

PIECE_ROWS = 100_000


def attachments(joined: Joined) -> Iterator[tuple[str, pa.Schema, Iterator[pa.RecordBatch]]]:
    """Name, columns and rows of each table. Times are in nanoseconds since the program's start.

    ``copies`` whose time is known: ``at_ns`` and ``took_ns`` of the transfer (−1: its end was not recorded),
    ``call_at_ns`` and ``call_took_ns`` of the call that started it (−1: not recorded), ``bytes``, ``direction``,
    ``source``, ``target``, ``device``, ``stream``, ``site`` (``number`` of a row of kind ``site``), ``idle_ns`` (idle
    compute). ``kernels``: ``at_ns``, ``took_ns``, ``device``, ``stream``. ``calls``: ``at_ns``, ``took_ns``, ``call``,
    ``thread``, ``file`` (empty: no Python code made it), ``line``. ``pinned``: ``at_ns``, ``change_bytes`` (of pinned
    memory: below 0 where some was released). All: ``process``, its id; the events of a process stand together.
    """
    import pyarrow as pa  # noqa: PLC0415

    text = {"direction", "source", "target", "call", "file"}
    for name, (count, columns_of) in _TABLES.items():
        tables = [
            (count(each.summed), {**columns_of(each, joined.begun_ns), **_process(each)}) for each in joined.processes
        ]
        schema = pa.schema(
            [
                (key, pa.string() if key in text else pa.from_numpy_dtype(column(slice(0, 0)).dtype))
                for key, column in tables[0][1].items()
            ]
        )
        yield name, schema, _pieces(tables, schema)


_Columns = Mapping[str, Callable[[slice], NDArray[Any]]]


def _pieces(tables: Sequence[tuple[int, _Columns]], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    import pyarrow as pa  # noqa: PLC0415

    for count, columns in tables:
        for begin in range(0, count, PIECE_ROWS):
            piece = slice(begin, min(begin + PIECE_ROWS, count))
            yield pa.RecordBatch.from_arrays(
                [pa.array(columns[field.name](piece), field.type) for field in schema], schema=schema
            )


def _process(process: Process) -> _Columns:
    return {"process": lambda piece: np.full(piece.stop - piece.start, process.pid, np.int32)}


def _copies(process: Process, begun: int) -> _Columns:
    summed = process.summed
    timed = slice(summed.untimed, None)
    copies, sites, idle = summed.copies[timed], summed.site_of_copies[timed], summed.idle_of_copies[timed]
    found = summed.call_places(copies)
    known = found >= 0
    calls = summed.calls if len(summed.calls) else np.zeros(1, summed.calls.dtype)
    words, directions = np.asarray(MEMORY, object), np.asarray(DIRECTIONS, object)
    return {
        "at_ns": lambda piece: copies["start"][piece] - begun,
        "took_ns": lambda piece: np.where(copies["end"][piece] > 0, copies["end"][piece] - copies["start"][piece], -1),
        "call_at_ns": lambda piece: np.where(known[piece], calls["start"][found[piece]] - begun, -1),
        "call_took_ns": lambda piece: np.where(known[piece], _took(calls)[found[piece]], -1),
        "bytes": lambda piece: copies["bytes"][piece],
        "direction": lambda piece: directions[np.minimum(copies["copy_kind"][piece], len(DIRECTIONS) - 1)],
        "source": lambda piece: words[np.minimum(copies["src_kind"][piece], len(MEMORY) - 1)],
        "target": lambda piece: words[np.minimum(copies["dst_kind"][piece], len(MEMORY) - 1)],
        "device": lambda piece: copies["device_id"][piece].astype(np.int32),
        "stream": lambda piece: copies["stream_id"][piece].astype(np.int64),
        "site": lambda piece: (sites[piece] + process.first_site).astype(np.int32),
        "idle_ns": lambda piece: idle[piece],
    }


def _kernels(process: Process, begun: int) -> _Columns:
    kernels = process.summed.kernels
    return {
        "at_ns": lambda piece: kernels["start"][piece] - begun,
        "took_ns": lambda piece: np.where(kernels["end"][piece] > 0, _took(kernels[piece]), -1),
        "device": lambda piece: kernels["device_id"][piece].astype(np.int32),
        "stream": lambda piece: kernels["stream_id"][piece].astype(np.int64),
    }


def _calls(process: Process, begun: int) -> _Columns:
    summed = process.summed
    calls, names, lines = summed.calls, summed.call_names, summed.lines(summed.calls)
    return {
        "at_ns": lambda piece: calls["start"][piece] - begun,
        "took_ns": lambda piece: _took(calls[piece]),
        "call": lambda piece: names[piece],
        "thread": lambda piece: calls["thread"][piece].astype(np.int64),
        "file": lambda piece: summed.files[lines[piece]],
        "line": lambda piece: summed.line_numbers[lines[piece]],
    }


def _pinned(process: Process, begun: int) -> _Columns:
    moments, changes = process.summed.pinned.changes()
    return {"at_ns": lambda piece: moments[piece] - begun, "change_bytes": lambda piece: changes[piece]}


def _took(records: NDArray[Any]) -> NDArray[np.int64]:
    return np.asarray(records["end"] - records["start"], np.int64)


_TABLES: Mapping[str, tuple[Callable[[Summed], int], Callable[[Process, int], _Columns]]] = {
    "copies": (lambda summed: len(summed.copies) - summed.untimed, _copies),
    "kernels": (lambda summed: len(summed.kernels), _kernels),
    "calls": (lambda summed: len(summed.calls), _calls),
    "pinned": (lambda summed: len(summed.pinned.changes()[0]), _pinned),
}
"""Name → number of rows, and the columns, of a process."""
