"""Rows as columns: many are read, grouped and chosen in arrays, and become objects only where somebody asks for one."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Protocol, Union, get_args, get_origin, overload, runtime_checkable

import numpy as np
from numpy.typing import NDArray
from pydantic import ValidationError
from pydantic_core import from_json

from pinscope.analysis.read_rows import ReadRow, Row, label_names
from pinscope.records.base import COMBINATIONS_READ, DEVICES_READ, ROWS_READ, TEXT_READ
from pinscope.records.run import Observation

Places = NDArray[np.int_]
FEW = 1000
"""Rows that are as fast checked one by one as what parses columns is imported."""
_MOST_CODES = 2**31
"""Codes of combinations are counted anew before they grow beyond this."""


class Column:
    """A field of all rows, as numbers of the different values.

    Attributes:
        codes: the number of each value.
        distinct: the values by their numbers.
    """

    def __init__(self, codes: Places, distinct: Sequence[Any]) -> None:
        self.codes, self.distinct = codes, distinct

    @staticmethod
    def of(values: Sequence[Any]) -> Column:
        """Of Python's objects."""
        if set(map(type, values)) in ({float}, {float, NoneType}):
            return Floats(np.array(values, float))
        numbers = {value: number for number, value in enumerate(dict.fromkeys(values))}
        return Column(np.fromiter(map(numbers.__getitem__, values), int, len(values)), list(numbers))

    def __getitem__(self, places: Places | slice) -> Column:
        return Column(self.codes[places], self.distinct)

    @cached_property
    def values(self) -> NDArray[Any]:
        """All of them."""
        return np.fromiter(self.distinct, object, len(self.distinct))[self.codes]

    def is_(self, value: Any) -> NDArray[np.bool_]:
        """Where it is that."""
        return np.array([other == value for other in self.distinct], bool)[self.codes]

    def tolist(self) -> list[Any]:
        """The values as objects."""
        return self.values.tolist()  # type: ignore[no-any-return]

    def known(self) -> Any:
        """Those that are known: floats in an array, others in a list."""
        return [value for value in self.tolist() if value is not None]


class Floats(Column):
    """A column of floats; NaN is one that is not known."""

    def __init__(self, values: NDArray[np.float64]) -> None:
        self.values = values

    @cached_property
    def codes(self) -> Places:  # type: ignore[override]
        return np.unique(self.values, return_inverse=True)[1]

    @property
    def distinct(self) -> list[Any]:  # type: ignore[override]
        return Floats(np.unique(self.values)).tolist()

    def __getitem__(self, places: Places | slice) -> Column:
        return Floats(self.values[places])

    def is_(self, value: Any) -> NDArray[np.bool_]:
        return np.asarray(self.values == value)

    def tolist(self) -> list[Any]:
        unknown, values = np.isnan(self.values), self.values.astype(object)
        values[unknown] = None
        return list(values)

    def known(self) -> NDArray[np.float64]:
        return np.asarray(self.values[~np.isnan(self.values)])


