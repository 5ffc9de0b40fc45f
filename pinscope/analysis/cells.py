"""Cells: all counted rows of one combination of labels as one object, made as its class declares.

A class of cells is a frozen dataclass. A field annotated with a :class:`Label` takes part in the grouping; one with a
:class:`Value` says its unit, whether more or less of it is better, and how the values of the rows become one. A
property whose return type is so annotated is a value that follows from others. Names end in their unit, as the keys of
JSON do. Tables, CSV, frames and the comparison of runs read the declaration; no experiment writes them.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property, partial
from statistics import fmean
from typing import Any, Literal, TypeVar, get_type_hints

from pinscope.analysis.columns import Column, Columns
from pinscope.analysis.read_rows import Row
from pinscope.analysis.statistics import DRIFT, PAGEABLE_DRIFT, SHORT_DRIFT, Summary, exceeds, ratio, summarize
from pinscope.records.run import Table, table
from pinscope.units import format_value

NO_LABEL = "–"
"""In place of a label that a cell has not."""
AS_GOOD = 1.1
"""Cells whose values differ by this factor at most, to two decimals, are as good as each other; and those that
measuring does not tell apart."""
AS_GOOD_WORDS = (
    f"Ways that take at most {AS_GOOD:.2f} times as long as the fastest are as good, and so are those that ± does not "
    "tell from it."
)
Better = Literal["more", "less", "neither"]
Make = Callable[[list[Any]], Any]


@dataclass(frozen=True)
class Label:
    """What tells a cell from another.

    Attributes:
        title: heading of its column.
        unit: as of a :class:`~pinscope.records.run.Quantity`.
        words: a label as a table shows it, in place of the label itself: a text, or a number of that unit.
    """

    title: str
    unit: str = "text"
    words: Callable[[Any], str | float] | None = None


@dataclass(frozen=True)
class Value:
    """What was measured.

    Attributes:
        title: heading of its column.
        unit: as of a :class:`~pinscope.records.run.Quantity`.
        better: whether more or less of it is better.
        make: makes it from the values of the rows, ``None`` among them left out; of properties it is not asked.
        row: field of the rows, where it has another name.
    """

    title: str
    unit: str
    better: Better = "neither"
    make: Make = summarize
    row: str | None = None


def median(values: Sequence[float]) -> float:
    """The median alone."""
    return summarize(values).median


def mean(values: Sequence[float]) -> float:
    """Of values so short that a clock counts them in ticks."""
    return fmean(values)


def count(values: Sequence[Any]) -> int:
    """In how many rows it was not zero."""
    return sum(map(bool, values))


def first(values: Sequence[Any]) -> Any:
    """The value of the first row, where all have the same."""
    return values[0]


CellT = TypeVar("CellT")


def labels_of(kind: type) -> Mapping[str, Label]:
    """Name → label, in the order declared."""
    return {name: mark for name, mark in _marks(kind) if isinstance(mark, Label)}


def values_of(kind: type) -> Mapping[str, Value]:
    """Name → value, in the order declared; those that follow from others behind."""
    return {name: mark for name, mark in _marks(kind) if isinstance(mark, Value)}


def _marks(kind: Any) -> Iterator[tuple[str, Any]]:
    names = {
        name: value for base in reversed(kind.__mro__) for name, value in vars(sys.modules[base.__module__]).items()
    }
    hints = get_type_hints(kind, names, include_extras=True)
    makers = {
        name: member.fget if isinstance(member, property) else member.func
        for base in reversed(kind.__mro__)
        for name, member in vars(base).items()
        if isinstance(member, property | cached_property)
    }
    derived = {name: get_type_hints(maker, include_extras=True).get("return") for name, maker in makers.items()}
    for name, hint in {**{made.name: hints[made.name] for made in fields(kind)}, **derived}.items():
        yield from ((name, mark) for mark in getattr(hint, "__metadata__", ()) if isinstance(mark, Label | Value))


def cells(kind: type[CellT], rows: Iterable[Row]) -> list[CellT]:
    """A run's counted rows as cells, in the order measured. A value that no row has is ``None``."""
    names = list(labels_of(kind))
    made = {name: value for name, value in values_of(kind).items() if name in kind.__dataclass_fields__}  # type: ignore[attr-defined]
    made_cells = list[CellT]()
    for key, group in Columns.of(rows).counted().grouped(names):
        memory = group.column("memory")
        drift = PAGEABLE_DRIFT if memory.distinct[memory.codes[0]] == "pageable" else DRIFT
        figures = {name: _value(value, group.column(value.row or name), drift) for name, value in made.items()}
        made_cells.append(kind(**dict(zip(names, key, strict=True)), **figures))
    return made_cells


def _value(value: Value, column: Column, drift: float) -> Any:
    values = column.known()
    if not len(values):
        return None
    if value.make is not summarize:
        return value.make(values if isinstance(values, list) else values.tolist())
    return summarize(values, drift, SHORT_DRIFT if value.unit == "seconds" else 0.0)


def plain(value: Any) -> Any:
    """A value as a number: of a summary its median."""
    return value.median if isinstance(value, Summary) else value


