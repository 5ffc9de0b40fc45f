"""Pinned memory over a program's time: when each allocation was released, and how much was there."""

from __future__ import annotations

import mmap
from typing import Any

import numpy as np
from numpy.typing import NDArray

ALLOCATES = 1
NEVER = -1
"""Stands for the time of a release that did not come."""


class PinnedMemory:
    """The allocations and registrations of a trace, in the order of their time.

    Args:
        events: CUPTI's records of allocations and releases, in any order.
    """

    def __init__(self, events: NDArray[Any]) -> None:
        order = np.lexsort((events["timestamp"], events["address"]))
        there = events[order]
        following = np.roll(there, -1)
        taken = np.flatnonzero(there["memory_operation_type"] == ALLOCATES)
        # What is allocated at the same address, too: the release between them was not recorded.
        is_released = following["address"] == there["address"]
        if len(there):
            is_released[-1] = False
        released = np.where(is_released, following["timestamp"], NEVER)[taken]
        by_time = np.argsort(there["timestamp"][taken], kind="stable")
        self.taken: NDArray[Any] = there[taken][by_time]
        """Records of what was allocated or registered."""
        self.released: NDArray[np.int64] = released[by_time].astype(np.int64)
        """When each was released, on CUPTI's clock; :data:`NEVER` if it was still there at the end."""

    @property
    def is_left(self) -> NDArray[np.bool_]:
        """Which were still there at the end."""
        return np.asarray(self.released == NEVER)

    @property
    def held(self) -> NDArray[np.int64]:
        """Bytes of the whole pages that each reaches into."""
        page = mmap.PAGESIZE
        first = self.taken["address"].astype(np.int64) // page
        last = (self.taken["address"].astype(np.int64) + self.taken["bytes"] + page - 1) // page
        return np.asarray((last - first) * page, np.int64)

    def peak(self, mine: NDArray[np.intp]) -> int:
        """The most bytes of these allocations that were there at once."""
        changes = self.changes(mine)[1]
        return int(np.cumsum(changes).max(initial=0))

    def changes(self, mine: NDArray[np.intp] | None = None) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """When pinned memory grew and shrank, in order, and by how many bytes; what goes makes room for what comes."""
        chosen = slice(None) if mine is None else mine
        begun, ended, size = self.taken["timestamp"][chosen], self.released[chosen], self.taken["bytes"][chosen]
        gone = ended != NEVER
        moments = np.concatenate([ended[gone], begun]).astype(np.int64)
        changes = np.concatenate([-size[gone], size]).astype(np.int64)
        order = np.argsort(moments, kind="stable")
        return moments[order], changes[order]
