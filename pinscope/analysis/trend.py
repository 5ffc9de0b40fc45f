"""A figure over the runs of a machine: where it steps, by how much, and what changed in the machine there.

A step is told from chance by a permutation test: the greatest of Student's t between the runs before and after each
place is compared with what it is when the same values come in any other order (Good, *Permutation, Parametric and
Bootstrap Tests of Hypotheses*, 2005). So a series without a step has one named with :data:`CHANCE` at most, whatever
its values are distributed like, as long as equal runs hang together no more than by chance. It is done with the values
(their logarithms) and with their ranks, among which one run that is far off hides no step. A step found, both parts are
searched likewise (binary segmentation); where the whole has none, so are parts of it, for a step and back hides there
(seeded binary segmentation: Kovács et al., Biometrika 110, 2023). The whole and its parts, values and ranks have half
of the chance each.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from statistics import median

import numpy as np
from numpy.typing import NDArray

from pinscope.analysis.machine_keys import MachineKey, key_words, machine_keys
from pinscope.records.run import LAB_TITLES, ExperimentRun, Quantity, Run
from pinscope.text import first_of
from pinscope.units import format_change, format_count, format_value

CHANCE = 0.02
"""That a series of equal runs has a step named."""
ORDERS = 1999
"""Other orders in which the values are looked at."""
LEAST_PART = 3
"""Runs before and after a step, at least."""
LEAST_RUNS = 9
"""Fewer, in any order, are not rare enough to tell a step from chance: of 8 runs 4 and 4 lie so apart by chance in 2 of
70 orders."""
SEED = 20261127
"""Of these orders: the same runs give the same answer."""


@dataclass(frozen=True)
class Step:
    """A place where a figure steps.

    Attributes:
        place: of the first run after it.
        run: that run.
        before, after: medians of the runs between this step and its neighbours.
        changed: what differs between the run before it and the run after it: machine and software, then parameters.
    """

    place: int
    run: Run
    before: float
    after: float
    changed: Sequence[MachineKey]

    @property
    def ratio(self) -> float | None:
        """After over before; ``None`` where that says nothing."""
        return self.after / self.before if self.before > 0 and self.after > 0 else None

    @property
    def change(self) -> str:
        """``-18.1 %``, or that there is a step."""
        return format_change(self.ratio) if self.ratio else "a step"


@dataclass(frozen=True)
class Trend:
    """A figure over runs that are alike but for their time and what changed in the machine, the oldest first.

    Attributes:
        figure: which it is.
        runs: those in which it is known; ``values``: the figure of each, in its unit.
        without: ids of runs of the series in which the figure is not known.
    """

    figure: Quantity
    runs: Sequence[Run]
    values: Sequence[float]
    without: Sequence[str] = ()

    @cached_property
    def levels(self) -> Sequence[tuple[int, int, float]]:
        """From step to step the place of the first run, that behind the last one, and the median between them."""
        ends = [0, *steps(self.values), len(self.values)]
        return [(begin, end, median(self.values[begin:end])) for begin, end in pairwise(ends)]

    @cached_property
    def steps(self) -> Sequence[Step]:
        """Where it steps, and what changed there."""
        runs = self.runs
        return [
            Step(place, runs[place], before, after, machine_keys([runs[place - 1]], [runs[place]]).different)
            for (_, place, before), (_, _, after) in pairwise(self.levels)
        ]

    @property
    def left_out(self) -> str:
        """Which runs say nothing of the figure, in words; empty where all do."""
        words = "left out, as the figure is not known there"
        return f"{words}: {first_of(self.without)}" if self.without else ""


def steps(values: Sequence[float]) -> list[int]:
    """Places of the first value after each step, ascending."""
    raw = np.asarray(values, dtype=float)
    logs = np.log(raw) if (raw > 0).all() else raw
    return sorted(_steps(logs, 0, CHANCE))


def _steps(values: NDArray[np.float64], begin: int, chance: float) -> Iterator[int]:
    count = len(values)
    parts = [
        (start, start + length)
        for length in (int(count / math.sqrt(2)), count // 2)
        for start in (0, (count - length) // 2, count - length)
    ]
    tried = [(start, end, chance / 2 / len(some)) for some in ([(0, count)], parts) for start, end in some]
    steps_inside = ((start, _step(values[start:end], most)) for start, end, most in tried)
    place = next((start + inside for start, inside in steps_inside if inside is not None), None)
    if place is not None:
        yield begin + place
        yield from _steps(values[:place], begin, chance / 2)
        yield from _steps(values[place:], begin + place, chance / 2)


def _step(values: NDArray[np.float64], most: float) -> int | None:
    """The likeliest place of a step, where chance makes as much of one at most so often: of values, or of ranks."""
    if len(values) < LEAST_RUNS or np.ptp(values) == 0:
        return None
    ranks = (np.searchsorted(np.sort(values), values) + np.searchsorted(np.sort(values), values, "right")) / 2
    for series in (values, ranks):
        orders = np.random.default_rng(SEED).permuted(np.tile(series, (ORDERS, 1)), axis=1)
        apart = _apart(series[None, :])[0]
        as_far = int((_apart(orders).max(axis=1) >= apart.max() * (1 - 1e-9)).sum())
        if (1 + as_far) / (ORDERS + 1) <= most / 2:
            return int(apart.argmax()) + LEAST_PART
    return None


def _apart(series: NDArray[np.float64]) -> NDArray[np.float64]:
    """Of each series |t| between the values before and after each place."""
    count = series.shape[1]
    centred = series - series.mean(axis=1, keepdims=True)
    before = np.arange(LEAST_PART, count - LEAST_PART + 1)
    sums = np.cumsum(centred, axis=1)[:, before - 1]
    between = sums**2 * count / (before * (count - before))
    within = np.maximum((centred**2).sum(axis=1, keepdims=True) - between, 1e-12 * (1 + between))
    return np.asarray(np.sqrt(between * (count - 2) / within))


# Which runs are alike


def series_words(runs: Sequence[Run]) -> str:
    """``host model (no GPU), gpu7 · 2026-10-26 to 2026-11-24``: where runs of a series were made, and when."""
    days = f"{runs[0].created_at:%Y-%m-%d} to {runs[-1].created_at:%Y-%m-%d}"
    return f"{LAB_TITLES[runs[0].lab]}, {runs[0].environment.host} · {days}"


def series_key(run: Run) -> str:
    """What runs of a series have in common: machine, lab, GPU by its number, and parameters; of a trace the program."""
    same = (run.device, run.params) if isinstance(run, ExperimentRun) else run.params.get("program")
    return str((run.experiment, run.lab, run.environment.machine_id, same))


# In words


def step_words(step: Step, unit: str) -> str:
    """``-18 % since run 20261120-… (2026-11-20): 55.0 GB/s → 45.1 GB/s; changed there: driver 580 → 590``."""
    values = f"{format_value(step.before, unit)} → {format_value(step.after, unit)}"
    keys = key_words(step.changed)
    changed = f"changed there: {keys}" if keys else "nothing that was recorded of the machine changed there"
    return f"{step.change} from run {step.run.id} on ({step.run.created_at:%Y-%m-%d}): {values}; {changed}"


def verdict(trend: Trend) -> str:
    """One sentence."""
    count, name, values = len(trend.runs), trend.figure.name, trend.values
    if trend.steps:
        return f"{name}: {step_words(trend.steps[-1], trend.figure.unit)}."
    if count < LEAST_RUNS:
        return f"{name}: no step can be told from chance in {format_count(count, 'run')}: it takes {LEAST_RUNS}."
    middle = median(values)
    far = f", all within {max(abs(value / middle - 1) for value in values):.1%}" if middle > 0 else ""
    return f"{name}: no step in {count} runs; {format_value(middle, trend.figure.unit)}{far}."
