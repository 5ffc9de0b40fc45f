"""What a kept live view shows to be wrong, or to be well: rules, each with its numbers and what to do."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from pinscope.analysis.link_findings import SLOT_ADVICE
from pinscope.analysis.rows import Row
from pinscope.analysis.rules.host_memory import (
    DRIVER_BYTES,
    RAM_NOTE,
    UNEXPLAINED_BYTES,
    group_severity,
    is_near_limit,
    pinned_severity,
    pinned_twice_bytes,
)
from pinscope.analysis.rules.link import Shortfall, is_below, is_busy, is_lasting, link_shortfall
from pinscope.analysis.rules.series import FEW_MISSING
from pinscope.experiments.timeline.arithmetic import GPU_RATES, Watched, extreme, points, reason_of, sampled, summed
from pinscope.experiments.timeline.findings_growth import (
    MOST_SUSPECTS,
    growing_locks,
    leaking_holders,
    no_leak,
    unexplained_growth,
    who,
)
from pinscope.live.driver_findings import DRIVER_MEMORY_ADVICE, DRIVER_MEMORY_IS
from pinscope.records.finding import Finding, Quantity, finding, note, quantity, warning
from pinscope.units import format_bandwidth, format_bytes, format_duration, format_share

UNEXPLAINED_SAMPLES = 3
"""Pinned memory that no holder explains must have been there in so many samples in a row."""


def timeline_findings(seen: Watched) -> tuple[Finding, ...]:
    """All that the rules find; of a timeline without samples only that they are missing."""
    return tuple(finding for rule in (_RULES if seen.host else (_gaps,)) for finding in rule(seen))


def when(seconds: float) -> str:
    """A moment of the timeline."""
    return f"after {format_duration(seconds)}" if seconds else "at the beginning"


def _pinned_share(seen: Watched) -> Iterator[Finding]:
    rows = [row for row in seen.host if pins(row) is not None and row["total_bytes"] and not _beyond_use(row)]
    shares = [(row["elapsed_seconds"], (pins(row) or 0) / row["total_bytes"]) for row in rows]
    peak = extreme(shares, max)
    if peak is None:
        return
    at, share = peak
    row = next(row for row in rows if row["elapsed_seconds"] == at)
    severity = pinned_severity(share, row["available_bytes"] / row["total_bytes"])
    if severity is None:
        return
    long = sum(value >= RAM_NOTE for _, value in shares) / len(shares)
    yield finding(
        severity,
        "pinned-share-of-ram",
        quantity("Pinned", pins(row), "bytes"),
        quantity("Memory", row["total_bytes"], "bytes"),
        quantity("Available then", row["available_bytes"], "bytes"),
        quantity(f"Samples with {format_share(RAM_NOTE)} or more", long, "share"),
        title=f"At its peak up to {format_share(share)} of this host's memory was pinned",
        detail=f"That was {when(at)}; memory that is pinned twice counts twice, up to what is in use. Pinned memory "
        "can be neither swapped nor moved nor reclaimed.",
        advice="Pin what is copied often, in buffers that are used again, and give back the rest. "
        "'pinscope run pressure' shows what pinned memory takes from everybody else here.",
    )


def _beyond_use(row: Row) -> bool:
    """Several pins are of the same memory, so how much of it is pinned is not known."""
    total = row["total_bytes"]
    return pinned_twice_bytes(row.get("pins_bytes") or 0, total, total - (row["pinned_bytes"] or 0)) is not None


def pins(row: Row) -> int | None:
    """The kernel's count; before Linux 5.7 it has none, and there it is what the holders explain. ``None`` where it is
    more than the host has, as older versions recorded pins of the same memory."""
    pinned: int | None = row["pinned_bytes"] if row["pinned_bytes"] is not None else row["explained_bytes"]
    return None if pinned is not None and 0 < row["total_bytes"] < pinned else pinned


def _driver(seen: Watched) -> Iterator[Finding]:
    """What no count of pins has."""
    peak = extreme(summed(life.driver for life in seen.lives), max)
    if peak is None or peak[1] < DRIVER_BYTES:
        return
    at, most = peak
    holding = sorted(
        (life for life in seen.lives if life.driver), key=lambda life: -max(each for _, each in life.driver)
    )
    yield note(
        "driver-memory",
        *(
            quantity(f"Most driver memory of {who(life)}", max(each for _, each in life.driver), "bytes")
            for life in holding[:MOST_SUSPECTS]
        ),
        title=f"At their peak holders had {format_bytes(most)} of driver memory, which the count of pins lacks",
        detail=f"That was {when(at)}. {DRIVER_MEMORY_IS}",
        advice=DRIVER_MEMORY_ADVICE,
    )


def _group(seen: Watched) -> Iterator[Finding]:
    """Near its limit, with much of it pinned: that alone leaves the kernel nothing to reclaim."""
    near = [
        row
        for row in seen.host
        if row["cgroup_limit_bytes"]
        and row["cgroup_headroom_bytes"] is not None
        and is_near_limit(row["cgroup_headroom_bytes"], row["cgroup_limit_bytes"])
    ]
    times = sorted(row["elapsed_seconds"] for row in near)
    held = dict(sampled(summed(life.amounts for life in seen.lives), times, seen.last_seconds))
    row = min(near, key=lambda row: row["cgroup_headroom_bytes"] / row["cgroup_limit_bytes"], default=None)
    if row is None:
        return
    left, limit = row["cgroup_headroom_bytes"], row["cgroup_limit_bytes"]
    most = min(int(held.get(row["elapsed_seconds"], 0)), limit - left)
    severity = group_severity(most, left, limit)
    if severity is None:
        return
    yield finding(
        severity,
        "near-cgroup-limit",
        quantity("Least left", left, "bytes"),
        quantity("Limit", limit, "bytes"),
        quantity("Pinned or locked by holders then, at most", most, "bytes"),
        _pinned_then(row),
        title=f"The control group was {format_bytes(left)} below its limit",
        detail=f"That was {when(row['elapsed_seconds'])}. Pinned memory is charged to the control group and cannot "
        "be reclaimed. At the limit the kernel kills a process of the group.",
        advice="Pin less, or raise the limit (docker run --memory, resources.limits.memory, MemoryMax=).",
    )


def _pinned_then(row: Row) -> Quantity:
    reason = None if row["pinned_bytes"] is not None else reason_of(row, "pinned_bytes")
    return quantity("Pinned then, on the whole host", row["pinned_bytes"], "bytes", reason=reason)


def _unexplained(seen: Watched) -> Iterator[Finding]:
    series = points(seen.host, "other_pinned_bytes")
    peak = extreme(_lasting(series), max)
    if peak is None or peak[1] < UNEXPLAINED_BYTES:
        return
    at, most = peak
    row = next(row for row in seen.host if row["elapsed_seconds"] == at)
    yield note(
        "unexplained-pins",
        quantity("Pinned then", row["pinned_bytes"], "bytes"),
        quantity("Explained by holders", row["explained_bytes"], "bytes"),
        quantity("Not explained", most, "bytes"),
        title=f"Up to {format_bytes(most)} were pinned that no holder explains",
        detail=f"From {_from(at)} on {min(UNEXPLAINED_SAMPLES, len(series))} samples in a row or more show it: memory "
        "that was registered (cudaHostRegister) "
        + ("before the probe started, " if seen.probed else "")
        + "or pins of other drivers (RDMA, VFIO guests, io_uring). The kernel does not say which process owns it.",
        advice="Start the recording before the programs: the probe sees registrations from then on."
        if seen.probed
        else "As root, 'pinscope record --probe' shows which process registers memory from then on.",
    )


def _lasting(series: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """What was there in several samples in a row: while a call still pins, its memory is not yet a process's."""
    length = min(UNEXPLAINED_SAMPLES, len(series))
    windows = (series[begin : begin + length] for begin in range(len(series) - length + 1))
    return [(window[0][0], min(value for _, value in window)) for window in windows if window]


