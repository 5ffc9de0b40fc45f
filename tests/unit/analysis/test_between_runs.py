"""What is chance between two sides of runs: intervals, and how many cells they let be called different."""

from __future__ import annotations

import math
from random import Random

import numpy as np
import pytest

from pinscope.analysis.between_runs import FALSE_SHARE, Sample, differences, students


def test_quantiles_are_those_of_the_tables() -> None:
    for chance, freedom, known in [
        (0.05, 1, 12.706),
        (0.05, 2, 4.303),
        (0.05, 5, 2.571),
        (0.01, 8, 3.355),
        (0.001, 30, 3.646),
        (0.05, 500, 1.960),
    ]:
        assert students(chance, freedom) == pytest.approx(known, abs=0.001)


def cells(
    random: Random, runs: int, changed: int, by: float, count: int = 100
) -> list[tuple[list[Sample], list[Sample]]]:
    """Cells whose runs differ by 1 to 3 %; of the first ones the second side is so much longer."""

    def side(deviation: float, longer: float) -> list[Sample]:
        return [(longer * math.exp(deviation * random.gauss(0, 1)), 0.05) for _ in range(runs)]

    deviations = [random.uniform(0.01, 0.03) for _ in range(count)]
    return [(side(off, 1.0), side(off, by if place < changed else 1.0)) for place, off in enumerate(deviations)]


@pytest.mark.parametrize("runs", [1, 3, 6])
def test_of_equal_runs_hardly_a_cell_is_called_different(runs: int) -> None:
    random = Random(1)
    called = [sum(made.differs for made in differences(cells(random, runs, 0, 1.0))) for _ in range(20)]
    assert np.count_nonzero(called) <= 3  # of 20 comparisons with 100 cells each


def test_of_what_is_called_different_as_few_are_wrong_as_promised() -> None:
    random, right, wrong = Random(2), 0, 0
    for _ in range(20):
        called = [made.differs for made in differences(cells(random, 3, 30, 1.12))]
        right, wrong = right + sum(called[:30]), wrong + sum(called[30:])
    assert right >= 0.9 * 20 * 30
    assert wrong <= FALSE_SHARE * (right + wrong)


def test_the_interval_is_about_the_ratio_of_geometric_means() -> None:
    (made,) = differences([([(1.0, 0.01), (4.0, 0.01)], [(8.0, 0.01), (8.0, 0.01)])])
    assert made.ratio == pytest.approx(4.0)
    assert (made.low or 0.0) * (made.high or 0.0) == pytest.approx(16.0)


def test_one_run_a_side_lies_within_its_own_plus_minus() -> None:
    ((tie,), (told,)) = (differences([([(1.0, 0.02)], [(value, 0.02)])]) for value in (1.019, 1.022))
    assert not tie.differs
    assert told.differs


def test_where_nothing_is_known_of_a_run_no_interval_is() -> None:
    once, other = differences([([(1.0, math.inf)], [(9.0, 0.01)]), ([(1.0, 0.01)], [(9.0, 0.01)])])
    assert (once.low, once.differs) == (None, False)
    assert other.differs


def test_what_is_exact_differs_by_anything_and_is_the_same_only_where_it_is_equal() -> None:
    equal, other = differences([([(5.0, 0.0)], [(5.0, 0.0)]), ([(5.0, 0.0)], [(5.000001, 0.0)])])
    assert (equal.low, equal.high, equal.differs) == (1.0, 1.0, False)
    assert other.differs


def test_of_many_runs_steady_cells_are_told_beside_noisy_ones() -> None:
    random = Random(4)

    def side(deviation: float, longer: float, runs: int) -> list[Sample]:
        return [(longer * math.exp(deviation * random.gauss(0, 1)), 0.05) for _ in range(runs)]

    steady = [(side(0.005, 1.0, 8), side(0.005, 1.2, 2)) for _ in range(7)]
    noisy = [(side(0.5, 1.0, 8), side(0.5, 1.0, 2)) for _ in range(11)]
    made = differences([*steady, *noisy])
    assert all(cell.differs for cell in made[:7])
    assert not any(cell.differs for cell in made[7:])
