"""What a pressure run concludes: its stages, what an ordinary process felt in each, verdict, headline and table."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Any, Literal, NamedTuple

from pinscope.analysis.cells import Label, Value
from pinscope.analysis.conclusions import exceeds, on_lab
from pinscope.analysis.line_fit import fit_line
from pinscope.analysis.rows import Row, from_then_on, grouped, labels
from pinscope.analysis.statistics import Summary, summarize
from pinscope.records.environment import Limits
from pinscope.records.finding import Finding, Quantity, Reading, Table, quantity, table
from pinscope.records.run import ExperimentRun, LabKind
from pinscope.units import format_bytes, format_share

GIB = 2**30
Sense = Literal["fault_median", "fault_longest", "read"]
"""What the ordinary process feels: in each round, the median seconds to touch a fresh page, the longest of these, and
the seconds to read a byte of its file."""
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


class Felt(NamedTuple):
    """One thing that the ordinary process felt, over the counted rounds of a stage. Seconds; more is worse."""

    rounds: Summary
    worst: float


@dataclass(frozen=True)
class Stage:
    """Before, one step with its memory held, or after. A value is ``None`` where it was not reported, or not yet.

    Attributes:
        phase: which of these.
        rounds: counted, of the ordinary process.
        begin, end: readings of the host, before the step's pinning and at its end.
    """

    phase: Annotated[str, Label("phase")]
    rounds: Sequence[Row]
    begin: Row | None
    end: Row | None

    @cached_property
    def bytes(self) -> Annotated[int, Label("pinned", "bytes")]:
        """By the run meanwhile."""
        return int(self.rounds[-1]["bytes"]) if self.rounds else 0

    def felt(self, sense: Sense) -> Felt | None:
        """Over the rounds in which it was felt."""
        if sense == "read":
            values = [row["read_seconds"] / row["read_bytes"] for row in self.rounds if row["read_bytes"]]
        else:
            values = [row[f"{sense}_seconds"] for row in self.rounds]
        return Felt(summarize(values), max(values)) if values else None

    def median(self, sense: Sense) -> float | None:
        """Seconds, the median over rounds."""
        felt = self.felt(sense)
        return felt.rounds.median if felt else None

    @property
    def fault_seconds(self) -> Annotated[Summary | None, Value("page fault", "seconds", "less")]:
        """Of the medians of the rounds."""
        felt = self.felt("fault_median")
        return felt.rounds if felt else None

    @property
    def read_bytes_per_second(self) -> Annotated[float | None, Value("file read", "bytes/second", "more")]:
        """Of the file, by the median of the rounds."""
        seconds = self.median("read")
        return 1 / seconds if seconds else None

    @property
    def cached_share(self) -> Annotated[float | None, Value("file in cache", "share", "more")]:
        """The smallest share of the file in the page cache before a round read it."""
        known = [row for row in self.rounds if row["file_cached_bytes"] is not None]
        return min((row["file_cached_bytes"] / row["file_bytes"] for row in known), default=None)

    def at_end(self, field: str) -> Any:
        """Of the host."""
        return self.end[field] if self.end else None

    def meanwhile(self, field: str) -> Any:
        """By how much it grew."""
        begun, ended = (moment[field] if moment else None for moment in (self.begin, self.end))
        return None if begun is None or ended is None else ended - begun

    def stalled_share(self, name: str) -> float | None:
        """Of the time from before the step's pinning to its end; ``name``: of :data:`STALLS`."""
        waited, seconds = self.meanwhile(f"{name}_seconds"), self.meanwhile("elapsed_seconds")
        return waited / seconds if waited is not None and seconds else None

    @property
    def left_bytes(self) -> Annotated[int | None, Value("left here", "bytes", "more")]:
        """At the end: the tighter of MemAvailable and the control group's headroom."""
        known = [self.at_end(field) for field in ("available_bytes", "cgroup_headroom_bytes")]
        return min((left for left in known if left is not None), default=None)

    @property
    def reachable_bytes(self) -> int | None:
        """At the end, available or on a processor's list: memory that was freed waits there, and would seem lost."""
        available = self.at_end("available_bytes")
        return None if available is None else available + (self.at_end("per_cpu_bytes") or 0)


class Slower(NamedTuple):
    """What became slower than anything seen before pinning.

    Attributes:
        stage: the first step from which on it was slower at every step.
        peak: the slowest step.
        times: its median over that before.
        recovered: whether it was as before once all was given back; ``None`` if that was not measured.
    """

    stage: Stage
    peak: Stage
    times: float
    recovered: bool | None


