"""What a pressure run concludes: its stages, from which amount on others suffer, verdict, headline and tables."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from operator import methodcaller
from statistics import linear_regression
from typing import Annotated, Any, Literal, NamedTuple

from pinscope.analysis.cells import Label, Value, listed
from pinscope.analysis.read_rows import Row, from_then_on, grouped, labels, median
from pinscope.analysis.statistics import Summary, are_known, compared, exceeds, ratio, summarize
from pinscope.records.run import ExperimentRun, Quantity, Table, quantity
from pinscope.units import GIB, format_bytes, format_share

STALLS: Mapping[str, str] = {
    "memory_some": "memory, at least one task waited",
    "memory_full": "memory, all tasks waited",
    "io_some": "I/O, at least one task waited",
    "io_full": "I/O, all tasks waited",
}
"""Beginning of a field that counts stalled seconds → what it counts."""
STRAIGHT = 0.1
"""A pinned byte takes one byte and its page table; further off by more than this, others took or gave memory."""
OTHERS = "other programs took or gave back memory meanwhile"
OUTSIDE = 1.05
"""A bystander outside the group that takes more than this many times as long was disturbed."""
CACHE_LOST = 0.05
"""Of the file: mincore is exact, but a page or two may go at any time."""
SLOWER, SWAPPED, STALLED = 2.0, 0.01, 0.1
"""In a group."""
# On an idle virtual EPYC medians of rounds differed by up to 1.5 times (2.0 to 3.1 µs: pages that went back to the
# hypervisor take longer). What is a mark must be beyond that, and beyond every round before pinning.
SLOWER_FAULTS, SLOWER_READS, HOST_SWAPPED, HOST_STALLED = 1.75, 1.5, 16 * 2**20, 0.01
"""On the host."""
MarkKind = Literal["cache", "slower", "swapped", "stalled", "killed", "faults", "reads", "host swapped", "host stalled"]
MARKS: Mapping[MarkKind, str] = {
    "cache": f"{format_share(CACHE_LOST)} or more of its file left the page cache",
    "slower": f"a round was at least {SLOWER:g} times slower",
    "swapped": f"{format_share(SWAPPED)} or more of the limit was swapped out",
    "stalled": f"tasks stalled for at least {format_share(STALLED)} of the time",
    "killed": "a process was killed",
    "faults": f"page faults were at least {SLOWER_FAULTS:g} times slower",
    "reads": f"reading its file again was at least {SLOWER_READS:g} times slower",
    "host swapped": f"{format_bytes(HOST_SWAPPED)} or more were swapped",
    "host stalled": f"tasks stalled for memory for at least {format_share(HOST_STALLED)} of the time",
}
"""What begins at a mark and holds at every later step too: see :attr:`Course.marks`. A cliff is where the first is."""


def round_seconds(row: Row) -> float:
    """One round: its memory written, its file read. Of a file that was read in part, as long as all would take."""
    read: float = row["read_seconds"] * row["file_bytes"] / row["read_bytes"] if row["read_bytes"] else 0.0
    return read + float(row["write_seconds"])


def _seconds(rows: Sequence[Row]) -> Summary | None:
    return summarize([round_seconds(row) for row in rows]) if rows else None


@dataclass(frozen=True)
class Stage:
    """Before, one step with its memory held, or after. A value is ``None`` where it was not reported, or not yet."""

    rows: Sequence[Row]

    @cached_property
    def phase(self) -> Annotated[str, Label("phase")]:
        """``before``, ``held`` or ``after``."""
        return str(self.rows[0]["phase"])

    @cached_property
    def bytes(self) -> Annotated[int, Label("pinned", "bytes")]:
        """Pinned by the run meanwhile."""
        return int(self.rows[-1]["bytes"])

    @cached_property
    def swap(self) -> Annotated[str | None, Label("swap")]:
        """``with`` or ``without``: whether the group's memory could be swapped out; ``None`` without a group."""
        allowed = self.rows[0]["swap"]
        return None if allowed is None else "with" if allowed else "without"

    def rounds_of(self, who: str | None) -> Sequence[Row]:
        """Those that count: of the process beside the run, or of a group's ``inside`` or ``outside``."""
        rounds = (row for row in self.rows if row["kind"] in ("process", "round") and not row["warmup"])
        return [row for row in rounds if row["who"] == who]

    @cached_property
    def rounds(self) -> Sequence[Row]:
        """Of the ordinary process beside the run, or in the group."""
        return self.rounds_of(None) or self.rounds_of("inside")

    @cached_property
    def faults(self) -> Sequence[float]:
        """Of each round on the host, the median seconds to touch a fresh page."""
        return [row["fault_median_seconds"] for row in self.rounds_of(None)]

    @cached_property
    def reads(self) -> Sequence[float]:
        """Of each round, the seconds to read a byte of its file."""
        return [row["read_seconds"] / row["read_bytes"] for row in self.rounds if row["read_bytes"]]

    @cached_property
    def work_seconds(self) -> Annotated[Summary | None, Value("page fault, or round in the group", "seconds", "less")]:
        """Seconds of a page fault on the host, or of a round in a group."""
        return summarize(self.faults) if self.faults else _seconds(self.rounds)

    @cached_property
    def outside_seconds(self) -> Annotated[Summary | None, Value("round outside", "seconds", "less")]:
        """Seconds of a round of the process outside of the group."""
        return _seconds(self.rounds_of("outside"))

    @cached_property
    def cached_share(self) -> Annotated[float | None, Value("file in cache", "share", "more")]:
        """The smallest share of its file in the page cache before a round read it."""
        known = [row for row in self.rounds if row["file_cached_bytes"] is not None]
        return min((row["file_cached_bytes"] / row["file_bytes"] for row in known), default=None)

    @property
    def read_bytes_per_second(self) -> Annotated[float | None, Value("file read", "bytes/second", "more")]:
        """Of the file, by the median of the rounds."""
        return 1 / summarize(self.reads).median if self.reads else None

    def greatest(self, field: str) -> Any:
        """Of its rounds."""
        return max((row[field] for row in self.rounds if row[field] is not None), default=None)

    @cached_property
    def end(self) -> Row | None:
        """The reading of the host, or of the group, at its end."""
        return next((row for row in reversed(self.rows) if row["kind"] == "group" or row["moment"] == "end"), None)

    def at_end(self, field: str) -> Any:
        """Of that."""
        return self.end[field] if self.end else None

    def meanwhile(self, field: str) -> Any:
        """By how much it grew since before the step's pinning."""
        begin = next((row[field] for row in self.rows if row["moment"] == "begin"), None)
        return None if begin is None or self.at_end(field) is None else self.at_end(field) - begin

    def stalled_share(self, name: str) -> float | None:
        """Of the time from then to its end; ``name``: of :data:`STALLS`."""
        waited, seconds = self.meanwhile(f"{name}_seconds"), self.meanwhile("elapsed_seconds")
        return waited / seconds if waited is not None and seconds else None

    @property
    def reachable_bytes(self) -> int | None:
        """At the end, available or on a processor's list: memory that was freed waits there, and would seem lost."""
        available = self.at_end("available_bytes")
        return None if available is None else available + (self.at_end("per_cpu_bytes") or 0)


