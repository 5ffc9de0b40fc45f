"""What stands below the verdict of a trace: where the time went, lines with what to change, the most pinned memory, and
copies by size."""

from __future__ import annotations

from collections.abc import Iterator

from pinscope.analysis.read_rows import grouped
from pinscope.records.run import Table
from pinscope.tracing.sites import MOST_SHOWN, WORTH, Headed, Seen, gpu_name, headed_table, line_name
from pinscope.tracing.trace.costs import PARTS, Line, line_key, lines_in
from pinscope.units import format_bytes, format_seconds

TIME, LINES = "Where the time went", "Lines, by what a change saves"
PEAK, SIZES = "Most pinned memory at once", "Copies by size"
BEFORE = "before the trace"
"""In the place of a line: memory that the program had pinned when it was attached to."""


def answer_tables(seen: Seen) -> tuple[Table, ...]:
    """All four; one without rows where nothing is known of it."""
    return _time(seen), _lines(seen), _peak(seen), _sizes(seen)


def _time(seen: Seen) -> Table:
    seconds = format_seconds(seen.program["seconds"] if seen.program else None)
    is_before = seen.program is not None and seen.program["before_bytes"] is not None
    ran = f"was attached to for {seconds}" if is_before else f"ran for {seconds}"
    return headed_table(
        TIME,
        [
            {
                "part": ("text", name),
                "took": ("seconds", seconds),
                "of the time": ("share", min(seconds / seen.seconds, 1.0)),
            }
            for name, seconds in (_parts(seen) if seen.seconds and (seen.sites or seen.devices) else ())
        ],
        f"From the first copy or kernel to the end of the last; the program {ran}.",
        bar="of the time",
    )


def _parts(seen: Seen) -> Iterator[tuple[str, float]]:
    """Of one GPU that one process used, all that became of the time; of several how long each computed."""
    computing = [row for row in seen.devices if row["kernels"]]
    copies = sum(site.row["idle_seconds"] or 0.0 for site in seen.sites)
    waits = sum(row["idle_seconds"] or 0.0 for row in seen.waits)
    work = sum(row["idle_seconds"] for row in seen.host_calls)
    is_alone = len(seen.devices) == 1 and not seen.processes
    yield "Duration", seen.seconds
    for row in computing:
        yield "GPU busy" if is_alone else f"{gpu_name(row)} busy", row["busy_seconds"]
    if is_alone and computing and not seen.counts_copies_after_waits:
        yield "GPU idle: copies", copies
        if work:
            yield "GPU idle: CPU work for copies", work
        yield "GPU idle: after waits", waits
        other = seen.seconds - computing[0]["busy_seconds"] - copies - work - waits
        if other > WORTH * seen.seconds:
            yield "GPU idle: other", other
    if seen.sites and not seen.processes:
        at_work = sum(row["host_seconds"] for row in seen.host_calls)
        yield "CPU on copies, in all", at_work + sum(site.row["call_seconds"] or 0.0 for site in seen.sites)


def _lines(seen: Seen) -> Table:
    drawn = lines_in(seen)[:MOST_SHOWN]
    parts = [title for title in PARTS if any(title in line.parts for line in drawn)]
    unsaved = {line_key(site.row): site.unsaved_word for site in seen.sites}
    ranges = any(line.row["ranges"] for line in drawn)
    rows = [_line(seen, line, parts, ranges=ranges) for line in drawn]
    reasons = tuple("–" if line.costs else unsaved.get(line_key(line.row)) or "–" for line in drawn)
    return headed_table(
        LINES,
        rows,
        "Costs: how long the GPU's compute stood idle for the line's copies, for the CPU's work on them and after its "
        "waits (of a program without kernels: how long the CPU was in its copies), and how long it pinned memory. The "
        "parts run beside each other. Of the time: of what a line does again and again, from its first on.",
        {"saves": reasons, "to do": ("–",) * len(drawn)},
        bar="of the time",
    )


def _line(seen: Seen, line: Line, parts: list[str], *, ranges: bool) -> Headed:
    whole = seen.seconds_from_first(line.row)
    return {
        "line": ("text", line_name(line.row)),
        "saves": ("seconds", line.saved),
        "costs": ("seconds", line.seconds),
        "of the time": ("share", min(line.seconds / whole, 1.0) if whole else None),
        "to do": ("text", line.costs[0].to_do if line.costs else None),
        "does": ("text", line.what),
        **({"in range": ("text", line.row["ranges"])} if ranges else {}),
        "source": ("text", line.row["source_line"] or None),
        **{title: ("seconds", line.parts.get(title)) for title in parts},
    }


def _peak(seen: Seen) -> Table:
    program = seen.program
    before = (program["before_bytes"] or 0) if program else 0
    peak = ((program["peak_bytes"] or 0) if program else 0) + before
    holding = grouped((row for row in seen.allocations if row["at_peak_bytes"]), line_key)
    held = [(rows[0], sum(row["at_peak_bytes"] for row in rows)) for rows in holding.values()]
    named = [(line_name(row), size, row["source_line"] or None) for row, size in held]
    named += [(BEFORE, before, None)] if before else []
    ordered = sorted(named, key=lambda each: -each[1])[:MOST_SHOWN] if peak else []
    at = program["peak_at_seconds"] if program else None
    when = "" if at is None else f" {format_seconds(at)} after the {'trace' if before else 'program'}'s start"
    return headed_table(
        PEAK,
        [
            {
                "line": ("text", line),
                "bytes": ("bytes", size),
                "of all": ("share", min(size / peak, 1.0)),
                "source": ("text", source),
            }
            for line, size, source in ordered
        ],
        f"{format_bytes(peak)}{when}, and which lines had pinned it.",
        bar="of all",
    )


def _sizes(seen: Seen) -> Table:
    together = sum(row["count"] for row in seen.sizes)
    by_size = grouped(seen.sizes, lambda row: row["most_bytes"])
    return headed_table(
        SIZES,
        [
            {
                "up to": ("bytes", most),
                "copies": ("count", sum(row["count"] for row in rows)),
                "of the copies": ("share", sum(row["count"] for row in rows) / together),
                "to GPU": ("bytes", sum(row["bytes"] for row in rows if row["direction"] == "h2d")),
                "from GPU": ("bytes", sum(row["bytes"] for row in rows if row["direction"] == "d2h")),
            }
            for most, rows in by_size.items()
        ],
        "Copies between host and GPU, each up to this size and above a quarter of it.",
        bar="of the copies",
    )
