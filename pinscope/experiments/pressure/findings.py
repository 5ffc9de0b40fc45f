"""What the pressure experiment found: rules, each with its numbers and what to do."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from pinscope.experiments.pressure.arithmetic import (
    GIB,
    STALLS,
    STRAIGHT,
    Felt,
    Stage,
    Stages,
    lost_per_byte,
    median_of,
    returned_share,
    slower,
)
from pinscope.records.finding import Finding, Quantity, Severity, costing, finding, note, quantity, warning
from pinscope.units import format_bandwidth, format_bytes, format_seconds, format_share

# Thresholds. On an idle virtual EPYC medians of rounds differed by up to 1.5 times (2.0 to 3.1 µs: pages that went
# back to the hypervisor take longer), the longest of thousands of pages by up to 100 times in single rounds (0.06 to
# 6 ms: the process had lost its processor), by 5 in the median of rounds. What is found must be beyond that, beyond
# every round before pinning, and stay so: see slower().
SLOWER = 1.75
LONGER = 10.0
READS_SLOWER = 1.5
CACHE_LOST = 0.05
"""Share of the file that must be gone from the cache: mincore is exact, but a page or two may go at any time."""
STALLED = 0.01
"""Share of a step's time in which tasks stalled for memory, from which on it counts; and 3 times that before."""
SWAPPED = 16 * 2**20
RETURNED = 0.9


@dataclass(frozen=True)
class Memory:
    """What there is to pin.

    Attributes:
        bytes: of the host, or of the control group where that has less.
        owner: whose it is, for people.
    """

    bytes: int
    owner: str

    def share(self, nbytes: int) -> float:
        """What part of it this much is."""
        return nbytes / self.bytes

    def words(self, nbytes: int) -> str:
        """The same for people: ``12.7 % of the host's memory``."""
        return f"{format_share(self.share(nbytes))} of the {self.owner} memory"


def felt_by_others(found: Stages) -> tuple[Finding, ...]:
    """What became slower beside the run."""
    return (
        *(one for sense in _SENSES for one in _slower(found, sense)),
        *_cache_lost(found),
        *_stalled(found),
        *_swapped(found),
    )


_OTHERS = "other programs took or gave back memory meanwhile"


def lost_quantity(found: Stages) -> Quantity:
    lost = lost_per_byte(found)
    known = lost if lost is not None and abs(lost - 1) <= STRAIGHT else None
    return quantity(
        "Available memory lost per pinned GiB",
        None if known is None else known * GIB,
        "bytes",
        reason="too few steps" if lost is None else _OTHERS,
    )


def least_share(found: Stages) -> tuple[Stage, float] | None:
    shares = [(stage, stage.cached_share) for stage in found.held if stage.cached_share is not None]
    return min(shares, key=lambda pair: pair[1], default=None)


def most_stalled(found: Stages, name: str) -> tuple[Stage, float] | None:
    known = [(stage, share) for stage in found.held if (share := stage.stalled[name]) is not None]
    return max(known, key=lambda pair: pair[1], default=None)


def rate_of(felt: Felt | None) -> float | None:
    return 1 / felt.rounds.median if felt else None


def gone(found: Stages) -> Iterator[Finding]:
    """Each pinned GiB is gone for everybody."""
    lost, returned = lost_per_byte(found), returned_share(found)
    last = found.held[-1]
    if lost is None:
        return
    straight = abs(lost - 1) <= STRAIGHT
    detail = (
        f"With {format_bytes(last.bytes)} pinned, {format_bytes(last.available_bytes)} were available on the host. "
        "The kernel can neither swap nor move nor drop pinned pages, whether their owner uses them or not."
    )
    if not straight:
        detail += f" It should be 1 GiB and its page table, but {_OTHERS}."
    if returned is not None and returned < RETURNED:
        detail += f" Only {format_share(returned)} of what went was back afterwards: other programs took some."
    yield note(
        "gone-for-everybody",
        lost_quantity(found),
        quantity("Least memory available", last.available_bytes, "bytes"),
        quantity("Share of the memory back after freeing", returned, "share", reason="not measured"),
        title=f"Each pinned GiB lowered the host's available memory by {format_bytes(lost * GIB)}"
        if straight
        else f"What a pinned GiB takes from the host is not known: {_OTHERS}",
        detail=detail,
        advice="Pin what is copied again and again, reuse it, and give it back; the page Plan says what is safe here."
        if straight
        else "Run it again on an idle machine for the exact price.",
    )


