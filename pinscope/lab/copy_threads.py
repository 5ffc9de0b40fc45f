"""Threads that copy host memory together, each a stretch of it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Self, TypeVar

import numpy as np

from pinscope.lab.pattern import words_at

_PAGE = 4096
_Part = TypeVar("_Part")


class CopyThreads:
    """A number of threads, started when it is entered and gone when it closes. One is the calling thread itself.

    Args:
        count: how many.
        prepare: what each of them does first, such as choosing its GPU.
    """

    def __init__(self, count: int, prepare: Callable[[], None] = lambda: None) -> None:
        self.count = count
        self._prepare = prepare
        self._stack = ExitStack()
        self._pool: ThreadPoolExecutor | None = None

    def __enter__(self) -> Self:
        if self.count > 1:
            self._pool = self._stack.enter_context(ThreadPoolExecutor(self.count, initializer=self._prepare))
            all_there = threading.Barrier(self.count)
            list(self._pool.map(lambda _: all_there.wait(), range(self.count)))
        return self

    def __exit__(self, *exception: object) -> None:
        self._stack.close()

    def each(self, work: Callable[[_Part], object], parts: list[_Part]) -> None:
        """Do this with every part, side by side; complete on return. Raises what the work raises."""
        if self._pool is None:
            for part in parts:
                work(part)
        else:
            list(self._pool.map(work, parts))

    def copy(self, target: int, source: int, nbytes: int) -> None:
        """Copy from one address to another, each thread its stretch (both multiples of 8); complete on return."""
        self.each(lambda part: copy_words(target + part[0], source + part[0], part[1]), stretches(nbytes, self.count))


def copy_words(target: int, source: int, nbytes: int) -> None:
    """NumPy's copy, during which other threads run."""
    np.copyto(words_at(target, nbytes), words_at(source, nbytes))


def stretches(nbytes: int, count: int) -> list[tuple[int, int]]:
    """At most ``count`` parts of about equal length, each from the start of a page: (offset, bytes)."""
    each = -(-nbytes // count // _PAGE) * _PAGE
    return [(at, min(each, nbytes - at)) for at in range(0, nbytes, each)]
