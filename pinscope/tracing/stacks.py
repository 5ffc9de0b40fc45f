"""Where a traced program's calls come from, as numbers: their stacks, and the named ranges that are open then."""

from __future__ import annotations

import ctypes
import itertools
from collections.abc import Callable, Sequence
from types import CodeType, FrameType
from typing import Union

from pinscope.tracing.bound import _thread, as_json, bind, os

bind(globals())


OURS = os.path.dirname(__file__)
"""Code of PinScope that runs inside the program."""
_DOOR = os.path.join(os.path.dirname(OURS), "__init__.py")
"""Through which a program calls us."""
INSTALLED = ("/site-packages/", "/dist-packages/")
"""In the path of what is installed, wherever Python is."""
_STANDARD = {"/lib/python3.", "/lib64/python3."}
"""In that of Python's own library: a program and what it starts may run in any Python."""


def is_ours(file: str) -> bool:
    """Code of PinScope that a program calls, or that calls in its place."""
    return file.startswith(OURS) or file == _DOOR


def is_own(file: str, libraries: Sequence[str]) -> bool:
    """Neither of an installed package, of Python itself nor of PinScope.

    Args:
        file: as a code object names it.
        libraries: other folders of libraries, each with a slash at its end.
    """
    if file.startswith("<") or is_ours(file):
        return False
    installed = any(folder in file for folder in INSTALLED) or any(folder in file for folder in _STANDARD)
    return not installed and not file.startswith(tuple(libraries))


def _name(code: CodeType) -> str:
    """Of a function, with its class where Python knows that of code, from 3.11 on."""
    return getattr(code, "co_qualname", code.co_name)


class OwnLines:
    """Which lines of the program's own code call, by files without links. From any thread.

    Args:
        libraries: as of :func:`is_own`.
    """

    def __init__(self, libraries: Sequence[str]) -> None:
        self._libraries = libraries
        self._files: dict[str, str | None] = {}

    def innermost(self, frame: FrameType | None) -> FrameType | None:
        """The innermost frame of the program's own code, from this one on."""
        while frame is not None and self.real(frame.f_code.co_filename) is None:
            frame = frame.f_back
        return frame

    def place(self, frame: FrameType) -> tuple[str, int]:
        """File and line of a frame."""
        file = frame.f_code.co_filename
        return self.real(file) or file_label(file), frame.f_lineno

    def real(self, file: str) -> str | None:
        """A file of the program's own as its lines are named; ``None`` for any other."""
        try:
            return self._files[file]
        except KeyError:
            own = is_own(file, self._libraries)
            return self._files.setdefault(file, file_label(os.path.realpath(file)) if own else None)


MOST_FRAMES = 64
"""Of a stack, the innermost ones: a library may call itself through many, as modules within modules do."""
MOST_STACKS = 20_000
"""That have a number; a program may make up new code for each step."""
Frame = tuple[str, int, str]
"""File, line, function."""
_Path = tuple[tuple[CodeType, int], ...]
"""Code and place in it of each frame, the innermost first."""