class Mark(NamedTuple):
    """From this amount on others suffer.

    Attributes:
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
class Course:
    """Stages in their order: of a run on the host, or of one group. Those that have not been reached are missing."""

    rows: Sequence[Row]
    before: Stage
    held: Sequence[Stage]
    after: Stage | None

    @cached_property
    def all(self) -> Sequence[Stage]:
        """Those there are."""
        return [self.before, *self.held, *([self.after] if self.after else [])]

    @property
    def tests(self) -> Mapping[MarkKind, Callable[[Stage], bool]]:
        """How else others may suffer at a step than by losing the page cache, or their lives."""
        raise NotImplementedError

    def loses_cache(self, stage: Stage) -> bool:
        """Whether its file left the page cache."""
        before, share = self.before.cached_share, stage.cached_share
        return before is not None and share is not None and share <= before - CACHE_LOST

    @cached_property
    def marks(self) -> Sequence[Mark]:
        """Where others begin to suffer and do so up to the end, the first first; a kill counts once it came."""
        measured = [stage for stage in self.held if stage.rounds]
        tests: Mapping[MarkKind, Callable[[Stage], bool]] = {"cache": self.loses_cache, **self.tests}
        steps = {kind: from_then_on(measured, holds) for kind, holds in tests.items()}
        steps["killed"] = next((stage for stage in self.held if stage.at_end("ended") == "killed"), None)
        marks = [
            Mark(kind, stage.bytes, max((lower.bytes for lower in self.held if lower.bytes < stage.bytes), default=0))
            for kind, stage in steps.items()
            if stage is not None
        ]
        return sorted(marks, key=lambda mark: mark.bytes)

    @cached_property
    def cliff(self) -> Mark | None:
        """Where others suffer first."""
        return next(iter(self.marks), None)

    @cached_property
    def slowest(self) -> Stage | None:
        """The step in which the ordinary process's work took longest."""
        known = [stage for stage in self.held if stage.work_seconds]
        return max(known, key=lambda stage: median(stage.work_seconds) or 0.0, default=None)

    @property
    def slowed(self) -> tuple[Summary, Summary] | None:
        """What it took there, and before; ``None`` where it was not timed, or varies too much to tell."""
        before, longest = self.before.work_seconds, self.slowest and self.slowest.work_seconds
        return (longest, before) if before and longest and are_known(longest, before) else None

    @property
    def times(self) -> float | None:
        """How many times as long it took there as before."""
        return ratio(*self.slowed) if self.slowed else None