@dataclass(frozen=True)
class _Sense:
    """One thing that the ordinary process feels, and how it is judged.

    Attributes:
        rule: of the finding.
        what: its name, for people.
        part: where it stands in a stage.
        text: a stage's value, for people.
        factor: how many times as long it must take to be a finding.
        advice: of the finding.
    """

    rule: str
    what: str
    part: Callable[[Stage], Felt | None]
    text: Callable[[Stage], str]
    factor: float
    advice: str


_SENSES = (
    _Sense(
        "faults-slower",
        "Page faults",
        lambda stage: stage.fault,
        lambda stage: format_seconds(median_of(stage.fault)),
        SLOWER,
        "Pin less than that: every program that asks for memory waits. Buffers that are reused need less of it.",
    ),
    _Sense(
        "long-faults",
        "The longest page faults",
        lambda stage: stage.longest,
        lambda stage: format_seconds(median_of(stage.longest)),
        LONGER,
        "Pin less than that: the kernel must look for memory while a program waits for a page.",
    ),
    _Sense(
        "reads-slower",
        "Reading a file again",
        lambda stage: stage.byte_seconds,
        lambda stage: format_bandwidth(rate_of(stage.byte_seconds)),
        READS_SLOWER,
        "Pin less than that: files that are read again and again should stay in the page cache.",
    ),
)


def _slower(found: Stages, sense: _Sense) -> Iterator[Finding]:
    """A finding if something became slower; only a note if it stayed slow after all was given back."""
    seen = slower(found, sense.part, sense.factor)
    if seen is None or found.before is None:
        return
    evidence = (
        quantity(f"{sense.what}, slowest step over before", seen.ratio, "ratio"),
        quantity("From this much pinned on", seen.stage.bytes, "bytes"),
        quantity("Most that was pinned", found.most_bytes, "bytes"),
    )
    after = f", {sense.text(found.after)} after it was given back" if found.after else ""
    detail = (
        f"{sense.text(found.before)} before, {sense.text(seen.peak)} with {format_bytes(seen.peak.bytes)} pinned"
        f"{after}. Medians over rounds of an ordinary process beside the run."
    )
    if seen.recovered is False:
        yield note(
            "host-changed",
            *evidence,
            title=f"{sense.what} became slower, and stayed so without the pinned memory",
            detail=f"{detail} Something else weighs on this host.",
            advice="Run it again on an idle machine.",
        )
        return
    yield warning(
        sense.rule,
        *evidence,
        title=f"{sense.what} took {seen.ratio:.1f} times as long from {format_bytes(seen.stage.bytes)} pinned on",
        detail=detail,
        advice=sense.advice,
    )


def _cache_lost(found: Stages) -> Iterator[Finding]:
    before = found.before.cached_share if found.before else None
    least = least_share(found)
    if before is None or least is None or least[1] >= before - CACHE_LOST:
        return
    shares = [(stage, stage.cached_share) for stage in found.held if stage.cached_share is not None]
    lost = [stage for stage, share in shares if share < before - CACHE_LOST]
    yield warning(
        "cache-pushed-out",
        quantity("In the cache before", before, "share"),
        quantity("Least in the cache", least[1], "share"),
        quantity("From this much pinned on", lost[0].bytes, "bytes"),
        title=f"A file that was in the page cache was pushed out from {format_bytes(lost[0].bytes)} pinned on",
        detail=f"{format_share(before)} of the ordinary process's file was in the cache before, "
        f"{format_share(least[1])} with {format_bytes(least[0].bytes)} pinned. What was pushed out must be read "
        "from the disk again.",
        advice="Leave the page cache what the data loaders read again and again: pin less than that.",
    )


def _stalled(found: Stages) -> Iterator[Finding]:
    before = (found.before.stalled["memory_some"] if found.before else None) or 0.0
    limit = max(STALLED, 3 * before)
    bad = [stage for stage in found.held if (stage.stalled["memory_some"] or 0.0) > limit]
    most = most_stalled(found, "memory_some")
    if not bad or most is None:
        return
    yield warning(
        "stalled",
        *(
            quantity(f"Stalled: {words}", most[0].stalled[name], "share", reason="this kernel does not report it")
            for name, words in STALLS.items()
        ),
        title=f"Tasks stalled for memory for {format_share(most[1])} of the time, from "
        f"{format_bytes(bad[0].bytes)} pinned on",
        detail=f"It was {format_share(before)} before. The kernel counts the time in which at least one task "
        "waited for memory (/proc/pressure/memory).",
        advice="Pin less than that, or give the host (or the container) more memory.",
    )


