"""A training loop fed by a DataLoader: what each combination of its settings reaches, and what bounds it.

Where a loop becomes steady, and how sure its pace is, follow replication and deletion (Law, Simulation Modeling and
Analysis, 5th ed., 9.5.2): the same loop is run several times from its start; of each run the start is cut off, and the
mean of the rest is one value. These values are independent, however much neighbouring steps of one run hang together.

What bounds a loop is the part of it that is busy for the largest share of a step. By the utilization law each part is
busy for (its time for one batch) × (batches a second), and a loop makes no more steps than its busiest part allows
(Denning & Buzen, "The operational analysis of queueing network models", ACM Computing Surveys 10:3, 1978). The parts
are those that work at the same time: the workers, each on a batch of its own; PyTorch's pinning thread, one for all
workers; the GPU's stream, which copies a batch and then computes on it; the training program in all the time in which
it does not wait for the loader. It may wait for the GPU in that time, so that it bounds the loop only where no other
part is busy enough to.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import fmean
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray

from pinscope.analysis.cells import Label, Value, cells, every_combination, first, labels_of
from pinscope.analysis.read_rows import Row, Rows, counted, grouped, labels, median
from pinscope.analysis.statistics import Summary, measured, summarize
from pinscope.analysis.texts import ROUGH, Wrong, about, joined, roughness
from pinscope.experiments.dataloader.ways import BATCHES, BOTH, PARTS, POOL_SETTINGS, WAYS, BatchKind, Setting
from pinscope.records.run import MOST_OFF, VARIES, ExperimentRun, Quantity, Table, quantity
from pinscope.units import format_count

COUNTER_SLACK_BYTES = 2**20
"""The kernel batches its count of pinned pages per processor: so far off may the growth of it be."""
CLEAR = 0.8
"""From this share of a step on, the busiest part bounds the loop; below it the parts wait for each other in turn."""
MSER_BATCH = 5
LEAST_BATCHES = 7
"""A series of fewer batches is too short to be divided into a start and a steady part."""
DRIFT = 0.05
"""The two halves of a steady part differ in their mean by less than this share, or by less than chance explains."""
_DRIFT_ERRORS = 3.0
"""Chance explains a difference of so many standard errors."""
UNTOLD = ("no difference measured", VARIES)
"""Verdicts on a setting that tell neither a gain nor a loss."""
LEAST_RUNS = 3
OWN_TIMES = ("wait_seconds", "issue_seconds", "copy_seconds", "compute_seconds", "stall_seconds", "step_seconds")
TIMES = (*OWN_TIMES, "make_seconds", "pin_seconds")
"""Of a step and its batch."""
MOST_RUNS = 11


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
class Visit:
    """All steps of one combination in one round.

    Attributes:
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

    @property
    def step_seconds(self) -> float:
        """Mean of the steps that count."""
        return fmean(step["step_seconds"] for step in self.steady)


@dataclass(frozen=True)
class Busy:
    """How busy a part of a loop is.

    Attributes:
        part: a key of :data:`PARTS`.
        share: of a step, at most 1.
    """

    part: str
    share: float

    @property
    def is_clear(self) -> bool:
        """Whether it is busy enough to say that the rest waits for it."""
        return self.share >= CLEAR

    @property
    def title(self) -> str:
        """In a few words."""
        return PARTS[self.part][0].title


def _on(value: bool) -> str:
    return "on" if value else "off"


_Seconds = float | None
"""Mean over the steps that count; ``None`` where it was not measured."""


