"""What stands below the verdict of a trace: where the time went, lines with what to change, the most pinned memory, and
copies by size."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter

from pinscope.analysis.read_rows import Row, grouped
from pinscope.records.run import Table
from pinscope.tracing.mapped_file import RECEIVE
from pinscope.tracing.sites import MOST_SHOWN, WORTH, Headed, Seen, Site, gpu_name, headed_table, line_key, line_name
from pinscope.tracing.trace.calls import pinned_copies, pinning_again, small_copies, waiting
from pinscope.tracing.trace.costs import Cost
from pinscope.tracing.trace.cpu_work import is_hidden, working
from pinscope.tracing.trace.managed import accused, faulted_words, managed, spent_seconds
from pinscope.tracing.trace.needless import needless
from pinscope.tracing.trace.pageable import pageable
from pinscope.units import format_bytes, format_seconds

TIME, LINES = "Where the time went", "Lines, by what a change saves"
PEAK, SIZES = "Most pinned memory at once", "Copies by size"
BEFORE = "before the trace"
"""In the place of a line: memory that the program had pinned when it was attached to."""


RULES: tuple[Callable[[Seen], Iterator[Cost]], ...] = (
    working, pageable, managed, pinning_again, waiting, small_copies, needless, pinned_copies
)  # fmt: skip
"""Each gives the lines that cost something by it."""


@dataclass(frozen=True)
class Line:
    """A line of the program with all that it costs.

    Attributes:
        row: one of its rows.
        seconds: what it costs together.
        parts: title of a part → seconds; they run beside each other.
        costs: what to do about it, the first first; none where it costs little.
        what: what it does, in a few words.
    """

    row: Row
    seconds: float
    parts: Mapping[str, float]
    costs: Sequence[Cost]
    what: str

    @property
    def saved(self) -> float | None:
        """By all that can be done about it; ``None`` where nobody knows of any."""
        known = [cost.saved for cost in self.costs if cost.saved is not None]
        return sum(known) if known else None


def ranked(seen: Seen) -> Sequence[Cost]:
    """All that costs something, what to do first first."""
    costs = (cost for rule in RULES for cost in rule(seen) if cost.to_do)
    return sorted(costs, key=lambda cost: cost.rank(seen), reverse=True)


def lines_in(seen: Seen) -> Sequence[Line]:
    """Lines that cost something, what to change first first."""
    costs = grouped(ranked(seen), lambda cost: line_key(cost.row))
    parts = {title: _by_line(timed(seen)) for title, timed in PARTS.items()}
    seconds = _by_line(_counted(seen))
    counted = grouped(sorted(_counted(seen), key=itemgetter(1), reverse=True), lambda pair: line_key(pair[0]))
    lines = [
        Line(
            rows[0][0],
            seconds[key],
            {title: by_line[key] for title, by_line in parts.items() if key in by_line},
            costs.get(key, ()),
            " + ".join(_does(row) for row, _ in rows[:MOST_SAID]),
        )
        for key, rows in counted.items()
    ]
    return sorted(
        lines, key=lambda line: (line.costs[0].rank(seen) if line.costs else (-1, 0.0), line.seconds), reverse=True
    )


def _by_line(timed: Iterator[tuple[Row, float | None]]) -> dict[tuple[object, ...], float]:
    sums: dict[tuple[object, ...], float] = {}
    for row, seconds in timed:
        if seconds is not None:
            sums[line_key(row)] = sums.get(line_key(row), 0.0) + seconds
    return sums


def total_share(seen: Seen) -> float:
    """Of the time: copies, what the CPU does for them, pinning, and idle compute after waits together; of several
    processes that of the one with the largest."""
    sums: dict[int | None, float] = {}
    for row, seconds in _counted(seen):
        sums[row["process"]] = sums.get(row["process"], 0.0) + seconds
    return max((min(sums[own] / seen.seconds_of(own), 1.0) for own in sums), default=0.0) if seen.seconds else 0.0


def _counted(seen: Seen) -> Iterator[tuple[Row, float]]:
    """Seconds that lines cost: no moment of a line counts twice."""
    yield from ((site.row, site.stands_seconds) for site in seen.sites)
    yield from ((row, row["call_seconds"]) for row in seen.allocations)
    faulted = accused(seen)
    if not faulted:  # else the GPU stands idle behind waits for the CPU's page faults
        yield from ((row, row["idle_seconds"]) for row in seen.waits)
    yield from ((row, row["idle_seconds"]) for row in _at_work(seen))
    yield from ((row, spent_seconds(row)) for row in faulted)


PARTS: Mapping[str, Callable[[Seen], Iterator[tuple[Row, float | None]]]] = {
    "CPU work": lambda seen: ((row, row["host_seconds"]) for row in _at_work(seen)),
    "CUDA calls": lambda seen: ((row, row["call_seconds"]) for row in (*_copies(seen), *seen.allocations)),
    "transfers": lambda seen: ((row, row["copy_seconds"]) for row in _copies(seen)),
    "GPU idle": lambda seen: ((row, row["idle_seconds"]) for row in (*_copies(seen), *seen.waits, *_at_work(seen))),
}
"""Title → the seconds of each row. What a line costs is made of them, and they run beside each other."""


def _copies(seen: Seen) -> Iterator[Row]:
    return (site.row for site in seen.sites)


def _at_work(seen: Seen) -> Iterator[Row]:
    """Calls of libraries that do something to data of the host."""
    return (row for row in seen.host_calls if row["host_seconds"] > 0)


def _does(row: Row) -> str:
    """What a row says that its line does."""
    return DOES[row["kind"]](row)


def _copying(row: Row) -> str:
    together, ways = format_bytes(row["bytes"]), {"h2d": "to GPU", "d2h": "from GPU"}
    are_alike = row["count"] > 1 and row["count"] * row["largest_bytes"] == row["bytes"]
    each = f"{row['count']:,} × {format_bytes(row['largest_bytes'])} ({together})"
    pieces = each if are_alike else f"{row['count']:,} cop{'ies' if row['count'] > 1 else 'y'}, {together}"
    mapped = " (a mapped file)" if row["mapping"] == "file" else ""
    site = Site(row, None)
    memory = "a pageable temporary" if is_hidden(site) else site.host_memory
    return f"{pieces} {ways.get(row['direction'], row['direction'])}, {memory}{mapped}"


def _pinning(row: Row) -> str:
    return f"CUDA pins {format_bytes(row['bytes'])}" + (f" in {row['count']:,} calls" if row["count"] > 1 else "")


def _waiting(row: Row) -> str:
    return f"{row['count']:,} wait{'s' if row['count'] > 1 else ''}"


def _working(row: Row) -> str:
    if row["call"] == RECEIVE:
        return f"CPU work for {RECEIVE}"
    did = f" ({row['reason']})" if row["reason"] else ""
    return f"CPU work of {row['count']:,} × {row['call']}{did}"


DOES: Mapping[str, Callable[[Row], str]] = {
    "site": _copying, "allocation": _pinning, "synchronisation": _waiting, "host_call": _working,
    "migration": lambda row: f"page faults move {faulted_words(row)} of managed memory",
}  # fmt: skip
"""Kind of row → what its line does, in a few words."""
MOST_SAID = 2
"""Of a line; what takes longest."""


# Tables


def answer_tables(seen: Seen) -> tuple[Table, ...]:
    """All four; one without rows where nothing is known of it."""
    return _time(seen), _lines(seen), _peak(seen), _sizes(seen)


def _time(seen: Seen) -> Table:
    seconds = format_seconds(seen.program["seconds"])
    ran = f"ran for {seconds}" if seen.program["before_bytes"] is None else f"was attached to for {seconds}"
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
        yield "CPU held by copies", at_work + sum(site.row["call_seconds"] or 0.0 for site in seen.sites)


def _lines(seen: Seen) -> Table:
    drawn = lines_in(seen)[:MOST_SHOWN]
    parts = [title for title in PARTS if any(title in line.parts for line in drawn)]
    ranges = any(line.row["ranges"] for line in drawn)
    rows = [_line(seen, line, parts, ranges=ranges) for line in drawn]
    return headed_table(
        LINES,
        rows,
        "Costs: how long the GPU's compute stood idle for the line's copies, for the CPU's work on them and after its "
        "waits (of a program without kernels: how long the CPU was in its copies), and how long it pinned memory. The "
        "parts run beside each other. Of its time: from its first copy, wait or pinning on where it repeats them, else "
        "of the whole.",
        {"saves": ("–",) * len(drawn), "to do": ("–",) * len(drawn)},
        bar="of its time",
    )


def _line(seen: Seen, line: Line, parts: list[str], *, ranges: bool) -> Headed:
    whole = seen.seconds_from_first(line.row)
    return {
        "line": ("text", line_name(line.row)),
        "saves": ("seconds", line.saved),
        "costs": ("seconds", line.seconds),
        "of its time": ("share", min(line.seconds / whole, 1.0) if whole else None),
        "to do": ("text", line.costs[0].to_do if line.costs else None),
        "does": ("text", line.what),
        **({"in range": ("text", line.row["ranges"])} if ranges else {}),
        "source": ("text", line.row["source_line"] or None),
        **{title: ("seconds", line.parts.get(title)) for title in parts},
    }


def _peak(seen: Seen) -> Table:
    program = seen.program
    before = program["before_bytes"] or 0
    peak = (program["peak_bytes"] or 0) + before
    holding = grouped((row for row in seen.allocations if row["at_peak_bytes"]), line_key)
    held = [(rows[0], sum(row["at_peak_bytes"] for row in rows)) for rows in holding.values()]
    named = [(line_name(row), size, row["source_line"] or None) for row, size in held]
    named += [(BEFORE, before, None)] if before else []
    ordered = sorted(named, key=lambda each: -each[1])[:MOST_SHOWN] if peak else []
    at = program["peak_at_seconds"]
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
