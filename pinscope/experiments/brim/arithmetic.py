"""Arithmetic of a brim run: what is pinned step by step, and from which amount on others in the group suffer."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from pinscope.analysis.conclusions import exceeds
from pinscope.analysis.rows import Row, grouped, labels
from pinscope.analysis.statistics import Summary, summarize
from pinscope.units import format_share

MarkKind = Literal["cache", "slower", "swapped", "stalled", "killed"]

# From which step on others in the group suffer. A cliff is where the first of these is.
SLOWER = 2.0
"""slower: a round of the ordinary process takes at least this many times as long as before, at every later step too."""
CACHE_LOST = 0.05
"""cache: this share of its file is gone from the page cache when it comes to read it; at every later step too."""
SWAPPED = 0.01
"""swapped: this share of the group's limit is swapped out."""
STALLED = 0.1
"""stalled: tasks of the group waited for memory for this share of the step's time (version 2 of control groups)."""
# killed: the kernel killed the ordinary process, or the one that pins.

OUTSIDE = 1.05
"""A bystander outside the group that takes more than this many times as long was disturbed."""
COARSE = 3
"""Steps up to three quarters of what the group has left: nothing happens there."""
PAGE = 4096


def amounts(limit: int, used: int, step: int) -> Iterator[int]:
    """Bytes to have pinned, one after the other: three large steps, then small ones up to the limit.

    Args:
        limit: of the group.
        used: by all that is in it before anything is pinned.
        step: of the small ones.
    """
    quarter = max(limit - used, 0) // (COARSE + 1) // PAGE * PAGE
    pinned = 0
    while pinned + step <= limit:
        pinned += quarter if quarter > step and pinned < COARSE * quarter else step
        yield pinned


@dataclass(frozen=True)
class Group:
    """A reading of the group. Bytes and counts; ``None`` where it is not reported."""

    used_bytes: int | None
    cache_bytes: int | None
    swap_bytes: int | None
    refaults: int | None
    kills: int | None

    @property
    def other_bytes(self) -> int | None:
        """What the kernel cannot drop: all but pages of files."""
        known = self.used_bytes is not None and self.cache_bytes is not None
        return (self.used_bytes or 0) - (self.cache_bytes or 0) if known else None


@dataclass(frozen=True)
class Step:
    """Before anything is pinned, one amount held, or after all is gone. ``None`` where nothing was measured.

    Attributes:
        bytes: pinned meanwhile.
        inside, outside: seconds of a round of the ordinary process in the group, and of the one outside.
        cached_share: of the file of the one inside, the smallest share in the page cache when it came to read it.
        faults: most pages of its memory that a round had to fetch from the disk.
        stalled_share: of the step's time.
        ended: how pinning ended in this step.
        group: at the end of the step.
    """

    phase: str
    number: int
    bytes: int
    inside: Summary | None
    outside: Summary | None
    cached_share: float | None
    faults: int | None
    stalled_share: float | None
    ended: str | None
    group: Group | None
    rounds: int


@dataclass(frozen=True)
class Mark:
    """From this amount on others suffer.

    Attributes:
        kind: how.
        bytes: pinned at the first step where it was so.
        below_bytes: pinned at the step before: it lies between the two.
    """

    kind: MarkKind
    bytes: int
    below_bytes: int

    def place(self, limit: int) -> str:
        """Where of the limit: ``70.6 to 73.1 %``, the shares of two steps."""
        return f"{format_share(self.below_bytes / limit).removesuffix(' %')} to {format_share(self.bytes / limit)}"


@dataclass(frozen=True)
class Climb:
    """One group filled to the brim; steps that have not been reached are missing.

    Attributes:
        swap: whether the group's memory could be swapped out.
        limit: of the group, bytes.
        before, held, after: its steps.
        outside_below, outside_beyond: seconds of a round outside: below the first mark, and from it on.
        gone: whether group and processes were gone at the end; ``None`` before that.
        charged: way of pinning → bytes asked for, and bytes that the group was charged.
    """

    swap: bool
    limit: int
    before: Step
    held: tuple[Step, ...]
    after: Step | None
    marks: tuple[Mark, ...]
    outside_below: Summary | None
    outside_beyond: Summary | None
    gone: bool | None
    charged: Mapping[str, tuple[int, int]]

    def mark(self, *kinds: MarkKind) -> Mark | None:
        """The first of these."""
        return next((mark for mark in self.marks if mark.kind in kinds), None)

    @property
    def cliff(self) -> Mark | None:
        """Where others suffer first."""
        return next(iter(self.marks), None)

    @property
    def expected_cliff(self) -> int | None:
        """The group's limit less all that is in it before anything is pinned."""
        used = self.before.group.used_bytes if self.before.group else None
        return self.limit - used if used is not None else None

    @property
    def expected_kill(self) -> int | None:
        """The limit less what cannot be dropped: beyond it nothing is left to take."""
        other = self.before.group.other_bytes if self.before.group else None
        return self.limit - other if other is not None else None

    @property
    def ended(self) -> Step | None:
        """The step in which pinning came to its end."""
        return next((step for step in self.held if step.ended), None)

    def slowest(self) -> Step | None:
        """The step with the longest rounds."""
        known = [step for step in self.held if step.inside]
        return max(known, key=lambda step: step.inside.median if step.inside else 0.0, default=None)

    def ratio(self) -> float | None:
        """The longest step's round over that before."""
        slowest, before = self.slowest(), self.before.inside
        return slowest.inside.median / before.median if slowest and slowest.inside and before else None

    def outside_ratio(self) -> float | None:
        """A round outside from the cliff on, over one below it."""
        below, beyond = self.outside_below, self.outside_beyond
        return beyond.median / below.median if below and beyond else None

    @property
    def disturbs(self) -> bool | None:
        """Whether others outside slowed; ``None`` where that is not known, or may have another cause.

        Another cause: chance, or what stays so once the group is gone.
        """
        ratio = self.outside_ratio()
        if ratio is None or self.outside_below is None or self.outside_beyond is None:
            return None
        if ratio <= OUTSIDE:
            return False
        stays = self.after and self.after.outside and self.outside_beyond.median <= OUTSIDE * self.after.outside.median
        return True if exceeds(self.outside_beyond, self.outside_below) and not stays else None


