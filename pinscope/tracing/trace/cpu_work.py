"""What the CPU does for copies, by line: how long it takes beside the driver, and what the program would save."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Literal

from pinscope.analysis.read_rows import Row, grouped
from pinscope.analysis.texts import Text, Texts, say
from pinscope.records.run import Table, costing, quantity
from pinscope.tracing.mapped_file import NEXT, RECEIVE
from pinscope.tracing.sites import WORTH, Seen, Site, line_key, line_name, table_of_lines
from pinscope.tracing.trace.costs import Cost, saves, share_of_time, told, took
from pinscope.units import format_about, format_seconds

Remedy = Literal["convert", "gather", "pin", "fetch", "receive", "make"]
"""What makes the work go: ``convert`` or ``gather`` on the GPU, ``pin`` once, ``fetch`` into memory that is kept,
``receive`` by a DataLoader that pins, or ``make`` the data in pinned memory."""
_FETCHES = ("Tensor.cpu", "Tensor.numpy", "ndarray.get", "jax.device_get", "copy_to_host")
REMEDIES: Mapping[Remedy, tuple[str, str]] = {
    "convert": ("convert on the GPU", "Convert on the GPU, not at {}"),
    "gather": ("copy it as it lies, rearrange on the GPU", "Rearrange on the GPU, not at {}"),
    "pin": ("pin each once, where it is made", "Pin once what {} pins {:,} times"),
    "fetch": ("copy into pinned memory that is kept", "Fetch into kept memory at {}"),
    "receive": ("DataLoader(pin_memory=True)", "Let the DataLoader of {} pin"),
    "make": ("make the data in pinned memory", "Fill pinned memory at {}"),
}
"""What to change in a few words, and how advice on the line of that name begins."""
NOT_COUNTED = "another system or an earlier version counted none"
_TITLE = (
    "{line} keeps the CPU {held:seconds} in {count:,} calls of {call}[: without it about {saved:seconds} less, {share}]"
)
_DETAIL = "{where}[ {parts}][ It has {faults:,} page faults.]"
_CONVERT = (
    "Copy in its own type with non_blocking=True and convert on the GPU: .to('cuda', non_blocking=True).to(dtype)."
)
_GATHER = "Copy the whole as it lies in memory, and slice or transpose it on the GPU."
_HIDDEN = (
    "{line} copies pinned memory through pageable memory[: straight it would take about {saved:seconds} less, {share}]"
)
_HIDDEN_DETAIL = "{where} The source is pinned, but the library makes a temporary on the CPU: {reason}."
CPU_TEXTS: Texts = {
    "cpu-work": Text(
        "calls of a line that move or pin data are on the CPU, beside the driver's calls, for a hundredth of the time",
        _TITLE,
        _DETAIL,
        "Make the data in pinned memory that is kept (torch.empty with pin_memory=True, cupyx.empty_pinned), and copy "
        "from there (copy_, ndarray.set): this call copies it on the CPU first.",
    ),
    "cpu-work/convert": Text("the same, where the data gets another type", _TITLE, _DETAIL, _CONVERT),
    "cpu-work/gather": Text("the same, where the data is not contiguous", _TITLE, _DETAIL, _GATHER),
    "cpu-work/pin": Text(
        "the same of pin_memory()",
        _TITLE,
        _DETAIL,
        "Pin once, before the loop, and use it again: pin_memory() copies all of the data each time. Where it is new "
        "each time, have it made in a pinned buffer that is kept.",
    ),
    "cpu-work/fetch": Text(
        "the same of copies to the host",
        _TITLE,
        _DETAIL,
        "Copy into pinned memory that is allocated once and used again, and wait before you read it. JAX has no such "
        "call: there begin the copy earlier, by copy_to_host_async().",
    ),
    "cpu-work/receive": Text(
        "the same of what a DataLoader's workers send",
        _TITLE,
        _DETAIL,
        "DataLoader(pin_memory=True) receives in a thread of its own. Fewer tensors in a batch cost less: each is "
        "opened and mapped by itself.",
    ),
    "hidden-temporary/convert": Text(
        "large copies are pageable although their source is pinned, as the data gets another type",
        _HIDDEN,
        _HIDDEN_DETAIL,
        _CONVERT,
    ),
    "hidden-temporary/gather": Text(
        "the same, where it is not contiguous", _HIDDEN, _HIDDEN_DETAIL, f"{_GATHER} Its copy is asynchronous then."
    ),
}


@dataclass(frozen=True)
class WorkingLine:
    """A line whose calls keep the CPU for copies.

    Attributes:
        rows: of its calls, the longest on the CPU first.
        hidden: of its pageable copies those whose source is pinned all the same.
        pinning: what it pinned.
        beside: copies from pinned memory of its process, of which those of what it pins run while it pins the next.
    """

    rows: tuple[Row, ...]
    hidden: tuple[Site, ...]
    pinning: tuple[Row, ...]
    beside: tuple[Site, ...] = ()

    @property
    def row(self) -> Row:
        """Of the call that is on the CPU longest."""
        return self.rows[0]

    @property
    def name(self) -> str:
        """``train.py:33``."""
        return line_name(self.row)

    @property
    def seconds(self) -> float:
        """On the CPU beside the driver's calls that copy or wait."""
        return float(sum(row["host_seconds"] for row in self.rows) + sum(row["call_seconds"] for row in self.pinning))

    @property
    def saved(self) -> float:
        """What the program would take less without: as long as no GPU did anything meanwhile, and what pinning again
        and pageable copies take that need not be. To pin once still takes one of so many calls, and what the others
        pinned is pinned before the loop; copies no longer share the host's memory with it: on an H100 they took 0.52 s
        beside it, 0.39 s alone."""
        is_once = self.remedy == "pin"
        kept = (self.row["count"] - 1) / self.row["count"] if is_once else 1.0
        idle = sum(row["idle_seconds"] for row in self.rows) * kept
        again = sum(row["call_seconds"] * (kept if is_once else 1 - 1 / row["count"]) for row in self.pinning)
        return max(float(idle + again) + self.slower + sum(_saved(site, self.row) for site in self.hidden), 0.0)

    @property
    def slower(self) -> float:
        """How much longer copies from pinned memory take beside the work that goes."""
        return sum(map(_slower, self.beside)) if self.remedy == "pin" else 0.0

    @property
    def parts_words(self) -> str | None:
        """How the work comes together, as a sentence; ``None`` of a single call."""
        parts = [f"{format_seconds(row['host_seconds'])} in {row['call']}" for row in self.rows[:3]]
        return f"On the CPU: {', '.join(parts)}." if len(parts) > 1 else None

    @property
    def remedy(self) -> Remedy | None:
        """What makes most of it go; ``None`` where the call does nothing to the data."""
        row = self.row
        if row["call"] == RECEIVE:
            return "receive"
        if (row["converted_bytes"] or 0) * 2 > row["bytes"]:
            return "convert"
        if (row["gathered_bytes"] or 0) * 2 > row["bytes"]:
            return "gather"
        if row["call"] == "Tensor.pin_memory":
            return "pin"
        if row["call"] in _FETCHES:
            return "fetch"
        return "make" if (row["staged_bytes"] or 0) * 2 > row["bytes"] else None


