"""Medians, and what stands after their ±: how far a second measurement may be off. Raw values in, plain numbers out.

:data:`PLUS_MINUS` is the promise; a test holds it, by simulating two runs over and over: repeats that hang together,
lopsided ones, and such as are repeated until their median is known.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from statistics import stdev

import numpy as np
from numpy.typing import NDArray

from pinscope.records.run import COSTLY, MOST_OFF, Quantity, quantity

PLUS_MINUS = (
    "± means: measure again on this host, and 19 times in 20 the figure will lie within it; fewer than 8 repeats have "
    "none, and their number stands there instead."
)
"""What it means everywhere."""
OTHER_HOSTS = (
    "Other hosts differ by more: between hosts of one model we saw 3 % (pinned copies from 1 MiB on), 11 % (smaller "
    "ones) and 25 % (pageable ones)."
)
"""95th percentiles of the difference of two H100 hosts, 51 combinations of ``bandwidth``."""
Floats = Sequence[float] | NDArray[np.float64]
MANY = 50
"""Values from which on NumPy takes less time for them, for the same answer to the last bit."""
CONFIDENCE = 0.99
"""Of the interval of the true median. Two medians of as many repeats lie √2 times as far from one another as each from
the true one, so that the interval of one has the other with 95 %."""
LOOKS = 5
"""How often repeating may look whether the median is known: each look may stop too early by chance."""
LEAST_VALUES = 8
"""Fewer values have no interval of a median with 99 % confidence."""
DRIFT = 0.02
"""Relative, and :data:`SHORT_DRIFT` in seconds: so far may whole runs on one host differ, minutes apart, though their
repeats show nothing of it: a state that lasts for a run is in all of its repeats alike. Six quick runs of ``bandwidth``
on an H100: with these 98 % of all pairs of copies by DMA lie within ±, without them 72 %."""
SHORT_DRIFT = 0.3e-6
"""Decides for copies below 1 MiB; ten times the tick of a GPU's clock, 32 ns."""
PAGEABLE_DRIFT = 0.27
"""In place of :data:`DRIFT` where the driver's threads copy, to or from pageable memory: 96 % of the same runs' pairs,
without it 63 %."""
MOST_CORRELATION = 0.6
"""Of neighbouring repeats; few of them show more by chance. The most measured is 0.45 (pageable copies, H100)."""
_STUDENT = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447)
"""97.5 % quantiles of Student's t with 1, 2 … 6 degrees of freedom."""


@dataclass(frozen=True)
class Summary:
    """A median, and how well it is known.

    Attributes:
        count: how many values.
        median: in the unit of the values.
        lower_quartile, upper_quartile: same unit.
        interval: in which a second median will lie, in the unit of the values; ``None`` below 8 values.
        uncertainty: how far the farther end of the interval lies from the median (relative). Of 2 to 7 values what
            Student's interval makes of them: enough to decide a tie, never shown. Infinite of one.
    """

    count: int
    median: float
    lower_quartile: float
    upper_quartile: float
    interval: tuple[float, float] | None
    uncertainty: float

    @property
    def few(self) -> int | None:
        """How many values there are, where they are too few for an interval."""
        return self.count if self.interval is None else None

    @property
    def spread(self) -> float | None:
        """What stands after its ±; ``None`` where nothing may."""
        return self.uncertainty if self.interval and self.uncertainty <= 1 else None

    @property
    def is_known(self) -> bool:
        """Whether it is a figure; of few values always."""
        return self.interval is None or self.uncertainty <= MOST_OFF


def measured(name: str, summary: Summary, unit: str, value: float | None = None, *, key: str | None = None) -> Quantity:
    """A median as findings and headlines show it: with its ±, or with the number of repeats that are too few for one.

    Args:
        value: what is shown where it is made from the median, such as a rate.
        key: as of a :class:`~pinscope.records.run.Quantity`.
    """
    return _figure(name, summary.median if value is None else value, unit, summary.uncertainty, summary.few, key)


def compared(
    name: str,
    first: Summary,
    second: Summary,
    unit: str = "ratio",
    value: float | None = None,
    *,
    key: str | None = None,
) -> Quantity:
    """The first median over the second, in the same way; ``value``: where more goes into it than these."""
    few = min((summary.few for summary in (first, second) if summary.few), default=None)
    return _figure(name, ratio(first, second) if value is None else value, unit, together(first, second), few, key)


def _figure(name: str, value: float, unit: str, off: float, few: int | None, key: str | None) -> Quantity:
    if few:
        return quantity(name, value, unit, repeats=few, key=key)
    return quantity(name, value, unit, spread=off, key=key)


def ratio(first: Summary, second: Summary) -> float:
    """One median over another."""
    return first.median / second.median


