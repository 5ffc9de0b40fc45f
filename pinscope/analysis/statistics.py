"""Medians and their spread. Raw values in, plain numbers out."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

UNSTABLE = 0.05
"""Relative spread above which a result is called unstable."""
_NORMAL_97_5 = 1.959964
"""97.5 % quantile of the normal distribution."""


@dataclass(frozen=True)
class Summary:
    """A median with its spread.

    Attributes:
        count: how many values.
        median: in the unit of the values.
        lower_quartile, upper_quartile: same unit.
        spread: half the interquartile range over the median (relative); infinite if only the median is 0.
        uncertainty: half the 95 % confidence interval of the median over the median (relative); likewise.
    """

    count: int
    median: float
    lower_quartile: float
    upper_quartile: float
    spread: float
    uncertainty: float

    @property
    def unstable(self) -> bool:
        """True when the spread is too wide for the median to be quoted without a warning."""
        return self.spread > UNSTABLE


def summarize(values: Sequence[float]) -> Summary:
    """Median, quartiles and spread.

    Raises:
        ValueError: no values.
    """
    if not values:
        raise ValueError("no values to summarize")
    lower, middle, upper = (float(q) for q in np.quantile(np.asarray(values, dtype=float), (0.25, 0.5, 0.75)))
    spread = _relative((upper - lower) / 2, middle)
    return Summary(len(values), middle, lower, upper, spread, median_uncertainty(values))


def median_uncertainty(values: Sequence[float]) -> float:
    """Half the width of the 95 % confidence interval of the median, relative to the median.

    Distribution-free, from order statistics: the median lies between the k-th smallest and the k-th largest
    value with probability 1 − 2·P(Binomial(n, ½) < k) (Conover, Practical Nonparametric Statistics, 3.2); k by
    the normal approximation to the binomial, which here never falls below 95 %.
    Infinite below 6 values, where no such interval reaches 95 %.
    """
    rank = confidence_rank(len(values))
    if rank == 0:
        return math.inf
    ordered = np.sort(np.asarray(values, dtype=float))
    return _relative(float(ordered[-rank] - ordered[rank - 1]) / 2, float(np.median(ordered)))


def confidence_rank(count: int) -> int:
    """k such that the k-th smallest and k-th largest of ``count`` values enclose the median with 95 % confidence.

    0 if there is none.
    """
    return math.floor((count + 1) / 2 - _NORMAL_97_5 / 2 * math.sqrt(count))


def _relative(width: float, middle: float) -> float:
    """A width in units of the median. Equal values have no width, whatever their median."""
    if width == 0:
        return 0.0
    return width / abs(middle) if middle else math.inf
