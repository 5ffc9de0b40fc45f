"""What the pressure experiment found. The texts stand first; the functions below give them their numbers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

from pinscope.analysis.rows import Row
from pinscope.analysis.texts import Text, say
from pinscope.experiments.pressure.reading import GIB, OTHERS, STALLS, Sense, Stage, Stages, conclude, stages
from pinscope.records.finding import Finding, Reading, quantity
from pinscope.records.run import ExperimentRun
from pinscope.units import format_bandwidth, format_seconds

CACHE_LOST = 0.05
"""Share of the file that must be gone from the cache: mincore is exact, but a page or two may go at any time."""
STALLED = 0.01
"""Share of a step's time in which tasks stalled for memory, from which on it counts; and 3 times that before."""
SWAPPED = 16 * 2**20
RETURNED = 0.9


def _rate(seconds: float | None) -> str:
    return format_bandwidth(1 / seconds if seconds else None)


class Rule(NamedTuple):
    """How one thing that the ordinary process feels is judged.

    Attributes:
        sense: what it feels.
        what: for people.
        factor: how many times as long it must take to be a finding.
        advice: of the finding.
        text: seconds for people.
    """

    sense: Sense
    what: str
    factor: float
    advice: str
    text: Callable[[float | None], str] = format_seconds


# On an idle virtual EPYC medians of rounds differed by up to 1.5 times (2.0 to 3.1 µs: pages that went back to the
# hypervisor take longer), the longest of thousands of pages by up to 100 times in single rounds (0.06 to 6 ms: the
# process had lost its processor), by 5 in the median of rounds. What is found must be beyond that, beyond every round
# before pinning, and stay so: see Stages.slower().
RULES: Mapping[str, Rule] = {
    "faults-slower": Rule("fault_median", "Page faults", 1.75, "every program that asks for memory waits"),
    "long-faults": Rule(
        "fault_longest", "The longest page faults", 10.0, "the kernel looks for memory while a program waits for a page"
    ),
    "reads-slower": Rule(
        "read", "Reading a file again", 1.5, "files that are read again should stay in the page cache", _rate
    ),
}
_MEDIANS = (
    "{before} before, {peak} with {slower.peak.bytes:bytes} pinned[, {after} after it was given back]. Medians over "
    "rounds of an ordinary process beside the run."
)
TEXTS = {
    "gone-for-everybody": Text(
        "memory was pinned in two steps at least",
        "Each pinned GiB lowered the host's available memory by {lost:bytes}",
        "With {last.bytes:bytes} pinned, {available:bytes} were available on the host[; only {returned:share} of what "
        "went was back afterwards]. The kernel can neither swap nor move nor drop pinned pages, whether used or not.",
        "Pin what is copied again and again, reuse it, and give it back; the page Plan says what is safe here.",
    ),
    "gone-for-everybody/others": Text(
        "the same, and what is available changed otherwise than what was pinned",
        f"What a pinned GiB takes from the host is not known: {OTHERS}",
        "With {last.bytes:bytes} pinned, {available:bytes} were available on the host[; only {returned:share} of what "
        "went was back afterwards]. A pinned GiB takes 1 GiB and its page table, and here it seemed {lost:bytes}.",
        "Run it again on an idle machine for the exact price.",
    ),
    **{
        name: Text(
            f"from a step on it takes {rule.factor:g} times as long as before, and as in no round before: {rule.what}",
            "{what} took {slower.times:.1f} times as long from {slower.stage.bytes:bytes} pinned on",
            _MEDIANS,
            f"Pin less than that: {rule.advice}.",
            "warning",
        )
        for name, rule in RULES.items()
    },
    "host-changed": Text(
        "one of these, and it stays so when all was given back",
        "{what} became slower, and stayed so without the pinned memory",
        _MEDIANS,
        "Run it again on an idle machine: something else weighs on this host.",
    ),
    "cache-pushed-out": Text(
        "5 % of a file left the page cache",
        "A file that was in the page cache was pushed out from {begin:bytes} pinned on",
        "{before:share} of the ordinary process's file was in the cache before, {least.cached_share:share} with "
        "{least.bytes:bytes} pinned. What was pushed out must be read from the disk again.",
        "Leave the page cache what the data loaders read again and again: pin less than that.",
        "warning",
    ),
    "stalled": Text(
        "tasks stalled for memory for 1 % of a step's time, and 3 times as long as before",
        "Tasks stalled for memory for {most:share} of the time, from {begin:bytes} pinned on",
        "It was {before:share} before. The kernel counts the time in which at least one task waited for memory "
        "(/proc/pressure/memory).",
        "Pin less than that, or give the host (or the container) more memory.",
        "warning",
    ),
    "swapped": Text(
        "16 MiB were swapped",
        "The kernel swapped {out:bytes} out and {back:bytes} in while memory was pinned",
        "Pinned pages stay; those of all other programs went to the disk in their place.",
        "Pin less: programs that were swapped out come back page by page, at the disk's pace.",
        "warning",
    ),
    "floor-reached": Text(
        "the run stopped at its floor",
        "The run stopped by itself at {run.most_bytes:bytes} of {run.target_bytes:bytes}: more would have gone below "
        "the floor",
        "{last.left_bytes:bytes} were left here then. The floor keeps the machine usable for others meanwhile.",
        "See what lies beyond it in a control group of its own: pinscope run brim. A lower floor (--set floor=…) goes "
        "further here, at the risk of all that runs here.",
    ),
}


