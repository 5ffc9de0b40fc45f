"""Medians and their spread, against exact binomials and by simulation."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from pinscope.analysis.statistics import CONFIDENCE, LOOKS, confidence_rank, looks, median_uncertainty, summarize

POSITIVE = st.lists(st.floats(1e-6, 1e3), min_size=1, max_size=80)


def _confidence(count: int, rank: int) -> float:
    """Exact probability that the median lies between the rank-th smallest and the rank-th largest value."""
    below, term = 0, 1
    for k in range(rank):
        below += term
        term = term * (count - k) // (k + 1)
    return 1 - 2 * below / 2**count


@pytest.mark.parametrize("count", [*range(8, 300), 1000, 1075, 3000, 10_000])
def test_the_interval_is_the_narrowest_that_has_99_percent(count: int) -> None:
    rank = confidence_rank(count)
    assert _confidence(count, rank) >= CONFIDENCE
    assert _confidence(count, rank + 1) < CONFIDENCE


@pytest.mark.parametrize("count", range(1, 8))
def test_below_eight_values_no_interval_reaches_99_percent(count: int) -> None:
    assert confidence_rank(count) == 0
    assert _confidence(count, 1) < CONFIDENCE
    assert summarize([1.0] * count).interval is None
    assert median_uncertainty([1.0] * (count - 1) + [1.1]) == math.inf


@pytest.mark.parametrize(
    ("draw", "truth"),
    [
        (lambda random, size: random.lognormal(0.0, 0.5, size), 1.0),
        (lambda random, size: 1.0 + random.exponential(1.0, size), 1.0 + math.log(2)),
        (lambda random, size: random.standard_t(2, size) + 5.0, 5.0),
    ],
    ids=["lognormal", "exponential", "heavy tails"],
)
@pytest.mark.parametrize("count", [8, 9, 15, 60])
def test_the_interval_covers_the_true_median_as_often_as_it_promises(
    draw: Callable[[np.random.Generator, tuple[int, int]], NDArray[np.float64]], truth: float, count: int
) -> None:
    samples = np.sort(draw(np.random.default_rng(20), (4000, count)), axis=1)
    rank = confidence_rank(count)
    covered = (samples[:, rank - 1] <= truth) & (truth <= samples[:, -rank])
    promised = _confidence(count, rank)
    assert covered.mean() == pytest.approx(promised, abs=4 * math.sqrt(promised * (1 - promised) / 4000))


def test_the_uncertainty_is_how_far_the_median_may_be_off() -> None:
    values = [9.0, 10.0, 8.0, 11.0, 10.0, 13.0, 10.0, 10.0]  # 8 values: smallest to largest
    assert summarize(values).interval == (8, 13)
    assert median_uncertainty(values) == pytest.approx((13 - 10) / 10)


@pytest.mark.parametrize(("least", "most"), [(7, 60), (8, 15), (3, 30), (8, 8), (8, 10_000), (3, 7), (20, 10)])
def test_the_median_is_looked_at_so_seldom_that_all_looks_together_keep_95_percent(least: int, most: int) -> None:
    planned = looks(least, most)
    assert len(planned) <= LOOKS
    assert LOOKS * (1 - CONFIDENCE) <= 0.05 + 1e-12
    assert list(planned) == sorted(set(planned))
    assert all(confidence_rank(count) > 0 and least <= count <= most for count in planned)
    assert (planned[-1:] == (most,)) == (most >= max(least, 8))


@given(POSITIVE)
def test_a_summary_lies_within_its_values(values: list[float]) -> None:
    summary = summarize(values)
    assert summary.count == len(values)
    inside = (min(values), summary.lower_quartile, summary.median, summary.upper_quartile, max(values))
    for left, right in pairwise(inside):
        assert left <= right * (1 + 1e-12)
    assert summary.spread >= 0


@given(st.lists(st.floats(0.5, 2.0), min_size=8, max_size=50), st.sampled_from([1e-9, 1e-3, 8.0, 1e9]))
def test_relative_figures_do_not_depend_on_the_unit(values: list[float], factor: float) -> None:
    plain, scaled = summarize(values), summarize([value * factor for value in values])
    assert scaled.median == pytest.approx(plain.median * factor)
    assert scaled.spread == pytest.approx(plain.spread, abs=1e-9)
    assert scaled.uncertainty == pytest.approx(plain.uncertainty, abs=1e-9)


@pytest.mark.parametrize("value", [0.0, 3e-6, -2.0])
def test_equal_values_have_no_spread_even_at_zero(value: float) -> None:
    summary = summarize([value] * 10)
    assert (summary.median, summary.spread, summary.uncertainty) == (value, 0.0, 0.0)


def test_a_spread_is_relative_to_the_size_of_the_median_and_infinite_around_zero() -> None:
    around_zero = summarize([-2.0, -1.0, -1.0, 0.0, 1.0, 1.0, 2.0])
    assert (around_zero.spread, around_zero.uncertainty) == (math.inf, math.inf)
    assert summarize([-10.0, -11.0, -9.0, -10.0]).spread > 0
    assert (summarize([2.5]).median, summarize([2.5]).uncertainty) == (2.5, math.inf)
    with pytest.raises(ValueError, match="no values"):
        summarize([])


@given(st.lists(st.floats(-1e9, 1e9), min_size=1, max_size=80))
def test_quartiles_and_median_are_numpys_to_the_last_bit(values: list[float]) -> None:
    summary = summarize(values)
    quartiles = (summary.lower_quartile, summary.median, summary.upper_quartile)
    assert quartiles == tuple(np.quantile(np.asarray(values), (0.25, 0.5, 0.75)))
    if summary.interval and (middle := float(np.median(values))):
        farther = max(middle - summary.interval[0], summary.interval[1] - middle)
        assert summary.uncertainty == pytest.approx(farther / abs(middle) if farther else 0.0)
