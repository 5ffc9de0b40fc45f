"""Medians and their spread. Raw values in, plain numbers out."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

UNSTABLE = 0.05
"""Relative spread above which a result is called unstable."""


@dataclass(frozen=True)
class Summary:
    """A median with its spread.

    Attributes:
        count: how many values.
        median: in the unit of the values.
        lower_quartile, upper_quartile: same unit.
        spread: half the interquartile range over the median (relative).
        uncertainty: half the 95 % confidence interval of the median over the median (relative).
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
    spread = (upper - lower) / 2 / middle if middle else math.inf
    return Summary(len(values), middle, lower, upper, spread, median_uncertainty(values))


def median_uncertainty(values: Sequence[float]) -> float:
    """Half the width of the 95 % confidence interval of the median, relative to the median.

    Distribution-free, from order statistics: the median lies between the k-th smallest and the k-th largest
    value with probability 1 − 2·P(Binomial(n, ½) < k) (Conover, Practical Nonparametric Statistics, 3.2).
    Infinite below 6 values, where no such interval reaches 95 %.
    """
    count = len(values)
    tail = 0.5**count
    k = 0
    while tail <= 0.025 and k < count // 2:
        k += 1
        tail += math.comb(count, k) * 0.5**count
    if k == 0:
        return math.inf
    ordered = sorted(values)
    middle = float(np.median(np.asarray(ordered)))
    if middle == 0:
        return math.inf
    return (ordered[count - k] - ordered[k - 1]) / 2 / abs(middle)