class Stacks:
    """Those of one process; from any thread, without a lock.

    Stacks are one where they are the same down to the innermost frame of the program's own code: that is the line which
    a call belongs to. So most calls are known by one or two frames, however deep the program is.

    Args:
        libraries: as of :func:`is_own`.
        keep: writes a new number and its frames to the spool, as a line of JSON.
        tell: writes to the spool that from now on calls of new stacks have no line.
    """

    def __init__(self, libraries: Sequence[str], keep: Callable[[bytes], None], tell: Callable[[bytes], None]) -> None:
        self._libraries = libraries
        self._keep, self._tell = keep, tell
        self._next = itertools.count(1)
        self._numbers: dict[tuple[int, ...], int] = {}
        self._newest: dict[tuple[int, int], tuple[_Path, bool, int]] = {}
        """Innermost place → what was seen there last: the places behind it, whether no more may follow, and the number.
        To compare with it takes less than a look into ``_numbers``."""
        self._ours: set[int] = set()
        """Code of PinScope."""
        self._is_full = False
        self._codes: list[CodeType] = []  # keeps alive those whose ids stand in the keys
        self._files: dict[str, bool] = {}

    def number(self, innermost: FrameType | None) -> int:
        """Number of the stack above a frame, in which calls of libraries may come through our code. A native thread has
        no frames, and calls for which no number is left count with its calls."""
        frame = innermost
        while frame is not None:
            code = id(frame.f_code)
            if code not in self._ours:
                newest = self._newest.get((code, frame.f_lasti))
                if newest is not None:
                    outer, is_whole, number = newest
                    if not (outer or is_whole) or _goes_on(frame.f_back, outer, is_whole):
                        return number
                    break
                if not frame.f_code.co_filename.startswith(OURS):
                    break
                self._codes.append(frame.f_code)
                self._ours.add(code)
            frame = frame.f_back
        return self._look_up(_frames(frame))

    def forget(self) -> None:
        """Give back the memory; numbers that come are new."""
        for table in (self._newest, self._numbers, self._files, self._ours, self._codes):
            table.clear()

    def _look_up(self, frames: list[FrameType]) -> int:
        numbered = enumerate(frames, 1)
        own = next((number for number, frame in numbered if self._is_own(frame.f_code.co_filename)), None)
        path = tuple((frame.f_code, frame.f_lasti) for frame in frames[:own])
        key = tuple(part for code, place in path for part in (id(code), place))
        number = self._numbers.get(key)
        if number is None:
            if path and len(self._numbers) >= MOST_STACKS:
                return self._without_number()
            self._codes += [code for code, _ in path]
            number = self._add(key, frames)
        if path:
            self._newest[id(path[0][0]), path[0][1]] = path[1:], own is None, number
        return number

    def _without_number(self) -> int:
        if not self._is_full:
            self._is_full = True
            self._tell(f"the program has more than {MOST_STACKS:,} stacks\n".encode())
        return self._look_up([])

    def _add(self, key: tuple[int, ...], frames: list[FrameType]) -> int:
        """Write a stack that is new; its number. The innermost frame first."""
        lines = [(frame.f_code.co_filename, frame.f_lineno or 0, _name(frame.f_code)) for frame in frames]
        number = next(self._next)  # one that a signal's handler takes away is not used
        self._keep(as_json([number, lines]) + b"\n")
        return self._numbers.setdefault(key, number)

    def _is_own(self, file: str) -> bool:
        if len(self._files) >= MOST_STACKS:
            self._files.clear()
        own = self._files.get(file)
        return self._files.setdefault(file, is_own(file, self._libraries)) if own is None else own


def _goes_on(frame: FrameType | None, outer: _Path, is_whole: bool) -> bool:
    """Whether a stack goes on with these places from a frame on; if it ``is_whole``, with no more."""
    for code, place in outer:
        if frame is None or frame.f_code is not code or frame.f_lasti != place:
            return False
        frame = frame.f_back
    return not is_whole or frame is None or len(outer) == MOST_FRAMES - 1


def _frames(innermost: FrameType | None) -> list[FrameType]:
    frames: list[FrameType] = []
    frame = innermost
    while frame is not None and len(frames) < MOST_FRAMES:
        frames.append(frame)
        frame = frame.f_back
    return frames


FILE_CHARACTERS = 1000
"""Of a file's name: with a stack and the rest of a row it is less than an observation may hold."""


def file_label(file: str) -> str:
    """The name by which a file is shown, and its lines compared: the process that redirects copies and the reader of
    the spool make it alike. Paths of usual length stay as they are."""
    return label(file, FILE_CHARACTERS)


def label(text: str, most: int) -> str:
    """``text`` as it can be stored. Of more characters than ``most`` the middle is left out."""
    from pinscope.text import encodable  # noqa: PLC0415 - a program that is traced does without it

    text = encodable(text)
    if len(text) <= most:
        return text
    half = most // 2 - 2
    return f"{text[:half]} … {text[-half:]}"


MOST_NAMES = 10_000
"""Different names that are kept; a program may make up a new one for each step."""
MOST_CHARACTERS = 200
"""Of a name."""
MOST_THREADS = 256
"""With open ranges, until it is looked which of them have ended."""
OTHERS = "other ranges"
"""Stands for the names beyond :data:`MOST_NAMES`."""
_Domain = Union[int, str]
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
