"""What a trace tells: verdict, headline and tables, from its rows alone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pinscope.analysis.rows import Row
from pinscope.experiments.trace.arithmetic import Seen, Site, line_name, seen_in
from pinscope.experiments.trace.findings import trace_findings
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

LINES = "Copies by line"
"""Title of the table that ranks them."""
MOST_SHOWN = 100
"""Rows of a table."""
NO_RATE = "no run of bandwidth tells the rate of pinned copies"
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
    yield quantity("Copied from and to pageable memory", sum(site.row["bytes"] for site in pageable), "bytes")
    yield quantity("Copied from and to pinned memory", sum(site.row["bytes"] for site in seen.pinned), "bytes")
    idle = [site.row["idle_seconds"] for site in seen.sites if site.row["idle_seconds"] is not None]
    yield quantity("GPU compute idle for copies", sum(idle) if idle else None, "seconds", reason=NO_KERNELS)
    yield quantity("CPU held by pageable copies", sum(site.row["call_seconds"] or 0.0 for site in pageable), "seconds")
    yield quantity("From the first copy or kernel to the last", seen.seconds, "seconds")
    yield quantity("The program ran", seen.program["seconds"] if seen.program else None, "seconds")
    if seen.program and seen.program["recorded_seconds"] is not None:
        yield quantity("Of it recorded", seen.program["recorded_seconds"], "seconds")
    yield quantity("Copies recorded", seen.program["copies"] if seen.program else None, "count")


def _sites(run: Run, seen: Seen) -> Table:
    origin = run.params.get("pinned_from")
    shown = seen.sites[:MOST_SHOWN]
    ranges = any(site.row["ranges"] for site in shown)
    return table(
        LINES,
        {
            "line": "text", "function": "text", "way": "text", "memory": "text", "copies": "count", "bytes": "bytes",
            "median size": "bytes", "bandwidth": "bytes/second", "CPU held": "seconds", "GPU idle": "seconds",
            "saved if pinned": "seconds", "if also ahead": "seconds", **({"in range": "text"} if ranges else {}),
        },
        [(*_site(site), *([site.row["ranges"]] if ranges else [])) for site in shown],
        note="Ranked by what pinning would save. CPU held: by the calls. GPU idle: compute that stood still while the "
        "copies were issued and ran. Saved if pinned: GPU idle less the transfer at the rate of pinned memory"
        + (f" ({origin})" if origin else "")
        + ", of copies above 64 KiB. If also ahead: at most, when the copies run behind compute." + _left_out(seen),
    )  # fmt: skip


def _site(site: Site) -> tuple[str | float | None, ...]:
    row, asked = site.row, site.is_pageable
    return (
        site.name, row["function"] or None, row["direction"], f"{row['source']} → {row['target']}", row["count"],
        row["bytes"], row["median_bytes"], site.bytes_per_second, row["call_seconds"], row["idle_seconds"],
        site.saved_in_place if asked else None, site.saved_ahead if asked else None,
    )  # fmt: skip


def _left_out(seen: Seen) -> str:
    more = len(seen.sites) - MOST_SHOWN
    return f" {more:,} lines that save less are left out." if more > 0 else ""


def _allocations(seen: Seen) -> Table:
    return table(
        "Pinned memory allocated",
        {
            "line": "text", "function": "text", "call": "text", "times": "count", "bytes": "bytes",
            "took": "seconds", "left at the end": "count", "bytes left": "bytes",
        },
        [
            (
                line_name(row), row["function"] or None, row["call"], row["count"], row["bytes"], row["call_seconds"],
                row["left_count"], row["left_bytes"],
            )
            for row in seen.allocations[:MOST_SHOWN]
        ],
        note="What the program's libraries asked CUDA for, rounded up by them as they do.",
    )  # fmt: skip


def _waits(seen: Seen) -> Table:
    return table(
        "Waiting for the GPU",
        {
            "line": "text", "function": "text", "call": "text", "times": "count", "CPU held": "seconds",
            "GPU idle afterwards": "seconds",
        },
        [
            (
                line_name(row), row["function"] or None, row["call"], row["count"], row["call_seconds"],
                row["idle_seconds"],
            )
            for row in seen.waits[:MOST_SHOWN]
        ],
        note="GPU idle afterwards: from the end of the wait until the next kernel began, which had not been issued.",
    )  # fmt: skip


def _devices(seen: Seen) -> Table:
    return table(
        "GPUs",
        {"GPU": "text", "kernels": "count", "compute busy": "seconds", "of the time": "share"},
        [
            (
                str(row["device"]), row["kernels"], row["busy_seconds"],
                row["busy_seconds"] / seen.seconds if seen.seconds else None,
            )
            for row in seen.devices
        ],
        note="The time from the first copy or kernel to the end of the last.",
    )  # fmt: skip
