"""Copies that a library's own threads make once the program's call has returned, as JAX's do: of which call each is."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

HANDS_OVER = ("jax.device_put", "jax.numpy.asarray", "jax.numpy.array")
"""Calls that leave the copy to threads of the library."""
MOST_OPEN = 100
"""Calls whose data has not been copied yet; that of older ones has gone another way."""


def lines_by_order(
    copies: NDArray[Any], starts: NDArray[np.int64], calls: NDArray[Any], names: Sequence[tuple[str, str]]
) -> NDArray[np.intp]:
    """Of each copy the stack of its call; 0 where none fits, or more than one GPU has copies: one call may copy to all.

    Args:
        copies: CUPTI's records of large copies to the GPU, made by threads without Python code.
        starts: when each copy's call began; ascending.
        calls: of libraries, as the spool has them.
        names: of each number in them, the call and what it did.
    """
    handing = [number for number, (name, _) in enumerate(names) if name in HANDS_OVER]
    calls = calls[np.isin(calls["name"], handing)]
    if not len(calls) or len(np.unique(copies["device_id"])) > 1:
        return np.zeros(len(copies), np.intp)
    places = calls_of_copies(starts, copies["bytes"], calls["start"], calls["bytes"])
    return np.where(places < 0, 0, calls["stack"][places]).astype(np.intp)


def calls_of_copies(
    copied_at: NDArray[np.int64], copied: NDArray[np.int64], called_at: NDArray[np.int64], called: NDArray[np.int64]
) -> NDArray[np.intp]:
    """Of each copy the place of its call, by bytes and order: the oldest call that had begun and of whose bytes so many
    are left. −1 where none fits; where the copies of a call do not make up its bytes; and where another copy of the
    same bytes has no call, so that they may have been taken for one another.

    Args:
        copied_at: when each copy began; ascending.
        copied: bytes of each.
        called_at: when each call began; ascending.
        called: bytes of each.
    """
    chosen = np.full(len(copied), -1)
    waiting: deque[int] = deque(maxlen=MOST_OPEN)
    left, following = called.copy(), 0
    for place, (moment, size) in enumerate(zip(copied_at, copied, strict=True)):
        while following < len(called) and called_at[following] <= moment:
            waiting.append(following)
            following += 1
        call = next((call for call in waiting if left[call] >= size), None)
        if call is not None:
            chosen[place] = call
            left[call] -= size
            if not left[call]:
                waiting.remove(call)
    is_whole = (chosen >= 0) & (left[chosen] == 0) if len(called) else np.zeros(len(copied), bool)
    return np.where(is_whole & ~np.isin(copied, copied[~is_whole]), chosen, -1)
