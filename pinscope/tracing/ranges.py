"""The named ranges that are open in a traced program: those of NVTX, and the parts that ``pinscope.trace`` names."""

from __future__ import annotations

import _thread
import itertools
import json
from collections.abc import Callable
from typing import TypeAlias

MOST_NAMES = 10_000
"""Different names that are kept; a program may make up a new one for each step."""
MOST_CHARACTERS = 200
"""Of a name."""
OTHERS = "other ranges"
"""Stands for the names beyond :data:`MOST_NAMES`."""
_Domain: TypeAlias = int | str
_PARTS = "pinscope.trace"
"""Domain of the parts; NVTX's are numbers."""


class Ranges:
    """The open ranges of each thread, as numbers of their names.

    A part belongs to the whole process: PyTorch copies for a step also in threads of its own.

    Args:
        keep: writes a new number and name to the spool, as a line of JSON.
    """

    def __init__(self, keep: Callable[[bytes], None]) -> None:
        self._keep = keep
        self._numbers: dict[str, int] = {}
        self._next = itertools.count(1)
        self._open: dict[int, list[tuple[_Domain, int]]] = {}
        self._parts: list[int] = []

    @property
    def parts(self) -> int:
        """How many parts are open."""
        return len(self._parts)

    def current(self) -> int:
        """Number of the innermost range of this thread, else of the process's innermost part; 0 if none is open."""
        if self._open and (mine := self._open.get(_thread.get_ident())):
            return mine[-1][1]
        return self._parts[-1] if self._parts else 0

    def push(self, name: str, domain: int) -> None:
        """A range of this thread begins."""
        self._begin(self._number(name), domain)

    def pop(self, domain: int) -> None:
        """The innermost range of this thread and domain ends."""
        self._end(domain)

    def enter_part(self, name: str) -> None:
        """A part of the program begins, in this thread."""
        number = self._number(name)
        self._parts.append(number)
        self._begin(number, _PARTS)

    def leave_part(self, name: str) -> None:
        """It ends, in the same thread."""
        number = self._number(name)
        if number in self._parts:
            del self._parts[len(self._parts) - 1 - self._parts[::-1].index(number)]
        self._end(_PARTS)

    def _begin(self, number: int, domain: _Domain) -> None:
        self._open.setdefault(_thread.get_ident(), []).append((domain, number))

    def _end(self, domain: _Domain) -> None:
        thread = _thread.get_ident()
        mine = self._open.get(thread, [])
        for place in range(len(mine) - 1, -1, -1):
            if mine[place][0] == domain:
                del mine[place]
                break
        if not mine:
            self._open.pop(thread, None)

    def _number(self, name: str) -> int:
        name = name[:MOST_CHARACTERS]
        number = self._numbers.get(name)
        return number if number is not None else self._add(name)

    def _add(self, name: str) -> int:
        if len(self._numbers) >= MOST_NAMES:
            name = OTHERS
            if name in self._numbers:
                return self._numbers[name]
        number = next(self._next)  # one that a signal's handler takes away is not used
        self._keep(json.dumps([number, name]).encode() + b"\n")
        return self._numbers.setdefault(name, number)
