"""What a brim run concludes: from which amount on others in the group suffer, verdict, headline and tables."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Any, Literal, NamedTuple

from pinscope.analysis.cells import Label, Value
from pinscope.analysis.conclusions import exceeds, on_lab
from pinscope.analysis.rows import Row, from_then_on, grouped, labels, median
from pinscope.analysis.statistics import Summary, summarize
from pinscope.records.finding import Finding, Quantity, Reading, Table, quantity, table
from pinscope.records.run import LabKind
from pinscope.units import format_bytes, format_share

MarkKind = Literal["cache", "slower", "swapped", "stalled", "killed"]
CACHE_LOST, SLOWER, SWAPPED, STALLED = 0.05, 2.0, 0.01, 0.1
MARKS: Mapping[MarkKind, str] = {
    "cache": f"{format_share(CACHE_LOST)} of its file left the page cache",
    "slower": f"a round took {SLOWER:g} times as long",
    "swapped": f"{format_share(SWAPPED)} of the limit was swapped out",
    "stalled": f"tasks stalled for {format_share(STALLED)} of the time",
    "killed": "a process was killed",
}
"""What begins at a mark and holds at every later step too: see :meth:`Climb.marks`. A cliff is where the first is."""
OUTSIDE = 1.05
"""A bystander outside the group that takes more than this many times as long was disturbed."""


def round_seconds(row: Row) -> float:
    """One round: its memory written, its file read. Of a file that was read in part, as long as all would take."""
    read: float = row["read_seconds"] * row["file_bytes"] / row["read_bytes"] if row["read_bytes"] else 0.0
    return read + float(row["write_seconds"])


def _rounds(rows: Sequence[Row], who: str) -> list[Row]:
    return [row for row in rows if row["kind"] == "round" and row["who"] == who and not row["warmup"]]


def _seconds(rows: Sequence[Row]) -> Summary | None:
    return summarize([round_seconds(row) for row in rows]) if rows else None


@dataclass(frozen=True)
class Step:
    """Before anything is pinned, one amount held, or after all is gone. ``None`` where nothing was measured.

    Attributes:
        rows: of this step.
    """

    rows: Sequence[Row]

    @property
    def swap(self) -> Annotated[bool, Label("swap")]:
        """Whether the group may swap."""
        return bool(self.rows[0]["swap"])

    @cached_property
    def phase(self) -> Annotated[str, Label("phase")]:
        """``before``, ``held`` or ``after``."""
        return str(self.rows[0]["phase"])

    @cached_property
    def bytes(self) -> Annotated[int, Label("pinned", "bytes")]:
        """Meanwhile."""
        return max(int(row["bytes"]) for row in self.rows)

    @cached_property
    def rounds(self) -> Sequence[Row]:
        """Of the ordinary process in the group."""
        return _rounds(self.rows, "inside")

    @cached_property
    def inside(self) -> Summary | None:
        """Seconds of one of these."""
        return _seconds(self.rounds)

    @cached_property
    def outside(self) -> Summary | None:
        """Seconds of a round of the process outside."""
        return _seconds(_rounds(self.rows, "outside"))

    @property
    def inside_seconds(self) -> Annotated[Summary | None, Value("round inside", "seconds", "less")]:
        """Of one round."""
        return self.inside

    @property
    def outside_seconds(self) -> Annotated[Summary | None, Value("round outside", "seconds", "less")]:
        """Likewise."""
        return self.outside

    @cached_property
    def cached_share(self) -> Annotated[float | None, Value("file in cache", "share", "more")]:
        """Of the file of the one inside, the smallest share in the page cache when it came to read it."""
        known = [row for row in self.rounds if row["file_cached_bytes"] is not None]
        return min((row["file_cached_bytes"] / row["file_bytes"] for row in known), default=None)

    @property
    def major_faults(self) -> int | None:
        """Most pages of its memory that a round had to fetch from the disk."""
        return max((row["major_faults"] for row in self.rounds if row["major_faults"] is not None), default=None)

    def account(self, field: str) -> Any:
        """A field of the group's reading at the end of the step."""
        readings = [row for row in self.rows if row["kind"] == "group"]
        return readings[-1][field] if readings else None

    @property
    def other_bytes(self) -> Annotated[int | None, Value("not droppable", "bytes", "less")]:
        """What the kernel cannot drop: all in the group but pages of files."""
        used, cache = self.account("used_bytes"), self.account("cache_bytes")
        return None if used is None or cache is None else used - cache


class Mark(NamedTuple):
    """From this amount on others suffer.

    Attributes:
        kind: how.
        bytes: pinned at the first step where it was so.
        below_bytes: pinned at the step before: it lies between the two.
    """

    kind: MarkKind
    bytes: int
    below_bytes: int

    def off(self, expected: int | None) -> int:
        """By how many bytes what was expected lies outside the two steps."""
        return 0 if expected is None else max(self.below_bytes - expected, expected - self.bytes, 0)

    def place(self, limit: int) -> str:
        """Where of the limit: ``70.6 to 73.1 %``, the shares of two steps."""
        return f"{format_share(self.below_bytes / limit).removesuffix(' %')} to {format_share(self.bytes / limit)}"