@dataclass(frozen=True)
class Stages:
    """A run in its order. Stages that have not been reached are missing."""

    before: Stage | None
    held: Sequence[Stage]
    after: Stage | None
    target_bytes: int
    floor_reached: bool

    @cached_property
    def all(self) -> Sequence[Stage]:
        """Those there are."""
        return [stage for stage in (self.before, *self.held, self.after) if stage is not None]

    @cached_property
    def most_bytes(self) -> int:
        """The most that was pinned."""
        return max((stage.bytes for stage in self.held), default=0)

    def most(self, value: Callable[[Stage], float | None]) -> tuple[Stage, float] | None:
        """The step with the most of it."""
        known = [(stage, share) for stage in self.held if (share := value(stage)) is not None]
        return max(known, key=lambda pair: pair[1], default=None)

    @cached_property
    def slowest_fault(self) -> tuple[Stage, float] | None:
        """The step with the longest page faults, and how many times as long they took as before."""
        before = self.before and self.before.median("fault_median")
        most = self.most(lambda stage: stage.median("fault_median"))
        return (most[0], most[1] / before) if most and before else None

    def slower(self, sense: Sense, factor: float) -> Slower | None:
        """From which step on a thing was slower; ``None`` if never, or if too little is known.

        Slower is: the median of the step's rounds is at least ``factor`` times that before pinning, and beyond the
        worst single round before pinning; and so it is at every later step. What comes and goes has another cause.
        """
        before = self.before and self.before.felt(sense)
        if not before:
            return None
        limit = max(factor * before.rounds.median, before.worst)
        first = from_then_on(self.held, lambda stage: (stage.median(sense) or 0.0) > limit)
        most = self.most(lambda stage: stage.median(sense))
        if first is None or most is None:
            return None
        after = None if self.after is None else (self.after.median(sense) or 0.0) <= limit
        return Slower(first, most[0], most[1] / before.rounds.median, after)

    @cached_property
    def lost_per_byte(self) -> float | None:
        """Bytes of reachable memory that a pinned byte takes from everybody: the slope through the ends of all stages
        but the last. ``None`` below two; of two points it is their difference."""
        ends = [(stage, stage.reachable_bytes) for stage in (self.before, *self.held) if stage is not None]
        points = [(float(stage.bytes), float(reachable)) for stage, reachable in ends if reachable is not None]
        if len(points) < 2 or points[0][0] == points[-1][0]:
            return None
        if fitted := fit_line([x for x, _ in points], [y for _, y in points]):
            return -fitted.slope
        return (points[0][1] - points[-1][1]) / (points[-1][0] - points[0][0])

    @cached_property
    def known_price(self) -> float | None:
        """The same where other programs' memory is not in it."""
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


def stages(rows: Sequence[Row]) -> Stages:
    """The stages that were measured, also of a run that goes on or broke off; a step without a round tells nothing."""
    all_stages = [_stage(group) for group in grouped(rows, labels("phase", "step")).values()]
    by_phase = grouped(all_stages, lambda stage: stage.phase)
    return Stages(
        before=next(iter(by_phase.get("before", ())), None),
        held=[stage for stage in by_phase.get("held", ()) if stage.rounds],
        after=next((stage for stage in by_phase.get("after", ()) if stage.rounds), None),
        target_bytes=max((row["target_bytes"] for row in rows), default=0),
        floor_reached=any(row["floor_reached"] for row in rows),
    )


def cells_of(rows: Sequence[Row]) -> Sequence[Stage]:
    """Those of a run."""
    return stages(rows).all


def _stage(rows: Sequence[Row]) -> Stage:
    begin, end = (next((row for row in rows if row["moment"] == moment), None) for moment in ("begin", "end"))
    rounds = [row for row in rows if row["kind"] == "process" and not row["warmup"]]
    return Stage(rows[0]["phase"], rounds, begin, end)


def whole_memory(limits: Limits) -> tuple[int, str]:
    """What there is to pin, and whose it is: the host's, or the control group's where that has less."""
    if limits.cgroup_limit_bytes is not None and limits.cgroup_limit_bytes < limits.host_total_bytes:
        return limits.cgroup_limit_bytes, "control group's"
    return limits.host_total_bytes, "host's"


def conclude(run: ExperimentRun, course: Stages, felt: Sequence[Finding], others: Sequence[Finding]) -> Reading:
    """The reading of a run; empty parts where nothing was measured yet. ``felt``: what became slower."""
    limits, tables = run.environment.limits, _tables(course)
    if course.before is None or not course.held:
        return Reading(headline=(), tables=tables, findings=())
    verdict, headline = _verdict(run.lab, course, limits, felt), tuple(_headline(course, limits))
    return Reading(verdict=verdict, headline=headline, tables=tables, findings=(*felt, *others))


