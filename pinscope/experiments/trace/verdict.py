"""The verdict of a trace: the line that pinning would help most, with its figures, or that none is left."""

from __future__ import annotations

from collections.abc import Sequence

from pinscope.experiments.trace.arithmetic import (
    MOSTLY,
    Seen,
    Site,
    line_name,
    pinned_memory,
    share_of_time,
    small_copies,
    waits_and_then,
)
from pinscope.units import format_bytes, format_seconds, format_share


def trace_verdict(seen: Seen) -> str | None:
    """At most three sentences; ``None`` while the program runs."""
    if seen.program is None:
        return None
    if not seen.program["copies"]:
        return _nothing(seen.program["recorded_seconds"])
    if seen.pageable and (seen.pinned_share <= 1 - MOSTLY or _saves_much(seen)):
        others = max(_others(seen), _beside(seen))
        return " ".join(filter(None, (_worst(seen), others[1])))
    if seen.pinned:
        return " ".join(filter(None, (_pinned(seen), _left(seen.pageable), _beside(seen)[1])))
    none = f"None of {seen.program['copies']:,} copies is a large one between host and GPU: pinning would not help."
    return " ".join(filter(None, (none, _beside(seen)[1])))


def _saves_much(seen: Seen) -> bool:
    """Whether the line that pinning would help most costs a part of the time, however little it copies."""
    site = seen.pageable[0]
    return (site.saved_in_place or 0.0) >= MOSTLY * seen.seconds_from_first(site.row) > 0


def _nothing(recorded: float | None) -> str:
    """Of a program without copies.

    Args:
        recorded: seconds of it that were recorded; ``None``: all.
    """
    if recorded is None:
        return "The program copied nothing to or from a GPU."
    if not recorded:
        return "Nothing was recorded: the program ended before what was to be recorded began."
    return f"The program copied nothing to or from a GPU in the {format_seconds(recorded)} that were recorded."


def _worst(seen: Seen) -> str:
    site, others = seen.accused[0] if seen.accused else (seen.pageable[0], 0)
    alike = f", where {others:,} more {'processes copy' if others > 1 else 'process copies'} too," if others else ""
    way = "from" if site.row["direction"] == "h2d" else "to"
    what = "GPU compute stood idle" if site.row["idle_seconds"] is not None else "the CPU was held"
    stood = f"{format_seconds(site.stands_seconds)} for it, {share_of_time(seen, site.row, site.stands_seconds)}"
    first = f"{site.name}{alike} copied {format_bytes(site.row['bytes'])} {way} pageable memory; {what} {stood}."
    saved = site.saved_in_place
    if saved is None:
        return first
    less = f"about {format_seconds(saved)} less" if saved else "as long"
    return f"{first} {pinned_memory(site)} the program would take {less}."


def _others(seen: Seen) -> tuple[float, str]:
    """What pinning the other lines would save that are worth a word, in seconds and as a sentence."""
    others = [site for site, _ in seen.accused[1:]]
    if not others:
        return 0.0, ""
    lines = f"{len(others)} more pageable {'lines' if len(others) > 1 else 'line'}"
    saved = sum(site.saved_in_place or 0.0 for site in others)
    return saved, f"{lines}: about {format_seconds(saved)} less." if saved else f"{lines}."


def _beside(seen: Seen) -> tuple[float, str]:
    """What takes the most time beside pageable copies, in seconds and as a sentence; empty if nothing takes much."""
    costs = [
        *((row["idle_seconds"], f"{waits_and_then(row)}.") for row in seen.idling[:1]),
        *((row["call_seconds"], f"{line_name(row)} pins memory {row['count']:,} times, which takes "
           f"{format_seconds(row['call_seconds'])}.") for row in seen.churn[:1]),
        *((site.row["call_seconds"], f"{small_copies(site)}, which hold the CPU for "
           f"{format_seconds(site.row['call_seconds'])}.") for site in seen.small[:1]),
    ]  # fmt: skip
    return max(costs, default=(0.0, ""))


def _pinned(seen: Seen) -> str:
    count, size = (sum(site.row[name] for site in seen.pinned) for name in ("large_count", "bytes"))
    if seen.pageable:
        copies = f"{count:,} large copies use pinned memory, {format_share(seen.pinned_share)} of the bytes"
    elif count > 1:
        copies = f"All {count:,} large copies use pinned memory, {format_bytes(size)} together"
    else:
        copies = f"The one large copy uses pinned memory, {format_bytes(size)}"
    idle = [site.row["idle_seconds"] for site in seen.pinned if site.row["idle_seconds"] is not None]
    several = len({(site.row["process"], site.row["device"]) for site in seen.pinned}) > 1
    whole = "" if several else f" of {format_seconds(seen.seconds)}"
    added = ", added up over GPUs and processes" if several else ""
    stood = f"; GPU compute stood idle {format_seconds(sum(idle))}{whole} for them{added}"
    return f"{copies}{stood if idle else ''}."


def _left(pageable: Sequence[Site]) -> str:
    if not pageable:
        return ""
    size = sum(site.row["bytes"] for site in pageable)
    ways = {"from" if site.row["direction"] == "h2d" else "to" for site in pageable}
    others = " and others" if len(pageable) > 1 else ""
    return f"{pageable[0].name}{others} copied {format_bytes(size)} {' or '.join(sorted(ways))} pageable memory."