def working_lines(seen: Seen) -> tuple[WorkingLine, ...]:
    """Lines that are on the CPU for a part of the time, or copy pinned memory through pageable memory; the longest
    first."""
    by_line = grouped((row for row in seen.host_calls if row["call"] != NEXT), line_key)
    hidden = grouped((site for site in seen.pageable if is_hidden(site)), lambda site: line_key(site.row))
    pinning = grouped(seen.allocations, line_key)
    pinned = grouped((site for site in seen.sites if site.is_pinned), lambda site: site.row["process"])
    lines = [
        WorkingLine(
            tuple(rows),
            tuple(hidden.get(place, ())),
            tuple(pinning.get(place, ())),
            tuple(pinned.get(rows[0]["process"], ())),
        )
        for place, rows in by_line.items()
    ]
    by_loader = {site.row["process"] for site in seen.pageable if site.loader_saved is not None}
    worth = [
        line
        for line in lines
        if line.hidden or (line.remedy and seen.is_long(line.row, line.seconds) and not _is_told(line, by_loader))
    ]
    return tuple(sorted(worth, key=lambda line: -max(line.seconds, line.saved)))


def _is_told(line: WorkingLine, by_loader: set[int | None]) -> bool:
    """Whether the copies of what workers send tell of it, or it pins once."""
    if line.remedy == "receive":
        return line.row["process"] in by_loader
    return line.remedy == "pin" and line.row["count"] == 1


