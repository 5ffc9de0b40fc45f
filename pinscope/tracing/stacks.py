"""The stacks of a traced program's calls, as numbers: most calls come from where one came from before."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Sequence
from types import CodeType, FrameType

from pinscope.tracing.bound import as_json, bind

bind(globals())


OURS = os.path.dirname(__file__)  # noqa: PTH120 - pathlib would be one import more in the program
"""Code of PinScope that runs inside the program."""
INSTALLED = ("/site-packages/", "/dist-packages/")
"""In the path of what is installed, wherever Python is."""


def is_own(file: str, libraries: Sequence[str]) -> bool:
    """Neither of an installed package, of Python itself nor of PinScope.

    Args:
        file: as a code object names it.
        libraries: other folders of libraries, each with a slash at its end.
    """
    if file.startswith(("<", OURS)):
        return False
    return not any(folder in file for folder in INSTALLED) and not file.startswith(tuple(libraries))


MOST_FRAMES = 32
"""Of a stack, the innermost ones."""
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
        """Innermost place → what was seen there last: to compare with it takes less than a look into ``_numbers``."""
        self._is_full = False
        self._codes: list[CodeType] = []  # keeps alive those whose ids stand in the keys
        self._files: dict[str, bool] = {}

    def number(self, innermost: FrameType | None) -> int:
        """Number of the stack above a frame. A native thread has no frames, and calls for which no number is left count
        with its calls."""
        if innermost is None:
            return self._look_up([])
        newest = self._newest.get((id(innermost.f_code), innermost.f_lasti))
        if newest is not None:
            path, is_whole, number = newest
            frame: FrameType | None = innermost
            for code, place in path:
                if frame is None or frame.f_code is not code or frame.f_lasti != place:
                    break
                frame = frame.f_back
            else:
                if not is_whole or frame is None or len(path) == MOST_FRAMES:
                    return number
        return self._look_up(_frames(innermost))

    def forget(self) -> None:
        """Give back the memory; numbers that come are new."""
        for table in (self._newest, self._numbers, self._files):
            table.clear()
        self._codes.clear()

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
            self._newest[id(path[0][0]), path[0][1]] = path, len(path) == len(frames), number
        return number

    def _without_number(self) -> int:
        if not self._is_full:
            self._is_full = True
            self._tell(f"the program has more than {MOST_STACKS:,} stacks\n".encode())
        return self._look_up([])

    def _add(self, key: tuple[int, ...], frames: list[FrameType]) -> int:
        """Write a stack that is new; its number. The innermost frame first."""
        lines = [(frame.f_code.co_filename, frame.f_lineno or 0, frame.f_code.co_qualname) for frame in frames]
        number = next(self._next)  # one that a signal's handler takes away is not used
        self._keep(as_json([number, lines]) + b"\n")
        return self._numbers.setdefault(key, number)

    def _is_own(self, file: str) -> bool:
        if len(self._files) >= MOST_STACKS:
            self._files.clear()
        own = self._files.get(file)
        return self._files.setdefault(file, is_own(file, self._libraries)) if own is None else own


def _frames(innermost: FrameType) -> list[FrameType]:
    frames: list[FrameType] = []
    frame: FrameType | None = innermost
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