@dataclass(frozen=True)
class Cell:
    """The steady steps of all rounds with the same settings. Seconds are means: batches come in bursts, and a loop
    that waits long for every fourth one shows that in no median.

    Attributes:
        steps_per_second: from one value of each visit; ``None`` where no visit became steady.
        start_count: steps that the start took, at most; ``None`` likewise.
        pinned_bytes: what was pinned for it at most; ``None`` where the host does not report it.
    """

    workers: Annotated[int, Label("workers", "count")]
    pin_memory: Annotated[bool, Label("pin_memory", words=_on)]
    non_blocking: Annotated[bool, Label("non_blocking", words=_on)]
    batch_bytes: Annotated[int, Label("batch", "bytes")]
    batch_kind: Annotated[BatchKind, Label("of", words=lambda kind: BATCHES[kind].title)]
    visits: tuple[Visit, ...]
    steps_per_second: Annotated[Summary | None, Value("steps a second", "count", "more")]
    step_seconds: Annotated[_Seconds, Value("a step", "seconds", "less")]
    make_seconds: Annotated[_Seconds, Value("making a batch", "seconds", "less")]
    pin_seconds: Annotated[_Seconds, Value("pinning a batch", "seconds", "less")]
    issue_seconds: Annotated[_Seconds, Value("the copy call holds", "seconds", "less")]
    copy_seconds: Annotated[_Seconds, Value("copy", "seconds", "less")]
    compute_seconds: Annotated[_Seconds, Value("compute", "seconds")]
    wait_seconds: _Seconds
    stall_seconds: _Seconds
    start_count: Annotated[int | None, Value("start", "count")]
    steps_count: Annotated[int, Value("steps counted", "count")]
    pinned_bytes: Annotated[int | None, Value("pinned", "bytes")]
    wrong_count: Annotated[int, Value("wrong items", "count", "less")]

    @property
    def busiest(self) -> Annotated[str | None, Value("busiest part", "text")]:
        return self.bound.title if self.bound else None

    @property
    def busy_share(self) -> Annotated[float | None, Value("busy", "share")]:
        return self.bound.share if self.bound else None

    @property
    def computes_share(self) -> Annotated[float | None, Value("GPU computes", "share", "more")]:
        """From a step's first kernel to its last; ``None`` where that was not measured."""
        stalled = self.share(self.stall_seconds)
        return None if stalled is None else 1 - stalled

    @property
    def copy_bytes_per_second(self) -> Annotated[float | None, Value("copy rate", "bytes/second", "more")]:
        return self.batch_bytes / self.copy_seconds if self.copy_seconds else None

    def share(self, seconds: float | None) -> float | None:
        """A mean's part of a step; at most 1."""
        return None if seconds is None or not self.step_seconds else min(seconds / self.step_seconds, 1.0)

    @property
    def title(self) -> str:
        """The settings in a few words."""
        pin = "pinned" if self.pin_memory else "pageable"
        kind = "" if self.batch_kind == "one" else f", {BATCHES[self.batch_kind].title}"
        return f"{pin}, {'non_blocking' if self.non_blocking else 'blocking'}{kind}"

    @property
    def words(self) -> str:
        """The settings and the number of workers."""
        return f"{self.title}, {format_count(self.workers, 'worker')}"

    @cached_property
    def busy(self) -> Sequence[Busy]:
        """All parts, the one that sets the pace first; none where the run did not time making and pinning.

        The GPU's stream stands under the longer one of its two tasks, with the time of both.
        """
        step, wait, make = self.step_seconds, self.wait_seconds, self.make_seconds
        copy, compute, pin = self.copy_seconds, self.compute_seconds, self.pin_seconds if self.pin_memory else 0.0
        if not step or wait is None or make is None or copy is None or compute is None or pin is None:
            return ()
        parts = {"copy" if copy > compute else "compute": copy + compute}
        parts["program"] = max(step - wait, 0.0) if self.workers else step
        if self.workers:
            parts["workers"] = make / self.workers
            if self.pin_memory:
                parts["pinning"] = pin
        shares = [Busy(part, min(seconds / step, 1.0)) for part, seconds in parts.items()]
        return sorted(shares, key=lambda busy: (busy.is_clear and busy.part != "program", busy.share), reverse=True)

    @property
    def bound(self) -> Busy | None:
        """The part that sets the pace; ``None`` where :attr:`busy` has no answer."""
        return self.busy[0] if self.busy else None