def summarize(values: Floats, drift: float = DRIFT, short_drift: float = 0.0) -> Summary:
    """Median, quartiles, and how well the median is known.

    Args:
        values: in the order measured.
        drift: by which whole runs differ, relative to the median.
        short_drift: the same in the unit of the values.

    Raises:
        ValueError: no values.
    """
    if not len(values):
        raise ValueError("no values to summarize")
    ordered = sorted(map(float, values)) if len(values) < MANY else np.sort(np.asarray(values, float))
    lower, middle, upper = (float(_quantile(ordered, share)) for share in (0.25, 0.5, 0.75))
    drifts = math.hypot(drift * middle, short_drift)
    reach = _reach(values, ordered, middle)
    interval = reach and (middle - math.hypot(reach[0], drifts), middle + math.hypot(reach[1], drifts))
    off = max(reach) if reach else _students(ordered)
    return Summary(len(ordered), middle, lower, upper, interval, _relative(math.hypot(off, drifts), middle))


def _quantile(ordered: Floats, share: float) -> float:
    """As ``numpy.quantile`` has it to the last bit, which takes a few values a hundred times as long."""
    place = (len(ordered) - 1) * share
    below = int(place)
    part = place - below
    if not part:
        return ordered[below]
    low, high = ordered[below], ordered[below + 1]
    return high - (high - low) * (1 - part) if part >= 0.5 else low + (high - low) * part


def _reach(values: Floats, ordered: Floats, middle: float) -> tuple[float, float] | None:
    """How far below and above its median that of as many other repeats will lie; ``None`` below 8 values.

    Distribution-free, from order statistics: the true median lies between the k-th smallest and the k-th largest of n
    values with probability 1 - 2 P(Binomial(n, 1/2) < k) (Conover, Practical Nonparametric Statistics, 3.2). Repeats
    that hang together count for fewer, n (1 - ρ) / (1 + ρ) of them, and an interval grows with the root of that.
    """
    rank = confidence_rank(len(ordered))
    if not rank:
        return None
    correlation = lag_correlation(values, ordered)
    longer = math.sqrt((1 + correlation) / (1 - correlation))
    return float(middle - ordered[rank - 1]) * longer, float(ordered[-rank] - middle) * longer


def _students(few: Floats) -> float:
    """The same of 2 to 7 values by Student's interval of their mean; infinite of one."""
    count = len(few)
    return _STUDENT[count - 2] * stdev(few) * math.sqrt(2 / count) if count > 1 else math.inf


def lag_correlation(values: Floats, ordered: Floats) -> float:
    """How much neighbouring values hang together: the correlation of their ranks, from 0 to :data:`MOST_CORRELATION`.

    Few values show less than there is: what they show lies about (1 + 4 ρ) / n too low (Kendall, "Note on bias in the
    estimation of autocorrelation", Biometrika 41, 1954). That is put right.

    Args:
        values: at least 5, in the order measured.
        ordered: the same, ascending.
    """
    count = len(values)
    if count >= MANY:
        places = np.searchsorted(ordered, values) + np.searchsorted(ordered, values, "right") - count
        whole, beside = int(places @ places), int(places[:-1] @ places[1:])
    else:
        apart = [bisect_left(ordered, value) + bisect_right(ordered, value) - count for value in values]
        whole = sum(place * place for place in apart)
        beside = sum(place * following for place, following in pairwise(apart))
    if not whole:
        return 0.0
    seen = beside / whole
    return min(max((seen + 1 / count) / (1 - 4 / count), 0.0), MOST_CORRELATION)


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


def together(*summaries: Summary) -> float:
    """How far the ratio of medians may be off, relative to it: their errors do not depend on one another."""
    return math.expm1(math.hypot(*(math.log1p(summary.uncertainty) for summary in summaries)))


def are_known(*summaries: Summary) -> bool:
    """Whether what is made of these is a figure, as their ratio is; of few values always."""
    return any(summary.few for summary in summaries) or together(*summaries) <= MOST_OFF


def is_distinct(ratio: float, *compared: Summary) -> bool:
    """Whether a ratio of medians is farther from 1 than it may be off; of one measured once, whether it is far from 1.

    Args:
        compared: the medians of which it is made.
    """
    if ratio <= 0:
        return True
    far = max(ratio, 1 / ratio)
    return far >= COSTLY if any(summary.count == 1 for summary in compared) else far * (1 - together(*compared)) > 1


def exceeds(first: Summary, second: Summary) -> bool:
    """Whether the first is more than the second, by more than both may be off; else there is nothing to advise."""
    return first.median > second.median > 0 and is_distinct(ratio(first, second), first, second)
