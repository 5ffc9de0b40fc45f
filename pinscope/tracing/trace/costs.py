"""What a program's lines cost, each by a rule of its own: what it is, what it takes, and what to do about it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import itemgetter

from pinscope.analysis.read_rows import Row, grouped
from pinscope.tracing.sites import MOSTLY, Seen, Site, line_name, place_in
from pinscope.tracing.trace.cpu_work import FIRST, Remedy, first_advice, is_hidden, pins_again, working_lines
from pinscope.tracing.trace.managed import accused, faulted_words, managed_advice, managed_saving, spent_seconds
from pinscope.tracing.trace.needless import needless_copies
from pinscope.tracing.trace.source_memory import file_advice, waits_for_file
from pinscope.tracing.trace.switches import switch_of
from pinscope.units import format_about, format_bytes, format_seconds, format_share


@dataclass(frozen=True)
class Cost:
    """What a line costs by one rule.

    Attributes:
        row: the line.
        rule: of the finding that says more.
        seconds: what it costs.
        saved: what following the advice saves; ``None`` where nobody knows.
        to_do: what to change, in a few words.
        advice: the same as a sentence, with what it is for.
    """

    row: Row
    rule: str
    seconds: float
    saved: float | None
    to_do: str
    advice: str

    def rank(self, seen: Seen) -> tuple[int, float]:
        """What is known to save a part of the time stands before what may, and that before what saves little."""
        if self.saved is None:
            return 1, self.seconds
        return (2, self.saved) if self.saves_much(seen) else (0, self.seconds)

    def saves_much(self, seen: Seen) -> bool:
        """Whether it is known to save a part of the time."""
        return self.saved is not None and self.saved >= MOSTLY * seen.seconds_from_first(self.row) > 0


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
    costs = (cost for costs_of in COSTS for cost in costs_of(seen))
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


LineKey = tuple[object, ...]


def line_key(row: Row) -> LineKey:
    """What tells a line from all others: two files may have the same name."""
    return *place_in(row), row["process"]


def _by_line(timed: Iterator[tuple[Row, float | None]]) -> dict[LineKey, float]:
    sums: dict[LineKey, float] = {}
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
    yield from ((row, row["idle_seconds"]) for row in seen.waits)
    yield from ((row, row["idle_seconds"]) for row in _at_work(seen))
    yield from ((row, spent_seconds(row)) for row in accused(seen))


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
    are_alike = row["count"] > 1 and row["count"] * row["median_bytes"] == row["bytes"]
    each = f"{row['count']:,} × {format_bytes(row['median_bytes'])} ({together})"
    pieces = each if are_alike else f"{row['count']:,} cop{'ies' if row['count'] > 1 else 'y'}, {together}"
    return f"{pieces} {ways.get(row['direction'], row['direction'])}, {Site(row, None).host_memory}"


def _pinning(row: Row) -> str:
    return f"pins {format_bytes(row['bytes'])}" + (f" in {row['count']:,} calls" if row["count"] > 1 else "")


def _waiting(row: Row) -> str:
    return f"{row['count']:,} wait{'s' if row['count'] > 1 else ''}"


def _working(row: Row) -> str:
    did = f" ({row['reason']})" if row["reason"] else ""
    return f"{row['count']:,} × {row['call']} on the CPU{did}"


DOES: Mapping[str, Callable[[Row], str]] = {
    "site": _copying, "allocation": _pinning, "synchronisation": _waiting, "host_call": _working,
    "migration": lambda row: f"page faults move {faulted_words(row)} of managed memory",
}  # fmt: skip
"""Kind of row → what its line does, in a few words."""
MOST_SAID = 2
"""Of a line; what takes longest."""


def spared_by_not_waiting(row: Row) -> float:
    """Seconds that the program would take less at most if a line did not wait: so much earlier the CPU would come to
    the next kernel, as far as compute stands idle until then."""
    return float(min(row["call_seconds"], row["idle_seconds"]))


def comes_late(row: Row) -> bool:
    """Whether compute stands idle behind a line's waits mostly because the CPU issued the next kernel late, however
    short the waits were."""
    return spared_by_not_waiting(row) < float(row["idle_seconds"]) / 2


def _took(seen: Seen, row: Row, seconds: float) -> str:
    whole = seen.seconds_from_first(row)
    share = f" ({format_share(min(seconds / whole, 1.0))})" if whole else ""
    return f"{format_seconds(seconds)}{share}"


def _saves(seen: Seen, row: Row, saved: float) -> str:
    whole = seen.seconds_from_first(row)
    share = f" of {format_seconds(whole)} ({float(f'{min(100 * saved / whole, 100):.2g}'):g} %)" if whole else ""
    return f"saves {format_about(saved)}{share}"


def _stood(seen: Seen, site: Site) -> str:
    return f"{_blocked(site)} {_took(seen, site.row, site.stands_seconds)}"


def _blocked(site: Site) -> str:
    return "the GPU idled" if site.row["idle_seconds"] is not None else "the CPU was blocked for"


# The rules


def _pageable(seen: Seen) -> Iterator[Cost]:
    """What pinning the data of a line that copies large pieces would save."""
    for site, others in seen.accused:
        if is_hidden(site):  # the work of its line says why
            continue
        saved = site.saved_in_place
        to_do, pin = _pinned_memory(seen, site)
        to_do += f", in {others + 1:,} processes" if others else ""
        if waits_for_file(site) and site.unexplained_seconds > (saved or 0.0):
            to_do, advice = "read it into pinned memory", file_advice(seen, site)
        elif saved:
            advice = f"{pin}: {_saves(seen, site.row, saved)}."
        elif saved is None:
            advice = f"{pin}: {_stood(seen, site)}."
        else:
            to_do = "pinning saves nothing"
            advice = f"Pinning what {site.name} copies would save nothing: {_stood(seen, site)}."
        yield Cost(site.row, "pageable-copies", site.stands_seconds, saved, to_do, advice)


def _pinned_memory(seen: Seen, site: Site) -> tuple[str, str]:
    """What to do about pageable copies, in a few words and as a sentence begins: where the data must be pinned for them
    to save what is said."""
    if switch := switch_of(seen, site):
        return f"set {switch}", f"Set {switch} for {site.name}"
    if site.loader_saved is not None:
        return TO_DO["receive"], FIRST["receive"].format(site.name)
    if site.row["direction"] == "d2h":
        return "copy into pinned memory", f"Pin what {site.name} copies into"
    return TO_DO["make"], f"Pin what {site.name} copies, where it is made"


def _needless(seen: Seen) -> Iterator[Cost]:
    """Copies that need not be, as far as samples show; what is saved at most is not what is known to be saved."""
    for kind, (rule, to_do, begins) in NEEDLESS.items():
        for each in needless_copies(seen, kind):
            stood = f"{_blocked(each.site)} {_took(seen, each.site.row, each.seconds)}"
            yield Cost(each.site.row, rule, each.seconds, None, to_do, f"{begins.format(each.site.name)}: {stood}.")


NEEDLESS: Mapping[str, tuple[str, str, str]] = {
    "brought_back": ("data-brought-back", "keep the host's copy", "Copy nothing back that {} brings unchanged"),
    "sent_again": ("data-sent-again", "keep it on the GPU", "Keep on the GPU what {} sends again"),
}
"""Kind of row → rule, what to change in a few words, and as a sentence begins."""


def _pinned(seen: Seen) -> Iterator[Cost]:
    """Copies from or to pinned memory for which compute stands, as far as the GPU computes: no more of them can hide.
    Not where most of them need not be."""
    spare = {each.row["number"] for kind in NEEDLESS for each in needless_copies(seen, kind) if each.is_most}
    early = {(row["copy_file"], row["copy_line"]) for row in seen.early_reads}
    computing = max((row["busy_seconds"] for row in seen.devices), default=0.0)
    for site in seen.pinned:
        if site.row["number"] not in spare and seen.is_long(site.row, min(site.stands_seconds, computing)):
            advice = f"Overlap the pinned copies of {site.name}: {_stood(seen, site)}."
            is_early = (site.row["file"], site.row["line"]) in early
            to_do = "wait for it before its data is read" if is_early else "copy while the GPU computes"
            yield Cost(site.row, "pinned-copies", site.stands_seconds, None, to_do, advice)


def _waits(seen: Seen) -> Iterator[Cost]:
    """Idle compute behind a line's waits."""
    if seen.read_later or (seen.program and seen.program["managed_bytes"]):
        return  # data may be read or written only after a wait: none of them is known to be of no use
    for row in seen.idling:
        idle = row["idle_seconds"]
        to_do = "launch the next kernel sooner" if comes_late(row) else "wait less often"
        begins = "Launch the next kernel sooner after the waits of" if comes_late(row) else "Wait less often at"
        advice = f"{begins} {line_name(row)}: the GPU idled {_took(seen, row, idle)}."
        yield Cost(row, "waits-for-the-gpu", idle, None, to_do, advice)