def _cell(rows: Rows) -> Cell:
    rounds = grouped(rows, lambda row: int(row["round"]))
    paces = [[step["step_seconds"] for step in steps] for steps in rounds.values()]
    # The workers take turns: what a step waits for repeats after so many steps as there are workers.
    starts: Sequence[int | None] = steady_starts(paces, max(rows[0]["workers"], 1)) or [None] * len(paces)
    visits = [Visit(number, steps, start) for (number, steps), start in zip(rounds.items(), starts, strict=True)]
    paces_of_visits = [1 / visit.step_seconds for visit in visits if visit.steady]
    steady = [step for visit in visits for step in visit.steady]
    means: dict[str, Any] = {name: _mean(steady, name) for name in TIMES}
    held = [row["pinned_bytes"] for row in rows]
    grown = None if None in held else max(held)
    return Cell(
        **{name: rows[0][name] for name in labels_of(Cell)},
        **means,
        visits=tuple(visits),
        steps_per_second=summarize(paces_of_visits) if paces_of_visits else None,
        start_count=max((visit.start for visit in visits if visit.start is not None), default=None),
        steps_count=len(steady),
        pinned_bytes=0 if grown is not None and abs(grown) <= COUNTER_SLACK_BYTES else grown,
        wrong_count=sum(row["wrong_items"] for row in rows),
    )


def _mean(steps: Rows, name: str) -> float | None:
    known = [value for step in steps if (value := step.get(name)) is not None]
    return fmean(known) if known and len(known) == len(steps) else None


def speedup(faster: Cell, than: Cell) -> Effect | None:
    """How many times the steps one combination makes of another's, from the rounds in which both became steady.

    Each round measures all combinations, so that what changes on the machine from round to round touches both. ``None``
    where there is no such round.
    """
    own, other = ({visit.round: visit.step_seconds for visit in cell.visits if visit.steady} for cell in (faster, than))
    ratios = [other[number] / seconds for number, seconds in own.items() if number in other]
    return Effect(faster.workers, summarize(ratios)) if ratios else None


@dataclass(frozen=True)
class Effect:
    """A setting with one number of workers.

    Attributes:
        ratio: steps with the setting over steps without.
    """

    workers: int
    ratio: Summary

    @property
    def workers_words(self) -> str:
        """``2 workers``."""
        return format_count(self.workers, "worker")

    @property
    def value(self) -> float:
        """The median of the rounds."""
        return self.ratio.median

    @property
    def is_known(self) -> bool:
        """Whether its few rounds make it a figure."""
        return self.ratio.uncertainty <= MOST_OFF

    def figure(self, name: str, key: str | None = None) -> Quantity:
        """The ratio as findings and headlines show it."""
        if self.verdict == VARIES:
            return quantity(name, None, "ratio", reason=VARIES, key=key)
        return measured(name, self.ratio, "ratio", key=key)

    @property
    def ends(self) -> tuple[float, float]:
        """Between which another run's will lie; 0 and infinite where one round tells nothing of it."""
        least = max(1 - self.ratio.uncertainty, 0.0)
        return self.value * least, self.value / least if least else math.inf

    @property
    def verdict(self) -> str:
        """``faster``, ``slower``, ``no difference measured``, :data:`VARIES`, or ``measured once``."""
        if self.ratio.count == 1:
            return "measured once"
        if not self.is_known:
            return VARIES
        low, high = self.ends
        return "faster" if low > 1 else "slower" if high < 1 else "no difference measured"

    def is_apart(self, other: Effect) -> bool:
        """Whether what other runs of both will show has nothing in common."""
        (low, high), (its_low, its_high) = self.ends, other.ends
        return self.is_known and other.is_known and (low > its_high or its_low > high)

    @property
    def times(self) -> str:
        """The ratio, and how far it may be off where it is known only roughly."""
        return "n/a" if self.verdict == VARIES else f"{self.value:.2f}{roughness(self.ratio)}"


