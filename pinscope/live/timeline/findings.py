"""What a kept live view shows to be wrong: its texts, and the rules, which give the numbers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from pinscope.analysis import rules
from pinscope.analysis.models import SLOT_ADVICE
from pinscope.analysis.read_rows import Row
from pinscope.analysis.texts import Text, Texts, say
from pinscope.live.findings import DRIVER_MEMORY_ADVICE, DRIVER_MEMORY_IS, GROUP_ADVICE, PINNED_SHARE_ADVICE
from pinscope.live.timeline import reading
from pinscope.records.run import Finding, Quantity, quantity
from pinscope.units import format_bytes, format_duration, format_share

MOST_SUSPECTS = 5
UNEXPLAINED_SAMPLES = 3
"""Pinned memory that no holder explains must have been there in so many samples in a row."""
_PROBE = "As root, 'pinscope record --probe' shows which process registers memory from then on."
TEXTS: Texts = {
    "leak-suspected": Text(
        f"{rules.LEAK_RULE}",
        "{who} took {taken:bytes} in {rises:,} steps and gave {back} back[ until it {ended}]",
        f"It looks like a leak: buffers that are made again and again and never freed. {rules.LEAK_RULE}. A program "
        "that fills its buffers until {full} looks the same.",
        "Look for buffers that are allocated or registered in a loop, and keep them instead. {watch}",
        "warning",
    ),
    "unexplained-pins-grow": Text(
        "the same of what no holder explains",
        "Pinned memory that no holder explains grew steadily, by {taken:bytes}",
        "Memory that is registered (cudaHostRegister) leaves no mark on its process, nor do other drivers' pins. It "
        f"looks like a leak. {rules.LEAK_RULE}.",
        _PROBE,
        "warning",
    ),
    "no-leak-seen": Text(
        "a holder took much and kept it, but not steadily",
        "{who} pinned {kept:bytes} more and kept it, but not in steady steps (watched for {during})",
        f"[The rule finds no leak: {{why}}. ]{rules.LEAK_RULE}.",
        "Watch on with 'pinscope record --pid {pid}' to see whether it goes on growing.",
    ),
    "pinned-share-of-ram": Text(
        f"{format_share(rules.RAM_NOTE)} of the host's memory or more was pinned",
        "At its peak up to {share:share} of this host's memory was pinned",
        "That was {when}; memory that is pinned twice counts twice, up to what is in use. Pinned memory can be neither "
        "swapped nor moved nor reclaimed.",
        PINNED_SHARE_ADVICE,
    ),
    "driver-memory": Text(
        f"holders had {format_bytes(rules.DRIVER_BYTES)} of driver memory or more",
        "At their peak holders had {most:bytes} of driver memory, which the count of pins lacks",
        f"That was {{when}}. {DRIVER_MEMORY_IS}",
        DRIVER_MEMORY_ADVICE,
    ),
    "near-cgroup-limit": Text(
        "the control group was near its limit, with much of it pinned",
        "The control group was {left:bytes} below its limit",
        "That was {when}. Pinned memory is charged to the control group and cannot be reclaimed. At the limit the "
        "kernel kills a process of the group.",
        GROUP_ADVICE,
    ),
    "unexplained-pins": Text(
        f"{format_bytes(rules.UNEXPLAINED_BYTES)} or more were pinned that no holder explains, in "
        f"{UNEXPLAINED_SAMPLES} samples in a row",
        "Up to {most:bytes} were pinned that no holder explains",
        "From {since} on {samples} samples in a row or more show it: memory that was registered (cudaHostRegister)"
        "[ before {probe} started,] or pins of other drivers (RDMA, VFIO guests, io_uring). The kernel does not say "
        "which process owns it.",
        "{advice}",
    ),
    "link-below-best": Text(
        "lanes are missing, or a generation while the GPU was busy",
        "GPU {gpu}: its PCIe link was below its best{how}",
        "It ran at {below:and}. [At its best it carries {limit:rate} one way. ]An idle link lowers its generation to "
        "save power, not its lanes; a busy one should do neither.",
        SLOT_ADVICE,
        "warning",
    ),
    "samples-missing": Text(
        "samples could not be taken",
        "{missing}",
        "What happened meanwhile is not known; the charts leave these times blank. {causes}",
        "{advice}",
    ),
}


def findings(seen: reading.Watched) -> tuple[Finding, ...]:
    """All that the rules find; of a timeline without samples only that they are missing."""
    return tuple(finding for rule in (_RULES if seen.host else (_gaps,)) for finding in rule(seen))


def verdict(seen: reading.Watched, concluded: Sequence[Finding]) -> str | None:
    """Who held how much, and whether it grew."""
    unlike_a_leak = any(finding.rule == "no-leak-seen" for finding in concluded)
    return reading.timeline_verdict(seen, max(seen.lives, key=_kept) if unlike_a_leak else None) if seen.host else None


def _said(key: str, *evidence: Quantity, **values: object) -> Finding:
    return say(TEXTS, key, *evidence, **values)[1]  # type: ignore[arg-type]  # severity is one


def _leaking_holders(seen: reading.Watched) -> Iterator[Finding]:
    """Processes that took more and more, and gave next to nothing back."""
    for life, growth in reading.leaks(seen)[:MOST_SUSPECTS]:
        held, ended = life.until_gone(life.amounts)[-1][1], life.gone
        yield _said(
            "leak-suspected",
            *_growth(seen, growth, ended),
            quantity("It held before it ended" if ended else "It held at the end", held, "bytes"),
            quantity("User", life.user, "text", reason="not known"),
            who=reading.who(life),
            taken=growth.bytes + growth.returned_bytes,
            rises=growth.rises,
            back=f"only {format_bytes(growth.returned_bytes)}" if growth.returned_bytes else "nothing",
            ended="ended" if ended else None,
            full="its end" if ended else "it has them all",
            watch="Its end gave all of it back; the kernel's log says whether it was killed for lack of memory."
            if ended
            else f"Watch on with 'pinscope record --pid {life.pid}'; with --probe it also shows what is registered.",
        )


def _growth(seen: reading.Watched, growth: rules.Growth, gone: bool = False) -> Iterator[Quantity]:
    available = seen.host[-1]["available_bytes"]
    yield quantity("Before these steps", growth.first_bytes, "bytes")
    yield quantity("Taken in them, less what was given back", growth.bytes, "bytes")
    yield quantity("On average in a minute", 60 * growth.bytes_per_second, "bytes")
    yield quantity("Available on the host at the end", available, "bytes")
    if not gone:
        pace = available / growth.bytes_per_second
        yield quantity("At that pace all of it is taken in", pace, "seconds")


def _unexplained_growth(seen: reading.Watched) -> Iterator[Finding]:
    """Registered memory leaves no mark on its process: a leak of it shows in the host's total only."""
    series = [(at, int(value)) for at, value in reading.points(seen.host, "other_pinned_bytes")]
    growth = rules.steady_growth(series, seen.last_seconds)
    if growth is not None:
        yield _said("unexplained-pins-grow", *_growth(seen, growth), taken=growth.bytes)


