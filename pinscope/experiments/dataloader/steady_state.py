"""Where a loop becomes steady, and what several runs of it together say about its pace.

The method is replication and deletion (Law, Simulation Modeling and Analysis, 5th ed., 9.5.2): the same loop is run
several times from its start; of each run the start is cut off, and the mean of the rest is one value. These values are
independent, however much neighbouring steps of one run hang together, so that Student's interval holds for them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

MSER_BATCH = 5
LEAST_BATCHES = 7
"""A series of fewer batches is too short to be divided into a start and a steady part."""
DRIFT = 0.05
"""The two halves of a steady part differ in their mean by less than this share, or by less than chance explains."""
_DRIFT_ERRORS = 3.0
"""Chance explains a difference of so many standard errors."""
LEAST_RUNS = 3
_STUDENT_97_5 = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228)
"""97.5 % quantiles of Student's t with 1, 2 … 10 degrees of freedom."""
MOST_RUNS = len(_STUDENT_97_5) + 1


def steady_starts(runs: Sequence[Sequence[float]], cycle: int = 1) -> list[int] | None:
    """For each run of the same loop the index from which it is steady; ``None`` if it never is, or is too short.

    The cut is that of MSER-5 (White, Cobb & Spratt, "A comparison of five steady-state truncation heuristics for
    simulation", Winter Simulation Conference 2000): of all cuts within the first half, the one after which the standard
    error of the mean of the rest is least, over means of 5 values. It is doubled, as what is left of a start that fades
    slowly would bias the mean. A run's cut is found from the other runs: found from its own values, it would leave
    those with the least spread, and intervals would come out too narrow.

    After the cut, the halves of the rest must agree, over all runs together.

    Args:
        runs: the values of each, in order; runs longer than the shortest are looked at as far as that goes.
        cycle: where values come in a pattern that repeats after so many, no pattern is cut in two.
    """
    batch = -(-MSER_BATCH // cycle) * cycle
    length = min(map(len, runs), default=0)
    if length < LEAST_BATCHES * batch:
        return None
    first = length % batch
    means = np.array([run[first:length] for run in runs], dtype=float).reshape(len(runs), -1, batch).mean(axis=2)
    total = means.sum(axis=0)
    if not _halves_agree(total[_cut(total) :]):
        return None
    return [first + batch * _cut(total - own if len(runs) > 1 else total) for own in means]


def _cut(means: NDArray[np.float64]) -> int:
    """How many batches belong to the start; at most half of them."""
    most = len(means) // 2
    best = min(range(most + 1), key=lambda cut: _squared_error(means[cut:]))
    return min(2 * best, most)


def _squared_error(means: NDArray[np.float64]) -> float:
    """Of their mean: the variance over their number, as ``numpy.var`` has it, which takes three times as long."""
    count = len(means)
    apart = means - np.add.reduce(means) / count
    return float(np.add.reduce(apart * apart) / count / count)


def _halves_agree(means: NDArray[np.float64]) -> bool:
    """Whether the mean of the first half is that of the second, but for :data:`DRIFT` or for chance."""
    first, second = means[: len(means) // 2], means[len(means) // 2 :]
    difference = abs(float(first.mean() - second.mean()))
    error = math.sqrt(float(np.var(first, ddof=1)) / len(first) + float(np.var(second, ddof=1)) / len(second))
    return difference <= max(DRIFT * abs(float(means.mean())), _DRIFT_ERRORS * error)


@dataclass(frozen=True)
class Estimate:
    """A positive figure with its 95 % interval.

    Attributes:
        value: geometric mean of the runs.
        low, high: ends of the interval; ``None`` below :data:`LEAST_RUNS` runs.
    """

    value: float
    low: float | None
    high: float | None

    @property
    def uncertainty(self) -> float | None:
        """Half the interval over the value."""
        return None if self.low is None or self.high is None else (self.high - self.low) / 2 / self.value


def estimate(values: Sequence[float]) -> Estimate:
    """What independent positive values, one of each run, say: their geometric mean with Student's interval of the logs.

    Logarithms make the interval of a ratio the same as that of its inverse.

    Raises:
        ValueError: no values, more than :data:`MOST_RUNS`, or one that is not positive.
    """
    if not 1 <= len(values) <= MOST_RUNS:
        raise ValueError(f"an estimate takes 1 to {MOST_RUNS} values, not {len(values)}")
    if min(values) <= 0:
        raise ValueError("an estimate takes positive values")
    logs = np.log(np.asarray(values, dtype=float))
    middle = float(logs.mean())
    if len(values) < LEAST_RUNS:
        return Estimate(math.exp(middle), None, None)
    half = _STUDENT_97_5[len(values) - 2] * float(logs.std(ddof=1)) / math.sqrt(len(values))
    return Estimate(math.exp(middle), math.exp(middle - half), math.exp(middle + half))