@dataclass(frozen=True)
class Climb:
    """One group filled to the brim; steps that have not been reached are missing.

    Attributes:
        rows: of this group.
        before, held, after: its steps.
    """

    rows: Sequence[Row]
    before: Step
    held: Sequence[Step]
    after: Step | None

    @cached_property
    def swap(self) -> bool:
        """Whether the group's memory could be swapped out."""
        return bool(self.rows[0]["swap"])

    @property
    def swap_words(self) -> str:
        """Says which group it was, where that matters."""
        return " (memory could be swapped out)" if self.swap else ""

    @cached_property
    def limit(self) -> int:
        """Of the group, bytes."""
        return int(self.rows[0]["limit_bytes"])

    @cached_property
    def marks(self) -> Sequence[Mark]:
        """Where others begin to suffer, the first first; what comes and goes has another cause, but for a kill."""
        usual = self.before.inside.median if self.before.inside else math.inf
        measured = [step for step in self.held if step.inside]
        tests: Mapping[MarkKind, Callable[[Step], bool]] = {
            "cache": lambda step: step.cached_share is not None and step.cached_share <= 1 - CACHE_LOST,
            "slower": lambda step: step.inside is not None and step.inside.median >= SLOWER * usual,
            "swapped": lambda step: (step.account("swap_bytes") or 0) >= SWAPPED * self.limit,
            "stalled": lambda step: (step.account("stalled_share") or 0.0) >= STALLED,
        }
        steps = {kind: from_then_on(measured, holds) for kind, holds in tests.items()}
        steps["killed"] = next((step for step in self.held if step.account("ended") == "killed"), None)
        marks = [
            Mark(kind, step.bytes, max((lower.bytes for lower in self.held if lower.bytes < step.bytes), default=0))
            for kind, step in steps.items()
            if step is not None
        ]
        return sorted(marks, key=lambda mark: mark.bytes)

    @cached_property
    def cliff(self) -> Mark | None:
        """Where others suffer first."""
        return next(iter(self.marks), None)

    @cached_property
    def kill(self) -> Mark | None:
        """Where the kernel killed the ordinary process, or the one that pins."""
        return next((mark for mark in self.marks if mark.kind == "killed"), None)

    @property
    def expected_cliff(self) -> int | None:
        """The group's limit less all that is in it before anything is pinned."""
        used = self.before.account("used_bytes")
        return None if used is None else self.limit - used

    @property
    def expected_kill(self) -> int | None:
        """The limit less what cannot be dropped: beyond it nothing is left to take."""
        other = self.before.other_bytes
        return None if other is None else self.limit - other

    @property
    def ended(self) -> Step | None:
        """The step in which pinning came to its end."""
        return next((step for step in self.held if step.account("ended")), None)

    @cached_property
    def slowest(self) -> tuple[Step, float] | None:
        """The step with the longest rounds, and how many seconds one took."""
        known = [(step, step.inside.median) for step in self.held if step.inside]
        return max(known, key=lambda pair: pair[1], default=None)

    @property
    def times(self) -> float | None:
        """The longest step's round over that before."""
        return self.slowest[1] / self.before.inside.median if self.slowest and self.before.inside else None

    @cached_property
    def outside(self) -> tuple[Summary, Summary] | None:
        """Seconds of a round outside: below the cliff, and from it on."""
        cliff, rounds = self.cliff.bytes if self.cliff else math.inf, _rounds(self.rows, "outside")
        below = _seconds([row for row in rounds if row["phase"] != "after" and row["bytes"] < cliff])
        beyond = _seconds([row for row in rounds if row["bytes"] >= cliff])
        return (below, beyond) if below and beyond else None

    @property
    def outside_times(self) -> float | None:
        """The second over the first."""
        return self.outside[1].median / self.outside[0].median if self.outside else None

    @property
    def disturbs(self) -> bool | None:
        """Whether others outside slowed; ``None`` where that is not known, or may have another cause: chance, or what
        stays so once the group is gone."""
        if self.outside is None or self.outside_times is None:
            return None
        if self.outside_times <= OUTSIDE:
            return False
        below, beyond = self.outside
        stays = self.after and self.after.outside and beyond.median <= OUTSIDE * self.after.outside.median
        return True if exceeds(beyond, below) and not stays else None

    @property
    def gone(self) -> bool | None:
        """Whether group and processes were gone at the end; ``None`` before that."""
        return next((row["gone"] for row in self.rows if row["gone"] is not None), None)

    @cached_property
    def charged(self) -> Mapping[str, tuple[int, int]]:
        """Way of pinning → bytes asked for, and bytes that the group was charged."""
        charges = [row for row in self.rows if row["kind"] == "charge"]
        return {row["way"]: (row["asked_bytes"], row["charged_bytes"]) for row in charges}


def climbs(rows: Sequence[Row]) -> Sequence[Climb]:
    """Each group that was filled, in its order; also of a run that goes on or broke off."""
    made = (_climb(group) for group in grouped(rows, labels("swap")).values())
    return [climb for climb in made if climb is not None]