@dataclass(frozen=True)
class PoolUse:
    """What PyTorch's pool did with one request under one setting. ``None``: not known, on the host or by PyTorch."""

    setting: Annotated[str, Label("setting", words=lambda name: POOL_SETTINGS.get(name, name))]
    settings: Annotated[str, Label("in force", words=lambda settings: settings or "nothing")]
    version: Annotated[str, Label("PyTorch")]
    batch_bytes: Annotated[int, Label("asked", "bytes")]
    pinned_bytes: Annotated[int | None, Value("pinned", "bytes", "less", make=first)]
    kept_bytes: Annotated[int | None, Value("kept when gone", "bytes", make=first)]
    left_bytes: Annotated[int | None, Value("left when emptied", "bytes", make=first)]
    pool_bytes: Annotated[int | None, Value("by PyTorch", "bytes", make=first)]
    pool_seconds: Annotated[float | None, Value("first", "seconds", "less", make=first)]
    again_seconds: Annotated[float | None, Value("again", "seconds", "less", make=first)]

    @property
    def title(self) -> str:
        """The setting for people."""
        return POOL_SETTINGS.get(self.setting, self.setting)

    @property
    def taken(self) -> int | None:
        """What the request took: as the host counts it, else as PyTorch says."""
        return self.pool_bytes if self.pinned_bytes is None else self.pinned_bytes

    @property
    def ratio(self) -> Annotated[float | None, Value("of what was asked for", "ratio", "less")]:
        """That, relative to what was asked for."""
        return None if self.taken is None else self.taken / self.batch_bytes


@dataclass(frozen=True)
class Loops:
    """All that a run measured."""

    rows: Sequence[Row]

    @cached_property
    def cells(self) -> list[Cell]:
        """All combinations, in the order in which they were first measured."""
        # Older runs had batches of one tensor.
        steps = [{"batch_kind": "one", **row} for row in counted(self.rows) if row["kind"] == "step"]
        return [_cell(group) for group in grouped(steps, labels(*labels_of(Cell))).values()]

    @property
    def wrong(self) -> Wrong:
        """Items that did not arrive as they should."""
        cases = [(cell.words, cell.wrong_count) for cell in self.cells]
        return Wrong("batch-wrong", "Batches arrived wrong on the GPU", "items", cases)

    @cached_property
    def uses(self) -> list[PoolUse]:
        """What PyTorch's pool took, by setting, in the order measured."""
        return cells(PoolUse, (row for row in self.rows if row["kind"] == "pool"))

    @cached_property
    def steady(self) -> list[Cell]:
        """Those that became steady, so that there are figures at all."""
        return [cell for cell in self.cells if cell.steps_per_second]

    @cached_property
    def kinds(self) -> list[BatchKind]:
        """Of batches, the one that was measured in every combination first."""
        return list(dict.fromkeys(cell.batch_kind for cell in self.cells))

    @cached_property
    def usual(self) -> list[Cell]:
        """Of those that became steady, with this kind of batch."""
        return [cell for cell in self.steady if cell.batch_kind == self.kinds[0]]

    @cached_property
    def fastest(self) -> Cell | None:
        """The one with the most steps a second."""
        return max(self.usual, key=lambda cell: median(cell.steps_per_second) or 0.0, default=None)

    @cached_property
    def equals(self) -> list[Cell]:
        """Those that the rounds do not tell apart from the fastest; all where a single round has no interval."""
        best = self.fastest
        others = [(cell, speedup(best, cell)) for cell in self.usual if best and cell is not best]
        return [cell for cell, effect in others if effect is None or effect.verdict != "faster"]

    def effects(self, setting: Setting, kind: BatchKind | None = None) -> list[Effect]:
        """By the number of workers, where both were measured and became steady; by default of the usual batches."""
        alike = [cell for cell in self.steady if cell.batch_kind == kind] if kind else self.usual
        combinations = {(cell.pin_memory, cell.non_blocking, cell.workers, cell.batch_bytes): cell for cell in alike}
        effects = [
            speedup(cell, off)
            for (*settings, workers, size), cell in combinations.items()
            if tuple(settings) == setting.on and (off := combinations.get((*setting.off, workers, size)))
        ]
        return sorted(filter(None, effects), key=lambda effect: effect.workers)


def of(run: ExperimentRun, rows: Sequence[Row]) -> Loops:
    """All that a run measured, as verdict, headline, tables, findings and charts ask for it."""
    del run
    return Loops(rows)


def verdict(loops: Loops) -> str | None:
    """Whether to turn pinned batches on, and with how many workers; else how fast the fastest loop is."""
    best = loops.fastest
    if best is None or best.steps_per_second is None:
        return None
    if effects := loops.effects(WAYS[BOTH]):
        return f"{_brings(effects)}."
    pace = best.steps_per_second.median
    rough = f"about {float(f'{pace:.2g}'):g}" if about(best.steps_per_second.uncertainty) else f"{pace:.1f}"
    return f"The fastest loop makes {rough} steps a second with {best.words}."


