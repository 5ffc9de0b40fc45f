"""Two sides of runs, figure by figure: their ratio, how far it may be off, and which differences are not chance.

A figure is positive, and compared as a logarithm: 10 % more and back is alike. Of a family of cells, one figure each:

- The run is the unit, as in Go's benchstat: it gives one value of a cell, the median of its repeats. A side is the
  geometric mean of its runs.
- Of several runs a side, the spread between the runs of a side says how far the ratio may be off (Student's t). Few
  runs know their spread badly, so that of each cell is drawn towards that of the others (Smyth, "Linear models and
  empirical Bayes methods", Statistical Applications in Genetics and Molecular Biology 3, 2004), over a trend along the
  ± that the runs themselves say (limma-trend: Law et al., Genome Biology 15, 2014).
- Of one run a side no spread is seen. Its ± stands in, which has in it what whole runs on one host differ
  (:data:`pinscope.analysis.statistics.DRIFT`). That rests on six runs: five degrees of freedom.
- Of many cells some differ by chance. Of those called different at most :data:`FALSE_SHARE` are expected to be so
  wrongly (Benjamini & Hochberg, JRSS B 57, 1995), and intervals are as wide as that asks for: an interval leaves out 1
  exactly where the cell is called different (Benjamini & Yekutieli, JASA 100, 2005, on selected intervals).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from statistics import fmean

import numpy as np
from numpy.typing import NDArray

FALSE_SHARE = 0.05
"""Of the cells that are called different, as many are expected to be so by chance."""
DRIFT_FREEDOM = 5
"""Degrees of freedom of what whole runs were seen to differ: six runs less one."""
LEAST_CELLS = 10
"""Fewer say nothing of each other's spread."""
_AS_NORMAL = 200
"""Degrees of freedom from which Student's distribution is taken for the normal one."""
Sample = tuple[float, float]
"""The value of a cell in one run, greater than 0, and its ± (relative); infinite where nothing is known of it."""


@dataclass(frozen=True)
class Difference:
    """Of a cell the second side over the first.

    Attributes:
        ratio: of the geometric means.
        low, high: the interval of the ratio; ``None`` where nothing says how far it may be off.
    """

    ratio: float
    low: float | None
    high: float | None

    @property
    def differs(self) -> bool:
        """Whether the interval leaves out 1."""
        return self.low is not None and self.high is not None and not self.low <= 1 <= self.high


def differences(
    cells: Sequence[tuple[Sequence[Sample], Sequence[Sample]]], false_share: float = FALSE_SHARE
) -> list[Difference]:
    """Each cell's difference; together they are a family, of which some differ by chance.

    Args:
        cells: of each the samples of the first side and of the second, at least one each.
        false_share: in place of :data:`FALSE_SHARE`.
    """
    if not cells:
        return []
    logs = [[[math.log(value) for value, _ in side] for side in cell] for cell in cells]
    apart = np.array([fmean(second) - fmean(first) for first, second in logs])
    errors, freedom = _errors(cells, logs)
    known = np.isfinite(errors)
    with np.errstate(divide="ignore", invalid="ignore"):
        far = np.where(apart == 0, 0.0, np.abs(apart) / errors)
    level = _level([_two_sided(t, df) for t, df in zip(far[known], freedom[known], strict=True)], false_share)
    reach = [error * students(level, df) if error else 0.0 for error, df in zip(errors, freedom, strict=True)]
    return [
        Difference(math.exp(at), math.exp(at - off), math.exp(at + off)) if is_known else _unknown(math.exp(at))
        for at, off, is_known in zip(apart, reach, known, strict=True)
    ]


def _unknown(ratio: float) -> Difference:
    return Difference(ratio, None, None)


def _errors(
    cells: Sequence[tuple[Sequence[Sample], Sequence[Sample]]], logs: Sequence[Sequence[Sequence[float]]]
) -> tuple[NDArray[np.float64], NDArray[np.int_]]:
    """The standard error of each difference, and its degrees of freedom."""
    squares = [[fmean([math.log1p(off) ** 2 for _, off in side]) for side in cell] for cell in cells]
    said = np.sqrt([fmean(sides) for sides in squares])
    errors, freedom = said / students(FALSE_SHARE, DRIFT_FREEDOM), np.full(len(cells), DRIFT_FREEDOM)
    several = np.array([sum(map(len, sides)) > len(sides) for sides in logs])
    if several.any():
        some = [sides for sides, is_several in zip(logs, several, strict=True) if is_several]
        own = np.array([sum(map(len, sides)) - len(sides) for sides in some])
        spread = np.array([sum((at - fmean(side)) ** 2 for side in sides for at in side) for sides in some])
        variances, freedom[several] = moderated(spread / own, own, said[several])
        errors[several] = np.sqrt(variances * [sum(1 / len(side) for side in sides) for sides in some])
    return errors, freedom