class OnHost(Course):
    """A run without a control group."""

    @property
    def tests(self) -> Mapping[MarkKind, Callable[[Stage], bool]]:
        """What stays so without the pinned memory, was so in a round before it, or may be chance has another cause."""
        usual, before = self.before.stalled_share("memory_some") or 0.0, self.before

        def slower(times: float, values: Callable[[Stage], Sequence[float]]) -> Callable[[Stage], bool]:
            first = summarize(values(before)) if values(before) else None

            def holds(stage: Stage | None) -> bool:
                if stage is None or first is None or not values(stage):
                    return False
                now = summarize(values(stage))
                return now.median > max(times * first.median, *values(before)) and exceeds(now, first)

            return lambda stage: holds(stage) and not holds(self.after)

        def swapped(stage: Stage) -> int:
            fields = ("swap_in_bytes", "swap_out_bytes")
            return sum((stage.at_end(field) or 0) - (before.at_end(field) or 0) for field in fields)

        return {
            "faults": slower(SLOWER_FAULTS, lambda stage: stage.faults),
            "reads": slower(SLOWER_READS, lambda stage: stage.reads),
            "host swapped": lambda stage: swapped(stage) >= HOST_SWAPPED,
            "host stalled": lambda stage: (stage.stalled_share("memory_some") or 0.0) > max(HOST_STALLED, 3 * usual),
        }

    @cached_property
    def most_bytes(self) -> int:
        """The most that was pinned."""
        return max(stage.bytes for stage in self.all)

    @cached_property
    def lost_per_byte(self) -> float | None:
        """Bytes of reachable memory that a pinned byte takes from everybody: the slope through the ends of all stages
        but the last. ``None`` below two; of two points it is their difference."""
        ends = [(stage.bytes, stage.reachable_bytes) for stage in (self.before, *self.held)]
        points = [(float(pinned), float(reachable)) for pinned, reachable in ends if reachable is not None]
        if len(points) < 2 or points[0][0] == points[-1][0]:
            return None
        return -linear_regression(*zip(*points, strict=True)).slope

    @cached_property
    def known_price(self) -> float | None:
        """Lost memory per pinned byte where other programs' memory is not in it."""
        lost = self.lost_per_byte
        return lost if lost is not None and abs(lost - 1) <= STRAIGHT else None

    @cached_property
    def returned_share(self) -> float | None:
        """Of the memory that went while pinning, the share that was back afterwards: from none to all of it, as what
        went or came beyond that is other programs'."""
        stages = (self.before, self.held[-1] if self.held else None, self.after)
        first, most, last = (stage.reachable_bytes if stage else None for stage in stages)
        if first is None or most is None or last is None or first <= most:
            return None
        return min(max((last - most) / (first - most), 0.0), 1.0)

    @cached_property
    def price(self) -> Quantity:
        """What a pinned GiB takes, with the reason why it is not known."""
        price = self.known_price
        reason = "too few steps" if self.lost_per_byte is None else OTHERS
        return quantity(
            "Available memory lost per pinned GiB", price and price * GIB, "bytes", reason=reason, key="lost"
        )