def cells_of(rows: Sequence[Row]) -> list[Step]:
    """Every step of every group."""
    return [step for climb in climbs(rows) for step in (climb.before, *climb.held, climb.after) if step]


def _climb(rows: Sequence[Row]) -> Climb | None:
    steps = grouped(map(Step, grouped(rows, labels("phase", "step")).values()), lambda step: step.phase)
    before = next((step for step in steps.get("before", ()) if step.inside), None)
    held = [step for step in steps.get("held", ()) if step.inside or step.account("ended")]
    after = next((step for step in steps.get("after", ()) if step.outside), None)
    return Climb(rows, before, held, after) if before else None


def conclude(lab: LabKind, run: Sequence[Climb], findings: tuple[Finding, ...]) -> Reading:
    """The reading of a run."""
    verdict, headline = _verdict(lab, run[0]), tuple(_headline(run[0]))
    return Reading(verdict=verdict, headline=headline, tables=_tables(run), findings=findings)


def _verdict(lab: LabKind, climb: Climb) -> str | None:
    """Where the others in the group stall and are killed, and what is felt outside; ``None`` before a mark."""
    cliff = climb.cliff
    if cliff is None:
        return None
    pinned = "locked" if lab == "host" else "pinned"
    place = f"At {cliff.place(climb.limit)} of a control group's {format_bytes(climb.limit)} {pinned}, "
    if cliff.kind == "killed":
        parts = [f"{place}the kernel kills another program in it"]
    else:
        parts = [f"{place}a program in it slows" + (f" up to {climb.times:.1f} times" if climb.times else "")]
        parts += [f"at {climb.kill.place(climb.limit)} it is killed"] if climb.kill else []
    if climb.disturbs is not None:
        slower = f"work outside takes {climb.outside_times:.2f} times as long"
        parts.append(slower if climb.disturbs else "one outside did not slow")
    return on_lab(lab, f"{'; '.join(parts)}.")


def _headline(climb: Climb) -> Iterator[Quantity]:
    """Of the first group: where the others suffer, where they are killed, and what is felt outside."""
    none = "not reached"
    first, last = (mark and mark.bytes / climb.limit for mark in (climb.cliff, climb.kill))
    yield quantity("Cliff, share of the group's limit", first, "share", reason=none, key="cliff")
    yield quantity(
        "Slowest round of work ÷ before pinning", climb.times, "ratio", reason="no round was timed", key="slowest"
    )
    yield quantity("Killed at, share of the group's limit", last, "share", reason=none, key="killed")
    yield quantity(
        "Round outside, from the cliff on ÷ below it", climb.outside_times, "ratio", reason=none, key="outside"
    )
    yield quantity("Group's limit", climb.limit, "bytes", key="limit")
    yield quantity(
        "Group and processes gone at the end", climb.gone, "text", reason="the run has not ended", key="gone"
    )


def _swap(climb: Climb) -> str:
    return "with" if climb.swap else "without"


def _tables(run: Sequence[Climb]) -> tuple[Table, ...]:
    """Where others suffer, and every step."""
    columns = {"swap": "text", "from here on": "text", "pinned": "bytes", "step before": "bytes"}
    marks = [
        (_swap(climb), MARKS[mark.kind], mark.bytes, mark.below_bytes, mark.bytes / climb.limit)
        for climb in run
        for mark in climb.marks
    ]
    note = "The first line of a group is its cliff. Each lies between the step before and the one named."
    return table("Where others suffer", {**columns, "share of the limit": "share"}, marks, note), _steps(run)


def _account(field: str) -> Callable[[Step], Any]:
    return lambda step: step.account(field)


COLUMNS: Mapping[str, tuple[str, Callable[[Step], Any]]] = {
    "round inside": ("seconds", lambda step: median(step.inside)),
    "round outside": ("seconds", lambda step: median(step.outside)),
    "file in cache": ("share", lambda step: step.cached_share),
    "pages from disk": ("count", lambda step: step.major_faults),
    "used": ("bytes", _account("used_bytes")),
    "page cache": ("bytes", _account("cache_bytes")),
    "swapped out": ("bytes", _account("swap_bytes")),
    "refaults": ("count", _account("refaults")),
    "kills": ("count", _account("kills")),
    "stalled": ("share", _account("stalled_share")),
    "rounds": ("count", lambda step: len(step.rounds)),
}
"""Of the table: title → unit, and what a step has there."""


def _steps(run: Sequence[Climb]) -> Table:
    place = {"swap": "text", "phase": "text", "pinned": "bytes", "share of the limit": "share"}
    return table(
        "Every step",
        place | {title: unit for title, (unit, _) in COLUMNS.items()},
        [
            (
                _swap(climb),
                step.phase,
                step.bytes,
                step.bytes / climb.limit,
                *(value(step) for _, value in COLUMNS.values()),
            )
            for climb in run
            for step in (climb.before, *climb.held, climb.after)
            if step
        ],
        note="Rounds: medians. File in cache: the least before a round read it. Pages from disk: of the ordinary "
        "process's memory, in its worst round. Used, page cache, swapped out, refaults and kills: the group's own "
        "account at the end of the step. n/a: not reported here, or not measured.",
    )