def _verdict(lab: LabKind, run: Stages, limits: Limits, slower: Sequence[Finding]) -> str | None:
    """What others felt, or else what pinning took from them; ``None`` where neither is known."""
    whole, owner = whole_memory(limits)
    pinned = "locked" if lab == "host" else "pinned"
    most = f"{format_bytes(run.most_bytes)} {pinned} ({format_share(run.most_bytes / whole)} of the {owner} memory)"
    if warned := next((finding for finding in slower if finding.severity == "warning"), None):
        return on_lab(lab, f"{warned.title}; at most {most}.")
    if slower:
        return on_lab(lab, f"With {most}, what became slower stayed so without it.")
    if run.before and run.slowest_fault:
        return on_lab(lab, _faults(run.before, run.slowest_fault[0], run.after, most=most))
    if price := run.known_price:
        return on_lab(lab, f"With {most}, each GiB took {format_bytes(price * GIB)} of available memory.")
    return None


def _faults(*stages: Stage | None, most: str) -> str:
    before, held, after = (stage.felt("fault_median") if stage else None for stage in stages)
    if not before or not held or not exceeds(held.rounds, before.rounds):
        return f"With {most}, page faults did not take measurably longer than before."
    times, freed = (felt.rounds.median / before.rounds.median if felt else 0.0 for felt in (held, after))
    if freed < times:
        return f"With {most}, page faults took at most {times:.2f} times as long as before."
    drift = f"{freed:.2f} times after freeing, so drift may be the cause"
    return f"Page faults took {times:.2f} times as long with up to {most}, {drift}."


def _headline(run: Stages, limits: Limits) -> Iterator[Quantity]:
    """The price and what an ordinary process felt first."""
    whole, owner = whole_memory(limits)
    slowest, shares = run.slowest_fault, [stage.cached_share for stage in run.held if stage.cached_share is not None]
    pinned = format_bytes((slowest[0] if slowest else run.held[0]).bytes)
    stalled = run.most(lambda stage: stage.stalled_share("memory_some"))
    reported = run.before is not None and run.before.stalled_share("memory_some") is not None
    why = "no step has ended yet" if reported else "this kernel does not report it; the notes say why"
    name, nothing = f"Page fault time with {pinned} pinned (the slowest step) ÷ before", "nothing to compare with"
    yield run.price
    yield quantity(name, slowest and slowest[1], "ratio", reason=nothing, key="faults")
    yield quantity("Most memory pinned", run.most_bytes, "bytes", key="most")
    yield quantity(
        f"Most memory pinned, share of the {owner} memory", run.most_bytes / whole, "share", key="most.share"
    )
    name, nothing = "Least share of the test file in the page cache", "no file could be made; the notes say why"
    yield quantity(name, min(shares, default=None), "share", reason=nothing, key="cached")
    name = "Longest stall for memory, share of a step's time"
    yield quantity(name, stalled and stalled[1], "share", reason=why, key="stalled")


def _stalled(name: str) -> Callable[[Stage], float | None]:
    return lambda stage: stage.stalled_share(name)


COLUMNS: Mapping[str, tuple[str, Callable[[Stage], Any]]] = {
    "phase": ("text", lambda stage: stage.phase),
    "pinned": ("bytes", lambda stage: stage.bytes),
    "pinning took": ("seconds", lambda stage: stage.at_end("pin_seconds")),
    "available": ("bytes", lambda stage: stage.at_end("available_bytes")),
    "left here": ("bytes", lambda stage: stage.left_bytes),
    "free": ("bytes", lambda stage: stage.at_end("free_bytes")),
    "on lists": ("bytes", lambda stage: stage.at_end("per_cpu_bytes")),
    "page cache, shared memory": ("bytes", lambda stage: stage.at_end("cached_bytes")),
    "page fault": ("seconds", lambda stage: stage.median("fault_median")),
    "longest fault": ("seconds", lambda stage: (stage.felt("fault_longest") or (None, None))[1]),
    "file read": ("bytes/second", lambda stage: stage.read_bytes_per_second),
    "file in cache": ("share", lambda stage: stage.cached_share),
    **{f"stalled: {words}": ("share", _stalled(name)) for name, words in STALLS.items()},
    "swapped in": ("bytes", lambda stage: stage.meanwhile("swap_in_bytes")),
    "swapped out": ("bytes", lambda stage: stage.meanwhile("swap_out_bytes")),
    "rounds": ("count", lambda stage: len(stage.rounds)),
}
"""Of the table: title → unit, and what a stage has there."""


def _tables(run: Stages) -> tuple[Table, ...]:
    """Every step; none before the first."""
    every_step = table(
        "Every step",
        {title: unit for title, (unit, _) in COLUMNS.items()},
        [[value(stage) for _, value in COLUMNS.values()] for stage in run.all],
        note="Page fault and file read: medians over the rounds; longest fault: of all pages; file in cache: the "
        "least. Left here is the tighter of the host's available memory and what the control group leaves. On "
        "lists: free pages that each processor has at hand, neither free nor available by the kernel's count. The "
        "kernel counts shared memory with the page cache, and memory of cudaHostAlloc is shared memory. Stalls are "
        "shares of the step's time, pinning included. n/a: not reported here, or not measured.",
    )
    return (every_step,) if every_step.rows else ()
