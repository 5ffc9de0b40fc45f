"""What is said when a traced program has ended: on stderr, because stdout is the program's."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from pinscope.cli.terminal import SEVERITY_STYLES, console
from pinscope.experiments.registry import checked_rows
from pinscope.experiments.trace.arithmetic import Site, seen_in
from pinscope.report import facts
from pinscope.text import one_line
from pinscope.units import format_bytes, format_seconds

if TYPE_CHECKING:
    from rich.table import Table as RichTable

    from pinscope.report.document import Document

MOST_LINES = 10
"""Of the table; all are in `pinscope runs show`."""
MOST_FINDINGS = 6
WIDTH = 120
"""Columns where there is no terminal."""


def print_summary(document: Document) -> None:
    """Verdict, the lines that pinning would help most, and the findings' titles."""
    from rich.text import Text

    out, reading, run = console(sys.stderr), document.reading, document.run
    if not sys.stderr.isatty():  # a file has no width
        out.width = WIDTH
    out.print()
    part = f"part {run.params['part']}: " if run.params.get("part") else ""
    out.print(Text(f"pinscope: {one_line(part + facts.verdict(document))}", "bold"))
    if lines := _lines(document):
        out.print(lines)
    for number, finding in enumerate(facts.by_severity(reading.findings)[:MOST_FINDINGS]):
        words = f"{facts.SEVERITY_WORDS[finding.severity]}: {one_line(finding.title)}"
        out.print(Text(words, SEVERITY_STYLES[finding.severity]))
        if not number and finding.advice:
            out.print(Text(f"  → {one_line(finding.advice)}"))
    for note in run.notes:
        out.print(Text(f"Note: {one_line(note)}"))
    out.print(Text(f"Run {run.id}. Next: pinscope runs show {run.id}, pinscope report {run.id} -o report.html"))


def _lines(document: Document) -> RichTable | None:
    """The lines that pinning would help most, then those that copy most; ``None`` if nothing was copied."""
    from rich.box import SIMPLE
    from rich.table import Table as RichTable
    from rich.text import Text

    sites = seen_in(document.run, checked_rows(document.run.experiment, document.rows)).sites
    if not sites:
        return None
    drawn = RichTable(box=SIMPLE, pad_edge=False)
    drawn.add_column("line", overflow="fold")
    drawn.add_column("memory", no_wrap=True)
    for heading in ("copies", "bytes", "CPU held", "compute idle", "saved if pinned"):
        drawn.add_column(heading, justify="right", no_wrap=True)
    if has_ranges := any(site.row["ranges"] for site in sites[:MOST_LINES]):
        drawn.add_column("in range", overflow="fold")
    for site in sites[:MOST_LINES]:
        row = site.row
        cells = (
            site.name, f"{site.host_memory} {row['direction']}", f"{row['count']:,}", format_bytes(row["bytes"]),
            format_seconds(row["call_seconds"]), format_seconds(row["idle_seconds"]), _saved(site),
        )  # fmt: skip
        ranges = [site.row["ranges"] or "–"] if has_ranges else []
        drawn.add_row(*(Text(one_line(cell)) for cell in (*cells, *ranges)))
    if len(sites) > MOST_LINES:
        drawn.caption = f"and {len(sites) - MOST_LINES:,} more lines"
    return drawn


def _saved(site: Site) -> str:
    """What pinning would save, or why it would save nothing."""
    if site.is_pageable:
        return format_seconds(site.saved_in_place)
    return {"pinned": "is pinned", "pageable": "small copies"}.get(site.host_memory, "–")