def climbs(rows: Sequence[Row]) -> tuple[Climb, ...]:
    """Each group that was filled, in its order; also of a run that goes on or broke off."""
    found = (_climb(group) for group in grouped(rows, labels("swap")).values())
    return tuple(climb for climb in found if climb is not None)


def _climb(rows: Sequence[Row]) -> Climb | None:
    steps = [_step(group) for group in grouped(rows, labels("phase", "step")).values()]
    before = next((step for step in steps if step.phase == "before" and step.inside), None)
    if before is None:
        return None
    held = tuple(step for step in steps if step.phase == "held" and (step.inside or step.ended))
    limit = rows[0]["limit_bytes"]
    marks = tuple(sorted(_marks(limit, before, held), key=lambda mark: mark.bytes))
    cliff = marks[0].bytes if marks else math.inf
    charged = {row["way"]: (row["asked_bytes"], row["charged_bytes"]) for row in rows if row["kind"] == "charge"}
    return Climb(
        swap=rows[0]["swap"],
        limit=limit,
        before=before,
        held=held,
        after=next((step for step in steps if step.phase == "after" and step.outside), None),
        marks=marks,
        outside_below=_outside(rows, lambda row: row["phase"] != "after" and row["bytes"] < cliff),
        outside_beyond=_outside(rows, lambda row: row["bytes"] >= cliff),
        gone=next((row["gone"] for row in rows if row["gone"] is not None), None),
        charged=charged,
    )


def _outside(rows: Sequence[Row], belongs: Callable[[Row], bool]) -> Summary | None:
    seconds = [round_seconds(row) for row in _rounds(rows, "outside") if belongs(row)]
    return summarize(seconds) if seconds else None


def _rounds(rows: Sequence[Row], who: str) -> list[Row]:
    return [row for row in rows if row["kind"] == "round" and row["who"] == who and not row["warmup"]]


def round_seconds(row: Row) -> float:
    """One round: its memory written, its file read. Of a file that was read in part, as long as all would take."""
    read: float = row["read_seconds"] * row["file_bytes"] / row["read_bytes"] if row["read_bytes"] else 0.0
    return read + float(row["write_seconds"])


def _step(rows: Sequence[Row]) -> Step:
    inside, outside = _rounds(rows, "inside"), _rounds(rows, "outside")
    shares = [row["file_cached_bytes"] / row["file_bytes"] for row in inside if row["file_cached_bytes"] is not None]
    readings = [row for row in rows if row["kind"] == "group"]
    last = readings[-1] if readings else None
    return Step(
        phase=rows[0]["phase"],
        number=rows[0]["step"],
        bytes=max(row["bytes"] for row in rows),
        inside=_summary(inside),
        outside=_summary(outside),
        cached_share=min(shares, default=None),
        faults=max((row["major_faults"] for row in inside if row["major_faults"] is not None), default=None),
        stalled_share=last["stalled_share"] if last else None,
        ended=last["ended"] if last else None,
        group=Group(**{name: last[name] for name in Group.__dataclass_fields__}) if last else None,
        rounds=len(inside),
    )


def _summary(rows: Sequence[Row]) -> Summary | None:
    return summarize([round_seconds(row) for row in rows]) if rows else None


def _marks(limit: int, before: Step, held: Sequence[Step]) -> Iterator[Mark]:
    """Where each begins; what comes and goes has another cause, but for a kill."""
    usual = before.inside.median if before.inside else math.inf
    measured = [step for step in held if step.inside]
    tests: Mapping[MarkKind, Callable[[Step], bool]] = {
        "cache": lambda step: step.cached_share is not None and step.cached_share <= 1 - CACHE_LOST,
        "slower": lambda step: step.inside is not None and step.inside.median >= SLOWER * usual,
        "swapped": lambda step: bool(step.group and (step.group.swap_bytes or 0) >= SWAPPED * limit),
        "stalled": lambda step: (step.stalled_share or 0.0) >= STALLED,
    }
    for kind, holds in tests.items():
        lasting = _from_then_on(measured, holds)
        if lasting is not None:
            yield _mark(kind, lasting, held)
    if killed := next((step for step in held if step.ended == "killed"), None):
        yield _mark("killed", killed, held)


def _from_then_on(steps: Sequence[Step], holds: Callable[[Step], bool]) -> Step | None:
    first = None
    for step in reversed(steps):
        if not holds(step):
            break
        first = step
    return first


def _mark(kind: MarkKind, step: Step, held: Sequence[Step]) -> Mark:
    below: Any = max((one.bytes for one in held if one.bytes < step.bytes), default=0)
    return Mark(kind, step.bytes, below)