def read_pressure_run(run: ExperimentRun, rows: Sequence[Row]) -> Reading:
    """Headline, table and findings."""
    course = stages(rows)
    if course.before is None or not course.held:
        return conclude(run, course, (), ())
    judges = (_slower, _cache_lost, _stalled, _swapped)
    felt = [finding for judge in judges for finding in judge(course, course.before)]
    return conclude(run, course, felt, [*_gone(course, course.held[-1]), *_floor(course, course.held[-1])])


def _gone(run: Stages, last: Stage) -> Iterator[Finding]:
    lost, returned, available = run.lost_per_byte, run.returned_share, last.at_end("available_bytes")
    if lost is None:
        return
    key = "gone-for-everybody" if run.known_price else "gone-for-everybody/others"
    evidence = (
        run.price,
        quantity("Least memory available", available, "bytes"),
        quantity("Share of the memory back after freeing", returned, "share", reason="not measured"),
    )
    little = returned if returned is not None and returned < RETURNED else None
    yield say(TEXTS, key, *evidence, lost=lost * GIB, last=last, available=available, returned=little)[1]


def _slower(run: Stages, before: Stage) -> Iterator[Finding]:
    """What became slower; only a note if it stayed slow after all was given back."""
    for rule, (sense, what, factor, _, text) in RULES.items():
        slower = run.slower(sense, factor)
        if slower is None:
            continue
        evidence = (
            quantity(f"{what}, slowest step over before", slower.times, "ratio"),
            quantity("From this much pinned on", slower.stage.bytes, "bytes"),
            quantity("Most that was pinned", run.most_bytes, "bytes"),
        )
        key, after = "host-changed" if slower.recovered is False else rule, run.after and run.after.median(sense)
        was, peak = text(before.median(sense)), text(slower.peak.median(sense))
        yield say(TEXTS, key, *evidence, what=what, slower=slower, before=was, peak=peak, after=after and text(after))[
            1
        ]


def _cache_lost(run: Stages, before: Stage) -> Iterator[Finding]:
    shares = [(stage.cached_share, stage) for stage in run.held if stage.cached_share is not None]
    was = before.cached_share
    lost = [stage for share, stage in shares if was is not None and share < was - CACHE_LOST]
    if lost:
        least = min(shares, key=lambda pair: pair[0])[1]
        evidence = (
            quantity("In the cache before", was, "share"),
            quantity("Least in the cache", least.cached_share, "share"),
            quantity("From this much pinned on", lost[0].bytes, "bytes"),
        )
        yield say(TEXTS, "cache-pushed-out", *evidence, begin=lost[0].bytes, before=was, least=least)[1]


def _stalled(run: Stages, before: Stage) -> Iterator[Finding]:
    usual = before.stalled_share("memory_some") or 0.0
    limit = max(STALLED, 3 * usual)
    bad = [stage for stage in run.held if (stage.stalled_share("memory_some") or 0.0) > limit]
    most = run.most(lambda stage: stage.stalled_share("memory_some"))
    if bad and most:
        why = "this kernel does not report it"
        shares = [(words, most[0].stalled_share(name)) for name, words in STALLS.items()]
        evidence = [quantity(f"Stalled: {words}", share, "share", reason=why) for words, share in shares]
        yield say(TEXTS, "stalled", *evidence, most=most[1], begin=bad[0].bytes, before=usual)[1]


def _swapped(run: Stages, before: Stage) -> Iterator[Finding]:
    del before
    out, back = (sum(stage.meanwhile(f"swap_{way}_bytes") or 0 for stage in run.held) for way in ("out", "in"))
    if out + back >= SWAPPED:
        evidence = (quantity("Swapped out", out, "bytes"), quantity("Swapped in", back, "bytes"))
        yield say(TEXTS, "swapped", *evidence, out=out, back=back)[1]


def _floor(run: Stages, last: Stage) -> Iterator[Finding]:
    if run.floor_reached:
        left = quantity("Left here", last.left_bytes, "bytes", reason="not read")
        meant = quantity("Meant to be pinned", run.target_bytes, "bytes")
        yield say(TEXTS, "floor-reached", left, meant, run=run, last=last)[1]
