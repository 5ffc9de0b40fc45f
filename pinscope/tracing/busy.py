"""When a device was busy: the union of what ran, and how much of any stretch of time it covers."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Times = NDArray[np.int64]
"""Nanoseconds."""


class Busy:
    """The union of intervals.

    Args:
        starts: of the intervals, in any order.
        ends: theirs.
    """

    def __init__(self, starts: NDArray[Any], ends: NDArray[Any]) -> None:
        begun, ended = np.sort(starts.astype(np.int64)), np.sort(ends.astype(np.int64))
        # Where all that began before has ended, a new stretch begins: of sorted starts and ends that is start n > end
        # n - 1.
        fresh = np.ones(len(begun), bool)
        fresh[1:] = begun[1:] > ended[:-1]
        self._starts: Times = begun[fresh]
        self._ends: Times = ended[np.append(fresh[1:], True)] if len(begun) else ended
        self._before: Times = np.concatenate([[0], np.cumsum(self._ends - self._starts)]).astype(np.int64)

    @property
    def seconds(self) -> float:
        """Of the whole union."""
        return float(self._before[-1]) / 1e9

    @property
    def end(self) -> int:
        """Of the last interval; 0 where there is none."""
        return int(self._ends[-1]) if len(self._ends) else 0

    def also(self, starts: NDArray[Any], ends: NDArray[Any]) -> Busy:
        """The union with further intervals."""
        return Busy(np.concatenate([self._starts, starts]), np.concatenate([self._ends, ends]))

    def within(self, starts: Times, ends: Times) -> Times:
        """How much of each stretch is covered."""
        return self._until(ends) - self._until(starts)

    def _until(self, moments: Times) -> Times:
        """How much lies before each moment."""
        if not len(self._starts):
            return np.zeros(len(moments), np.int64)
        place = np.searchsorted(self._starts, moments, side="right") - 1
        inside = np.clip(moments - self._starts[place], 0, (self._ends - self._starts)[place])
        return np.where(place < 0, 0, self._before[place] + inside)

    def idle_after(self, moments: Times) -> Times:
        """How long nothing runs from each moment on, until the next begins; 0 where something runs then, or none
        begins any more."""
        if not len(self._starts):
            return np.zeros(len(moments), np.int64)
        following = np.searchsorted(self._starts, moments, side="right")
        runs = (following > 0) & (self._ends[np.maximum(following - 1, 0)] > moments)
        waited = self._starts[np.minimum(following, len(self._starts) - 1)] - moments
        return np.where(runs | (following == len(self._starts)), 0, waited)


def once(starts: Times, ends: Times) -> tuple[Times, Times]:
    """Stretches cut so that no moment belongs to two of them: each moment stays with the first that has it.

    Args:
        starts: ascending.
        ends: theirs.
    """
    reached = np.maximum.accumulate(ends)
    earliest = starts.copy()
    earliest[1:] = np.maximum(starts[1:], reached[:-1])
    return earliest, np.maximum(ends, earliest)
