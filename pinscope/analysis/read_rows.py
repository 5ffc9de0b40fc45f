"""What a reading rests on: observations, checked and bounded; attachments; and what a kind of run is."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import takewhile
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol, TypeVar, get_args, get_origin

from pydantic import AwareDatetime, ValidationError

from pinscope.analysis.statistics import Summary, summarize
from pinscope.errors import BadInput
from pinscope.records.base import COMBINATIONS_READ, DEVICES_READ, ROWS_READ, TEXT_READ
from pinscope.records.parameters import Inputs
from pinscope.records.run import Observation

if TYPE_CHECKING:
    import pyarrow as pa

Row = Mapping[str, Any]
"""One observation as it is stored: a flat mapping with the observation's field names."""
Rows = Sequence[Row]
_Item = TypeVar("_Item")
_Key = TypeVar("_Key")
_SHAPES = 100
"""Different sets of known fields among rows of one run whose rows are kept short; a timeline has about ten."""


class ReadRow(Mapping[str, Any]):
    """One of many rows with the same fields: it holds no names, and one ``None`` for all fields that are ``None``."""

    __slots__ = ("_places", "_values")

    def __init__(self, places: Mapping[str, int], values: tuple[Any, ...]) -> None:
        self._places, self._values = places, values

    def __getitem__(self, name: str) -> Any:
        return self._values[self._places[name]]

    def get(self, name: str, default: Any = None) -> Any:
        """As of a mapping, without its detour."""
        place = self._places.get(name)
        return default if place is None else self._values[place]

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)


