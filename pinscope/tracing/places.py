"""Where in the program a call came from: the innermost frame of its own code, with the library's frames folded."""

from __future__ import annotations

import linecache
import sysconfig
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from pinscope.tracing.own_code import is_own
from pinscope.tracing.spool import Frame

_OURS = str(Path(__file__).parent)
STANDARD = tuple({sysconfig.get_path(name) + "/" for name in ("stdlib", "platstdlib")})
"""Of the interpreter that runs PinScope, which is the one that runs the program."""
SHOWN_FRAMES = 12
"""Of a stack, as text."""


@dataclass(frozen=True)
class Place:
    """A line of a program.

    Attributes:
        file: as Python knows it; empty where a native thread made the call.
        line: from 1 on.
        function: its qualified name.
        source: the line's text; empty where the file cannot be read.
        stack: the frames around it, the innermost first, one on each line.
    """

    file: str
    line: int
    function: str
    source: str
    stack: str


NATIVE = Place("", 0, "", "", "")
"""A thread without Python code."""


class Sources:
    """Keeps the program's files as they are when a line of theirs is first seen: they may change while it runs."""

    def __init__(self) -> None:
        self._seen: set[str] = set()

    def look(self, stacks: Iterable[Sequence[Frame]]) -> None:
        """Read the files of these stacks that are new; :func:`place_of` then takes a line's text from what was read."""
        for file in {place_of(stack).file for stack in stacks} - self._seen:
            self._seen.add(file)
            linecache.checkcache(file)
            linecache.getline(file, 1)


def place_of(stack: Sequence[Frame]) -> Place:
    """The innermost frame of the program's own code; of a program that is a library, its innermost frame."""
    frames = [frame for frame in stack if not frame[0].startswith(_OURS)]
    if not frames:
        return NATIVE
    file, line, function = next((frame for frame in frames if is_own(frame[0], STANDARD)), frames[0])
    shown = "\n".join(f"{name} ({path}:{number})" for path, number, name in frames[:SHOWN_FRAMES])
    return Place(file, line, function, linecache.getline(file, line).strip()[:200], shown)
