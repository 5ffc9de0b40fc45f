"""The table of figures of the live view: what each is called, what it means, and where it appears.

An entry stands at the field that it is about, in ``records/snapshot.py`` and ``records/environment.py``; the field's
name is its key in JSON. Page, terminal, CSV, metrics, timeline and reports go through the table and need no change for
a new one. What fills the field does: of the host ``probes/host_memory.py``, of a GPU ``probes/gpu.py``, of a holder
``live/holder.py``, where what ``/proc/PID/status`` has is one line.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, Field, PlainSerializer, computed_field, create_model

from pinscope.records.base import Record

Number = float | int | None
Made = TypeVar("Made", bound=Record)


@dataclass(frozen=True, kw_only=True)
class Figure:
    """One figure of the host, of a GPU, or of a holder.

    Attributes:
        label: what it is called where there is room.
        help: what it is, in one or two sentences.
        unit: as in :func:`pinscope.units.format_value`.
        short: what the terminal calls it; ``None``: it is not there.
        terminal: when it is there: always; where somebody has some; the same, where there is room.
        common: so much of it every holder has: not worth a column in the terminal.
        probed: known only while the probe runs.
        page: a column or a card of the page Now; ``hidden``: a column that a reader must ask for.
        metric: what the exporter calls it; ``None``: not exported.
        adds_up: what several holders have together, or one has on several GPUs; ``None``: that means nothing.
        timeline: a timeline keeps it.
        event: a change of it is an event.
        report: it is listed among all that is known; ``some``: where there is some.
        field: the record's field.
        column: name among the columns of a holder, if that is not the field's; likewise in a timeline's row.
    """

    label: str
    help: str
    unit: str = "bytes"
    short: str | None = None
    terminal: Literal["always", "some", "room"] = "some"
    common: int = 0
    probed: bool = False
    page: Literal["shown", "hidden"] | None = None
    metric: str | None = None
    adds_up: Literal["sum", "max"] | None = "sum"
    timeline: bool = False
    event: bool = False
    report: Literal["always", "some"] | None = "always"
    field: str = ""
    column: str = ""

    def together(self, values: Iterable[Number]) -> Number:
        """What these come to, as far as they are known; ``None`` if none is, or if that means nothing."""
        known = [value for value in values if value is not None]
        if not known or self.adds_up is None:
            return None
        return sum(known) if self.adds_up == "sum" else max(known)


@cache
def figures(record: type[BaseModel]) -> tuple[Figure, ...]:
    """The entries at a record's fields, in their order."""
    return tuple(
        replace(entry, field=name, column=entry.column or name)
        for name, field in record.model_fields.items()
        for entry in field.metadata
        if isinstance(entry, Figure)
    )


def with_figures(of: Mapping[str, type[BaseModel]]) -> Callable[[type[Made]], type[Made]]:
    """Gives a record a field for each figure of these that a timeline keeps.

    Args:
        of: what stands before a figure's help → the record that has it.
    """

    def add(made: type[Made]) -> type[Made]:
        fields: dict[str, Any] = {}
        for words, record in of.items():
            for figure in figures(record):
                if not figure.timeline:
                    continue
                before = f"{fields[figure.column][0].__metadata__[0].description} " if figure.column in fields else ""
                described = Field(ge=0, description=f"{before}{words}: {figure.help}")
                kind: Any = Annotated[record.model_fields[figure.field].annotation, described]
                fields[figure.column] = (kind, None)
        wider: type[Made] = create_model(
            made.__name__, __base__=made, __module__=made.__module__, __doc__=made.__doc__, **fields
        )
        return wider

    return add


BoundKind = Literal["at_least", "at_most", "about"]
_WORDS: Mapping[BoundKind, str] = {"at_least": "at least", "at_most": "at most", "about": "about"}


class Bound(Record):
    """A figure is no more than an estimate: the true value is at least that, at most that, or about that."""

    kind: BoundKind
    why: str

    @property
    def text(self) -> str:
        """``at most: not all of it is resident``."""
        return f"{self.words}: {self.why}"

    @property
    def words(self) -> str:
        """``at least``, ``at most`` or ``about``."""
        return _WORDS[self.kind]

    def plus(self, other: Bound | None) -> Bound:
        """The bound of the sum of this figure and another one, which is exact if it has none."""
        return bound_of_sum((self, other)) or self


def at_least(why: str) -> Bound:
    """The true value may be more."""
    return Bound(kind="at_least", why=why)


def at_most(why: str) -> Bound:
    """The true value may be less."""
    return Bound(kind="at_most", why=why)


def about(why: str) -> Bound:
    """The true value may be more or less."""
    return Bound(kind="about", why=why)


def bound_of_sum(parts: Iterable[Bound | None]) -> Bound | None:
    """The bound of a sum, from those of its parts; ``None`` if every part is exact.

    What may be too little for one reason and too much for another is ``about`` right.
    """
    known = [part for part in parts if part is not None]
    if not known:
        return None
    kinds = {part.kind for part in known}
    return Bound(
        kind=known[0].kind if len(kinds) == 1 else "about", why="; ".join(dict.fromkeys(part.why for part in known))
    )


def _texts(estimates: Mapping[str, Bound]) -> dict[str, str]:
    return {field: bound.text for field, bound in estimates.items()}


class Estimated(Record):
    """A record whose figures may be missing or estimates, by field.

    In JSON an estimate is a text, and its kind stands under the same name in ``bounds``.
    """

    missing: Mapping[str, str] = {}
    """Why a figure is ``None``."""
    estimates: Annotated[Mapping[str, Bound], PlainSerializer(_texts)] = {}
    """Which figures are not exact, and how; every other one is, as of the moment of reading."""

    @computed_field  # type: ignore[prop-decorator]
    @property
    def bounds(self) -> dict[str, BoundKind]:
        """Of each estimate: the true value is ``at_least``, ``at_most`` or ``about`` the figure."""
        return {field: bound.kind for field, bound in self.estimates.items()}

    def note(self, field: str) -> str | None:
        """Why a figure is missing or no more than an estimate; ``None`` of one that is exact."""
        if getattr(self, field) is None:
            return self.missing.get(field)
        return self.estimates[field].text if field in self.estimates else None
