"""Where a loop becomes steady, estimated with planted starts; and whether intervals cover what they claim."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray

from pinscope.analysis.statistics import Summary, summarize
from pinscope.experiments.dataloader.reading import DRIFT, steady_starts

Series = NDArray[np.float64]
MEAN = 10.0
STEPS = 120
RUNS = 8


def generator(seed: int = 7) -> np.random.Generator:
    return np.random.default_rng(seed)


def normal(rng: np.random.Generator) -> Series:
    return MEAN + rng.normal(0, 1, STEPS)


def skewed(rng: np.random.Generator) -> Series:
    return MEAN - 1 + rng.exponential(1, STEPS)


def two_states(rng: np.random.Generator) -> Series:
    """Stays fast or slow for five steps on average."""
    slow = np.logical_xor.accumulate(rng.random(STEPS) < 0.2) ^ (rng.random() < 0.5)
    return np.where(slow, 12.0, 8.0) + rng.normal(0, 0.3, STEPS)


def in_bursts(rng: np.random.Generator) -> Series:
    """Every fourth step waits for all workers."""
    late = (np.arange(STEPS) + rng.integers(4)) % 4 == 0
    return np.asarray(np.where(late, 31.0, 3.0) * (1 + 0.1 * rng.normal(0, 1, STEPS)))


NOISES: dict[str, Callable[[np.random.Generator], Series]] = {
    "normal": normal, "skewed": skewed, "two states": two_states, "in bursts": in_bursts,
}  # fmt: skip


def backlog(length: int) -> Series:
    """A long first step, then what was made ahead at a tenth of the steady pace."""
    planted = np.zeros(STEPS)
    planted[:length] = -0.9 * MEAN
    planted[0] = 15 * MEAN
    return planted


def fading(length: int) -> Series:
    """Twice as slow at first, less and less."""
    return np.asarray(MEAN * np.exp(-3 * np.arange(STEPS) / length))


def slow_steps(length: int) -> Series:
    planted = np.zeros(STEPS)
    planted[:length] = MEAN
    return planted


def test_a_planted_start_is_cut_off_whatever_its_shape_and_length() -> None:
    for shape in [backlog, fading, slow_steps]:
        for length in [7, 16, 40]:
            rng = generator()
            runs = [normal(rng) + shape(length) for _ in range(RUNS)]
            starts = steady_starts([list(run) for run in runs])
            assert starts is not None
            assert all(length <= start <= STEPS // 2 for start in starts)
            means = [float(run[start:].mean()) for run, start in zip(runs, starts, strict=True)]
            assert np.mean(means) == pytest.approx(MEAN, rel=0.02)


def test_a_single_run_finds_its_start_from_its_own_steps() -> None:
    starts = steady_starts([list(normal(generator()) + backlog(16))])
    assert starts is not None
    assert 16 <= starts[0] <= STEPS // 2


def test_without_a_start_nearly_all_steps_count() -> None:
    rng = generator()
    counted = [steady_starts([list(normal(rng)) for _ in range(RUNS)]) for _ in range(50)]
    starts = [start for cuts in counted if cuts for start in cuts]
    assert len(starts) == 50 * RUNS
    assert np.median(starts) == 0
    assert steady_starts([[0.01] * STEPS]) == [0]


@pytest.mark.parametrize(
    "drift",
    [
        pytest.param(np.linspace(0, MEAN, STEPS), id="slower all the time"),
        pytest.param(np.linspace(MEAN, 0, STEPS), id="faster all the time"),
        pytest.param(slow_steps(STEPS * 3 // 4), id="a start of three quarters"),
        pytest.param(2 * fading(2 * STEPS), id="a start that fades beyond the end"),
    ],
)
def test_a_loop_that_never_becomes_steady_is_not_given_a_start(drift: Series) -> None:
    rng = generator()
    assert steady_starts([list(normal(rng) + drift) for _ in range(RUNS)]) is None
    assert steady_starts([list(normal(rng) + drift)]) is None


def test_a_drift_within_the_limit_counts_as_steady() -> None:
    rng = generator()
    slight = np.linspace(0, MEAN * DRIFT / 2, STEPS)
    assert steady_starts([list(normal(rng) + slight) for _ in range(RUNS)]) is not None


@pytest.mark.parametrize("steps", [0, 1, 34])
def test_too_few_steps_have_no_steady_part(steps: int) -> None:
    assert steady_starts([[0.01] * steps]) is None
    assert steady_starts([[0.01] * STEPS, [0.01] * steps]) is None
    assert steady_starts([]) is None


def test_a_pattern_that_repeats_is_not_cut_in_two() -> None:
    burst = [31.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0] * 15
    starts = steady_starts([burst] * 3, cycle=8)
    assert starts is not None
    assert all(start % 8 == 0 for start in starts)


@pytest.mark.parametrize("noise", NOISES)
@pytest.mark.parametrize("start", [0, 16])
@pytest.mark.parametrize("between", [0.0, 0.02])
def test_a_second_runs_pace_lies_within_it_93_times_in_100(noise: str, start: int, between: float) -> None:
    """But for the simulation's own error: 150 pairs know it within 2 points."""
    rng = generator(11)
    planted = backlog(start) if start else np.zeros(STEPS)

    def pace() -> Summary | None:
        runs = [NOISES[noise](rng) * (1 + between * rng.normal()) + planted for _ in range(RUNS)]
        starts = steady_starts([list(run) for run in runs], 4 if noise == "in bursts" else 1)
        return starts and summarize([float(run[cut:].mean()) for run, cut in zip(runs, starts, strict=True)], drift=0.0)

    pairs = [(first, second) for _ in range(150) if (first := pace()) and (second := pace())]
    held = [abs(second.median - first.median) <= first.uncertainty * first.median for first, second in pairs]
    assert len(pairs) >= 0.9 * 150
    assert sum(held) / len(held) >= 0.93 - 0.02