def no_leak(seen: reading.Watched) -> Iterator[Finding]:
    """Much was taken and kept, and it did not look like a leak: found only where a leak would have been seen."""
    explained = reading.points(seen.host, "explained_bytes")
    if (
        len(explained) <= rules.LEAK_RISES
        or seen.last_seconds - explained[0][0] < rules.LEAK_SECONDS
        or seen.missing_share > rules.FEW_MISSING
    ):
        return
    if any(life.hidden for life in seen.lives):
        return
    if any(any(rule(seen)) for rule in (_leaking_holders, _unexplained_growth)):
        return
    kept = max(seen.lives, key=_kept, default=None)
    if kept is not None and _kept(kept) >= rules.LEAK_BYTES:
        yield _said(
            "no-leak-seen",
            quantity(f"{reading.who(kept)} holds more by", _kept(kept), "bytes"),
            quantity("Holders", len(seen.lives), "count"),
            quantity("Samples", len(seen.host), "count"),
            who=reading.who(kept),
            kept=_kept(kept),
            during=format_duration(seen.last_seconds - explained[0][0]),
            why=rules.unsteady_because(kept.pinned, kept.last_seconds) or None,
            pid=kept.pid,
        )


def _kept(life: reading.Life) -> int:
    """What it had pinned at the end beyond what it had at first."""
    if life.gone or not life.pinned:
        return 0
    return life.pinned[-1][1] - (0 if life.came else life.pinned[0][1])


