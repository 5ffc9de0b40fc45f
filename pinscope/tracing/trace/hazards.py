"""Asynchronous copies whose data is used before they are done: reads that were watched, and what could not be."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from pathlib import PurePath
from typing import Any

from pinscope.analysis.read_rows import Row
from pinscope.analysis.texts import Costed, Text, Texts, say
from pinscope.records.run import Table, quantity
from pinscope.tracing.sites import Headed, Seen, Site, headed_table, line_name, own_line_key
from pinscope.tracing.trace.costs import told

ADVICE = (
    "Call stream.synchronize(), or synchronize() of an event recorded behind the copy, just before the data is read."
)
NEARLY_ALL = 0.9
"""Of a line's copies: where so many were watched, the others were read by nobody, as those of a loop's end."""
TEXTS: Texts = {
    "read-before-copied": Text(
        "a tensor to which PyTorch copies asynchronously is read on the host before anything waits for the copy",
        "{read} reads data of {line} before the copy is done: {count:,} of {times:,} copies",
        "By {call}. {in_flight_count:,} reads came while the copy ran: their data was wrong or half old[; before the "
        "other {lucky:,} nothing waited, and the copy happened to be done].",
        ADVICE,
        "critical",
    ),
    "read-before-copied/luck": Text(
        "the same, where each copy happened to be done",
        "{read} reads data of {line} and nothing waits for the copy before: {count:,} of {times:,} copies",
        "By {call}. Each copy happened to be done this time; where the GPU has more to do, it is not.",
        ADVICE,
        "warning",
    ),
    "reads-not-watched": Text(
        "a line copies asynchronously into pinned memory of the host, does not wait itself, and reads of that memory "
        "cannot be watched",
        "{line} copies to the host asynchronously {times:,} times: reads before a wait were not watched",
        "Only reads by PyTorch of the tensor that it copied to can be watched. NumPy, CuPy and C read memory without a "
        "call.",
        "'{command}' runs the program again with waits: other output is proof that data is read too early.",
    ),
}


def copies_behind_the_call(site: Site) -> bool:
    """Whether the call may return before the copy is done: it is asynchronous or launches a graph, and the memory of
    the host is pinned."""
    call = site.row["call"] or ""
    over_the_link = site.row["direction"] in ("h2d", "d2h")
    return over_the_link and site.host_memory == "pinned" and ("Async" in call or "GraphLaunch" in call)


def unwatched(seen: Seen) -> list[Site]:
    """Lines that copy asynchronously to the host, do not wait themselves, and of which reads were not all watched."""
    return [
        site
        for site in seen.read_later
        if copies_behind_the_call(site) and _watched(seen, own_line_key(site.row)) < NEARLY_ALL * site.row["count"]
    ]


def _watched(seen: Seen, line: tuple[Any, ...]) -> int:
    """How many copies of a line were watched."""
    return sum(row["count"] for row in seen.watched if own_line_key(row) == line)


def hazard_verdict(seen: Seen) -> str:
    """The line that reads too early most often; empty where none is known to."""
    if not seen.early_reads:
        return ""
    row = seen.early_reads[0]
    reads = f"{line_name(row)} reads what {_copied_at(row)} copies"
    if not row["in_flight_count"]:
        return f"{reads}, {_times(row)}, and nothing waits for the copy before."
    return f"Wrong data: {reads} before the copy is done, {_times(row)}."


def unwatched_words(seen: Seen) -> str:
    """That nobody knows whether data is read too early; empty where that is known."""
    sites = unwatched(seen)
    return (
        f"Not watched: whether what {sites[0].name} copies to the host is read before the copy is done."
        if sites
        else ""
    )


def hazard_findings(seen: Seen) -> Iterator[Costed]:
    """Early reads, and what could not be watched."""
    for row in seen.early_reads:
        lucky = row["count"] - row["in_flight_count"]
        yield say(
            TEXTS,
            "read-before-copied" if row["in_flight_count"] else "read-before-copied/luck",
            quantity("Copies that were read before a wait", row["count"], "count"),
            quantity("Of these, while the copy ran", row["in_flight_count"], "count"),
            read=line_name(row),
            times=_watched(seen, (row["copy_file"], row["copy_line"], row["process"])),
            lucky=lucky or None,
            **told(row, line=_copied_at(row)),
        )
    program = shlex.join(map(str, seen.run.params.get("program") or ("PROGRAM",)))
    for site in unwatched(seen):
        yield say(
            TEXTS,
            "reads-not-watched",
            quantity("Copies", site.row["count"], "count"),
            line=site.name,
            times=site.row["count"],
            command=f"pinscope trace --what-if wait {program}",
        )


def early_reads_table(seen: Seen) -> Table:
    """Reads that came too early."""
    rows: list[Headed] = [
        {
            "read at": ("text", line_name(row)),
            "by": ("text", row["call"]),
            "copied at": ("text", _copied_at(row)),
            "before a wait": ("count", row["count"]),
            "while the copy ran": ("count", row["in_flight_count"]),
            "source": ("text", row["source_line"] or None),
        }
        for row in seen.early_reads
    ]
    return headed_table(
        "Read before the copy was done",
        rows,
        "Of tensors to which PyTorch copied asynchronously. Before a wait: no call waited for the GPU since the copy.",
    )


def _copied_at(row: Row) -> str:
    return f"{PurePath(row['copy_file']).name}:{row['copy_line']}"


def _times(row: Row) -> str:
    return f"{row['count']:,} time{'s' if row['count'] > 1 else ''}"