class Climb(Course):
    """One group that was filled."""

    @cached_property
    def swap(self) -> str:
        """``with`` or ``without`` swap, as its stages say."""
        return self.before.swap or "without"

    @property
    def swap_words(self) -> str:
        """Says which group it was, where that matters."""
        return " (memory could be swapped out)" if self.swap == "with" else ""

    @cached_property
    def limit(self) -> int:
        """Of the group, bytes."""
        return int(self.rows[0]["limit_bytes"])

    @property
    def tests(self) -> Mapping[MarkKind, Callable[[Stage], bool]]:
        """By the ordinary process in the group, and by the group's own account."""
        usual = self.before.work_seconds.median if self.before.work_seconds else math.inf
        return {
            "slower": lambda stage: stage.work_seconds is not None and stage.work_seconds.median >= SLOWER * usual,
            "swapped": lambda stage: (stage.at_end("swap_bytes") or 0) >= SWAPPED * self.limit,
            "stalled": lambda stage: (stage.at_end("stalled_share") or 0.0) >= STALLED,
        }

    @cached_property
    def kill(self) -> Mark | None:
        """Where the kernel killed the ordinary process, or the one that pins."""
        return next((mark for mark in self.marks if mark.kind == "killed"), None)

    @property
    def expected_cliff(self) -> int | None:
        """The group's limit less all that is in it before anything is pinned."""
        used = self.before.at_end("used_bytes")
        return None if used is None else self.limit - used

    @property
    def needed_bytes(self) -> int | None:
        """What was in the group before, where others suffer from less: the cliff lies within two steps of it."""
        cliff, expected = self.cliff, self.expected_cliff
        if cliff is None or expected is None or abs(expected - cliff.bytes) > 2 * (cliff.bytes - cliff.below_bytes):
            return None
        return self.limit - expected

    @property
    def expected_kill(self) -> int | None:
        """The limit less what cannot be dropped, all but pages of files: beyond it nothing is left to take. ``None``
        also where the rest may be swapped out: as much of it leaves as the kernel finds."""
        expected, cache = self.expected_cliff, self.before.at_end("cache_bytes")
        return None if expected is None or cache is None or self.swap == "with" else expected + cache

    @property
    def ended(self) -> Stage | None:
        """The step in which pinning came to its end."""
        return next((stage for stage in self.held if stage.at_end("ended")), None)

    @cached_property
    def outside(self) -> tuple[Summary, Summary] | None:
        """Seconds of a round outside: below the cliff, and from it on."""
        cliff = self.cliff.bytes if self.cliff else math.inf
        rounds = [row for stage in (self.before, *self.held) for row in stage.rounds_of("outside")]
        below, beyond = (_seconds([row for row in rounds if (row["bytes"] >= cliff) is high]) for high in (False, True))
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
        stays = (
            self.after and self.after.outside_seconds and beyond.median <= OUTSIDE * self.after.outside_seconds.median
        )
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


