"""Tables of many events that a run carries, as readings and charts take them: in pieces, read when asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # it takes a fifth of a second to import
    import pyarrow as pa

EachPart = Callable[[int], bool]
"""Of the number of a part, from 0 on: whether it is wanted."""


def _nothing(name: str, wanted: EachPart) -> Iterator[pa.Table]:
    del name, wanted
    return iter(())


def every_part(number: int) -> bool:
    """All parts are wanted."""
    del number
    return True


@dataclass(frozen=True)
class Attached:
    """The attachments of one run.

    Attributes:
        rows: name → how many rows.
        read: gives the wanted parts of an attachment, each a table of at most ``limits.PART_ROWS`` rows.
    """

    rows: dict[str, int] = field(default_factory=dict)
    read: Callable[[str, EachPart], Iterator[pa.Table]] = _nothing

    def tables(self, name: str, wanted: EachPart = every_part) -> Iterator[pa.Table]:
        """The wanted parts of an attachment; none of one that the run does not carry.

        Raises:
            InvalidParameter: a part cannot be read.
            StoreFailed: the database cannot be read.
        """
        return self.read(name, wanted) if self.rows.get(name) else iter(())


NOTHING_ATTACHED = Attached()
"""Of a run without attachments."""
