"""What a brim run found: rules, each with its numbers and what to do."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from pinscope.analysis.conclusions import part_words, times
from pinscope.analysis.statistics import measured
from pinscope.experiments.brim.arithmetic import CACHE_LOST, SLOWER, STALLED, SWAPPED, Climb, Mark, MarkKind, Step
from pinscope.records.finding import Finding, Quantity, good, note, quantity, warning
from pinscope.units import format_bytes, format_seconds, format_share

CHARGED = 0.9
"""Memory of which the group is charged less than this share escapes its limit."""
WAYS: Mapping[str, str] = {
    "registered": "touched and registered",
    "pinned": "cudaHostAlloc",
    "write_combined": "write-combined",
}
MARKS: Mapping[MarkKind, str] = {
    "cache": f"{format_share(CACHE_LOST)} of its file left the page cache",
    "slower": f"a round took {SLOWER:g} times as long",
    "swapped": f"{format_share(SWAPPED)} of the limit was swapped out",
    "stalled": f"tasks stalled for {format_share(STALLED)} of the time",
    "killed": "a process was killed",
}
"""What begins at a mark, for people."""


def with_swap(climb: Climb) -> str:
    """Says which group it was, where that matters."""
    return " (memory could be swapped out)" if climb.swap else ""


def share_of(climb: Climb, nbytes: int | None) -> float | None:
    """Of the group's limit."""
    return None if nbytes is None else nbytes / climb.limit


def off(climb: Climb, mark: Mark | None, expected: int | None) -> float | None:
    """How far a mark lies from what the group's account led to expect, as a share of the limit."""
    if mark is None or expected is None:
        return None
    return max(mark.below_bytes - expected, expected - mark.bytes, 0) / climb.limit


def cliff(climb: Climb) -> Iterator[Finding]:
    """Where others in the group suffer, before anybody is killed."""
    mark, slowest = climb.cliff, climb.slowest()
    if mark is None or mark.kind == "killed" or slowest is None:
        return
    ratio = climb.ratio() or 1.0
    expected = climb.expected_cliff
    yield warning(
        "cliff",
        quantity("Cliff, pinned", mark.bytes, "bytes"),
        quantity("Step before it, pinned", mark.below_bytes, "bytes"),
        quantity("Expected by the group's account", expected, "bytes", reason="the group's account is not known"),
        quantity("Slowest round of work ÷ before pinning", ratio, "ratio"),
        *(quantity(f"From this much pinned on {MARKS[one.kind]}", one.bytes, "bytes") for one in climb.marks),
        title=f"At {mark.place(climb.limit)} of the group's limit pinned, other work in it slows, at worst "
        f"{ratio:.1f} times{with_swap(climb)}",
        detail=_cliff_words(climb, mark, slowest, expected),
        advice="Give the group a limit of what is pinned, what its programs hold and the files that they read again "
        "and again, with a margin. "
        "'pinscope live' shows what the group leaves.",
    )


def _cliff_words(climb: Climb, mark: Mark, slowest: Step, expected: int | None) -> str:
    before = climb.before.inside
    longest = slowest.inside.median if slowest.inside else None
    words = (
        f"It lies between two steps, {format_bytes(mark.below_bytes)} and {format_bytes(mark.bytes)}; at the second "
        f"{MARKS[mark.kind]}. A round took {format_seconds(before.median if before else None)} before, "
        f"{format_seconds(longest)} with {format_bytes(slowest.bytes)} pinned."
    )
    if expected is not None:
        words += f" The limit less what was in the group before is {format_bytes(expected)}."
    return words


