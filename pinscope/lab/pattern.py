"""The content of memory: patterns to tell copies by, and copies that the processor makes, in threads."""

from __future__ import annotations

import ctypes
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Self, TypeVar

import numpy as np
from numpy.typing import NDArray

BLOCK_WORDS = 524_287
"""Words in the repeated block: a prime, so that no chunk, page or ring size maps the block onto itself."""
WORD_BYTES = 8
_CHECK_WORDS = 65_536
"""Words compared at a time: the intermediate results stay in the processor's cache."""


def words_at(address: int, nbytes: int) -> NDArray[np.uint64]:
    """The memory there as 8-byte words. The view keeps nothing alive: drop it before the memory goes."""
    return np.frombuffer(memoryview((ctypes.c_char * nbytes).from_address(address)), dtype=np.uint64)


@dataclass(frozen=True)
class Block:
    """Random words that patterns are cut from.

    Attributes:
        words: ``BLOCK_WORDS`` random uint64.
    """

    words: NDArray[np.uint64]

    @classmethod
    def random(cls, seed: int | None = None) -> Block:
        """A block from fresh operating-system entropy, or the one that this seed gives in every process."""
        generator = np.random.Generator(np.random.SFC64(seed))
        return cls(generator.integers(0, 2**64, BLOCK_WORDS, dtype=np.uint64))

    def lay(self, words: NDArray[np.uint64], pattern: Pattern) -> None:
        """Write the pattern over ``words`` (memory that the processor reaches)."""
        for at, source in self._runs(len(words), pattern.offset, BLOCK_WORDS):
            np.bitwise_xor(source, np.uint64(pattern.key), out=words[at : at + len(source)])

    def count_wrong(self, words: NDArray[np.uint64], pattern: Pattern) -> int:
        """How many of ``words`` differ from the pattern; every word is compared."""
        scratch = np.empty(_CHECK_WORDS, dtype=np.uint64)
        differs = np.empty(_CHECK_WORDS, dtype=np.bool_)
        wrong = 0
        for at, source in self._runs(len(words), pattern.offset, _CHECK_WORDS):
            count = len(source)
            np.bitwise_xor(words[at : at + count], source, out=scratch[:count])
            np.not_equal(scratch[:count], np.uint64(pattern.key), out=differs[:count])
            wrong += int(np.count_nonzero(differs[:count]))
        return wrong

    def sample(self, pattern: Pattern, positions: NDArray[np.int64]) -> NDArray[np.uint64]:
        """The words that the pattern lays at these word positions."""
        return self.words[(positions + pattern.offset) % BLOCK_WORDS] ^ np.uint64(pattern.key)

    def _runs(self, count: int, offset: int, longest: int) -> Iterator[tuple[int, NDArray[np.uint64]]]:
        """The block's words for positions 0 to ``count``, in runs that do not wrap: (position, words)."""
        at = 0
        while at < count:
            start = (at + offset) % BLOCK_WORDS
            length = min(BLOCK_WORDS - start, count - at, longest)
            yield at, self.words[start : start + length]
            at += length


@dataclass(frozen=True)
class Pattern:
    """Word j of a buffer is ``words[(j + offset) % BLOCK_WORDS] ^ key``.

    ``key`` is fresh random for every pattern, so stale content of any earlier pattern differs in every word.
    """

    offset: int
    key: int

    def part(self, offset: int) -> Pattern:
        """What this pattern lays from ``offset`` bytes (a multiple of 8) of its buffer on."""
        return Pattern(self.offset + offset // WORD_BYTES, self.key)

    @classmethod
    def fresh(cls, generator: np.random.Generator) -> Pattern:
        """A pattern never used before: random offset, random 64-bit key."""
        return cls(int(generator.integers(BLOCK_WORDS)), int(generator.integers(1, 2**63)))


SWITCH_SECONDS = 20e-6
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

    def run(self, work: Callable[[_Part], object], parts: list[_Part]) -> None:
        """Do this with every part, side by side; complete on return. Raises what the work raises."""
        if self._pool is None:
            for part in parts:
                work(part)
        else:
            list(self._pool.map(work, parts))

    def copy(self, target: int, source: int, nbytes: int) -> None:
        """Copy from one address to another, each thread its stretch (both multiples of 8); complete on return."""
        self.run(lambda part: copy_words(target + part[0], source + part[0], part[1]), stretches(nbytes, self.count))


def copy_words(target: int, source: int, nbytes: int) -> None:
    """NumPy's copy, during which other threads run."""
    np.copyto(words_at(target, nbytes), words_at(source, nbytes))


def stretches(nbytes: int, count: int) -> list[tuple[int, int]]:
    """At most ``count`` parts of about equal length, each from the start of a page: (offset, bytes)."""
    length = -(-nbytes // count // _PAGE) * _PAGE
    return [(at, min(length, nbytes - at)) for at in range(0, nbytes, length)]


@contextmanager
def threads_take_turns_quickly() -> Iterator[None]:
    """Let a thread have the interpreter soon after it wakes, while another one computes in Python."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(SWITCH_SECONDS)
    try:
        yield
    finally:
        sys.setswitchinterval(before)
