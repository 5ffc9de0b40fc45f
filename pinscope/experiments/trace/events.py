"""The single events of a trace, those of a stretch of its time, as NumPy columns."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from pinscope.analysis.attached import Attached, EachPart, every_part

if TYPE_CHECKING:  # it takes a fifth of a second to import
    import pyarrow as pa

Columns = Mapping[str, NDArray[Any]]
"""Name of a column → its values, all of one length; text is a column of objects."""
Selection = Callable[[Columns], NDArray[np.bool_]]
"""Which rows are wanted."""
TABLES = ("calls", "copies", "kernels")
"""The attachments whose rows have a time at which they began."""


def collect(attached: Attached, name: str, selection: Selection, wanted: EachPart = every_part) -> Columns:
    """The chosen rows of an attachment, in the order in which they are stored; without columns where it has no rows.

    Errors as of :meth:`Attached.tables`.
    """
    pieces: list[Columns] = []
    for part in each(attached, name, wanted):
        chosen = selection(part)
        pieces.append({key: values[chosen] for key, values in part.items()})
    if not pieces:
        return {}
    return {key: np.concatenate([piece[key] for piece in pieces]) for key in pieces[0]}


def each(attached: Attached, name: str, wanted: EachPart = every_part) -> Iterator[Columns]:
    """An attachment, a part at a time."""
    return map(_columns, attached.tables(name, wanted))


def _columns(table: pa.Table) -> Columns:
    return {name: _values(table.column(name).combine_chunks()) for name in table.column_names}


def _values(column: pa.Array) -> NDArray[Any]:
    """Of text each different value stands in memory once."""
    from pyarrow import types  # noqa: PLC0415

    if not types.is_dictionary(column.type):
        return np.asarray(column.to_numpy(zero_copy_only=False))
    words = np.asarray([*column.dictionary.to_pylist(), ""], object)
    return np.asarray(words[column.indices.fill_null(len(words) - 1).to_numpy(zero_copy_only=False)])


def first_moments(attached: Attached, most: int) -> int | None:
    """When the first event begins that is more than ``most``, in nanoseconds; ``None`` if there are no more than that.

    No more than twice as many numbers are in memory.
    """
    kept = np.empty(0, np.int64)
    if sum(attached.rows.get(name, 0) for name in TABLES) <= most:
        return None
    for name in TABLES:
        for part in each(attached, name):
            kept = np.concatenate([kept, part["at_ns"]])
            if len(kept) > most:
                kept = np.partition(kept, most)[: most + 1]
    return int(kept.max())