def moderated(
    variances: NDArray[np.float64], freedom: NDArray[np.int_], said: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.int_]]:
    """Variances drawn towards those of all cells, and their degrees of freedom then (Smyth 2004, section 6.2).

    The others count for no more than the cell itself: a state of a run may be in all of its cells alike.

    Args:
        variances: of each cell between runs.
        freedom: of each.
        said: of each the ± that the runs themselves say, along which the trend lies.
    """
    if len(variances) < LEAST_CELLS or not variances.any():
        return variances, freedom
    least = 1e-5 * float(np.median(variances[variances > 0]))  # equal runs have no logarithm
    digammas, trigammas = (np.array([of(count / 2) for count in freedom]) for of in (_digamma, _trigamma))
    logs = np.log(np.maximum(variances, least)) - digammas + np.log(freedom / 2)
    where = np.log(np.maximum(said, 1e-9)) if np.isfinite(said).all() else np.zeros(len(said))
    degree = int(np.ptp(where) > 0)
    trend = np.polyval(np.polyfit(where, logs, degree), where)
    excess = float(((logs - trend) ** 2).sum()) / (len(logs) - degree - 1) - float(trigammas.mean())
    fitted = 2 * _inverse_trigamma(excess) if excess > 0 else _AS_NORMAL
    prior = np.minimum(fitted, freedom)
    expected = np.exp(trend + _digamma(fitted / 2) - math.log(fitted / 2))
    together = freedom + prior
    return (prior * expected + freedom * variances) / together, together.astype(int)


def _level(chances: Sequence[float], false_share: float) -> float:
    """How unlikely a difference must be to be called one (Benjamini & Hochberg); of none selected that of the first."""
    count = len(chances)
    selected = [rank for rank, chance in enumerate(sorted(chances), start=1) if chance <= false_share * rank / count]
    return false_share * max(selected, default=1) / max(count, 1)


@lru_cache(maxsize=1024)
def students(chance: float, freedom: int) -> float:
    """What the absolute value of Student's t exceeds with that chance."""
    low, high = 0.0, 1.0
    while _two_sided(high, freedom) > chance:
        low, high = high, 2 * high
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if _two_sided(middle, freedom) > chance else (low, middle)
    return high


def _two_sided(t: float, freedom: int) -> float:
    """The chance that the absolute value of Student's t exceeds ``t`` (Abramowitz & Stegun 26.7.3 and 26.7.4)."""
    if freedom >= _AS_NORMAL:
        return math.erfc(t / math.sqrt(2))
    angle = math.atan(t / math.sqrt(freedom))
    term, total = math.cos(angle) if freedom % 2 else 1.0, 0.0
    for place in range(2 + freedom % 2, freedom + 1, 2):
        total += term
        term *= math.cos(angle) ** 2 * (place - 1) / place
    within = math.sin(angle) * total
    return max(1 - (2 / math.pi * (angle + within) if freedom % 2 else within), 0.0)


@lru_cache(maxsize=1024)
def _digamma(x: float) -> float:
    """Of x > 0: recurrence, then the asymptotic series (Abramowitz & Stegun 6.3.18)."""
    shift = 0.0
    while x < 6:
        shift, x = shift - 1 / x, x + 1
    return shift + math.log(x) - 1 / (2 * x) - 1 / (12 * x**2) + 1 / (120 * x**4) - 1 / (252 * x**6)


@lru_cache(maxsize=1024)
def _trigamma(x: float) -> float:
    """Of x > 0, likewise (6.4.12)."""
    shift = 0.0
    while x < 6:
        shift, x = shift + 1 / x**2, x + 1
    return shift + 1 / x + 1 / (2 * x**2) + 1 / (6 * x**3) - 1 / (30 * x**5) + 1 / (42 * x**7)


def _inverse_trigamma(value: float) -> float:
    """Where :func:`_trigamma`, which falls, has that value."""
    low, high = 1e-4, 1e6
    for _ in range(80):
        middle = math.sqrt(low * high)
        low, high = (middle, high) if _trigamma(middle) > value else (low, middle)
    return high