def _pinned_share(seen: reading.Watched) -> Iterator[Finding]:
    rows = [row for row in seen.host if reading.pins(row) is not None and row["total_bytes"] and not _beyond_use(row)]
    shares = [(row["elapsed_seconds"], (reading.pins(row) or 0) / row["total_bytes"]) for row in rows]
    peak = reading.extreme(shares, max)
    if peak is None:
        return
    at, share = peak
    row = next(row for row in rows if row["elapsed_seconds"] == at)
    severity = rules.pinned_severity(reading.pins(row) or 0, row["available_bytes"], row["total_bytes"])
    if severity is None:
        return
    yield _said(
        "pinned-share-of-ram",
        quantity("Pinned", reading.pins(row), "bytes"),
        quantity("Memory", row["total_bytes"], "bytes"),
        quantity("Available then", row["available_bytes"], "bytes"),
        quantity(
            f"Samples with {format_share(rules.RAM_NOTE)} or more",
            sum(value >= rules.RAM_NOTE for _, value in shares) / len(shares),
            "share",
        ),
        severity=severity,
        share=share,
        when=reading.when(at),
    )


def _beyond_use(row: Row) -> bool:
    """Several pins are of the same memory, so how much of it is pinned is not known."""
    total = row["total_bytes"]
    return rules.pinned_twice_bytes(row.get("pins_bytes") or 0, total, total - (row["pinned_bytes"] or 0)) is not None


def _driver(seen: reading.Watched) -> Iterator[Finding]:
    """What no count of pins has."""
    peak = reading.extreme(reading.summed(life.driver for life in seen.lives), max)
    if peak is None or peak[1] < rules.DRIVER_BYTES:
        return
    most = {id(life): max(amount for _, amount in life.driver) for life in seen.lives if life.driver}
    holding = sorted((life for life in seen.lives if life.driver), key=lambda life: -most[id(life)])
    evidence = [
        quantity(f"Most driver memory of {reading.who(life)}", most[id(life)], "bytes")
        for life in holding[:MOST_SUSPECTS]
    ]
    yield _said("driver-memory", *evidence, most=peak[1], when=reading.when(peak[0]))


def _group(seen: reading.Watched) -> Iterator[Finding]:
    """Near its limit, with much of it pinned: that alone leaves the kernel nothing to reclaim."""
    near = [
        row
        for row in seen.host
        if row["cgroup_limit_bytes"]
        and row["cgroup_headroom_bytes"] is not None
        and rules.is_near_limit(row["cgroup_headroom_bytes"], row["cgroup_limit_bytes"])
    ]
    times = sorted(row["elapsed_seconds"] for row in near)
    held = dict(reading.sampled(reading.summed(life.amounts for life in seen.lives), times, seen.last_seconds))
    row = min(near, key=lambda row: row["cgroup_headroom_bytes"] / row["cgroup_limit_bytes"], default=None)
    if row is None:
        return
    left, limit = row["cgroup_headroom_bytes"], row["cgroup_limit_bytes"]
    most = min(int(held.get(row["elapsed_seconds"], 0)), limit - left)
    severity = rules.group_severity(most, left, limit)
    if severity is None:
        return
    pinned = row["pinned_bytes"]
    reason = None if pinned is not None else reading.reason_of(row, "pinned_bytes")
    yield _said(
        "near-cgroup-limit",
        quantity("Least left", left, "bytes"),
        quantity("Limit", limit, "bytes"),
        quantity("Pinned or locked by holders then, at most", most, "bytes"),
        quantity("Pinned then, on the whole host", pinned, "bytes", reason=reason),
        severity=severity,
        left=left,
        when=reading.when(row["elapsed_seconds"]),
    )


def _unexplained(seen: reading.Watched) -> Iterator[Finding]:
    series = reading.points(seen.host, "other_pinned_bytes")
    peak = reading.extreme(_lasting(series), max)
    if peak is None or peak[1] < rules.UNEXPLAINED_BYTES:
        return
    at, most = peak
    row = next(row for row in seen.host if row["elapsed_seconds"] == at)
    yield _said(
        "unexplained-pins",
        quantity("Pinned then", row["pinned_bytes"], "bytes"),
        quantity("Pinned, process known", row["explained_bytes"], "bytes"),
        quantity("Not explained", most, "bytes"),
        most=most,
        since=format_duration(at) if at else "the beginning",
        samples=min(UNEXPLAINED_SAMPLES, len(series)),
        probe="the probe" if seen.probed else None,
        advice="Start the recording before the programs: the probe sees registrations from then on."
        if seen.probed
        else _PROBE,
    )