def _brings(effects: Sequence[Effect]) -> str:
    """``If num_workers is 0, use …: 1.4 times (4 repeats) as fast (2 workers: cannot tell)``."""
    by_verdict = grouped(effects, lambda effect: effect.verdict)
    alike, name = [effect for effect in effects if effect.verdict in UNTOLD], WAYS[BOTH].title
    same = _workers(alike)
    faster, slower, once = (by_verdict.get(how, []) for how in ("faster", "slower", "measured once"))
    rest = [f"{_workers(slower)} workers: slower"] if faster and slower else []
    rest += [f"{same} workers: cannot tell"] if same else []
    others = f" ({', '.join(rest)})" if rest else ""
    if faster:
        return f"If num_workers is {_workers(faster)}, use {name}: {_times(faster)} as fast{others}"
    if slower:
        return f"If num_workers is {_workers(slower)}, leave {name} off: {_times(slower)} as slow{others}"
    if once:
        return f"With {_workers(once)} workers {name} made the loop {_times(once)} as fast"
    rounds = min(effect.ratio.count for effect in alike)
    return f"{rounds} rounds cannot tell whether {name} changes the speed (workers: {same})"


def _workers(some: Sequence[Effect]) -> str:
    return joined([str(effect.workers) for effect in some])


def _times(effects: Sequence[Effect]) -> str:
    """``1.4 times (± 12 %)``; two digits after the point where the ratios are known that well."""
    roughest = max((effect.ratio for effect in effects), key=lambda ratio: ratio.uncertainty)
    rough = roughest.uncertainty > ROUGH
    turn = -1 if effects[0].verdict == "slower" else 1
    values = sorted(effect.value**turn for effect in effects)
    words = [f"{value:.1f}" if rough else f"{value:.2f}" for value in (values[0], values[-1])]
    return f"{' to '.join(dict.fromkeys(words))} times{roughness(roughest)}"


def headline(loops: Loops) -> Iterator[Quantity]:
    """Pace, how long the GPU computes and what pinning brings; then which loop it is, and what it pins."""
    best, gains = loops.fastest, sorted(loops.effects(WAYS[BOTH]), key=lambda effect: -effect.value)
    if best is None or best.steps_per_second is None:
        return
    name = "Steps a second of the fastest loop"
    yield measured(name, best.steps_per_second, "count", key="fastest.pace")
    yield quantity("GPU computes in the fastest loop, of a step", best.computes_share, "share", key="fastest.computes")
    for gain in gains[:2]:
        name, key = f"Speed-up by {WAYS[BOTH].title}, {gain.workers_words}", f"workers_{gain.workers}.gain"
        yield gain.figure(name, key)
    ties = f" ({len(loops.equals)} more not measurably slower)" if loops.equals else ""
    yield quantity("Fastest loop", best.words + ties, "text", key="fastest.loop")
    if best.pin_memory:
        why = "the kernel has no count of pinned pages"
        yield quantity("Pinned for the fastest loop", best.pinned_bytes, "bytes", reason=why, key="fastest.pinned")


def tables(loops: Loops) -> Iterator[Table]:
    """All combinations, and PyTorch's pool."""
    yield every_combination(
        loops.cells,
        "Means over the steps after the start; the start: steps that were cut off, at most, in a round. Steps a "
        "second: the median of the rounds, of the mean of each; two combinations are compared round by round, as "
        "what changes on the machine from round to round touches both. Busy: share of a step, of the workers "
        "together, the pinning thread, the GPU's copies and kernels, or the program. GPU computes: share of a step "
        "from its first kernel to its last. Pinned: by how much the host's count grew, with the driver's own "
        "buffers for pageable copies.",
    )
    yield every_combination(
        loops.uses,
        "Each setting in a process of its own. Pinned, kept and left: what the host's count of pinned pages grew "
        "by. By PyTorch: torch.cuda.host_memory_stats. First and again: to take a tensor, and another once it was "
        "freed.",
        "PyTorch's pool of pinned memory",
    )
