"""Ways to the same end that an experiment compares: one record each, which parameters, tables and charts ask."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar


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
