"""Two sides of runs, figure by figure: their ratio, how far it may be off, and which differences are not chance.

A figure is positive, and compared as a logarithm: 10 % more and back is alike. Of a family of cells, one figure each:

- The run is the unit, as in Go's benchstat: it gives one value of a cell, the median of its repeats. A side is the
  geometric mean of its runs.
- Of several runs a side, the spread between the runs of a side says how far the ratio may be off (Student's t). Few
  runs know their spread badly: it counts as at least the family's median, as with moderated variances (Smyth, "Linear
  models and empirical Bayes methods", Statistical Applications in Genetics and Molecular Biology 3, 2004), but never
  as less than the cell's own. From :data:`KNOWN_FREEDOM` on a cell's own counts: else steady cells beside noisy ones
  would be taken for as noisy.
- Of one run a side no spread is seen. Its ± stands in, which has in it what whole runs on one host differ
  (:data:`pinscope.analysis.statistics.DRIFT`). That rests on six runs: five degrees of freedom. Where the ratios of a
  family scatter around their median by more than that, as those of the processor's times do on a host that others use
  too, it is taken for as much larger (Birge, Physical Review 40, 1932).
- Of many cells some differ by chance. Of those called different at most :data:`FALSE_SHARE` are expected to be so
  wrongly (Benjamini & Hochberg, JRSS B 57, 1995), and intervals are as wide as that asks for: an interval leaves out 1
  exactly where the cell is called different (Benjamini & Yekutieli, JASA 100, 2005, on selected intervals).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from statistics import fmean, median  # NumPy has one that imports its masked arrays
from typing import Any

import numpy as np
from numpy.typing import NDArray

FALSE_SHARE = 0.05
"""Of the cells that are called different, as many are expected to be so by chance."""
DRIFT_FREEDOM = 5
"""Degrees of freedom of what whole runs were seen to differ: six runs less one."""
LEAST_CELLS = 10
"""Fewer say nothing of each other's spread."""
LEAST_SCATTERED = 5
"""Fewer say nothing of how far they scatter."""
KNOWN_FREEDOM = 6
"""Degrees of freedom with which a cell knows its own spread: four runs a side, or eight against one."""
_AS_NORMAL = 200
"""Degrees of freedom from which Student's distribution is taken for the normal one."""
Sample = tuple[float, float]
"""The value of a cell in one run, greater than 0, and its ± (relative); infinite where nothing is known of it."""
Sides = tuple[Sequence[Sample], Sequence[Sample]]
"""Of a cell the samples of the first side and of the second, at least one each."""
Numbers = NDArray[Any]


@dataclass(frozen=True)
class Difference:
    """Of a cell the second side over the first.

    Attributes:
        ratio: of the geometric means; ``None`` of figures that are not positive.
        low, high: the interval of the ratio; ``None`` where nothing says how far it may be off.
    """

    ratio: float | None
    low: float | None
    high: float | None

    @property
    def differs(self) -> bool:
        """Whether the interval leaves out 1."""
        return self.low is not None and self.high is not None and not self.low <= 1 <= self.high


NO_RATIO = Difference(None, None, None)
"""Of figures that are not positive."""


def differences(cells: Sequence[Sides], false_share: float = FALSE_SHARE) -> list[Difference]:
    """Each cell's difference; together they are a family, of which some differ by chance.

    Args:
        cells: what was measured of each.
        false_share: in place of :data:`FALSE_SHARE`.
    """
    if not cells:
        return []
    apart, errors, freedom = _apart(cells)
    known = np.isfinite(errors)
    single = known & (freedom == DRIFT_FREEDOM) & (errors > 0)
    if single.sum() >= LEAST_SCATTERED:
        off = np.abs(apart[single] - median(apart[single])) / errors[single]
        errors[single] *= max(float(median(off)) / students(0.5, DRIFT_FREEDOM), 1.0)
    with np.errstate(divide="ignore", invalid="ignore"):
        far = np.where(apart == 0, 0.0, np.abs(apart) / errors)
    chances = [_two_sided(t, df) for t, df in zip(far[known], freedom[known], strict=True)]
    level = benjamini_hochberg(chances, false_share)
    reach = [error * students(level, df) if error else 0.0 for error, df in zip(errors, freedom, strict=True)]
    return [
        Difference(math.exp(at), *((math.exp(at - off), math.exp(at + off)) if is_known else (None, None)))
        for at, off, is_known in zip(apart, reach, known, strict=True)
    ]


def _apart(cells: Sequence[Sides]) -> tuple[Numbers, Numbers, Numbers]:
    """By how much the sides of each cell differ (logarithms), the standard error of that, and its degrees of freedom:
    from what its runs say of themselves, or from how far those of a side lie apart."""
    rows = []
    for cell in cells:
        logs = [[math.log(value) for value, _ in side] for side in cell]
        first, second = map(fmean, logs)
        said = fmean(fmean(math.log1p(off) ** 2 for _, off in side) for side in cell)
        spread = sum((at - mean) ** 2 for side, mean in zip(logs, (first, second), strict=True) for at in side)
        rows.append((second - first, said, spread, sum(1 / len(side) for side in cell), sum(map(len, cell)) - 2))
    apart, said, spread, shares, own = np.array(rows).T
    errors, freedom = np.sqrt(said) / students(FALSE_SHARE, DRIFT_FREEDOM), np.full(len(cells), DRIFT_FREEDOM)
    if (several := own > 0).any():
        variances, freedom[several] = at_least_usual(spread[several] / own[several], own[several])
        errors[several] = np.sqrt(variances * shares[several])
    return apart, errors, freedom


def at_least_usual(variances: Numbers, freedom: Numbers) -> tuple[Numbers, Numbers]:
    """Each variance between runs, of few runs not less than the family's median, and its degrees of freedom: of the
    median twice its own, no more, as a state of a run may be in all of its cells alike.

    That the median of few values lies below the variance is put right (Wilson & Hilferty, PNAS 17, 1931).
    """
    if len(variances) < LEAST_CELLS:
        return variances, freedom
    usual = float(median(variances / (1 - 2 / (9 * freedom)) ** 3))
    is_raised = (variances < usual) & (freedom < KNOWN_FREEDOM)
    return np.where(is_raised, usual, variances), np.where(is_raised, 2 * freedom, freedom)


def benjamini_hochberg(chances: Sequence[float], false_share: float) -> float:
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