def _saved(site: Site, row: Row) -> float:
    """What a copy on its own way saves: of the data as it is, which may be more than what was made of it."""
    more = max(float(row["bytes"]) - site.row["bytes"], 0.0) / site.pinned_rate if site.pinned_rate else 0.0
    return (site.saved_in_place or 0.0) - more


def _slower(site: Site) -> float:
    """Seconds that copies take longer beside work of the CPU; what is more than half as long again, that is not."""
    took, rate = site.row["copy_seconds"], site.pinned_rate
    alone = float(site.row["bytes"]) / rate if rate else 0.0
    return min(max(took - alone, 0.0), alone / 2) if took else 0.0


def is_hidden(site: Site) -> bool:
    """Whether large copies are pageable although their source is pinned."""
    return site.is_pageable and (site.row["pinned_source_count"] or 0) * 2 > site.row["large_count"]


def pins_again(seen: Seen) -> tuple[Row, ...]:
    """Lines that pin memory again and again, but for those of :func:`working_lines`, whose work has it."""
    working = {line_key(line.row) for line in working_lines(seen)}
    return tuple(row for row in seen.churn if line_key(row) not in working)


def working(seen: Seen) -> Iterator[Cost]:
    """What the CPU does for copies beside the driver's calls. Where the line's copies are to come from pinned memory
    anyway, that is all there is to do."""
    pinned_anyway = {line_key(site.row) for site, _ in seen.accused if not is_hidden(site)}
    for line in working_lines(seen):
        row, saved, remedy = line.row, line.saved, line.remedy or "make"
        whole, faults = seen.seconds_from_first(row), sum(row["minor_faults"] or 0 for row in line.rows)
        rule = "hidden-temporary" if line.hidden and remedy in ("convert", "gather") else "cpu-work"
        reasons = (each["reason"] for each in (*(site.row for site in line.hidden), row) if each["reason"])
        finding = say(
            CPU_TEXTS,
            rule if remedy == "make" else f"{rule}/{remedy}",
            quantity("Calls", row["count"], "count"),
            quantity("Bytes", row["bytes"], "bytes"),
            quantity("On the CPU, pinning too", line.seconds, "seconds"),
            quantity("The whole calls", sum(row["call_seconds"] for row in line.rows), "seconds"),
            quantity("GPUs idle meanwhile", sum(row["idle_seconds"] for row in line.rows), "seconds"),
            quantity("Page faults", faults, "count", reason=NOT_COUNTED),
            quantity("Memory newly pinned", row["newly_pinned_bytes"], "bytes", reason=NOT_COUNTED),
            quantity("Saved without this work (about)", saved, "seconds"),
            severity=costing(whole / (whole - saved) if 0 < saved < whole else 1.0),
            held=line.seconds,
            saved=saved or None,
            share=share_of_time(seen, row, saved),
            parts=line.parts_words,
            faults=faults or None,
            **told(row, reason=next(reasons, "")),
        )
        to_do, begins = REMEDIES[remedy]
        if line.slower > WORTH * seen.seconds:
            to_do += f"; copies take {format_about(line.slower)} less, too"
        if line.remedy == "make" and line_key(row) in pinned_anyway:
            to_do = ""
        cost = Cost(row, rule, line.seconds, saved, to_do, "", finding)
        gain = saves(seen, row, saved) if cost.saves_much(seen) else f"it kept the CPU {took(seen, row, line.seconds)}"
        yield replace(cost, advice=f"{begins.format(line.name, row['count'])}: {gain}.")


def table_of_work(seen: Seen) -> Table:
    """By line and call."""
    return table_of_lines(
        "What the CPU did for copies",
        seen.host_calls,
        {
            "call": ("text", "call"),
            "times": ("count", "count"),
            "bytes": ("bytes", "bytes"),
            "on the CPU": ("seconds", "host_seconds"),
            "GPU idle meanwhile": ("seconds", "idle_seconds"),
            "the whole call": ("seconds", "call_seconds"),
            "processor time": ("seconds", "processor_seconds"),
            "page faults": ("count", "minor_faults"),
            "from a disk": ("count", "major_faults"),
            "newly pinned": ("count", "newly_pinned_count"),
            "what it did": ("text", "reason"),
        },
        "Calls of libraries that move or pin data of the host. On the CPU: beside the driver's calls, which the other "
        "tables have. GPU idle meanwhile: none computed or copied, which is what the program "
        "would take less without this work. Processor time and page faults are those of the calling thread. Newly "
        "pinned: else memory that the library had kept was used again.",
    )