def _swapped(found: Stages) -> Iterator[Finding]:
    out = sum(stage.swapped_out_bytes or 0 for stage in found.held)
    back = sum(stage.swapped_in_bytes or 0 for stage in found.held)
    if out + back < SWAPPED:
        return
    yield warning(
        "swapped",
        quantity("Swapped out", out, "bytes"),
        quantity("Swapped in", back, "bytes"),
        title=f"The kernel swapped {format_bytes(out)} out and {format_bytes(back)} in while memory was pinned",
        detail="Pinned pages stay; those of all other programs went to the disk in their place.",
        advice="Pin less: programs that were swapped out come back page by page, at the disk's pace.",
    )


def nobody_felt_it(found: Stages, memory: Memory) -> Iterator[Finding]:
    """Nothing was beyond its limit: good, or a note where it was slower than before all the same."""
    last = found.held[-1]
    faults, reads = (
        _against_before(found, part) for part in (lambda stage: stage.fault, lambda stage: stage.byte_seconds)
    )
    slowest = max((ratio for ratio, _ in (faults, reads) if ratio is not None), default=1.0)
    severity: Severity = "note" if costing(slowest) == "warning" else "good"
    freed = "" if faults[1] is None else f", {faults[1]:.2f} times after freeing"
    felt = f"page faults took at most {max(faults[0] or 1.0, 1.0):.2f} times as long (limit {SLOWER:g}){freed}"
    share = memory.words(found.most_bytes)
    yield finding(
        severity,
        "nobody-felt-it",
        quantity("Most memory pinned", found.most_bytes, "bytes"),
        quantity(f"Most memory pinned, share of the {memory.owner} memory", memory.share(found.most_bytes), "share"),
        quantity("Memory left then", last.left_bytes, "bytes", reason="not read yet"),
        title=f"Pinning {format_bytes(found.most_bytes)} ({share}) slowed nothing beyond PinScope's limits: {felt}",
        detail=_calm_words(last, reads) + f"More than {share} was not tested.",
        advice=(
            "Nothing to do at this share."
            if severity == "good"
            else "To tell noise from cost, run it again on an idle machine."
        ),
    )


_Ratios = tuple[float | None, float | None]
"""The slowest step, and the time after all was given back, each over the time before."""


def _calm_words(last: Stage, reads: _Ratios) -> str:
    """What else was measured, each with its limit."""
    known = []
    if reads[0]:
        known.append(
            f"reading a file again took at most {max(reads[0], 1.0):.2f} times as long (limit {READS_SLOWER:g})"
        )
    if last.cached_share is not None:
        known.append(f"{format_share(last.cached_share)} of it stayed in the cache")
    if last.stalled["memory_some"] is not None:
        known.append(
            f"tasks stalled for memory for {format_share(last.stalled['memory_some'])} of the time "
            f"(limit {format_share(STALLED)})"
        )
    after = f"After all was given back, reading took {reads[1]:.2f} times as long as before. " if reads[1] else ""
    return (f"Meanwhile {', '.join(known)}. " if known else "") + after


def _against_before(found: Stages, part: Callable[[Stage], Felt | None]) -> _Ratios:
    """The slowest step, and afterwards, each over the time before."""
    before = median_of(part(found.before)) if found.before else None
    held = [seconds for stage in found.held if (seconds := median_of(part(stage))) is not None]
    after = median_of(part(found.after)) if found.after else None
    if not before:
        return None, None
    return max(held) / before if held else None, after / before if after is not None else None


def floor(found: Stages) -> Iterator[Finding]:
    if not found.floor_reached:
        return
    last = found.held[-1]
    yield note(
        "floor-reached",
        quantity("Left here", last.left_bytes, "bytes", reason="not read"),
        quantity("Meant to be pinned", found.target_bytes, "bytes"),
        title=f"The run stopped by itself at {format_bytes(found.most_bytes)} of "
        f"{format_bytes(found.target_bytes)}: more would have gone below the floor",
        detail=f"{format_bytes(last.left_bytes)} were left here then. The floor keeps the machine usable for "
        "others while the run goes on.",
        advice="Nothing to do. 'pinscope run brim' shows what lies beyond it, in a control group of its own; a lower "
        "floor (--set floor=…) goes further here, at the risk of all that runs here.",
    )
