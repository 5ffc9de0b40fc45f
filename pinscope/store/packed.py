"""Observations that came whole, as of a bundle: packed a thousand at a time, as the JSON lines that they arrived in.

A run of the fleet arrives with a thousand rows. A row of the database for each would take ten times as long to store,
and ten times the room. What a run that goes on measures is stored row by row all the same: nothing of it may wait.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any

from pinscope.errors import InvalidParameter
from pinscope.records import base
from pinscope.records.base import MIB
from pinscope.store.tables import RowSource, checked, dump_json, is_unmasked

ROWS = 1000
"""Of a block."""
BLOCK_BYTES = 4 * MIB
"""Of the JSON of a block, but for one row that is longer."""
_LARGEST_WHOLE = 2.0**63
"""A float from here on may stand for a whole number that is too long."""


def pack(rows: RowSource) -> Iterator[dict[str, Any]]:
    """All rows as blocks: values of the columns of :data:`pinscope.store.tables.BLOCKS`, without the run.

    Raises:
        InvalidParameter: a row that is not an observation.
        BadBundle: as the bundle that they come from says.
    """
    first = 0
    for text in _plain_blocks(rows) or _blocks(map(dump_json, checked(rows))):
        count = text.count(b"\n") + 1
        yield {
            "sequence": first,
            "rows": count,
            "characters": len(text),
            "content": _codec().compress(text, asbytes=True),
        }
        first += count
    if first != len(rows):
        raise InvalidParameter(f"there should be {len(rows):,} observations, and there are {first:,}")


def unpack(content: bytes, characters: int) -> bytes:
    """The lines of a block.

    Raises:
        ValueError: it is damaged.
    """
    if not 0 < characters <= BLOCK_BYTES + base.ROW_BYTES:
        raise ValueError("a block that is larger than any")
    return bytes(_codec().decompress(content, characters, asbytes=True))


def _codec() -> Any:
    import pyarrow as pa  # noqa: PLC0415 - it takes a fifth of a second to import

    return pa.Codec("zstd", compression_level=1)


def _blocks(lines: Iterable[str]) -> Iterator[bytes]:
    block, size = list[str](), 0
    for line in lines:
        if block and (len(block) == ROWS or size + len(line) > BLOCK_BYTES):
            yield "\n".join(block).encode()
            block, size = [], 0
        block.append(line)
        size += len(line) + 1
    if block:
        yield "\n".join(block).encode()


def _plain_blocks(rows: RowSource) -> list[bytes] | None:
    """The lines as they are, where columns show that every row may be stored so; ``None``: look at them one by one."""
    if not hasattr(rows, "lines") or not 0 < len(rows) <= 8 * ROWS:
        return None
    blocks, names = list[bytes](), set[str]()
    for text in rows.lines():
        lines = iter(text.split(b"\n"))
        while block := b"\n".join(islice(lines, ROWS)):
            columns = _plain_columns(block)
            if columns is None or len(block) > BLOCK_BYTES:
                return None
            names |= columns
            blocks.append(block)
    count = sum(block.count(b"\n") + 1 for block in blocks)
    return blocks if count == len(rows) and len(names) <= base.FIELD_NAMES else None


def _plain_columns(text: bytes) -> set[str] | None:
    """Names of the fields of rows that are flat, of numbers, truth values and words that hide nothing, as
    :func:`~pinscope.store.tables.checked` wants them; ``None`` where that is not certain."""
    table = _parsed(text)
    if table is None or len(table.column_names) > base.ROW_FIELDS:
        return None
    characters = [_characters(name, table.column(name)) for name in table.column_names]
    return set(table.column_names) if sum(characters) <= base.TEXT_CHARACTERS else None


def _parsed(text: bytes) -> Any:
    """A table of as many rows as there are lines; ``None`` where JSON might say more than it has."""
    import pyarrow as pa  # noqa: PLC0415 - it takes a fifth of a second to import
    from pyarrow import json  # noqa: PLC0415 - likewise

    count = text.count(b"\n") + 1
    is_simple = text.isascii() and b"\\" not in text and text.count(b"{") == count == text.count(b"}\n{") + 1
    if not (is_simple and text[:1] == b"{" and text[-1:] == b"}"):
        return None
    try:
        table = json.read_json(pa.BufferReader(text), json.ReadOptions(use_threads=False, block_size=len(text) + 1))
    except pa.ArrowInvalid:
        return None
    must = {"repeat": pa.int64(), "warmup": pa.bool_()}
    columns = [(table.column(name), kind) for name, kind in must.items() if name in table.column_names]
    has_these = len(columns) == len(must) and all(at.type == kind and not at.null_count for at, kind in columns)
    return table if has_these and table.num_rows == count else None


def _characters(name: str, column: Any) -> float:
    """Of the longest text of a column; infinite where not all of it may be stored as it is."""
    import pyarrow as pa  # noqa: PLC0415 - as above
    from pyarrow import compute  # noqa: PLC0415 - likewise

    if len(name) > base.NAME_CHARACTERS:
        return math.inf
    if column.type == pa.float64():
        most = compute.max(compute.abs(column)).as_py()
        is_fine = most is None or (most < _LARGEST_WHOLE and not compute.any(compute.is_nan(column)).as_py())
        return 0 if is_fine else math.inf
    if column.type == pa.string():
        words = [word for word in column.unique().to_pylist() if word is not None]
        return max(map(len, words), default=0) if all(is_unmasked(name, word) for word in words) else math.inf
    return 0 if column.type in (pa.int64(), pa.bool_(), pa.null()) else math.inf
