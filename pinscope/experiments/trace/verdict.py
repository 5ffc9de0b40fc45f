"""The verdict of a trace: the line that pinning would help most, with its figures, or that none is left."""

from __future__ import annotations

from collections.abc import Sequence

from pinscope.analysis.rows import Row
from pinscope.experiments.trace.arithmetic import (
    MOSTLY,
    WORTH,
    Seen,
    Site,
    gpu_name,
    line_name,
    not_recorded,
    pinned_memory,
    share_of_time,
    slow_source,
    small_copies,
    waits_and_then,
)
from pinscope.records.run import Run
from pinscope.units import format_bytes, format_seconds, format_share

MOST_DEVICES = 4
"""Of the sentence on compute; the table of GPUs has all."""


def trace_verdict(run: Run, seen: Seen) -> str | None:
    """What was not recorded, then at most four sentences; ``None`` while the program runs."""
    if seen.program is None:
        return None
    missing = [*filter(None, (not_recorded(seen.program), _managed(seen, seen.program)))]
    if not seen.program["copies"]:
        gaps = missing or run.notes or seen.program["lost_bytes"] or run.params.get("children") is False
        answer = [_nothing(seen.program["recorded_seconds"], is_whole=not gaps)]
    elif seen.pageable and (seen.pinned_share <= 1 - MOSTLY or _saves_much(seen)):
        answer = [_worst(seen), max(_others(seen), _beside(seen))[1]]
    else:
        none = f"None of {seen.program['copies']:,} copies is a large one between host and GPU."
        answer = [_pinned(seen) if seen.pinned else none, _left(seen.pageable), _beside(seen)[1], parts_of_time(seen)]
    return " ".join(filter(None, (*missing, *answer)))


def _managed(seen: Seen, program: Row) -> str:
    size = f", {format_bytes(program['managed_bytes'])}" if program["managed_bytes"] else ""
    if not size and not any("managed" in (site.row["source"], site.row["target"]) for site in seen.sites):
        return ""
    return f"The program uses managed memory{size}: how its pages move between host and GPU is not followed."


def _saves_much(seen: Seen) -> bool:
    """Whether the line that pinning would help most costs a part of the time, however little it copies."""
    site = seen.pageable[0]
    return (site.saved_in_place or 0.0) >= MOSTLY * seen.seconds_from_first(site.row) > 0


def _nothing(recorded: float | None, is_whole: bool) -> str:
    """Of a program without copies, of which so many seconds were recorded (``None``: all) as a whole or with gaps."""
    if recorded == 0:
        return "Nothing was recorded: the program ended before what was to be recorded began."
    when = "" if recorded is None else f" in the {format_seconds(recorded)} that were recorded"
    return f"{'The program copied nothing' if is_whole else 'No copy was recorded'} to or from a GPU{when}."


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
    return f"{first} {pinned_memory(site)} the program would take {less}. {slow_source(site)}".rstrip()


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
        *(
            (
                row["call_seconds"],
                f"{line_name(row)} pins memory {row['count']:,} times, which takes "
                f"{format_seconds(row['call_seconds'])}.",
            )
            for row in seen.churn[:1]
        ),
        *(
            (
                site.row["call_seconds"],
                f"{small_copies(site)}, which hold the CPU for {format_seconds(site.row['call_seconds'])}.",
            )
            for site in seen.small[:1]
        ),
    ]
    return max(costs, default=(0.0, ""))


def _pinned(seen: Seen) -> str:
    count, size = (sum(site.row[name] for site in seen.pinned) for name in ("large_count", "bytes"))
    if seen.pageable:
        copies = f"{count:,} large copies use pinned memory, {format_share(seen.pinned_share)} of the bytes"
    elif count > 1:
        copies = f"All {count:,} large copies use pinned memory, {format_bytes(size)} together"
    else:
        copies = f"The one large copy uses pinned memory, {format_bytes(size)}"
    return f"{copies}."


def _left(pageable: Sequence[Site]) -> str:
    if not pageable:
        return ""
    size = sum(site.row["bytes"] for site in pageable)
    ways = {"from" if site.row["direction"] == "h2d" else "to" for site in pageable}
    others = " and others" if len(pageable) > 1 else ""
    return f"{pageable[0].name}{others} copied {format_bytes(size)} {' or '.join(sorted(ways))} pageable memory."


def parts_of_time(seen: Seen) -> str:
    """How much of the time each GPU computed; empty where none did."""
    computing = [row for row in seen.devices if row["kernels"]] if seen.seconds else []
    shares = [
        f"{format_seconds(row['busy_seconds'])} ({format_share(row['busy_seconds'] / seen.seconds)})"
        + (f" on {gpu_name(row)}" if len(seen.devices) > 1 else "")
        for row in computing[:MOST_DEVICES]
    ]
    if not shares:
        return ""
    return f"Of {format_seconds(seen.seconds)} GPU compute was busy {', '.join(shares)}{_idle(seen)}."


def _idle(seen: Seen) -> str:
    """What else became of the time of one GPU that one process used; empty of several, and where times overlap."""
    if len(seen.devices) > 1 or seen.processes or seen.counts_copies_after_waits:
        return ""
    copies = sum(site.row["idle_seconds"] or 0.0 for site in seen.sites)
    waits = sum(row["idle_seconds"] or 0.0 for row in seen.waits)
    other = seen.seconds - seen.devices[0]["busy_seconds"] - copies - waits
    share = format_share(other / seen.seconds)
    rest = f"; what the CPU did in the other {format_seconds(other)} ({share}) was not recorded"
    rest = rest if other > WORTH * seen.seconds else ""
    return f", idle {format_seconds(copies)} for copies and {format_seconds(waits)} after waits{rest}"
