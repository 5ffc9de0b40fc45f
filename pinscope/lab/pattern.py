"""Random content that tells whether a copy arrived: fresh for every copy, cheap to lay down and to check."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

BLOCK_WORDS = 524_287
"""Words in the repeated block: a prime, so that no chunk, page or ring size maps the block onto itself."""
WORD_BYTES = 8


@dataclass(frozen=True)
class Block:
    """Random words that patterns are cut from.

    Attributes:
        words: ``BLOCK_WORDS`` random uint64.
    """

    words: NDArray[np.uint64]

    @classmethod
    def random(cls) -> Block:
        """A block from fresh operating-system entropy."""
        generator = np.random.Generator(np.random.SFC64())
        return cls(generator.integers(0, 2**64, BLOCK_WORDS, dtype=np.uint64))


@dataclass(frozen=True)
class Pattern:
    """Word j of a buffer is ``words[(j + offset) % BLOCK_WORDS] ^ key``.

    ``key`` is fresh random for every pattern, so stale content of any earlier pattern differs in every word.
    """

    offset: int
    key: int

    @classmethod
    def fresh(cls, generator: np.random.Generator) -> Pattern:
        """A pattern never used before: random offset, random 64-bit key."""
        return cls(int(generator.integers(BLOCK_WORDS)), int(generator.integers(1, 2**63)))
