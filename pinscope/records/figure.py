"""The table of figures of the live view: what each is called, what it means, and where it appears.

An entry stands at the field that it is about, in ``records/snapshot.py`` and ``records/environment.py``; the field's
name is its key in JSON. Page, terminal, CSV, metrics, timeline and reports go through the table: a new figure is one
entry there, and a probe that fills the field.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, Field, create_model

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
        csv: a column of ``pinscope live --csv``.
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
    csv: bool = False
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
