"""Medians, their spread, and how well they are known. Raw values in, plain numbers out.

Repeating until the median is known looks at it several times, and each look may stop too early by chance. So every
interval has 99 % confidence, and there are at most five looks (:func:`looks`): by Bonferroni's inequality all five
intervals hold together with at least 95 %. That takes repeats which do not depend on one another; a fast or slow state
that lasts for many repeats, or for the whole run, is not in the interval.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from pinscope.records.run import COSTLY, Quantity, quantity

CONFIDENCE = 0.99
"""Of every interval of a median."""
LOOKS = 5
"""How often repeating may look whether the median is known: 1 - 5 x (1 - 0.99) = 0.95."""
LEAST_VALUES = 8
"""Fewer values have no interval of a median with 99 % confidence."""


@dataclass(frozen=True)
class Summary:
    """A median with its spread.

    Attributes:
        count: how many values.
        median: in the unit of the values.
        lower_quartile, upper_quartile: same unit.
        spread: half the interquartile range over the median (relative); infinite if only the median is 0.
        interval: 99 % confidence interval of the median, in the unit of the values; ``None`` below 8 values.
        uncertainty: how far the farther end of the interval lies from the median (relative); infinite without one.
    """

    count: int
    median: float
    lower_quartile: float
    upper_quartile: float
    spread: float
    interval: tuple[float, float] | None
    uncertainty: float

    @property
    def known_within(self) -> float | None:
        """What decides a tie: how far the median may be off, relative to it.

        Fewer values than an interval takes are taken to be off by as much as they lie apart, which is too little to be
        shown (see :func:`measured`); one or two tell nothing.
        """
        off = self.uncertainty if self.interval else 2 * self.spread if self.count > 2 else math.inf
        return off if math.isfinite(off) else None

    @property
    def few(self) -> int | None:
        """How many values there are, where they are too few for an interval."""
        return self.count if self.interval is None else None


def measured(name: str, summary: Summary, unit: str, value: float | None = None, *, key: str | None = None) -> Quantity:
    """A median as findings and headlines show it: with its ±, or with the number of repeats that are too few for one.

    Args:
        value: what is shown where it is made from the median, such as a rate.
        key: as of a :class:`~pinscope.records.run.Quantity`.
    """
    figure = summary.median if value is None else value
    spread = None if summary.few else summary.known_within
    return quantity(name, figure, unit, spread=spread, repeats=summary.few, key=key)


def summarize(values: Sequence[float]) -> Summary:
    """Median, quartiles and spread.

    Raises:
        ValueError: no values.
    """
    if not values:
        raise ValueError("no values to summarize")
    ordered = sorted(map(float, values))
    lower, middle, upper = (_quantile(ordered, share) for share in (0.25, 0.5, 0.75))
    spread = _relative((upper - lower) / 2, middle)
    interval = _interval(ordered)
    return Summary(len(ordered), middle, lower, upper, spread, interval, _uncertainty(interval, middle))


def _quantile(ordered: Sequence[float], share: float) -> float:
    """As ``numpy.quantile`` has it to the last bit, which takes a few values a hundred times as long."""
    place = (len(ordered) - 1) * share
    below = int(place)
    part = place - below
    if not part:
        return ordered[below]
    low, high = ordered[below], ordered[below + 1]
    return high - (high - low) * (1 - part) if part >= 0.5 else low + (high - low) * part


def median_uncertainty(values: Sequence[float]) -> float:
    """How far the median may be off, relative to it: the farther end of its interval. Infinite without an interval."""
    ordered = sorted(map(float, values))
    return _uncertainty(_interval(ordered), _quantile(ordered, 0.5))


def _interval(ordered: Sequence[float]) -> tuple[float, float] | None:
    """Of the median, with 99 % confidence; ``None`` below 8 values.

    Distribution-free, from order statistics: the median lies between the k-th smallest and the k-th largest of n
    values with probability 1 - 2 P(Binomial(n, 1/2) < k) (Conover, Practical Nonparametric Statistics, 3.2).
    """
    rank = confidence_rank(len(ordered))
    return (ordered[rank - 1], ordered[-rank]) if rank else None


def _uncertainty(interval: tuple[float, float] | None, middle: float) -> float:
    if interval is None:
        return math.inf
    return _relative(max(middle - interval[0], interval[1] - middle), middle)


@lru_cache(maxsize=1024)
def confidence_rank(count: int) -> int:
    """The largest k such that the k-th smallest and k-th largest of ``count`` values enclose the median with 99 %.

    0 if there is none.
    """
    below = np.arange(count // 2 + 1)
    steps = np.log((count - below[:-1]) / (below[:-1] + 1))
    logs = np.concatenate(([0.0], np.cumsum(steps))) - count * math.log(2)  # of P(Binomial(count, 1/2) = k)
    return int(np.searchsorted(np.cumsum(np.exp(logs)), (1 - CONFIDENCE) / 2, side="right"))


@lru_cache(maxsize=64)
def looks(least: int, most: int) -> tuple[int, ...]:
    """Counts at which repeating may look whether the median is known: at most five, growing by a constant factor.

    The last is ``most``; none where fewer values than an interval needs are allowed.
    """
    first = max(least, LEAST_VALUES)
    if most < first:
        return ()
    return tuple(dict.fromkeys(int(count) for count in np.rint(np.geomspace(first, most, LOOKS))))


def _relative(width: float, middle: float) -> float:
    """A width in units of the median. Equal values have no width, whatever their median."""
    if width == 0:
        return 0.0
    return width / abs(middle) if middle else math.inf


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


def known_within(summary: Summary) -> float:
    """How far the median may be off, relative to it; infinite where that is not known."""
    return math.inf if summary.known_within is None else summary.known_within


def together(*summaries: Summary) -> float:
    """How far the ratio of two medians may be off, relative to it: their errors do not depend on one another."""
    return math.hypot(*(known_within(summary) for summary in summaries))


def is_distinct(ratio: float, uncertainty: float) -> bool:
    """Whether a ratio is farther from 1 than it may be off; where that is not known, whether it is far from 1."""
    if math.isinf(uncertainty):
        return max(ratio, 1 / ratio) >= COSTLY if ratio > 0 else True
    return ratio * (1 - uncertainty) > 1 or ratio * (1 + uncertainty) < 1


def exceeds(first: Summary, second: Summary) -> bool:
    """Whether the first is more than the second, by more than both may be off; else there is nothing to advise."""
    return first.median > second.median > 0 and is_distinct(first.median / second.median, together(first, second))
