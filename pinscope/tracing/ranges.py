"""The named ranges that are open in a traced program: those of NVTX, and the parts that ``pinscope.trace`` names."""

from __future__ import annotations

import ctypes
import itertools
from collections.abc import Callable
from typing import TypeAlias

from pinscope.tracing.bound import _thread, as_json, bind, os

bind(globals())


MOST_NAMES = 10_000
"""Different names that are kept; a program may make up a new one for each step."""
MOST_CHARACTERS = 200
"""Of a name."""
MOST_THREADS = 256
"""With open ranges, until it is looked which of them have ended."""
OTHERS = "other ranges"
"""Stands for the names beyond :data:`MOST_NAMES`."""
_Domain: TypeAlias = int | str
_PARTS = "pinscope.trace"
"""Domain of the parts; NVTX's are numbers."""


class _Thread(_thread._local):
    """The thread that asks: the system's number of it. Python's own is given to the next thread when one ends."""

    def __init__(self) -> None:
        self.number = _thread.get_native_id()


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
        self._thread = _Thread()
        self._parts: list[int] = []

    @property
    def parts(self) -> int:
        """How many parts are open."""
        return len(self._parts)

    def current(self) -> int:
        """Number of the innermost range of this thread, else of the process's innermost part; 0 if none is open."""
        if self._open and (open_here := self._open.get(self._thread.number)):
            return open_here[-1][1]
        return self._parts[-1] if self._parts else 0

    def push(self, name: str, domain: int) -> None:
        """A range of this thread begins."""
        self._begin(self._number(name), domain)

    def pop(self, domain: int) -> None:
        """The innermost range of this thread and domain ends."""
        self._end(domain, None)

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
        self._end(_PARTS, number)  # not always the innermost: a generator may hold one open

    def forget(self) -> None:
        """Give back the memory; numbers that come are new."""
        self._open.clear()
        self._numbers.clear()

    def _begin(self, number: int, domain: _Domain) -> None:
        thread = self._thread.number
        if thread not in self._open and len(self._open) >= MOST_THREADS:
            self._forget_ended_threads()
        self._open.setdefault(thread, []).append((domain, number))

    def _forget_ended_threads(self) -> None:
        """Those that ended within a range."""
        for thread in list(self._open):
            if not os.access(f"/proc/self/task/{thread}", os.F_OK):
                self._open.pop(thread, None)

    def _end(self, domain: _Domain, number: int | None) -> None:
        """The innermost range of this thread and domain, with this number if there is one, is over."""
        thread = self._thread.number
        open_here = self._open.get(thread, [])
        for place in range(len(open_here) - 1, -1, -1):
            if open_here[place][0] == domain and number in (None, open_here[place][1]):
                del open_here[place]
                break
        if not open_here:
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
        self._keep(as_json([number, name]) + b"\n")
        return self._numbers.setdefault(name, number)


PUSH_A, PUSH_W, PUSH_EX, POP = 8, 9, 10, 11
DOMAIN_PUSH_EX, DOMAIN_POP = 33, 34
REGISTER_A, REGISTER_W = 39, 40
FOLLOWED = (PUSH_A, PUSH_W, PUSH_EX, POP, DOMAIN_PUSH_EX, DOMAIN_POP, REGISTER_A, REGISTER_W)
"""Functions of which CUPTI is asked to report the calls."""
MOST_STRINGS = 10_000
"""Registered strings that are kept."""
NAMELESS = "a range without a name"
_PARAMETERS_AT, _RETURNED_AT = 8, 16
"""In ``CUpti_NvtxData``, behind the function's name."""
_MESSAGE_TYPE_AT, _MESSAGE_AT = 32, 40
"""In ``nvtxEventAttributes_t``."""
_ASCII, _UNICODE, _REGISTERED = 1, 2, 3
_pointer = ctypes.c_uint64.from_address


class NvtxCalls:
    """Keeps the open ranges as a program's calls of NVTX say.

    Args:
        ranges: where they are kept.
    """

    def __init__(self, ranges: Ranges) -> None:
        self._ranges = ranges
        self._strings: dict[int, str] = {}

    def note(self, number: int, data: int) -> None:
        """One call.

        Args:
            number: of the function.
            data: address of CUPTI's structure.
        """
        parameters = _pointer(data + _PARAMETERS_AT).value
        if number == POP:
            self._ranges.pop(0)
        elif number == DOMAIN_POP:
            self._ranges.pop(_pointer(parameters).value)
        elif number in {PUSH_A, PUSH_W}:
            self._ranges.push(_text(_pointer(parameters).value, number == PUSH_W), 0)
        elif number == PUSH_EX:
            self._ranges.push(self._name(_pointer(parameters).value), 0)
        elif number == DOMAIN_PUSH_EX:
            self._ranges.push(self._name(_pointer(parameters + 8).value), _pointer(parameters).value)
        elif number in {REGISTER_A, REGISTER_W}:
            self._register(_text(_pointer(parameters + 8).value, number == REGISTER_W), _pointer(data + _RETURNED_AT))

    def _register(self, text: str, returned: ctypes.c_uint64) -> None:
        """A string that is named by its handle from now on."""
        if returned.value and len(self._strings) < MOST_STRINGS:
            self._strings[_pointer(returned.value).value] = text

    def _name(self, attributes: int) -> str:
        """The message of a range's attributes."""
        if not attributes:
            return NAMELESS
        kind, message = _pointer(attributes + _MESSAGE_TYPE_AT).value & 0xFFFFFFFF, _pointer(attributes + _MESSAGE_AT)
        if kind == _REGISTERED:
            return self._strings.get(message.value, NAMELESS)
        return _text(message.value, kind == _UNICODE) if kind in {_ASCII, _UNICODE} else NAMELESS


def _text(address: int, wide: bool) -> str:
    """The string at an address."""
    if not address:
        return NAMELESS
    return ctypes.wstring_at(address) if wide else ctypes.string_at(address).decode(errors="replace")
