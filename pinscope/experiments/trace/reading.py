"""What a trace tells: verdict, headline and tables, from its rows alone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pinscope.analysis.rows import Row
from pinscope.experiments.trace.arithmetic import Seen, Site, line_name, process_name, seen_in
from pinscope.experiments.trace.findings import origin, trace_findings
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
LARGE_LINES = f"lines with copies above {format_bytes(LARGE_BYTES)}"
"""Of these pinning changes something; the bytes of such a line are those of all its copies."""
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
        verdict=trace_verdict(seen) if what is None else what_if_verdict(what),
        headline=(*(() if what is None else what_if_headline(what)), *_headline(seen)),
        tables=tuple(table for table in tables if table.rows),
        findings=(*(() if what is None else what_if_findings(what)), *trace_findings(run, seen)),
    )


def _headline(seen: Seen) -> Iterator[Quantity]:
    pageable, unknown = seen.pageable, any(site.pinned_rate is None for site in seen.pageable)
    saved = None if unknown else sum(site.saved_in_place or 0.0 for site in pageable)
    yield quantity("Saved if pinned (about)", saved, "seconds", reason=NO_RATE)
    for kind, sites in (("pageable", pageable), ("pinned", seen.pinned)):
        yield quantity(f"{kind.capitalize()}, {LARGE_LINES}", sum(site.row["bytes"] for site in sites),
                       "bytes")  # fmt: skip
    yield quantity("Saved if also ahead of compute (at most)", sum(site.saved_ahead for site in pageable), "seconds")
    idle = [site.row["idle_seconds"] for site in seen.sites if site.row["idle_seconds"] is not None]
    yield quantity("GPU compute idle for copies", sum(idle) if idle else None, "seconds", reason=NO_KERNELS)
    yield quantity("CPU held by pageable copies", sum(site.row["call_seconds"] or 0.0 for site in pageable), "seconds")
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
            "line": "text", "source": "text", "memory": "text", "copies": "count", "bytes": "bytes",
            "saved if pinned": "seconds", "if also ahead": "seconds", "CPU held": "seconds", "compute idle": "seconds",
            "bandwidth": "bytes/second", "median size": "bytes", "way": "text", "function": "text",
            **({"in range": "text"} if ranges else {}),
        },
        [(*_site(site), *([site.row["ranges"]] if ranges else [])) for site in shown],
        note="Ranked by what pinning would save. CPU held: by the calls. Compute idle: the GPU's compute stood still "
        "while the copies were issued and ran. Saved if pinned: compute idle less the transfer at the rate of pinned "
        "memory" + (f" ({rate_from})" if rate_from else "") + f". It and the bandwidth are those of {LARGE_LINES}. If "
        "also ahead: at most, when the copies run behind compute." + _left_out(seen),
    )  # fmt: skip


def _site(site: Site) -> tuple[str | float | None, ...]:
    row, asked = site.row, site.is_pageable
    return (
        site.name, row["source_line"] or None, f"{row['source']} → {row['target']}", row["count"], row["bytes"],
        site.saved_in_place if asked else None, site.saved_ahead if asked else None, row["call_seconds"],
        row["idle_seconds"], site.bytes_per_second if row["large_count"] else None, row["median_bytes"],
        row["direction"], row["function"] or None,
    )  # fmt: skip


def _left_out(seen: Seen) -> str:
    more = len(seen.sites) - MOST_SHOWN
    return f" {more:,} lines that save less are left out." if more > 0 else ""


def _allocations(seen: Seen) -> Table:
    return table(
        "Pinned memory allocated",
        {
            "line": "text", "source": "text", "call": "text", "times": "count", "took": "seconds",
            "bytes asked for": "bytes", "bytes held": "bytes", "most at once": "bytes", "left at the end": "count",
            "bytes left": "bytes",
        },
        [
            (
                line_name(row), row["source_line"] or None, row["call"], row["count"], row["call_seconds"],
                row["bytes"], row["held_bytes"], row["peak_bytes"], row["left_count"], row["left_bytes"],
            )
            for row in seen.allocations[:MOST_SHOWN]
        ],
        note="Asked for: of CUDA; PyTorch asks for a power of two, up to twice what a tensor needs. Held: the whole "
        "pages that this reaches into. Both add up all times; most at once is the most that was there together.",
    )  # fmt: skip


def _waits(seen: Seen) -> Table:
    return table(
        "Waiting for the GPU",
        {
            "line": "text", "source": "text", "call": "text", "times": "count", "CPU held": "seconds",
            "compute idle afterwards": "seconds", "during a copy": "count",
        },
        [
            (
                line_name(row), row["source_line"] or None, row["call"], row["count"], row["call_seconds"],
                row["idle_seconds"], row["after_async_count"],
            )
            for row in seen.waits[:MOST_SHOWN]
        ],
        note="Copies that are not asynchronous wait as well. Compute idle afterwards: from the end of the wait until "
        "the next kernel began; while a program waits, it issues none. During a copy: waits that began while a large "
        "asynchronous copy ran, from or to pinned memory.",
    )  # fmt: skip


def _devices(seen: Seen) -> Table:
    return table(
        "GPUs",
        {"GPU": "text", "kernels": "count", "compute busy": "seconds", "of the time": "share"},
        [
            (
                " ".join(filter(None, (str(row["device"]), process_name(row)))), row["kernels"], row["busy_seconds"],
                row["busy_seconds"] / seen.seconds if seen.seconds else None,
            )
            for row in seen.devices
        ],
        note="The time from the first copy or kernel to the end of the last.",
    )  # fmt: skip