class Columns(Sequence[Row]):
    """Rows with the same fields.

    Args:
        names: of the fields.
        read: gives a column by its name; it is asked once.
        count: how many rows.
    """

    cut: str | None = None
    """As of :class:`~pinscope.analysis.read_rows.ReadRows`: none are left out."""

    def __init__(self, names: Iterable[str], read: Callable[[str], Column], count: int) -> None:
        self._names, self._read, self._count = tuple(names), read, count
        self._columns: dict[str, Column] = {}

    @classmethod
    def of(cls, rows: Iterable[Row]) -> Columns:
        """Any rows; a field that some do not have is ``None`` there."""
        if isinstance(rows, Columns):
            return rows
        taken = list(rows)
        names = dict.fromkeys(name for row in taken for name in row)
        return cls(names, lambda name: Column.of([row.get(name) for row in taken]), len(taken))

    def column(self, name: str) -> Column:
        """A field of all rows; of one that none has, ``None``."""
        if name not in self._columns:
            self._columns[name] = self._read(name) if name in self._names else Column.of([None] * self._count)
        return self._columns[name]

    def where(self, name: str, value: Any) -> Columns:
        """The rows in which a field is that."""
        places = np.flatnonzero(self.column(name).is_(value))
        return self._at(places, len(places))

    def counted(self) -> Columns:
        """Those that are no warm-ups."""
        return self.where("warmup", False)

    def having(self, name: str, column: Column) -> Columns:
        """The same rows with another field, or the field with other values."""
        names = dict.fromkeys((*self._names, name))
        return Columns(names, lambda asked: column if asked == name else self.column(asked), self._count)

    def labelled(self, name: str, of: Sequence[str], make: Callable[..., Any]) -> Columns:
        """The same rows with a label that follows from others: made once for each combination of them."""
        codes, distinct = np.zeros(self._count, int), list[Any]()
        for key, places in self.places(of):
            codes[places] = len(distinct)
            distinct.append(make(*key))
        return self.having(name, Column(codes, distinct))

    def grouped(self, names: Sequence[str]) -> Iterator[tuple[tuple[Any, ...], Columns]]:
        """Each combination of these fields, in the order of its first row, and its rows."""
        groups, end = list(self.places(names)), 0
        order = np.concatenate([np.empty(0, int), *(places for _, places in groups)])
        in_order = self._at(order, self._count)
        for key, places in groups:
            begin, end = end, end + len(places)
            yield key, in_order._at(slice(begin, end), len(places))  # copies nothing

    def _at(self, places: Places | slice, count: int) -> Columns:
        return Columns(self._names, lambda name: self.column(name)[places], count)

    def places(self, names: Sequence[str]) -> Iterator[tuple[tuple[Any, ...], Places]]:
        """The same, with the places of its rows."""
        columns = [self.column(name) for name in names]
        combined, size = np.zeros(self._count, np.int64), 1
        for column in columns:
            combined, size = combined * len(column.distinct) + column.codes, size * len(column.distinct)
            if size > _MOST_CODES:
                numbers, combined = np.unique(combined, return_inverse=True)
                size = len(numbers)
        _, firsts, numbers, counts = np.unique(combined, return_index=True, return_inverse=True, return_counts=True)
        places = np.split(np.argsort(numbers, kind="stable"), np.cumsum(counts)[:-1])
        heads = [(column.distinct, column.codes[firsts].tolist()) for column in columns]
        for number in np.argsort(firsts).tolist():
            yield tuple(distinct[codes[number]] for distinct, codes in heads), places[number]

    @cached_property
    def _rows(self) -> list[Row]:
        places = {name: place for place, name in enumerate(self._names)}
        columns = (self.column(name).tolist() for name in self._names)
        return [ReadRow(places, values) for values in zip(*columns, strict=True)]

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, place: int) -> Row: ...
    @overload
    def __getitem__(self, place: slice) -> Sequence[Row]: ...
    def __getitem__(self, place: int | slice) -> Row | Sequence[Row]:
        return self._rows[place]

    def __iter__(self) -> Iterator[Row]:
        return iter(self._rows)


# From the JSON of stored rows


@runtime_checkable
class Stored(Protocol):
    """Rows that lie in a file or a database, as JSON."""

    def __len__(self) -> int: ...
    def lines(self) -> Iterator[bytes]:
        """The JSON of each on a line, some thousands at a time."""
        ...


def parsed(kind: type[Observation], rows: Stored) -> Columns | None:
    """Stored rows as columns: checked by their class, and within the bounds of a reading.

    Rows that differ in floats and ``repeat`` alone are checked together, in the least and the greatest of these.

    Returns:
        ``None`` where a row may not fit, or there are too many: whoever reads them one by one can say which.
    """
    types = {name: _type(field.annotation) for name, field in kind.model_fields.items()}
    if None in types.values() or list(kind.__pydantic_decorators__.model_validators) != ["_is_whole"]:
        return None
    if not FEW < len(rows) <= ROWS_READ or (columns := _columns(kind, types, rows)) is None:
        return None
    return columns if _is_valid(kind, types, columns) and _is_within_bounds(kind, types, columns) else None


def _type(annotation: Any) -> type | None:
    """What all values of a field are, but for ``None``; ``None`` if that is another type, or several."""
    if get_origin(annotation) is Literal:
        return str
    if get_origin(annotation) is Annotated:
        return _type(get_args(annotation)[0])
    if get_origin(annotation) in (Union, UnionType):
        types = {_type(part) for part in get_args(annotation) if part is not NoneType}
        return types.pop() if len(types) == 1 else None
    return annotation if annotation in (bool, int, float, str) else None


