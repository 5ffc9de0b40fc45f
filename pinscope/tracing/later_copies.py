"""Copies that a library's own threads make once the program's call has returned, as JAX's do: of which call each is."""

from __future__ import annotations

from collections import deque

import numpy as np
from numpy.typing import NDArray

HANDS_OVER = ("jax.device_put", "jax.numpy.asarray", "jax.numpy.array")
"""Calls that leave the copy to threads of the library."""
MOST_OPEN = 1000
"""Calls whose data has not been copied yet; that of older ones has gone another way."""


def calls_of_copies(
    copied_at: NDArray[np.int64], copied: NDArray[np.int64], called_at: NDArray[np.int64], called: NDArray[np.int64]
) -> NDArray[np.intp]:
    """Of each copy the place of its call, by bytes and order; −1 where none fits: the oldest call that had begun and of
    whose bytes so many are left.

    Args:
        copied_at: when each copy began; ascending.
        copied: bytes of each.
        called_at: when each call began; ascending.
        called: bytes of each.
    """
    found = np.full(len(copied), -1)
    waiting: deque[int] = deque(maxlen=MOST_OPEN)
    left, following = called.copy(), 0
    for place, (moment, size) in enumerate(zip(copied_at, copied, strict=True)):
        while following < len(called) and called_at[following] <= moment:
            waiting.append(following)
            following += 1
        call = next((call for call in waiting if left[call] >= size), None)
        if call is not None:
            found[place] = call
            left[call] -= size
            if not left[call]:
                waiting.remove(call)
    return found