def every_combination(cells: Sequence[Any], note: str = "", title: str = "Every combination") -> Table:
    """The table of all cells of one class: labels, values, and how often each was repeated; an empty one of none."""
    if not cells:
        return table(title, {}, ())
    kind = type(cells[0])
    labels, values = labels_of(kind), values_of(kind)
    repeated = next((name for name in values if any(isinstance(getattr(cell, name), Summary) for cell in cells)), None)
    columns = {
        label.title: (_unit(label, getattr(cells[0], name)), partial(_shown, name, label.words or plain))
        for name, label in labels.items()
    }
    columns |= {value.title: (value.unit, partial(_shown, name, plain)) for name, value in values.items()}
    if repeated:
        columns["±"] = "share", partial(_shown, repeated, lambda summary: summary and summary.spread)
        columns["repeats"] = "count", partial(_shown, repeated, lambda summary: summary and summary.count)
    return listed(title, cells, columns, note)


def _shown(name: str, words: Callable[[Any], Any], cell: Any) -> Any:
    return words(getattr(cell, name))


def _unit(label: Label, value: Any) -> str:
    return "text" if label.words and isinstance(label.words(value), str) else label.unit


def listed(
    title: str, items: Iterable[Any], columns: Mapping[str, tuple[str, Callable[[Any], Any]]], note: str
) -> Table:
    """A table with a row for each item; ``columns``: heading → unit, and what stands there of an item."""
    units = {heading: unit for heading, (unit, _) in columns.items()}
    return table(title, units, [[of(item) for _, of in columns.values()] for item in items], note)


def key(cell: Any, value: str) -> str:
    """The key of a figure of a cell, such as ``pinned.h2d.rate``: its labels that are words, no size and no count."""
    words = (getattr(cell, name) for name, mark in labels_of(type(cell)).items() if mark.unit == "text")
    return ".".join((*(word for word in words if isinstance(word, str)), value))


def cell_rows(cells: Iterable[Any]) -> Iterator[dict[str, Any]]:
    """The cells as rows of a frame: a row each, columns that end in their unit, values in SI units.

    Of a summary its median, in columns beside it the ends of its interval, and the repeats.
    """
    for cell in cells:
        row = {name: plain_label(mark, getattr(cell, name)) for name, mark in labels_of(type(cell)).items()}
        for name in values_of(type(cell)):
            value = getattr(cell, name)
            row[name] = plain(value)
            if isinstance(value, Summary):
                low, high = value.interval or (None, None)
                row |= {f"{name}.low": low, f"{name}.high": high, f"{name}.repeats": value.count}
        yield row


def plain_label(mark: Label, label: Any) -> Any:
    """The label itself; of one that is neither number nor text its words."""
    return label if mark.words is None or isinstance(label, str | int | float | None) else mark.words(label)


def label_text(mark: Label, label: Any) -> str:
    """A label as people read it."""
    words = mark.words(label) if mark.words else label
    return NO_LABEL if words is None else format_value(words, mark.unit)


def near(more: Summary, less: Summary) -> bool:
    """Whether the first is more by :data:`AS_GOOD` at most."""
    return round(ratio(more, less), 2) <= AS_GOOD


def clearly_more(first: Summary, second: Summary) -> bool:
    """Whether the first is more by more than :data:`AS_GOOD`, and by more than both may be off."""
    return exceeds(first, second) and not near(first, second)


def tied(ranked: Sequence[CellT], time: Callable[[CellT], Summary]) -> list[CellT]:
    """The first of these, which is the fastest, and all as good whose times are known: none is clearly more."""
    return [
        cell
        for cell in ranked
        if cell is ranked[0] or (time(cell).is_known and not clearly_more(time(cell), time(ranked[0])))
    ]


def best_of(alike: Iterable[CellT], time: Callable[[CellT], Summary], thrift: Callable[[CellT], float]) -> list[CellT]:
    """The fastest of these and all as good, the thriftiest first; last those that ± does not tell from it."""
    ranked = sorted(alike, key=lambda cell: time(cell).median)
    return sorted(tied(ranked, time), key=lambda cell: (not near(time(cell), time(ranked[0])), thrift(cell)))


@dataclass(frozen=True)
class LineStyle:
    """How a line is drawn.

    Attributes:
        colour: its meaning, a key of :data:`pinscope.charts.theme.COLOURS`.
        symbol: of its markers.
        dash: of the line itself.
        size: pixels of a marker, or of each.
    """

    colour: str
    symbol: str = "circle"
    dash: str = "solid"
    size: int | Sequence[int] = 8


@dataclass(frozen=True)
class Way:
    """One way.

    Attributes:
        title: in tables and legends.
        phrase: inside a sentence; the title where it is empty.
        style: of its line; ``None`` where no chart draws it.
        kinds: words by which the experiment asks for several ways, such as ``choice`` or ``pinned``.
        help: what it does, for the parameter that chooses ways.
    """

    title: str
    phrase: str = ""
    style: LineStyle | None = None
    kinds: frozenset[str] = field(default=frozenset())
    help: str = ""

    @property
    def line(self) -> LineStyle:
        """The style of its line, for a chart that draws it."""
        if self.style is None:
            raise LookupError(f"{self.title} has no line")
        return self.style

    @property
    def words(self) -> str:
        """As it stands inside a sentence."""
        return self.phrase or self.title


def way(title: str, phrase: str = "", style: LineStyle | None = None, kinds: str = "", help: str = "") -> Way:
    """A :class:`Way`; ``kinds``: words with spaces between."""
    return Way(title, phrase, style, frozenset(kinds.split()), help)


_Name = TypeVar("_Name", bound=str)


def of_kind(ways: Mapping[_Name, Way], kind: str) -> tuple[_Name, ...]:
    """Names of the ways of that kind, in the order of the table."""
    return tuple(name for name, way in ways.items() if kind in way.kinds)
