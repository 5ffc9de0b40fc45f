"""Who took more and more through a kept live view, and whether that looks like a leak: rules with their numbers."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from pinscope.analysis.rules.growth import (
    LEAK_BYTES,
    LEAK_RISES,
    LEAK_RULE,
    LEAK_SECONDS,
    Amounts,
    Growth,
    steady_growth,
    unsteady_because,
)
from pinscope.analysis.rules.series import FEW_MISSING
from pinscope.experiments.timeline.arithmetic import Life, Watched, points
from pinscope.records.finding import Finding, Quantity, good, note, quantity, warning
from pinscope.units import format_bytes, format_duration

MOST_SUSPECTS = 5


def who(life: Life) -> str:
    """A process as people name it."""
    return f"{life.name or 'process'} (pid {life.pid})"


def leaks(seen: Watched) -> list[tuple[Life, Growth]]:
    """Processes whose pinned memory grew as a leak does; the most first."""
    return _grown(seen, lambda life: life.pinned)


def leaking_holders(seen: Watched) -> Iterator[Finding]:
    """Processes that took more and more, and gave next to nothing back."""
    for life, growth in leaks(seen)[:MOST_SUSPECTS]:
        back = f"only {format_bytes(growth.returned_bytes)}" if growth.returned_bytes else "nothing"
        taken = format_bytes(growth.bytes + growth.returned_bytes)
        yield warning(
            "leak-suspected",
            *_growth(seen, growth, life.gone),
            quantity(
                "It held before it ended" if life.gone else "It held at the end",
                _until_gone(life, life.amounts)[-1][1],
                "bytes",
            ),
            quantity("User", life.user, "text", reason="not known"),
            title=f"{who(life)} took {taken} in {growth.rises:,} steps and gave {back} back"
            + (" until it ended" if life.gone else ""),
            detail=f"It looks like a leak: buffers that are made again and again and never freed. {LEAK_RULE}. "
            f"A program that fills its buffers until {'its end' if life.gone else 'it has them all'} looks the same.",
            advice="Look for buffers that are allocated or registered in a loop, and keep them instead. "
            + (
                "Its end gave all of it back; the kernel's log says whether it was killed for lack of memory."
                if life.gone
                else f"Watch on with 'pinscope record --pid {life.pid}'; with --probe it also shows what is registered."
            ),
        )


def growing_locks(seen: Watched) -> Iterator[Finding]:
    """What mlock holds is not pinned for CUDA, but just as little to be had for others."""
    leaking = {id(life) for life, _ in leaks(seen)}
    grown = [pair for pair in _grown(seen, lambda life: life.locked) if id(pair[0]) not in leaking]
    for life, growth in grown[:MOST_SUSPECTS]:
        yield note(
            "locked-memory-grows",
            *_growth(seen, growth, life.gone),
            title=f"{who(life)} locked {format_bytes(growth.bytes)} more in {growth.rises:,} steps (mlock)"
            + (", until it ended" if life.gone else ""),
            detail=f"Locked memory stays in RAM and is not pinned for CUDA. {LEAK_RULE}. A database that fills its "
            "cache looks the same.",
            advice="If it is meant to grow, nothing. Else look for memory that is locked in a loop.",
        )


def _grown(seen: Watched, which: Callable[[Life], Amounts]) -> list[tuple[Life, Growth]]:
    """Those of whom this amount grew steadily to their end, or to the last sample; the most first."""
    grown = [
        (life, growth)
        for life in seen.lives
        if (growth := steady_growth(_until_gone(life, which(life)), life.last_seconds)) is not None
    ]
    return sorted(grown, key=lambda pair: pair[1].bytes, reverse=True)


def _until_gone(life: Life, amounts: Amounts) -> Amounts:
    """Without the last step of a process that is gone, to 0."""
    return amounts[:-1] if life.gone else amounts


def _growth(seen: Watched, growth: Growth, gone: bool = False) -> Iterator[Quantity]:
    available = seen.host[-1]["available_bytes"]
    yield quantity("Before these steps", growth.first_bytes, "bytes")
    yield quantity("Taken in them, less what was given back", growth.bytes, "bytes")
    yield quantity("On average in a minute", 60 * growth.bytes_per_second, "bytes")
    yield quantity("Available on the host at the end", available, "bytes")
    if not gone:
        pace = available / growth.bytes_per_second
        yield quantity("At that pace all of it is taken in", pace, "seconds")


def unexplained_growth(seen: Watched) -> Iterator[Finding]:
    """Registered memory leaves no mark on its process: a leak of it shows in the host's total only."""
    series = [(at, int(value)) for at, value in points(seen.host, "other_pinned_bytes")]
    growth = steady_growth(series, seen.last_seconds)
    if growth is None:
        return
    yield warning(
        "unexplained-pins-grow",
        *_growth(seen, growth),
        title=f"Pinned memory that no holder explains grew steadily, by {format_bytes(growth.bytes)}",
        detail="Memory that is registered (cudaHostRegister) leaves no mark on its process, nor do other drivers' "
        f"pins. It looks like a leak. {LEAK_RULE}.",
        advice="As root, 'pinscope record --probe' shows which process registers memory from then on.",
    )


def no_leak(seen: Watched) -> Iterator[Finding]:
    """Nothing leaked: found only where a leak would have been seen."""
    looks = points(seen.host, "explained_bytes")
    if len(looks) <= LEAK_RISES or seen.last_seconds - looks[0][0] < LEAK_SECONDS or seen.missing_share > FEW_MISSING:
        return
    if (seen.chosen and not seen.lives) or any(life.hidden for life in seen.lives):
        return
    if any(any(rule(seen)) for rule in (leaking_holders, growing_locks, unexplained_growth)):
        return
    during = format_duration(seen.last_seconds - looks[0][0])
    evidence = (quantity("Holders", len(seen.lives), "count"), quantity("Samples", len(seen.host), "count"))
    kept = max(seen.lives, key=_kept, default=None)
    if kept is not None and _kept(kept) >= LEAK_BYTES:
        why = unsteady_because(kept.amounts, kept.last_seconds)
        yield note(
            "no-leak-seen",
            quantity(f"{who(kept)} holds more by", _kept(kept), "bytes"),
            *evidence,
            title=f"{who(kept)} pinned {format_bytes(_kept(kept))} more and kept it, but not steadily as a leak does "
            f"(watched for {during})",
            detail=f"{f'The rule finds no leak: {why}. ' if why else ''}{LEAK_RULE}.",
            advice=f"Watch on with 'pinscope record --pid {kept.pid}' to see whether it goes on growing.",
        )
        return
    nobody = "none of the watched processes" if seen.chosen else "no process"
    yield good(
        "no-leak-seen",
        *evidence,
        title=f"In {during} {nobody} took {format_bytes(LEAK_BYTES)} or more and kept it",
        detail=f"{LEAK_RULE}.",
        advice="Nothing to do. A slow leak shows in a longer timeline.",
    )


def _kept(life: Life) -> int:
    """What it held at the end beyond what it had at first."""
    if life.gone or not life.amounts:
        return 0
    return life.amounts[-1][1] - (0 if life.came else life.amounts[0][1])