def courses(rows: Sequence[Row]) -> Sequence[OnHost | Climb]:
    """The host's, or each group's, in their order; also of a run that goes on or broke off. Without a round before
    pinning there is nothing to tell, nor of a step without a round that is not the last of a group."""
    runs: list[OnHost | Climb] = []
    for (limit, _), part in grouped(rows, labels("limit_bytes", "swap")).items():
        phases = grouped(map(Stage, grouped(part, labels("phase", "step")).values()), lambda stage: stage.phase)
        before = next((stage for stage in phases.get("before", ()) if stage.rounds), None)
        held = [stage for stage in phases.get("held", ()) if stage.rounds or stage.at_end("ended")]
        after = next((stage for stage in phases.get("after", ()) if stage.rounds or stage.outside_seconds), None)
        if before:
            runs.append((Climb if limit else OnHost)(part, before, held, after))
    return runs


@dataclass(frozen=True)
class Pressures:
    """What a run pinned: on the host, or in groups."""

    run: ExperimentRun
    host: OnHost | None
    groups: Sequence[Climb]

    @property
    def cells(self) -> Sequence[Stage]:
        """All stages."""
        return [stage for course in filter(None, (self.host, *self.groups)) for stage in course.all]


def of(run: ExperimentRun, rows: Sequence[Row]) -> Pressures | None:
    """All that a run measured; ``None``: no step yet."""
    measured = [course for course in courses(rows) if course.held]
    groups = [course for course in measured if isinstance(course, Climb)]
    host = next((course for course in measured if isinstance(course, OnHost)), None)
    return Pressures(run, host, groups) if measured else None


def share_of_memory(run: ExperimentRun, host: OnHost) -> tuple[float, str]:
    """The share that was pinned at most, and whose memory it is of: the host's, or a smaller control group's."""
    limits = run.environment.limits
    whole, owner = limits.host_total_bytes, "host's"
    if limits.cgroup_limit_bytes is not None and limits.cgroup_limit_bytes < whole:
        whole, owner = limits.cgroup_limit_bytes, "control group's"
    return host.most_bytes / whole, owner


def headline(measured: Pressures) -> Iterator[Quantity]:
    """Of groups those of the first."""
    if measured.groups:
        yield from _group_headline(measured.groups[0])
    elif measured.host:
        yield from _host_headline(measured.host, *share_of_memory(measured.run, measured.host))


def tables(measured: Pressures) -> Iterator[Table]:
    """All steps."""
    if measured.groups:
        yield listed("Every step", [stage for climb in measured.groups for stage in climb.all], IN_GROUP, _GROUP_NOTE)
    elif measured.host:
        yield listed("Every step", measured.host.all, ON_HOST, _HOST_NOTE)


def slowdown(course: Course, name: str, key: str | None = None, nothing: str = "no round was timed") -> Quantity:
    """How many times as long work took at the slowest step as before."""
    before, longest = course.before.work_seconds, course.slowest and course.slowest.work_seconds
    if before and longest:
        return compared(name, longest, before, key=key)
    return quantity(name, None, "ratio", reason=nothing, key=key)


def _host_headline(run: OnHost, share: float, owner: str) -> Iterator[Quantity]:
    """The price and what an ordinary process felt first."""
    shares = [stage.cached_share for stage in run.held if stage.cached_share is not None]
    stalls = [stall for stage in run.held if (stall := stage.stalled_share("memory_some")) is not None]
    why = "no step has ended yet"
    if run.before.stalled_share("memory_some") is None:
        why = "this kernel does not report it; the notes say why"
    pinned = format_bytes((run.slowest or run.held[0]).bytes)
    name, nothing = f"Page fault time with {pinned} pinned (the slowest step) against before", "nothing to compare with"
    yield run.price
    yield slowdown(run, name, "faults", nothing)
    yield quantity("Most memory pinned", run.most_bytes, "bytes", key="most")
    yield quantity(f"Most memory pinned, share of the {owner} memory", share, "share", key="most.share")
    name, nothing = "Least share of the test file in the page cache", "no file could be made; the notes say why"
    yield quantity(name, min(shares, default=None), "share", reason=nothing, key="cached")
    name = "Longest stall for memory, share of a step's time"
    yield quantity(name, max(stalls, default=None), "share", reason=why, key="stalled")


