"""A straight line through points, and the lines that may lie under a staircase."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class LineFit:
    """y = intercept + slope · x by least squares.

    Attributes:
        slope: y per x.
        intercept: y at x = 0.
    """

    slope: float
    intercept: float


@dataclass(frozen=True)
class SlopeBounds:
    """The slopes that a line under a staircase may have.

    Attributes:
        low, high: the least and the greatest, in y per x.
        steps: how far readings lie from such a line at most, in whole steps of the stairs. 1 is a staircase and
            nothing else; more says that something beside the line moved it.
    """

    low: float
    high: float
    steps: int

    @property
    def middle(self) -> float:
        """Between the two; off by half their distance at most."""
        return (self.low + self.high) / 2


def fit_line(x: Sequence[float], y: Sequence[float]) -> LineFit | None:
    """The line of least squares; ``None`` below three points or where all have the same x."""
    xs, ys = np.asarray(x, dtype=float), np.asarray(y, dtype=float)
    if len(xs) < 3 or np.ptp(xs) == 0:
        return None
    centred = xs - xs.mean()
    slope = float(np.sum(centred * (ys - ys.mean()))) / float(np.sum(centred**2))
    return LineFit(slope, float(ys.mean() - slope * xs.mean()))


def bound_slope(x: Sequence[float], y: Sequence[float], step: float) -> SlopeBounds | None:
    """The slopes of all lines from which no reading lies farther than its step of the stairs hides.

    A meter that counts in steps of ``step`` shows y where the line has anything between y and y + step; it may be
    shifted, so that this is one way of rounding among all. So any two readings bound the slope by (Δy - step) / Δx and
    (Δy + step) / Δx, and all pairs together leave exactly the slopes of the lines that fit (Fourier-Motzkin
    elimination of the intercept). Where none fits, the stairs are taken to be a whole number of steps higher, as few as
    it takes.

    Args:
        x: ascending.
        y: the meter's readings.
        step: how finely the meter counts, in y; greater than 0.

    Returns:
        ``None`` below three readings or where all have the same x.
    """
    xs, ys = np.asarray(x, dtype=float), np.asarray(y, dtype=float)
    if len(xs) < 3 or np.ptp(xs) == 0:
        return None
    first, second = np.triu_indices(len(xs), 1)
    apart = xs[second] > xs[first]
    width, rise = (xs[second] - xs[first])[apart], (ys[second] - ys[first])[apart]

    def bounds(steps: int) -> tuple[float, float]:
        return float(np.max((rise - steps * step) / width)), float(np.min((rise + steps * step) / width))

    def fits(steps: int) -> bool:
        low, high = bounds(steps)
        return low <= high or math.isclose(low, high, rel_tol=1e-9)

    # A level line lies no farther from any reading than all of them from each other.
    candidates = range(1, math.ceil(float(np.ptp(ys)) / step) + 2)
    steps = candidates[bisect_left(candidates, True, key=fits)]
    low, high = sorted(bounds(steps))
    return SlopeBounds(low, high, steps)
