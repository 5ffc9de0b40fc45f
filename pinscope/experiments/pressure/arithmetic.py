"""Arithmetic of a pressure run: its stages, and from which amount on an ordinary process felt what was pinned."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pinscope.analysis.line_fit import fit_line
from pinscope.analysis.rows import Row, grouped, labels
from pinscope.analysis.statistics import Summary, summarize

GIB = 2**30
STALLS: Mapping[str, str] = {
    "memory_some": "memory, at least one task waited",
    "memory_full": "memory, all tasks waited",
    "io_some": "I/O, at least one task waited",
    "io_full": "I/O, all tasks waited",
}
"""Beginning of a field that counts stalled seconds → what it counts."""

STRAIGHT = 0.1
"""A pinned byte takes one byte and its page table; further off by more than this, others took or gave memory."""


@dataclass(frozen=True)
class Felt:
    """One thing that the ordinary process felt, over the counted rounds of a stage. Seconds; more is worse.

    Attributes:
        rounds: median and spread over the rounds.
        worst: the worst round.
    """

    rounds: Summary
    worst: float


@dataclass(frozen=True)
class Stage:
    """Before, one step with its memory held, or after. ``None`` where nothing was reported, or not yet.

    Attributes:
        bytes: pinned by the run meanwhile.
        fault: of each round, the median seconds to touch a fresh page.
        longest: of each round, the longest of these.
        byte_seconds: of each round, seconds to read a byte of the file.
        cached_share: the smallest share of the file in the page cache before a round read it.
        available_bytes, left_bytes: at the end: MemAvailable; the tighter of it and the control group's headroom.
        reachable_bytes: at the end, available or on a processor's list of free pages.
        free_bytes, per_cpu_bytes, cached_bytes: at the end, of the host.
        swapped_in_bytes, swapped_out_bytes: meanwhile.
        stalled: beginning of the field → share of the time for which tasks stalled.
        seconds: from before the step's pinning to its end.
        pin_seconds: pinning the step.
    """

    phase: str
    step: int
    bytes: int
    fault: Felt | None
    longest: Felt | None
    byte_seconds: Felt | None
    cached_share: float | None
    available_bytes: int | None
    left_bytes: int | None
    reachable_bytes: int | None
    free_bytes: int | None
    per_cpu_bytes: int | None
    cached_bytes: int | None
    swapped_in_bytes: int | None
    swapped_out_bytes: int | None
    stalled: Mapping[str, float | None]
    seconds: float | None
    pin_seconds: float | None


@dataclass(frozen=True)
class Stages:
    """A run in its order. Stages that have not been reached are missing."""

    before: Stage | None
    held: tuple[Stage, ...]
    after: Stage | None
    target_bytes: int
    floor_reached: bool

    @property
    def all(self) -> tuple[Stage, ...]:
        """Those there are."""
        ends = (self.before, *self.held, self.after)
        return tuple(stage for stage in ends if stage is not None)

    @property
    def most_bytes(self) -> int:
        """The most that was pinned."""
        return max((stage.bytes for stage in self.held), default=0)


def stages(rows: Sequence[Row]) -> Stages:
    """The stages that were measured, also of a run that goes on or broke off."""
    found = [_stage(group) for group in grouped(rows, labels("phase", "step")).values()]
    return Stages(
        before=next((stage for stage in found if stage.phase == "before"), None),
        # A step without a round yet has nothing to tell.
        held=tuple(stage for stage in found if stage.phase == "held" and stage.fault),
        after=next((stage for stage in found if stage.phase == "after" and stage.fault), None),
        target_bytes=max((row["target_bytes"] for row in rows), default=0),
        floor_reached=any(row["floor_reached"] for row in rows),
    )


def _stage(rows: Sequence[Row]) -> Stage:
    rounds = [row for row in rows if row["kind"] == "process" and not row["warmup"]]
    begin = next((row for row in rows if row["moment"] == "begin"), None)
    end = next((row for row in rows if row["moment"] == "end"), None)
    read = [row for row in rounds if row["read_bytes"]]
    shares = [row["file_cached_bytes"] / row["file_bytes"] for row in rounds if row["file_cached_bytes"] is not None]
    seconds = end["elapsed_seconds"] - begin["elapsed_seconds"] if begin and end else None

    def at_end(field: str) -> Any:
        return end[field] if end else None

    def meanwhile(field: str) -> Any:
        both = begin and end and begin[field] is not None and end[field] is not None
        return end[field] - begin[field] if begin and end and both else None

    def stalled(name: str) -> float | None:
        waited = meanwhile(f"{name}_seconds")
        return waited / seconds if waited is not None and seconds else None

    available = at_end("available_bytes")
    left = [at_end(field) for field in ("available_bytes", "cgroup_headroom_bytes") if at_end(field) is not None]
    return Stage(
        phase=rows[0]["phase"],
        step=rows[0]["step"],
        bytes=rounds[-1]["bytes"] if rounds else 0,
        fault=_felt(row["fault_median_seconds"] for row in rounds),
        longest=_felt(row["fault_longest_seconds"] for row in rounds),
        byte_seconds=_felt(row["read_seconds"] / row["read_bytes"] for row in read),
        cached_share=min(shares, default=None),
        available_bytes=available,
        left_bytes=min(left, default=None),
        reachable_bytes=available + (at_end("per_cpu_bytes") or 0) if available is not None else None,
        free_bytes=at_end("free_bytes"),
        per_cpu_bytes=at_end("per_cpu_bytes"),
        cached_bytes=at_end("cached_bytes"),
        swapped_in_bytes=meanwhile("swap_in_bytes"),
        swapped_out_bytes=meanwhile("swap_out_bytes"),
        stalled={name: stalled(name) for name in STALLS},
        seconds=seconds,
        pin_seconds=at_end("pin_seconds"),
    )


def _felt(values: Iterable[float]) -> Felt | None:
    known = list(values)
    return Felt(summarize(known), max(known)) if known else None


@dataclass(frozen=True)
class Slower:
    """What became slower than anything seen before pinning.

    Attributes:
        stage: the first step from which on it was slower at every step.
        peak: the slowest step.
        ratio: of the slowest step's median over that before.
        recovered: whether it was as before once all was given back; ``None`` if that was not measured.
    """

    stage: Stage
    peak: Stage
    ratio: float
    recovered: bool | None


def slower(run: Stages, part: Callable[[Stage], Felt | None], factor: float) -> Slower | None:
    """From which step on a thing was slower; ``None`` if never, or if too little is known.

    Slower is: the median of the step's rounds is at least ``factor`` times that before pinning, and beyond the worst
    single round before pinning; and so it is at every later step. What comes and goes has another cause.
    """
    before = part(run.before) if run.before else None
    if before is None:
        return None
    limit = max(factor * before.rounds.median, before.worst)

    def beyond(stage: Stage) -> bool:
        felt = part(stage)
        return felt is not None and felt.rounds.median > limit

    first = None
    for stage in reversed(run.held):
        if not beyond(stage):
            break
        first = stage
    if first is None:
        return None
    peak = max(run.held, key=lambda stage: median_of(part(stage)) or 0.0)
    ratio = (median_of(part(peak)) or 0.0) / before.rounds.median
    return Slower(first, peak, ratio, None if run.after is None else not beyond(run.after))


def median_of(felt: Felt | None) -> float | None:
    """Seconds, the median over rounds."""
    return felt.rounds.median if felt else None


def lost_per_byte(run: Stages) -> float | None:
    """Bytes of memory that a pinned byte takes from everybody: the slope through the ends of all stages but the last.

    Of what is available or on a processor's list: memory that was freed waits there, and would seem lost.

    ``None`` below two stages. Of two points it is their difference.
    """
    points = [
        (stage.bytes, stage.reachable_bytes)
        for stage in (run.before, *run.held)
        if stage is not None and stage.reachable_bytes is not None
    ]
    if len(points) < 2 or points[0][0] == points[-1][0]:
        return None
    if line := fit_line([float(x) for x, _ in points], [float(y) for _, y in points]):
        return -line.slope
    return (points[0][1] - points[-1][1]) / (points[-1][0] - points[0][0])


def returned_share(run: Stages) -> float | None:
    """Of the memory that went while pinning, the share that was back afterwards; the lists counted as above.

    From none to all of it: what went or came beyond that is other programs'.
    """
    if run.before is None or run.after is None or not run.held:
        return None
    at_first, at_most, at_last = (stage.reachable_bytes for stage in (run.before, run.held[-1], run.after))
    if at_first is None or at_most is None or at_last is None or at_first <= at_most:
        return None
    return min(max((at_last - at_most) / (at_first - at_most), 0.0), 1.0)
