"""Which line of a program a call belongs to: from a stack as Python knows it to a file, a line and its text."""

from __future__ import annotations

import ast
import functools
import linecache
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from pinscope.text import mask_code
from pinscope.tracing.stacks import INSTALLED, Frame, file_label, is_ours, is_own, label

SHOWN_FRAMES = 12
"""Of a stack, as text."""
SHOWN_CHARACTERS = 200
"""Of a line's text."""
FUNCTION_CHARACTERS = 300
"""Of a function's name."""
FRAME_CHARACTERS = 400
"""Of a frame in a stack."""


@functools.cache
def library_folders() -> tuple[str, ...]:
    """Folders of ``PYTHONPATH`` into which packages were installed, as by pip's option ``--target``, each with a slash
    at its end."""
    places = {
        folder.rstrip("/") for folder in os.environ.get("PYTHONPATH", "").split(os.pathsep) if folder.startswith("/")
    }
    return tuple(f"{folder}/" for folder in places if any(Path(folder).glob("*.dist-info")))


@dataclass(frozen=True)
class Place:
    """A line of a program.

    Attributes:
        file: as Python knows it, :func:`file_label`; empty where a native thread made the call.
        line: from 1 on.
        function: its qualified name.
        source: the line's text, with the other lines of a call that it begins or ends; empty where the file cannot be
            read.
        stack: the frames around it, the innermost first, one on each line.
    """

    file: str
    line: int
    function: str
    source: str
    stack: str
    library: tuple[str, int] | None = None
    """File and line of the library below it that made the call, or had another library make it."""


NATIVE = Place("", 0, "", "", "")
"""A thread without Python code."""


class Sources:
    """Keeps the program's files as they are when a line of theirs is first seen: they may change while it runs."""

    def __init__(self) -> None:
        self._seen: set[str] = set()

    def look(self, stacks: Iterable[Sequence[Frame]]) -> None:
        """Read the files of these stacks that are new; :func:`place_of` then takes a line's text from what was read."""
        for file in {own[0] for stack in stacks if (own := _own_frame(_frames(stack)))} - self._seen:
            self._seen.add(file)
            linecache.checkcache(file)
            linecache.getline(file, 1)


def place_of(stack: Sequence[Frame]) -> Place:
    """The innermost frame of the program's own code; of a program that is a library, its innermost frame."""
    frames = _frames(stack)
    own = _own_frame(frames)
    if own is None:
        return NATIVE
    file, line, function = own
    frames_text = "\n".join(
        label(f"{name} ({path}:{number})", FRAME_CHARACTERS) for path, number, name in frames[:SHOWN_FRAMES]
    )
    library = _library_frame(frames[: frames.index(own)])
    return Place(
        file_label(file),
        line,
        label(function, FUNCTION_CHARACTERS),
        _text(file, line),
        frames_text,
        library and (file_label(library[0]), library[1]),
    )


_COPYING = frozenset({"torch", "cupy", "cupyx", "jax", "jaxlib", "numpy", "numba", "numba_cuda", "cuda"})
"""Packages that copy for whoever calls them."""


def _library_frame(below: Sequence[Frame]) -> Frame | None:
    """Of the frames below the program's own, the one that decides on the call: the innermost one of a package that is
    none of :data:`_COPYING`. Else, where the program's line calls PyTorch, the innermost one of PyTorch, if it is in
    another file than what the line calls: its hooks copy, too."""
    installed = [(frame, package) for frame in below if (package := _package(frame[0]))]
    deciding = next((frame for frame, package in installed if package not in _COPYING), None)
    if deciding is None and installed and installed[-1][1] == "torch":
        inner = next(frame for frame, package in installed if package == "torch")
        deciding = inner if inner[0] != installed[-1][0][0] else None
    return deciding


def _package(file: str) -> str:
    """The installed package that a file belongs to; empty of Python's own library, and of code that is in no file."""
    folder = next((folder for folder in (*INSTALLED, *library_folders()) if folder in file), None)
    if folder is None:
        return ""
    return file.rpartition(folder)[2].partition("/")[0].removesuffix(".py")


def _frames(stack: Sequence[Frame]) -> Sequence[Frame]:
    """Without those of PinScope."""
    return [frame for frame in stack if not is_ours(frame[0])]


def _own_frame(frames: Sequence[Frame]) -> Frame | None:
    """The frame whose line it is, as Python knows it."""
    libraries = library_folders()
    return next((frame for frame in frames if is_own(frame[0], libraries)), frames[0] if frames else None)


def _text(file: str, line: int) -> str:
    text = linecache.getline(file, line).strip()
    if text.startswith(".") or text.count("(") != text.count(")"):
        first, last = _calls_of_several_lines("".join(linecache.getlines(file))).get(line, (line, line))
        text = " ".join(linecache.getline(file, number).strip() for number in range(first, last + 1))
    return label(mask_code(text), SHOWN_CHARACTERS)  # before it is cut: a name may go and its secret stay


@functools.lru_cache(maxsize=16)
def _calls_of_several_lines(source: str) -> dict[int, tuple[int, int]]:
    """The line by which Python names a call that stands on several → the first and the last of them.

    Python names a call by the line of its method's name, else by its first line.
    """
    try:
        nodes = list(ast.walk(ast.parse(source)))
    except (SyntaxError, ValueError, RecursionError):  # it was changed since, or is no Python
        return {}
    calls: dict[int, tuple[int, int]] = {}
    for node in nodes:  # the outermost first
        first, last = getattr(node, "lineno", 0), getattr(node, "end_lineno", None) or 0
        if isinstance(node, ast.Call) and first < last:
            method = node.func.end_lineno if isinstance(node.func, ast.Attribute) else None
            calls.setdefault(method or first, (first, last))
    return calls