def killed(climb: Climb, victim: str | None) -> Iterator[Finding]:
    """Somebody was killed, not the one that pins."""
    mark, ended = climb.mark("killed"), climb.ended
    if ended is None:
        return
    if mark is None:
        yield note(
            "refused",
            quantity("Pinned then", ended.bytes, "bytes"),
            title=f"At {_amount(climb, ended.bytes)} pinned memory was refused, and nobody killed{with_swap(climb)}",
            detail="The process that pins got an error in place of memory.",
            advice="Pin less than that: a program that does not expect the error ends there.",
        )
        return
    whom = "the process that pins" if victim == "holder" else "the ordinary process, which pinned nothing,"
    yield warning(
        "killed",
        quantity("Killed at, pinned", mark.bytes, "bytes"),
        quantity("Step before it, pinned", mark.below_bytes, "bytes"),
        quantity("Expected by the group's account", climb.expected_kill, "bytes", reason="the account is not known"),
        quantity("Processes killed", ended.group.kills if ended.group else None, "count", reason="not reported here"),
        title=f"At {_amount(climb, mark.bytes)} pinned the kernel killed {whom} for want of memory{with_swap(climb)}",
        detail="Pinned pages cannot be given back, so the kernel takes from others until nothing is left. This run "
        "named whom to kill first (oom_score_adj); without that the kernel usually kills the process that holds most.",
        advice="Give a program that pins much a control group of its own, or a lower oom_score_adj to those that must "
        "live: echo -500 > /proc/PID/oom_score_adj, as root; never to the one that pins.",
    )


def outside(climb: Climb) -> Iterator[Finding]:
    """The limit kept it inside, or not."""
    ratio, below, beyond = climb.outside_ratio(), climb.outside_below, climb.outside_beyond
    if ratio is None or below is None or beyond is None:
        return
    evidence: tuple[Quantity, ...] = (
        quantity("Round outside, from the cliff on ÷ below it", ratio, "ratio"),
        measured("Round outside below the cliff", below, "seconds"),
        measured("Round outside from the cliff on", beyond, "seconds"),
    )
    detail = f"Medians of {below.count} and {beyond.count} rounds of a process that does the same work outside."
    if climb.disturbs is False:
        yield good(
            "outside-undisturbed",
            *evidence,
            title=f"Outside the group nothing slowed{with_swap(climb)}: a round took {ratio:.2f} times as long",
            detail=detail,
            advice="A limit on the group protects others from what is charged to it, which write-combined memory is "
            "not: docker run --memory, or systemd's MemoryMax.",
        )
    elif climb.disturbs is None:
        yield note(
            "outside-unclear",
            *evidence,
            title=f"Outside the group a round took {times(ratio, below, beyond)} as long, and the group "
            f"may not be the cause{with_swap(climb)}",
            detail=f"{detail} It may be chance, or was as slow once the group was gone.",
            advice="For a sure answer let each step take longer: --set step_seconds=2.",
        )
    else:
        yield warning(
            "outside-slower",
            *evidence,
            title=f"Outside the group a round took {ratio:.2f} times as long{with_swap(climb)}",
            detail=f"{detail} The group reads from the disk that others use, and the kernel looks for memory on all "
            "processors.",
            advice="Run it again on an idle machine; if it repeats, limit the group's disk too (io.max).",
        )


def charged(climb: Climb) -> Iterator[Finding]:
    """Whether the limit holds for each way of pinning."""
    if not climb.charged:
        return
    shares = {way: max(got, 0) / asked for way, (asked, got) in climb.charged.items()}
    evidence = [quantity(f"Charged of what was pinned: {WAYS[way]}", share, "share") for way, share in shares.items()]
    free = [way for way, share in shares.items() if share < CHARGED]
    words = "; ".join(
        f"{WAYS[way]}: {format_bytes(max(got, 0))} of {format_bytes(asked)}"
        for way, (asked, got) in climb.charged.items()
    )
    if free:
        names = " and ".join(WAYS[way] for way in free)
        yield warning(
            "not-charged",
            *evidence,
            title=f"The group's limit does not hold for {names} memory: "
            f"{part_words(max(shares[way] for way in free))} of it was charged",
            detail=f"What the group's account grew by: {words}. The driver takes such pages straight from the kernel.",
            advice="Count such memory by hand: a container's limit does not stop it, and the host runs out instead.",
        )
    else:
        yield note(
            "charged",
            *evidence,
            title="The group is charged for what is pinned in it, in each way",
            detail=f"What the group's account grew by: {words}.",
            advice="Count pinned memory into a container's limit.",
        )


def _amount(climb: Climb, nbytes: int) -> str:
    return f"{format_bytes(nbytes)} ({format_share(nbytes / climb.limit)} of the group's limit)"