def _from(seconds: float) -> str:
    return format_duration(seconds) if seconds else "the beginning"


def _links(seen: Watched) -> Iterator[Finding]:
    """Lanes are judged always, a generation in those samples in which the GPU was busy: see the rule."""
    for index, rows in seen.devices.items():
        busy = [row for row in rows if _is_busy(row)]
        short = [(row, found) for row in rows if (found := _shortfall(row))]
        narrow = any(found.what == "lanes" for _, found in short)
        judged = rows if narrow else busy
        if not is_lasting(len(short), len(judged)):
            continue
        last = next(row for row, found in reversed(short) if found.what == "lanes" or not narrow)
        yield warning(
            "link-below-best",
            quantity("Samples that were judged", len(judged), "count"),
            quantity("Of them with the link below its best", len(short), "count"),
            title=f"GPU {index}: its PCIe link was below its best"
            + (f", {last['link_width']} of {last['link_width_max']} lanes" if narrow else " while the GPU was busy"),
            detail=f"It ran at {' and '.join(f'{now} instead of {best}' for now, best in _below(last))}. "
            + _at_best(last)
            + "An idle link lowers its generation to save power, not its lanes; a busy one should do neither.",
            advice=SLOT_ADVICE,
        )


def _is_busy(row: Row) -> bool:
    limit = row["link_limit_bytes_per_second"]
    return is_busy(row["busy_share"], *(row[name] / limit for name in GPU_RATES if limit and row[name] is not None))


