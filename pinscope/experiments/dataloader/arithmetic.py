"""A training loop fed by a DataLoader: what each combination of its settings reaches in the steady state."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from statistics import fmean

from pinscope.analysis.rows import Row, Rows, counted, grouped, labels
from pinscope.experiments.dataloader.steady_state import Estimate, estimate, steady_starts

COUNTER_SLACK_BYTES = 2**20
"""The kernel batches its count of pinned pages per processor: so far off may the growth of it be."""
_LABELS = ("pin_memory", "non_blocking", "workers", "batch_bytes")


@dataclass(frozen=True)
class Visit:
    """All steps of one combination in one round.

    Attributes:
        round: number of the round.
        steps: without the first, which has no length.
        start: how many of them belong to the start; ``None`` where the loop never became steady.
    """

    round: int
    steps: Rows
    start: int | None

    @property
    def steady(self) -> Rows:
        """The steps that count; none where the loop never became steady."""
        return () if self.start is None else self.steps[self.start :]


@dataclass(frozen=True)
class Combination:
    """The steady steps of all rounds with the same settings. Seconds are means: batches come in bursts, and a loop
    that waits long for every fourth one shows that in no median.

    Attributes:
        pin_memory, non_blocking, workers: the settings.
        batch_bytes: images of one batch.
        visits: one for each round.
        pinned_bytes: what was pinned for it at most; ``None`` where the host does not report it.
        wrong_items: items that did not arrive as they should, in all steps.
    """

    pin_memory: bool
    non_blocking: bool
    workers: int
    batch_bytes: int
    visits: tuple[Visit, ...]
    pinned_bytes: int | None
    wrong_items: int

    @property
    def counted(self) -> Rows:
        """The steps of all visits that count."""
        return [step for visit in self.visits for step in visit.steady]

    @property
    def steady(self) -> bool:
        """Whether there is a figure at all."""
        return bool(self.counted)

    @property
    def start_steps(self) -> int | None:
        """How many steps the start took, at most; ``None`` where no visit became steady."""
        return max((visit.start for visit in self.visits if visit.start is not None), default=None)

    @property
    def steps_per_second(self) -> Estimate:
        """Of the steady steps; one value of each visit.

        Raises:
            ValueError: no visit became steady.
        """
        return estimate([1 / _mean(visit.steady, "step_seconds") for visit in self.visits if visit.steady])

    def seconds(self, name: str) -> float | None:
        """Mean of a column over the steps that count; ``None`` where it was not measured."""
        values = [step.get(name) for step in self.counted]
        known = [value for value in values if value is not None]
        return fmean(known) if known and len(known) == len(values) else None

    @property
    def computes(self) -> float | None:
        """Share of a step from its first kernel to its last; ``None`` where that was not measured."""
        stalled = self.share("stall_seconds")
        return None if stalled is None else 1 - stalled

    def share(self, name: str) -> float | None:
        """A column's part of all the time; at most 1."""
        part, whole = self.seconds(name), self.seconds("step_seconds")
        return None if part is None or not whole else min(part / whole, 1.0)

    def rate(self, name: str) -> float | None:
        """Bytes of the batch over the mean time of a column."""
        seconds = self.seconds(name)
        return self.batch_bytes / seconds if seconds else None

    @property
    def plain(self) -> bool:
        """Neither setting is on."""
        return not (self.pin_memory or self.non_blocking)

    @property
    def title(self) -> str:
        """The settings in a few words."""
        pin = "pinned" if self.pin_memory else "pageable"
        return f"{pin}, {'non_blocking' if self.non_blocking else 'blocking'}"


def combinations(rows: Iterable[Row]) -> list[Combination]:
    """Steps grouped by the settings; in the order in which they were first measured."""
    return [_combination(group) for group in grouped(counted(rows), labels(*_LABELS)).values()]


def _combination(rows: Rows) -> Combination:
    rounds = grouped(rows, lambda row: int(row.get("round", 0)))  # older runs visited each combination once
    held = [row["pinned_bytes"] for row in rows]
    return Combination(
        **{name: rows[0][name] for name in _LABELS},
        visits=_visits(rounds, rows[0]["workers"]),
        pinned_bytes=None if None in held else _beyond_slack(max(held)),
        wrong_items=sum(row["wrong_items"] for row in rows),
    )


def _visits(rounds: Mapping[int, Rows], workers: int) -> tuple[Visit, ...]:
    """The workers take turns: what a step waits for repeats after so many steps as there are workers."""
    paces = [[step["step_seconds"] for step in steps] for steps in rounds.values()]
    starts = steady_starts(paces, max(workers, 1))
    return tuple(
        Visit(number, steps, starts[place] if starts else None) for place, (number, steps) in enumerate(rounds.items())
    )


def _mean(steps: Rows, name: str) -> float:
    return fmean(step[name] for step in steps)


def speedup(faster: Combination, than: Combination) -> Estimate | None:
    """How many times the steps one combination makes of another's, from the rounds in which both became steady.

    Each round measures all combinations, so that what changes on the machine from round to round touches both. ``None``
    where there is no such round.
    """
    own, other = (
        {visit.round: _mean(visit.steady, "step_seconds") for visit in one.visits if visit.steady}
        for one in (faster, than)
    )
    ratios = [other[number] / seconds for number, seconds in own.items() if number in other]
    return estimate(ratios) if ratios else None


def _beyond_slack(grown: int) -> int:
    """The growth of the kernel's count; within what the count is off by, nothing was pinned."""
    return 0 if abs(grown) <= COUNTER_SLACK_BYTES else grown
