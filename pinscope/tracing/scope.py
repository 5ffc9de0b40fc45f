"""What of a program is recorded, and when."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Scope:
    """What of a program is recorded; by default all of it.

    Attributes:
        stacks: keep the Python stack of each call; without them no line is named.
        start_after: seconds from the program's start in which nothing is recorded.
        for_seconds: how long is recorded from then on; ``None``: to the end.
        only_parts: only while a part that ``pinscope.trace`` names is open.
        children: also the Python processes that the program starts.
    """

    stacks: bool = True
    start_after: float = 0.0
    for_seconds: float | None = None
    only_parts: bool = False
    children: bool = True

    @property
    def is_part(self) -> bool:
        """Some of the program may be left out."""
        return bool(self.start_after) or self.for_seconds is not None or self.only_parts

    def config(self, begun_ns: int) -> Mapping[str, Any]:
        """What the recorder reads of it.

        Args:
            begun_ns: when the program starts.
        """
        begin = begun_ns + int(self.start_after * 1e9) if self.start_after else None
        until = None if self.for_seconds is None else (begin or begun_ns) + int(self.for_seconds * 1e9)
        return {
            "stacks": self.stacks,
            "from_ns": begin,
            "until_ns": until,
            "only_parts": self.only_parts,
            "children": self.children,
        }