def _shortfall(row: Row) -> Shortfall | None:
    generations, widths = ((row[f"link_{what}"], row[f"link_{what}_max"]) for what in ("generation", "width"))
    return link_shortfall(*generations, *widths, busy=_is_busy(row))


def _below(row: Row) -> list[tuple[str, str]]:
    """What of its link is known and below its best: now, and at best."""
    pairs = (("link_generation", "link_generation_max", "generation {}"), ("link_width", "link_width_max", "{} lanes"))
    return [
        (words.format(row[now]), words.format(row[best])) for now, best, words in pairs if is_below(row[now], row[best])
    ]


def _at_best(row: Row) -> str:
    limit = row["link_limit_bytes_per_second"]
    return "" if limit is None else f"At its best it carries {format_bandwidth(limit)} one way. "


def _gaps(seen: Watched) -> Iterator[Finding]:
    if not seen.gaps:
        return
    missing = sum(gap.samples for gap in seen.gaps)
    longest = max(seen.gaps, key=lambda gap: gap.seconds)
    reasons = {gap.reason: None for gap in seen.gaps if gap.reason}
    unexplained_gap = any(gap.reason is None for gap in seen.gaps)
    causes = [*(f"Reason: {reason}" for reason in list(reasons)[:3]), *([_NO_SAMPLES] if unexplained_gap else [])]
    share = seen.missing_share
    yield finding(
        "warning" if share > FEW_MISSING else "note",
        "samples-missing",
        quantity("Missing, of all samples", share, "share"),
        quantity("Times without samples", len(seen.gaps), "count"),
        quantity("The longest", longest.seconds, "seconds"),
        quantity("It began after", longest.start_seconds, "seconds"),
        title=f"{missing:,} {'samples are' if missing > 1 else 'sample is'} missing",
        detail="What happened meanwhile is not known; the charts leave these times blank. "
        + " ".join(f"{cause.rstrip('.')}." for cause in causes),
        advice="A longer --interval asks less of a busy machine."
        if unexplained_gap
        else "Mend what the reason names, and record again.",
    )


_NO_SAMPLES = "No samples were taken meanwhile: the machine slept, was too busy, or the recording was held up"


_RULES: tuple[Callable[[Watched], Iterator[Finding]], ...] = (
    leaking_holders,
    growing_locks,
    unexplained_growth,
    no_leak,
    _pinned_share,
    _driver,
    _group,
    _unexplained,
    _links,
    _gaps,
)
