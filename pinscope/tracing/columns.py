"""The single events of a trace, those of a stretch of its time, as NumPy columns."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pinscope.analysis.attached import Attached, EachPart, every_part
from pinscope.errors import InvalidParameter
from pinscope.records.limits import DEVICES_READ

Columns = Mapping[str, NDArray[Any]]
"""Name of a column → its values, all of one length."""
Selection = Callable[[Columns], NDArray[np.bool_]]
"""Which rows are wanted."""
TABLES = ("calls", "copies", "kernels")
"""The attachments whose rows have a time at which they began."""

_NUMBERS: Mapping[str, Sequence[str]] = {
    "calls": ("at_ns", "took_ns", "thread"),
    "copies": ("at_ns", "took_ns", "call_at_ns", "call_took_ns", "bytes", "device", "stream", "site", "idle_ns"),
    "kernels": ("at_ns", "took_ns", "device", "stream"),
    "pinned": ("at_ns", "change_bytes"),
}
_TEXTS: Mapping[str, Sequence[str]] = {"calls": ("call",), "copies": ("direction", "source", "target")}
"""Columns that every version of these attachments has."""
LONGEST_NS = 2**60
"""Of a trace; sums of such times are exact."""
PROCESSES_READ = 1024


def collect(attached: Attached, name: str, selection: Selection, wanted: EachPart = every_part) -> Columns:
    """The chosen rows of an attachment, in the order in which they are stored, text as objects; without columns where
    it has no rows.

    Errors as of :meth:`Attached.tables`.
    """
    pieces: list[Columns] = []
    for part, words in each_coded(attached, name, wanted):
        chosen = selection(part)
        if not chosen.any():
            continue
        rows = {key: values[chosen] for key, values in part.items()}
        texts = {key: np.asarray(known, object)[rows[key]] for key, known in words.items()}
        pieces.append({**rows, **texts})
    if not pieces:
        return {}
    return {key: np.concatenate([piece[key] for piece in pieces]) for key in pieces[0]}


def each_coded(
    attached: Attached, name: str, wanted: EachPart = every_part
) -> Iterator[tuple[Columns, Mapping[str, Sequence[str]]]]:
    """An attachment, a part at a time: numbers as they are, of text the places of its values among its words, each of
    which stands in memory once."""
    from pyarrow import types  # noqa: PLC0415

    for table in attached.tables(name, wanted):
        columns: dict[str, NDArray[Any]] = {}
        words: dict[str, Sequence[str]] = {}
        for key in table.column_names:
            column = table.column(key).combine_chunks()
            if types.is_dictionary(column.type):
                words[key] = [*column.dictionary.to_pylist(), ""]
                column = column.indices.fill_null(len(words[key]) - 1)
            columns[key] = column.to_numpy(zero_copy_only=False)
        for wrong in _complaints(name, columns, words):
            raise InvalidParameter(f"the attachment {name} is not that of a trace: {wrong}")
        yield columns, words


def _complaints(name: str, columns: Columns, words: Mapping[str, Sequence[str]]) -> Iterator[str]:
    """Why a part is not as PinScope writes it: a bundle from elsewhere may hold anything."""
    later = [key for key, beside in (("process", "process"), ("line", "file")) if beside in columns]
    for key in (*_NUMBERS[name], *later):
        if key not in columns or key in words or columns[key].dtype.kind not in "iu":
            yield f"it has no column {key} of whole numbers"
    for key in (*_TEXTS.get(name, ()), *(("file",) if "file" in columns else ())):
        if key not in words:
            yield f"it has no column {key} of text"
    for key in (key for key in columns if key.endswith("_ns") and len(columns[key])):
        if max(abs(int(columns[key].min())), abs(int(columns[key].max()))) > LONGEST_NS:
            yield f"{key} is beyond {LONGEST_NS / 1e9 / 86400 / 365:.0f} years"
    for key, most in (("device", DEVICES_READ), ("process", PROCESSES_READ)):
        if key in columns and len(np.unique(columns[key])) > most:
            yield f"it has more than {most} different values of {key}"


def first_moments(attached: Attached, most: int) -> int | None:
    """When the first event begins that is more than ``most``, in nanoseconds; ``None`` if there are no more than that.

    No more than twice as many numbers are in memory.
    """
    kept = np.empty(0, np.int64)
    if sum(attached.rows.get(name, 0) for name in TABLES) <= most:
        return None
    for name in TABLES:
        for part, _ in each_coded(attached, name):
            kept = np.concatenate([kept, part["at_ns"]])
            if len(kept) > most:
                kept = np.partition(kept, most)[: most + 1]
    return int(kept.max()) if len(kept) > most else None  # attachments may hold less than they say: a stretch of them
