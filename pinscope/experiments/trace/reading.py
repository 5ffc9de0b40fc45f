"""What a trace tells: verdict, headline and tables, from its rows alone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pinscope.analysis.rows import Row
from pinscope.experiments.trace.arithmetic import SAVED_IF_PINNED, Seen, Site, line_name, process_name, seen_in
from pinscope.experiments.trace.findings import origin, program_failed, trace_findings
from pinscope.experiments.trace.verdict import trace_verdict
from pinscope.experiments.trace.what_if import (
    what_if_findings,
    what_if_headline,
    what_if_in,
    what_if_tables,
    what_if_verdict,
)
from pinscope.records.finding import Quantity, Reading, Table, quantity, table
from pinscope.records.run import Run
from pinscope.records.trace_row import LARGE_BYTES
from pinscope.units import format_bytes

LINES = "Copies by line"
"""Title of the table that ranks them."""
MOST_SHOWN = 100
"""Rows of a table."""
NO_RATE = "no run of bandwidth says the rate of pinned copies"
NO_KERNELS = "the program ran no kernel"


def read_trace(run: Run, rows: Sequence[Row]) -> Reading:
    """Verdict, headline, tables and findings of a trace; empty while the program runs."""
    seen = seen_in(run, rows)
    if seen.program is None:
        return Reading(headline=(), tables=(), findings=())
    what = what_if_in(run, seen, rows)
    measured = () if what is None else tuple(what_if_tables(what))
    tables = (*measured, _sites(run, seen), _allocations(seen), _waits(seen), _devices(seen))
    return Reading(
        verdict=trace_verdict(run, seen) if what is None else what_if_verdict(what),
        headline=(*(() if what is None else what_if_headline(what)), *_headline(seen)),
        tables=tuple(table for table in tables if table.rows),
        findings=(
            *(() if what is None else what_if_findings(what)),
            *trace_findings(run, seen),
            *(program_failed(seen) if what is None else ()),
        ),
    )


def _headline(seen: Seen) -> Iterator[Quantity]:
    pageable = seen.pageable
    yield quantity("Saved if pinned (about)", seen.saved_in_place, "seconds", reason=NO_RATE)
    busy = sum(row["busy_seconds"] for row in seen.devices) / (len(seen.devices) or 1)
    kernels = any(row["kernels"] for row in seen.devices)
    share = busy / seen.seconds if kernels and seen.seconds else None
    yield quantity("GPU compute busy, first to last copy or kernel", share, "share", reason=NO_KERNELS)
    for kind, sites in (("pageable", pageable), ("pinned", seen.pinned)):
        yield quantity(
            f"Copied from or to {kind} memory by lines with large copies",
            sum(site.row["bytes"] for site in sites),
            "bytes",
        )
    yield quantity("Saved if also issued early (of the copies, at most)", seen.saved_early, "seconds")
    idle = [site.row["idle_seconds"] for site in pageable if site.row["idle_seconds"] is not None]
    unknown_idle = pageable and not idle
    yield quantity(
        "GPU compute idle for large pageable copies", None if unknown_idle else sum(idle), "seconds", reason=NO_KERNELS
    )
    held = sum(site.row["call_seconds"] or 0.0 for site in pageable)
    yield quantity("CPU held by large pageable copies", held, "seconds")
    yield quantity("From the first copy or kernel to the last", seen.seconds, "seconds")
    yield quantity("The program ran", seen.program["seconds"] if seen.program else None, "seconds")
    if seen.program and seen.program["recorded_seconds"] is not None:
        yield quantity("Of it recorded", seen.program["recorded_seconds"], "seconds")
    yield quantity("Copies recorded", seen.program["copies"] if seen.program else None, "count")


def _sites(run: Run, seen: Seen) -> Table:
    rate_from = origin(run, "pinned_from")
    shown = seen.sites[:MOST_SHOWN]
    ranges = any(site.row["ranges"] for site in shown)
    return table(
        LINES,
        {
            "line": "text",
            "saved if pinned": "seconds",
            "compute idle": "seconds",
            "CPU held": "seconds",
            "memory": "text",
            "copies": "count",
            "bytes": "bytes",
            "median size": "bytes",
            "bandwidth": "bytes/second",
            "if also early": "seconds",
            **({"in range": "text"} if ranges else {}),
            "function": "text",
            "source": "text",
        },
        [_site(site, ranges=ranges) for site in shown],
        missing=dict.fromkeys(("saved if pinned", "if also early"), tuple(site.unsaved_word for site in shown)),
        note="Ranked by what pinning would save. CPU held: by the calls. Compute idle: the GPU's compute stood still "
        "while the copies were issued and ran. Saved if pinned: "
        + SAVED_IF_PINNED
        + (f" ({rate_from})" if rate_from else "")
        + ". If also early: the same, and the transfers cost nothing, because each copy is issued so early that it "
        f"runs while the GPU computes. Small copies: none is above {format_bytes(LARGE_BYTES)}; what pinning would "
        "save there is not estimated. Bandwidth: of the transfers, where most copies are above that." + _left_out(seen),
    )


def _site(site: Site, *, ranges: bool) -> tuple[str | float | None, ...]:
    row, asked = site.row, site.is_pageable
    return (
        site.name,
        site.saved_in_place if asked else None,
        row["idle_seconds"],
        row["call_seconds"],
        site.memory,
        row["count"],
        row["bytes"],
        row["median_bytes"],
        site.bytes_per_second,
        site.saved_early if asked else None,
        *([row["ranges"]] if ranges else []),
        row["function"] or None,
        row["source_line"] or None,
    )


def _left_out(seen: Seen) -> str:
    more = len(seen.sites) - MOST_SHOWN
    return f" {more:,} lines that save less are left out." if more > 0 else ""


def _allocations(seen: Seen) -> Table:
    return table(
        "Pinned memory allocated",
        {
            "line": "text",
            "call": "text",
            "times": "count",
            "took": "seconds",
            "bytes asked for": "bytes",
            "bytes held": "bytes",
            "most at once": "bytes",
            "left at the end": "count",
            "bytes left": "bytes",
            "source": "text",
        },
        [
            (
                line_name(row),
                row["call"],
                row["count"],
                row["call_seconds"],
                row["bytes"],
                row["held_bytes"],
                row["peak_bytes"],
                row["left_count"],
                row["left_bytes"],
                row["source_line"] or None,
            )
            for row in seen.allocations[:MOST_SHOWN]
        ],
        note="Asked for: of CUDA; PyTorch asks for a power of two, up to twice what a tensor needs. Held: the whole "
        "pages that this reaches into. Both add up all times; most at once is the most that was there together. "
        "PyTorch's .item() pins a few bytes for its result.",
    )


def _waits(seen: Seen) -> Table:
    return table(
        "Waiting for the GPU",
        {
            "line": "text",
            "call": "text",
            "times": "count",
            "CPU held": "seconds",
            "compute idle afterwards": "seconds",
            "during a copy": "count",
            "source": "text",
        },
        [
            (
                line_name(row),
                row["call"],
                row["count"],
                row["call_seconds"],
                row["idle_seconds"],
                row["after_async_count"],
                row["source_line"] or None,
            )
            for row in seen.waits[:MOST_SHOWN]
        ],
        note="Copies that are not asynchronous wait as well. CPU held: by the waits; their copies stand in the table "
        "of copies. Compute idle afterwards: from the end of the wait until "
        "the next kernel began or the next wait was over, "
        + ("with" if seen.counts_copies_after_waits else "without")
        + " the idle time of copies above. "
        "During a copy: waits that began while a large asynchronous copy ran, from or to pinned memory.",
    )


def _devices(seen: Seen) -> Table:
    return table(
        "GPUs",
        {"GPU": "text", "kernels": "count", "compute busy": "seconds", "of the time": "share"},
        [
            (
                f"{row['device']} of {process}" if (process := process_name(row)) else str(row["device"]),
                row["kernels"],
                row["busy_seconds"],
                row["busy_seconds"] / seen.seconds if seen.seconds else None,
            )
            for row in seen.devices
        ],
        note="The time from the first copy or kernel to the end of the last.",
    )