class ReadRows(list[Row]):
    """Observations as their class writes them, up to the bounds of :mod:`pinscope.records.base`.

    Each row has all fields of the class. What would go beyond a bound, and all after it, is left out:
    the rest reads as a run does that ended there.

    Attributes:
        cut: why observations are left out; ``None`` if none are.
    """

    def __init__(self, kind: type[Observation]) -> None:
        super().__init__()
        self.cut: str | None = None
        self._kind = kind
        fields = kind.model_fields
        self._names = tuple(fields)
        self._shapes: dict[tuple[bool, ...], _Shape] = {}
        self._texts: dict[str, str] = {}
        self._characters = 0
        self._whole = [place for place, field in enumerate(fields.values()) if _holds(field.annotation, int)]
        labels = [self._names.index(name) for name in label_names(kind)]
        self._label = itemgetter(*labels) if labels else lambda _values: ()
        self._device = self._names.index("device") if "device" in self._names else -1
        self._combinations: set[Any] = set()
        self._devices: set[Any] = set()

    def add(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Take more rows, until one is left out. Fields of a newer version are dropped.

        Raises:
            BadInput: a row is no such observation.
        """
        for row in rows:
            values = self._checked(row)
            if self.cut is None:
                self.cut = self._beyond(values)
            if self.cut is not None:
                return
            self.append(self._row(values))
            if self._characters > TEXT_READ:
                self.cut = f"they hold more than {TEXT_READ:,} characters of different texts"

    def _row(self, values: tuple[Any, ...]) -> ReadRow:
        """The row, whose names and places it shares with all rows that know the same fields."""
        known = tuple([value is not None for value in values])
        if known not in self._shapes:
            self._shapes[known] = self._shape(known)
        shape = self._shapes[known]
        picked = shape.pick(values)
        if shape.texts:
            picked = (*(self._once(value) if place in shape.texts else value for place, value in enumerate(picked)),)
        return ReadRow(shape.places, picked)

    def _shape(self, known: tuple[bool, ...]) -> _Shape:
        """Where the values of such rows stand; of too many shapes all fields are taken for known."""
        taken = [place for place in range(len(self._names)) if known[place] or len(self._shapes) >= _SHAPES]
        places = dict.fromkeys(self._names, -1) | {self._names[place]: new for new, place in enumerate(taken)}
        fields = list(self._kind.model_fields.values())
        texts = frozenset(new for new, place in enumerate(taken) if _holds(fields[place].annotation, str))
        return _Shape(places, itemgetter(*taken, len(self._names)), texts)

    def _once(self, value: Any) -> Any:
        """The value; of a text that was there before, the same object, so that a label takes no memory in each row."""
        if not isinstance(value, str):
            return value
        if value not in self._texts:
            self._texts[value] = value
            self._characters += len(value)
        return self._texts[value]

    def _beyond(self, values: tuple[Any, ...]) -> str | None:
        """Why no further row is taken."""
        if len(self) >= ROWS_READ:
            return "no more are read"
        self._combinations.add(self._label(values))
        if len(self._combinations) > COMBINATIONS_READ:
            return f"they have more than {COMBINATIONS_READ:,} different combinations of labels"
        self._devices.add(values[self._device])
        if len(self._devices) > DEVICES_READ:
            return f"they name more than {DEVICES_READ} different GPUs"
        return None

    def _checked(self, row: Mapping[str, Any]) -> tuple[Any, ...]:
        """The values in the order of the fields, and ``None`` behind them."""
        try:
            values = (*vars(self._kind.model_validate(row)).values(), None)
        except ValidationError as error:
            first = error.errors()[0]
            field = ".".join(str(part) for part in first["loc"])
            what = f"field {field!r} does not fit" if field else first["msg"].removeprefix("Value error, ")
            raise BadInput(what) from None
        for place in self._whole:
            if type(value := values[place]) is int and abs(value) >= 2**63:
                raise BadInput(f"field {self._names[place]!r} does not fit")
        return values


class _Shape(NamedTuple):
    """Rows that know the same fields: where each field stands in them, how they are picked, and which are texts."""

    places: dict[str, int]
    pick: Callable[[tuple[Any, ...]], tuple[Any, ...]]
    texts: frozenset[int]


def label_names(kind: type[Observation]) -> list[str]:
    """Fields that each observation has, and that are no measured times; and ``device``."""
    return [
        name
        for name, field in kind.model_fields.items()
        if (
            field.is_required()
            and _type_of(field.annotation) not in (float, datetime)
            and name not in ("repeat", "warmup")
        )
        or name == "device"
    ]


def _holds(annotation: Any, kind: type) -> bool:
    """Whether values of a field may be of that type."""
    return annotation is kind or any(_holds(part, kind) for part in get_args(annotation))


def _type_of(annotation: Any) -> type | None:
    """``float``, ``int`` or ``datetime`` of a field that may also be ``None``; ``None`` for all others."""
    if annotation is AwareDatetime:
        return datetime
    if annotation in (float, int, datetime):
        return annotation  # type: ignore[no-any-return]
    if get_origin(annotation) is Literal:
        return None
    types = {_type_of(part) for part in get_args(annotation) if part is not type(None)}
    return next((known for known in (float, int, datetime) if known in types), None)


def grouped(items: Iterable[_Item], key: Callable[[_Item], _Key]) -> dict[_Key, list[_Item]]:
    """Items with the same key together, in the order of their first."""
    groups: dict[_Key, list[_Item]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return groups


def counted(rows: Iterable[Row]) -> list[Row]:
    """Those that are no warm-ups."""
    return [row for row in rows if not row["warmup"]]


def from_then_on(items: Sequence[_Item], holds: Callable[[_Item], bool]) -> _Item | None:
    """The first item from which on it holds for all; ``None`` if it does not hold for the last one."""
    lasting = list(takewhile(holds, reversed(items)))
    return lasting[-1] if lasting else None


def labels(*names: str) -> Callable[[Row], tuple[Any, ...]]:
    """A key of :func:`grouped`: the values of these fields."""
    return lambda row: tuple(row[name] for name in names)


def summary(rows: Iterable[Row], name: str) -> Summary | None:
    """Median and spread of a field, over the rows that have it; ``None`` where none has."""
    values = [value for row in rows if (value := row.get(name)) is not None]
    return summarize(values) if values else None


def median(summary: Summary | None) -> float | None:
    """The median, where there is one."""
    return summary.median if summary else None


EachPart = Callable[[int], bool]
"""Of the number of a part, from 0 on: whether it is wanted."""


def every_part(number: int) -> bool:
    """All parts are wanted."""
    del number
    return True


@dataclass(frozen=True)
class Attached:
    """The attachments of one run.

    Attributes:
        rows: name → how many rows.
        read: gives the wanted parts of an attachment, each a table of at most ``records.base.PART_ROWS`` rows.
    """

    rows: dict[str, int]
    read: Callable[[str, EachPart], Iterator[pa.Table]]

    def tables(self, name: str, wanted: EachPart = every_part) -> Iterator[pa.Table]:
        """The wanted parts of an attachment; none of one that the run does not carry.

        Raises:
            InvalidParameter: a part cannot be read.
            StoreFailed: the database cannot be read.
        """
        return self.read(name, wanted) if self.rows.get(name) else iter(())


NOTHING_ATTACHED = Attached({}, lambda _name, _wanted: iter(()))
"""Of a run without attachments."""


class Kind(Protocol):
    """Every experiment is one; a timeline and a trace, which are kept and read like one, are others."""

    @property
    def name(self) -> str:
        """As runs carry it; of an experiment, the word on the command line."""
        ...

    @property
    def title(self) -> str: ...
    @property
    def question(self) -> str: ...
    @property
    def Params(self) -> type[Inputs]: ...  # noqa: N802 - a class
    @property
    def Observation(self) -> type[Observation]: ...  # noqa: N802 - a class
