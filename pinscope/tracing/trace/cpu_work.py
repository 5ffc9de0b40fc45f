"""What the CPU does for copies, by line: how long it takes beside the driver, and what the program would save."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from pinscope.analysis.read_rows import Row, grouped
from pinscope.records.run import Table
from pinscope.tracing.mapped_file import NEXT, RECEIVE
from pinscope.tracing.sites import Seen, Site, line_name, place_in, table_of_lines
from pinscope.units import format_seconds

Remedy = Literal["convert", "gather", "pin", "fetch", "receive", "make"]
"""What makes the work go: ``convert`` or ``gather`` on the GPU, ``pin`` once, ``fetch`` into memory that is kept,
``receive`` by a DataLoader that pins, or ``make`` the data in pinned memory."""
_FETCHES = ("Tensor.cpu", "Tensor.numpy", "ndarray.get", "jax.device_get", "copy_to_host")
FIRST: dict[Remedy, str] = {
    "convert": "Convert on the GPU, not at {}",
    "gather": "Rearrange on the GPU, not at {}",
    "pin": "Pin once at {}, not {:,} times",
    "fetch": "Fetch into kept memory at {}",
    "receive": "Let the DataLoader of {} pin",
    "make": "Fill pinned memory at {}",
}
"""How advice on the line of that name begins."""


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
        and pageable copies take that need not be. To pin once still takes one of so many times, and copies no longer
        share the host's memory with it: on an H100 they took 0.52 s beside it, 0.39 s alone."""
        kept = (self.row["count"] - 1) / self.row["count"] if self.remedy == "pin" else 1.0
        idle = sum(row["idle_seconds"] for row in self.rows) * kept
        again = sum(row["call_seconds"] * (1 - 1 / row["count"]) for row in self.pinning)
        slower = sum(map(_slower, self.beside)) if self.remedy == "pin" else 0.0
        return max(float(idle + again) + slower + sum(_saved(site, self.row) for site in self.hidden), 0.0)

    def is_pageable(self, seen: Seen) -> bool:
        """Whether the line makes pageable copies: pinned memory helps both."""
        return any(_place(site.row) == _place(self.row) for site in seen.pageable)

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
    by_line = grouped((row for row in seen.host_calls if row["call"] != NEXT), _place)
    hidden = grouped((site for site in seen.pageable if is_hidden(site)), lambda site: _place(site.row))
    pinning = grouped(seen.allocations, _place)
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
    working = {_place(line.row) for line in working_lines(seen)}
    return tuple(row for row in seen.churn if _place(row) not in working)


def _place(row: Row) -> tuple[object, ...]:
    return *place_in(row), row["process"]


def first_advice(line: WorkingLine) -> str:
    """What to do about the work of a line, as a verdict begins."""
    return FIRST[line.remedy or "make"].format(line.name, line.row["count"])


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


def words_of_parts(line: WorkingLine) -> str | None:
    """How the work of a line comes together, as a sentence; ``None`` of a single call."""
    parts = [f"{format_seconds(row['host_seconds'])} in {row['call']}" for row in line.rows[:3]]
    return f"On the CPU: {', '.join(parts)}." if len(parts) > 1 else None
