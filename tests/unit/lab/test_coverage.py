"""How often the median that the harness stops at is as good as its interval says, simulated on known noise."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import cast

import numpy as np
import pytest
from numpy.typing import NDArray

from pinscope.analysis.statistics import median_interval
from pinscope.experiments.contract import Params
from pinscope.experiments.registry import EXPERIMENTS
from pinscope.lab.harness import Harness, Precision

TRIALS = 500
"""Each share is known to one percent; those below are above 98 %, or well below what is asked."""
Values = NDArray[np.float64]
Noise = Callable[[np.random.Generator, tuple[int, int]], Values]
"""Values around a true median of 1."""


def normal(random: np.random.Generator, shape: tuple[int, int]) -> Values:
    return random.normal(1.0, 0.03, shape)


def skewed(random: np.random.Generator, shape: tuple[int, int]) -> Values:
    return 0.97 + 0.03 * random.lognormal(0.0, 1.0, shape)  # its median is e⁰


def two_states(random: np.random.Generator, shape: tuple[int, int], lasting: float = 1 / 0.7) -> Values:
    """Three of ten repeats are 5 % slower; a slow state lasts ``lasting`` repeats on average (1/0.7: by chance)."""
    leave, enter = 1 / lasting, 1 / lasting * 0.3 / 0.7
    slow = np.empty(shape, dtype=bool)
    slow[:, 0] = random.random(shape[0]) < 0.3
    for turn in range(1, shape[1]):
        chance = random.random(shape[0])
        slow[:, turn] = np.where(slow[:, turn - 1], chance >= leave, chance < enter)
    # Below the median of all lie five sevenths of the fast ones: 0.566 standard deviations above their middle.
    return 1.0 - 0.566 * 0.003 + 0.05 * slow + random.normal(0.0, 0.003, shape)


SHAPES: dict[str, Noise] = {"normal 3 %": normal, "skewed": skewed, "two states": two_states}


def asked_by_default() -> dict[str, Precision]:
    """The stopping rule of each experiment's presets, each different one once."""
    found: dict[Precision, str] = {}
    for entry in EXPERIMENTS:
        for lab in entry.experiment.labs:
            for quick in (False, True):
                if issubclass(entry.experiment.Params, Params) and entry.experiment.labs[lab] is None:
                    preset = cast("Params", entry.experiment.Params.preset(lab, quick))
                    found.setdefault(preset.harness_precision(), f"{entry.experiment.name} {lab} quick={quick}")
    return {name: precision for precision, name in found.items()}


ASKED = asked_by_default()


def covered(noise: Noise, precision: Precision, pace: float) -> float:
    """Share of trials whose interval, as a reading shows it later, holds the true median.

    Args:
        noise: what is repeated.
        precision: how well, and until when.
        pace: seconds that a value of 1 takes.
    """
    all_values = noise(np.random.default_rng(7), (TRIALS, precision.most)).tolist()
    right = 0
    for trial in all_values:
        taken: list[float] = []
        now = [0.0]
        for turn in Harness(clock=partial(now.__getitem__, 0)).turns(precision, taken):
            if not turn.warmup:
                taken.append(trial[turn.repeat])
                now[0] += pace * trial[turn.repeat]
        low, high = median_interval(taken) or (-np.inf, np.inf)
        right += low <= 1.0 <= high
    return right / TRIALS


def covered_by_looking_at_every_count(noise: Noise, relative: float, most: int) -> float:
    """The same for a rule that looks after every twentieth value more, each time with 95 % confidence."""
    trials = 4 * TRIALS  # all at once, they cost little
    values = noise(np.random.default_rng(7), (trials, most))
    open_, right = np.ones(trials, dtype=bool), np.zeros(trials, dtype=bool)
    count = 7
    while open_.any():
        rank = int((count + 1) / 2 - 1.96 / 2 * count**0.5)
        ordered = np.sort(values[:, :count], axis=1)
        low, high = ordered[:, rank - 1], ordered[:, -rank]
        ends = open_ & ((high - low <= 2 * relative * np.median(ordered, axis=1)) | (count == most))
        right[ends] = (low[ends] <= 1.0) & (high[ends] >= 1.0)
        open_ &= ~ends
        count = min(count + 1 + count // 20, most)
    return float(right.mean())


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("asked", ASKED)
def test_at_least_94_percent_of_intervals_hold_the_true_median(asked: str, shape: str) -> None:
    """At the default precisions, with repeats so long that the time limit may end them too."""
    precision = ASKED[asked]
    assert covered(SHAPES[shape], precision, pace=precision.seconds / 25) >= 0.94


@pytest.mark.parametrize("shape", ["normal 3 %", "skewed"])
def test_a_rule_that_looks_often_with_95_percent_each_would_not_pass(shape: str) -> None:
    assert covered_by_looking_at_every_count(SHAPES[shape], 0.01, 300) < 0.935
    assert covered(SHAPES[shape], Precision(0.01, most=300, seconds=1e9), 0.0) >= 0.94


def test_states_that_last_for_two_repeats_are_still_covered_and_long_ones_are_not() -> None:
    """What the documents say less about: nothing seen within few repeats shows a state that outlasts them."""
    precision = Precision(0.01, most=60, seconds=1e9)
    assert covered(partial(two_states, lasting=2.0), precision, 0.0) >= 0.94
    assert covered(partial(two_states, lasting=10.0), precision, 0.0) < 0.9