def _lasting(series: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """What was there in several samples in a row: while a call still pins, its memory is not yet a process's."""
    length = min(UNEXPLAINED_SAMPLES, len(series))
    windows = (series[begin : begin + length] for begin in range(len(series) - length + 1))
    return [(window[0][0], min(value for _, value in window)) for window in windows if window]


def _links(seen: reading.Watched) -> Iterator[Finding]:
    """Lanes are judged always, a generation in those samples in which the GPU was busy: see the rule."""
    for gpu, rows in seen.devices.items():
        short = [(row, shortfall) for row in rows if (shortfall := _shortfall(row))]
        narrow = any(shortfall.what == "lanes" for _, shortfall in short)
        judged = rows if narrow else [row for row in rows if _is_busy(row)]
        if not rules.is_lasting(len(short), len(judged)):
            continue
        last = next(row for row, shortfall in reversed(short) if shortfall.what == "lanes" or not narrow)
        lanes = f", {last['link_width']} of {last['link_width_max']} lanes"
        yield _said(
            "link-below-best",
            quantity("Samples that were judged", len(judged), "count"),
            quantity("Of them with the link below its best", len(short), "count"),
            gpu=gpu,
            how=lanes if narrow else " while the GPU was busy",
            below=[f"{now} instead of {best}" for now, best in _below(last)],
            limit=last["link_limit_bytes_per_second"],
        )


def _is_busy(row: Row) -> bool:
    limit = row["link_limit_bytes_per_second"]
    return rules.is_busy(
        row["busy_share"], *(row[name] / limit for name in reading.GPU_RATES if limit and row[name] is not None)
    )


def _shortfall(row: Row) -> rules.Shortfall | None:
    generations, widths = ((row[f"link_{what}"], row[f"link_{what}_max"]) for what in ("generation", "width"))
    return rules.link_shortfall(*generations, *widths, busy=_is_busy(row))


def _below(row: Row) -> list[tuple[str, str]]:
    """What of its link is known and below its best: now, and at best."""
    pairs = (("link_generation", "link_generation_max", "generation {}"), ("link_width", "link_width_max", "{} lanes"))
    return [
        (words.format(row[now]), words.format(row[best]))
        for now, best, words in pairs
        if rules.is_below(row[now], row[best])
    ]


def _gaps(seen: reading.Watched) -> Iterator[Finding]:
    if not seen.gaps:
        return
    missing = sum(gap.samples for gap in seen.gaps)
    longest = max(seen.gaps, key=lambda gap: gap.seconds)
    reasons = [f"Reason: {reason}" for reason in dict.fromkeys(gap.reason for gap in seen.gaps) if reason][:3]
    slept = [_NO_SAMPLES] if any(gap.reason is None for gap in seen.gaps) else []
    yield _said(
        "samples-missing",
        quantity("Missing, of all samples", seen.missing_share, "share"),
        quantity("Times without samples", len(seen.gaps), "count"),
        quantity("The longest", longest.seconds, "seconds"),
        quantity("It began after", longest.start_seconds, "seconds"),
        severity="warning" if seen.missing_share > rules.FEW_MISSING else "note",
        missing=f"{missing:,} {'samples are' if missing > 1 else 'sample is'} missing",
        causes=" ".join(f"{cause.rstrip('.')}." for cause in (*reasons, *slept)),
        advice="A longer --interval asks less of a busy machine."
        if slept
        else "Fix what the reason names, and record again.",
    )


_NO_SAMPLES = "No samples were taken meanwhile: the machine slept, was too busy, or the recording was held up"
_RULES: tuple[Callable[[reading.Watched], Iterator[Finding]], ...] = (
    _leaking_holders,
    _unexplained_growth,
    no_leak,
    _pinned_share,
    _driver,
    _group,
    _unexplained,
    _links,
    _gaps,
)