def _group_headline(climb: Climb) -> Iterator[Quantity]:
    """Where the others suffer, where they are killed, and what is felt outside."""
    none = "not reached"
    first, last = (mark and mark.bytes / climb.limit for mark in (climb.cliff, climb.kill))
    yield quantity("Cliff, share of the group's limit", first, "share", reason=none, key="cliff")
    yield slowdown(climb, "Slowest round of work against before pinning", "slowest")
    yield quantity("Killed at, share of the group's limit", last, "share", reason=none, key="killed")
    name = "Round outside, beyond the cliff against below it"
    if climb.outside:
        yield compared(name, *climb.outside[::-1], key="outside")
    else:
        yield quantity(name, None, "ratio", reason=none, key="outside")
    yield quantity("Group's limit", climb.limit, "bytes", key="limit")
    yield quantity(
        "Group and processes gone at the end", climb.gone, "text", reason="the run has not ended", key="gone"
    )


Columns = Mapping[str, tuple[str, Callable[[Stage], Any]]]
"""Of a table of all steps: title → unit, and what a stage has there."""


_end, _stalled = partial(methodcaller, "at_end"), partial(methodcaller, "stalled_share")
ON_HOST: Columns = {
    "phase": ("text", lambda stage: stage.phase),
    "pinned": ("bytes", lambda stage: stage.bytes),
    "pinning took": ("seconds", _end("pin_seconds")),
    "available": ("bytes", _end("available_bytes")),
    "page cache, shared memory": ("bytes", _end("cached_bytes")),
    "page fault": ("seconds", lambda stage: median(stage.work_seconds)),
    "longest fault": ("seconds", lambda stage: stage.greatest("fault_longest_seconds")),
    "file read": ("bytes/second", lambda stage: stage.read_bytes_per_second),
    "file in cache": ("share", lambda stage: stage.cached_share),
    **{f"stalled: {words}": ("share", _stalled(name)) for name, words in STALLS.items()},
    "swapped in": ("bytes", lambda stage: stage.meanwhile("swap_in_bytes")),
    "swapped out": ("bytes", lambda stage: stage.meanwhile("swap_out_bytes")),
    "rounds": ("count", lambda stage: len(stage.rounds)),
}
IN_GROUP: Columns = {
    "swap": ("text", lambda stage: stage.swap),
    "phase": ("text", lambda stage: stage.phase),
    "pinned": ("bytes", lambda stage: stage.bytes),
    "share of the limit": ("share", lambda stage: stage.bytes / stage.rows[0]["limit_bytes"]),
    "round inside": ("seconds", lambda stage: median(stage.work_seconds)),
    "round outside": ("seconds", lambda stage: median(stage.outside_seconds)),
    "file in cache": ("share", lambda stage: stage.cached_share),
    "pages from disk": ("count", lambda stage: stage.greatest("major_faults")),
    "used": ("bytes", _end("used_bytes")),
    "page cache": ("bytes", _end("cache_bytes")),
    "swapped out": ("bytes", _end("swap_bytes")),
    "refaults": ("count", _end("refaults")),
    "kills": ("count", _end("kills")),
    "stalled": ("share", _end("stalled_share")),
    "rounds": ("count", lambda stage: len(stage.rounds)),
}
_HOST_NOTE = (
    "Page fault and file read: medians over the rounds; longest fault: of all pages; file in cache: the least. The "
    "kernel counts shared memory with the page cache, and memory of cudaHostAlloc is shared memory. Stalls are shares "
    "of the step's time, pinning included. n/a: not reported here, or not measured."
)
_GROUP_NOTE = (
    "Rounds: medians. File in cache: the least before a round read it. Pages from disk: of the ordinary process's "
    "memory, in its worst round. Used, page cache, swapped out, refaults and kills: the group's own account at the "
    "end of the step. n/a: not reported here, or not measured."
)
