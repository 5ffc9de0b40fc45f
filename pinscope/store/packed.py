"""Observations that came whole, as of a bundle: packed a thousand at a time, as the JSON lines that they arrived in.

A run of the fleet arrives with a thousand rows. A row of the database for each would take ten times as long to store,
and ten times the room. What a run that goes on measures is stored row by row all the same: nothing of it may wait.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import Any

from pydantic import ValidationError

from pinscope.errors import InvalidParameter
from pinscope.records import base
from pinscope.records.base import MIB
from pinscope.store.documents import ANY_ROW, RowSource, checked, dump_json

ROWS = 1000
"""Of a block."""
BLOCK_BYTES = 4 * MIB
"""Of the JSON of a block, but for one row that is longer."""
_PLAIN_BYTES = 32 * MIB
"""Of a run, at most, whose text is in memory whole."""
_NAME = re.compile(rf"\w[\w.]{{0,{base.NAME_CHARACTERS - 1}}}", re.ASCII)
_WHOLE = rb"-?(?:0|[1-9][0-9]{0,17}+)"
_TRUTH = rb"true|false"
_EXPONENT = rb"e[-+]?[0-9]{1,2}+|"
_NUMBER = rb"%s(?:\.[0-9]{1,25}+(?:%s)|%s)" % (_WHOLE, _EXPONENT, _EXPONENT)
_VALUE = rb"\"[a-zA-Z0-9_.+/-]{0,60}+\"|null|%s|%s" % (_NUMBER, _TRUTH)
"""A number that is finite and, where it is whole, of less than 64 bits; or a word without what stands between a secret
and its name. A row of these is within all bounds."""


_ZSTD = b"\x28\xb5\x2f\xfd"
"""Begins a block that was compressed here; one that came as a whole is deflated, as in its bundle."""


def pack(rows: RowSource) -> Iterator[dict[str, Any]]:
    """All rows as blocks: values of the columns of :data:`pinscope.store.tables.BLOCKS`, without the run.

    Raises:
        InvalidParameter: a row that is not an observation.
        BadBundle: as the bundle that they come from says.
    """
    plain, first, as_it_came = _plain_text(rows), 0, None
    if plain and len(rows) <= ROWS and len(plain) <= BLOCK_BYTES:
        blocks: Iterable[tuple[int, bytes]] = [(plain.count(b"\n") + 1, plain)]
        as_it_came = rows.deflated()  # type: ignore[attr-defined]
    else:
        blocks = _blocks(plain.split(b"\n") if plain else (dump_json(row).encode() for row in checked(rows)))
    for count, text in blocks:
        content = as_it_came or _codec().compress(text, asbytes=True)
        yield {"sequence": first, "rows": count, "characters": len(text), "content": content}
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
    if content.startswith(_ZSTD):
        return bytes(_codec().decompress(content, characters, asbytes=True)).removesuffix(b"\n")
    try:
        text = zlib.decompressobj(-zlib.MAX_WBITS).decompress(content, characters)
    except zlib.error as error:
        raise ValueError(str(error)) from None
    if len(text) < characters:
        raise ValueError("a block that is cut short")
    return text.removesuffix(b"\n")


def _codec() -> Any:
    import pyarrow as pa  # noqa: PLC0415 - it takes a fifth of a second to import

    return pa.Codec("zstd", compression_level=1)


def _blocks(lines: Iterable[bytes]) -> Iterator[tuple[int, bytes]]:
    block, size = list[bytes](), 0
    for line in lines:
        if block and (len(block) == ROWS or size + len(line) > BLOCK_BYTES):
            yield len(block), b"\n".join(block)
            block, size = [], 0
        block.append(line)
        size += len(line) + 1
    if block:
        yield len(block), b"\n".join(block)


def _plain_text(rows: RowSource) -> bytes | None:
    """The lines of a bundle as they are, where one look at the text shows that every row may be stored so; ``None``:
    look at the rows one by one."""
    if not (hasattr(rows, "lines") and hasattr(rows, "deflated")):
        return None
    plain, text = None, b""
    for part in rows.lines():
        plain = plain or _plain_lines(part[: part.find(b"\n")])
        if plain is None or len(text) + len(part) > _PLAIN_BYTES or not plain.fullmatch(part):
            return None
        text = text + part if text else part
    return text.removesuffix(b"\n")


def _plain_lines(line: bytes) -> re.Pattern[bytes] | None:
    """What lines match that have the fields of this one, in its order, and plain values; ``None`` where there are none.

    Rows of a run are alike, and this takes half the time of a parser.
    """
    try:
        return _lines_of(tuple(ANY_ROW.validate_json(line)))
    except ValidationError:
        return None


@lru_cache(maxsize=64)
def _lines_of(names: tuple[str, ...]) -> re.Pattern[bytes] | None:
    if len(names) > base.ROW_FIELDS or not {"repeat", "warmup"} <= set(names) or not all(map(_NAME.fullmatch, names)):
        return None
    kinds = {"repeat": _WHOLE, "warmup": _TRUTH}
    fields = (b'"%s":(?:%s)' % (re.escape(name).encode(), kinds.get(name, _VALUE)) for name in names)
    return re.compile(rb"(?:\{%s\}\n)++" % b",".join(fields))
