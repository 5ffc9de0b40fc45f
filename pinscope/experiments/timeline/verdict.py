"""What a kept live view answers, in one sentence."""

from __future__ import annotations

from collections.abc import Sequence
from operator import itemgetter

from pinscope.analysis.rules.growth import LEAK_BYTES, Amounts
from pinscope.experiments.timeline.arithmetic import Watched, extreme, sampled, summed
from pinscope.experiments.timeline.findings import pins, when
from pinscope.experiments.timeline.findings_growth import leaks, no_leak, who
from pinscope.units import format_bytes, format_duration

MUCH = LEAK_BYTES
"""Less than this is no change: the kernel counts pins by processor, and every host has some of its own."""
BEYOND = 1.1
"""A peak that is further above beginning and end than this is the answer."""


def timeline_verdict(seen: Watched) -> str | None:
    """How much was pinned, by whom, and whether it grew; ``None`` where the amount is not known."""
    if leaks(seen):
        life, growth = leaks(seen)[0]
        taken = format_bytes(growth.bytes + growth.returned_bytes)
        back = f"only {format_bytes(growth.returned_bytes)}" if growth.returned_bytes else "nothing"
        return (
            f"{who(life)} looks like it leaks pinned memory: it took {taken} in {growth.rises:,} steps "
            f"in {format_duration(growth.seconds)} and gave {back} back."
        )
    amounts, what = _amounts(seen)
    peak = extreme(amounts, max)
    if peak is None:
        return None
    seconds = amounts[-1][0] - amounts[0][0]
    during = f"in {format_duration(seconds)}" if seconds else "in the only sample"
    if not peak[1]:
        return f"Nothing was pinned {during}{_locked(seen)}."
    if not seconds:
        return f"{format_bytes(peak[1])} was pinned {during}{_holder(seen, peak[0])}."
    course, at = _course(amounts, what, during, unlike_a_leak=any(no_leak(seen)))
    return f"{course}{_holder(seen, at)}."


def _amounts(seen: Watched) -> tuple[list[tuple[float, float]], str]:
    """What was pinned at each sample, with the driver memory of holders, which no count of pins has."""
    rows = [row for row in seen.host if pins(row) is not None]
    times = [row["elapsed_seconds"] for row in rows]
    driver = dict(sampled(summed(life.driver for life in seen.lives), times, seen.last_seconds))
    what = "Pinned and driver memory" if any(driver.values()) else "Pinned memory"
    return [(at, (pins(row) or 0) + driver.get(at, 0.0)) for at, row in zip(times, rows, strict=True)], what


def _course(amounts: Sequence[tuple[float, float]], what: str, during: str, unlike_a_leak: bool) -> tuple[str, float]:
    """How it went from the beginning to the end, and the moment at which to ask who holds it."""
    (_, first), (end, last) = amounts[0], amounts[-1]
    at, peak = max(amounts, key=lambda point: point[1])
    begun, ended, most = (format_bytes(value) for value in (first, last, peak))
    if peak - max(first, last) >= MUCH and peak > BEYOND * max(first, last):
        return f"{what} peaked at {most} {when(at)}, and was {begun} at first and {ended} at the end", at
    if last - first >= MUCH:
        unlike = f"{_rise(amounts)}, not steadily" if unlike_a_leak else ""
        return f"{what} grew from {begun} to {ended} {during}{unlike}", end
    if first - last >= MUCH:
        return f"{what} fell from {begun} to {ended} {during}", end
    if peak < MUCH:
        return f"{what} was at most {most} {during}", at
    return f"{what} stayed at about {ended} {during.replace('in', 'for', 1)}", end


def _rise(amounts: Sequence[tuple[float, float]]) -> str:
    """``, most of it within 12.0 s``: the rise time, from 10 to 90 % of the growth; empty where it is long."""
    (start, first), (end, last) = amounts[0], amounts[-1]
    tenth = (last - first) / 10
    high = next(at for at, amount in amounts if amount >= last - tenth)
    low = max(at for at, amount in amounts if amount <= first + tenth and at <= high)
    return f", most of it within {format_duration(high - low)}" if high - low <= (end - start) / 2 else ""


def _holder(seen: Watched, at: float) -> str:
    """Who held most of it then."""
    held = [(amount, life) for life in seen.lives if (amount := _amount_at(life.pinned, at)) >= MUCH]
    if not held:
        return ""
    amount, life = max(held, key=lambda pair: pair[0])
    return f"; {who(life)} held {'' if len(held) == 1 else 'most, '}{format_bytes(amount)}"


def _locked(seen: Watched) -> str:
    """Who locked most with mlock, where that is all there is."""
    most = max(((amount, life) for life in seen.lives for _, amount in life.locked), key=itemgetter(0), default=None)
    return f"; {who(most[1])} locked up to {format_bytes(most[0])} with mlock" if most and most[0] >= MUCH else ""


def _amount_at(amounts: Amounts, at: float) -> int:
    """0 before its first step."""
    return next((amount for begun, amount in reversed(amounts) if begun <= at), 0)