def _columns(kind: type[Observation], types: Mapping[str, type | None], rows: Stored) -> Columns | None:
    """Columns of JSON; ``None`` if a value is of another type, a row is missing, or not all have the same fields.

    Flat rows with the same fields in the same order are CSV with cells such as ``"bytes":4096``, and read as that in
    half the time. Times differ from row to row: a comma in place of the colon makes cells of their numbers. A text
    with a comma in it gives its row more cells than the others, and the rows are refused.
    """
    import pyarrow as pa  # noqa: PLC0415 - takes its time to import, and few rows do without
    from pyarrow import csv  # noqa: PLC0415 - likewise

    # Once a block of 16 MiB was freed, glibc keeps what is freed later, up to twice as much. Else the memory of each
    # text goes back to the kernel, which clears it for the next one.
    bytes(2**24)
    text, unquoted = pa.dictionary(pa.int32(), pa.binary()), csv.ParseOptions(quote_char=False)
    names, heads, parts = list[str](), dict[str, str](), []
    pool = pa.system_memory_pool()  # Arrow's own gives pages back, to ask for them again
    try:
        for lines in rows.lines():
            if not names:
                names = list(dict(from_json(lines.partition(b"\n")[0])))
                heads = {name: f'"{name}"' for name in names if name.endswith("_seconds")}
                cells = [cell for name in names for cell in (heads.get(name), name) if cell]
                column_types = dict.fromkeys(cells, text)
                column_types |= {head: pa.binary(len(head.encode())) for head in heads.values()}
                column_types |= {name: pa.float64() for name in heads if name != names[-1] and types.get(name) is float}
                reading = csv.ReadOptions(use_threads=False, column_names=cells)
                converting = csv.ConvertOptions(column_types=column_types, null_values=["null"])
            parts.append(csv.read_csv(pa.BufferReader(_apart(lines)), reading, unquoted, converting, pool))
        table = pa.concat_tables(parts).combine_chunks(memory_pool=pool)
        if table.num_rows != len(rows):
            return None
        columns = dict[str, Column]()
        for place, name in enumerate(names):
            begin, end = b"" if place == 0 else b"{", b"" if place == len(names) - 1 else b"}"
            if head := heads.get(name, "").encode():
                if not table[heads[name]].chunk(0).buffers()[1].equals(pa.py_buffer(head * len(rows))):
                    return None
                begin += head + b":"
            columns[name] = _column(table[name].chunk(0), types.get(name), name, begin, end)
    except (ValueError, TypeError):  # ArrowInvalid and UnicodeDecodeError are such
        return None
    for name, field in kind.model_fields.items():
        if name not in columns:
            if field.is_required():
                return None
            columns[name] = Column.of([field.default] * len(rows))
    return Columns(types, columns.__getitem__, len(rows))


def _apart(lines: bytes) -> NDArray[np.uint8]:
    """The text with a comma in place of the colon behind names that end in ``_seconds``: four of these ten characters
    tell them from others, in a third of the time of ``bytes.replace``."""
    text = np.frombuffer(lines, np.uint8)
    colons = (text[9:] == ord(":")) & (text[:-9] == ord("_")) & (text[3:-6] == ord("c")) & (text[5:-4] == ord("n"))
    apart = text.copy()
    apart[9:] -= colons * np.uint8(ord(":") - ord(","))
    return apart


def _column(values: Any, kind: type | None, name: str, begin: bytes, end: bytes) -> Column:
    """Of an array of Arrow's, without what imports pandas or its own arithmetic: half a second.

    Args:
        kind: of its values; ``None``: of any.
        name: of the field.
        begin, end: make JSON of a cell that is a text.

    Raises:
        ValueError: a value of another type, or of another field.
        TypeError: likewise.
    """
    if hasattr(values, "dictionary"):
        documents = [from_json(begin + cell + end) for cell in values.dictionary.to_pylist()]
        if any(list(document) != [name] for document in documents):
            raise ValueError("another field")
        distinct = [document[name] for document in documents]
        known = [value for value in distinct if value is not None]
        if (kind and {*map(type, known)} - {kind}) or (kind is int and max(map(abs, known), default=0) >= 2**63):
            raise ValueError("a value of another type")
        column = Column(np.from_dlpack(values.indices).astype(int), distinct)
        return Floats(np.array(column.values, float)) if kind is float else column
    numbers = np.frombuffer(values.buffers()[1], count=len(values))
    if np.isnan(numbers).any():
        raise ValueError("JSON has no NaN")
    if not values.null_count:
        return Floats(numbers)
    is_known = np.unpackbits(np.frombuffer(values.buffers()[0], np.uint8), count=len(values), bitorder="little")
    return Floats(np.where(is_known, numbers, math.nan))


def _is_valid(kind: type[Observation], types: Mapping[str, type | None], columns: Columns) -> bool:
    numbers = ["repeat", *(name for name in types if types[name] is float)]
    words = [name for name in types if name not in numbers]
    arrays = {name: np.array(columns.column(name).values, float) for name in numbers}
    gaps = columns
    for name in numbers:
        gaps = gaps.having(f"no {name}", Column(np.isnan(arrays[name]).astype(int), (False, True)))
    groups = dict(gaps.places([*words, *(f"no {name}" for name in numbers)]))
    order, begins = np.concatenate([*groups.values()]), np.cumsum([0, *map(len, groups.values())])[:-1]
    for extreme in (np.minimum, np.maximum):
        ends = {name: Floats(extreme.reduceat(array[order], begins)).tolist() for name, array in arrays.items()}
        for place, key in enumerate(groups):
            row = dict(zip(words, key, strict=False)) | {name: values[place] for name, values in ends.items()}
            try:
                kind.model_validate(row)
            except ValidationError:
                return False
    return True


def _is_within_bounds(kind: type[Observation], types: Mapping[str, type | None], columns: Columns) -> bool:
    texts = [name for name in types if types[name] is str]
    characters = sum(len(text or "") for name in texts for text in columns.column(name).distinct)
    combinations = sum(1 for _ in columns.places(label_names(kind)))
    devices = len(columns.column("device").distinct)
    return characters <= TEXT_READ and devices <= DEVICES_READ and combinations <= COMBINATIONS_READ