def _churn(seen: Seen) -> Iterator[Cost]:
    """Pinning memory again and again."""
    for row in pins_again(seen):
        held = row["call_seconds"]
        saved = held * (1 - 1 / row["count"])
        advice = f"Pin once at {line_name(row)}, not {row['count']:,} times: it took {_took(seen, row, held)}."
        yield Cost(row, "pinned-memory-in-a-loop", held, saved, "pin once, use it again", advice)


def _small(seen: Seen) -> Iterator[Cost]:
    """Many small copies."""
    for site in seen.small:
        held, gathered = site.row["call_seconds"], site.gathered_seconds
        saved = None if gathered is None else max(held - gathered, 0.0)
        count = f"{site.row['count']:,}"
        if saved == 0:
            to_do, what = (
                "move them another way",
                f"Move the {count} small copies of {site.name} another way, not gathered",
            )
        else:
            to_do, what = "gather them in one copy", f"Gather the {count} small copies of {site.name}"
        advice = f"{what}: they blocked the CPU for {_took(seen, site.row, held)}."
        yield Cost(site.row, "many-small-copies", held, saved, to_do, advice)


def _work(seen: Seen) -> Iterator[Cost]:
    """What the CPU does for copies beside the driver's calls; not where pinned memory helps its copies, too."""
    accused = {line_key(site.row) for site, _ in seen.accused if not is_hidden(site)}
    for line in working_lines(seen):
        if line.remedy == "make" and line_key(line.row) in accused:
            continue
        rule = "hidden-temporary" if line.hidden and line.remedy in ("convert", "gather") else "cpu-work"
        cost = Cost(line.row, rule, line.seconds, line.saved, TO_DO[line.remedy or "make"], "")
        held = f"it kept the CPU {_took(seen, line.row, line.seconds)}"
        gain = _saves(seen, line.row, line.saved) if cost.saves_much(seen) else held
        yield replace(cost, advice=f"{first_advice(line)}: {gain}.")


def _managed(seen: Seen) -> Iterator[Cost]:
    """Page faults that move managed memory."""
    for row in accused(seen):
        spent, saved = spent_seconds(row), managed_saving(seen, row)
        yield Cost(row, "managed-memory", spent, saved, "prefetch it, or copy it", managed_advice(seen, row))


TO_DO: Mapping[Remedy, str] = {
    "convert": "convert on the GPU",
    "gather": "copy it contiguous, rearrange on the GPU",
    "pin": "pin once, use it again",
    "fetch": "copy into pinned memory that is kept",
    "receive": "DataLoader(pin_memory=True)",
    "make": "make the data in pinned memory",
}
"""What to change of the CPU's work, in a few words."""
COSTS: tuple[Callable[[Seen], Iterator[Cost]], ...] = (
    _work, _pageable, _needless, _pinned, _waits, _churn, _small, _managed
)  # fmt: skip
"""The rules; each gives the lines that cost something by it."""
