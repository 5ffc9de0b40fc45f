"""Rows of what was watched in a program, from its spools: asynchronous copies to the host, and reads before a wait."""

from __future__ import annotations

from collections.abc import Iterator

from pinscope.records.run import TraceRow
from pinscope.tracing.line_totals import unnumbered
from pinscope.tracing.sites import place_of
from pinscope.tracing.spool import Spool
from pinscope.tracing.watch_reads import ACCOUNT


def watched_copies(spool: Spool) -> Iterator[TraceRow]:
    """Lines whose copies to the host were watched, and how many."""
    for file, line, count in (spool.document(ACCOUNT) or {}).get("copies", ()):
        yield unnumbered(kind="watched", file=file, line=line, count=count)


def early_reads(spool: Spool) -> Iterator[TraceRow]:
    """Reads of these copies before a wait, by line and call."""
    for copy_file, copy_line, file, line, call, function, count, flying in (spool.document(ACCOUNT) or {}).get(
        "reads", ()
    ):
        place = place_of([(file, line, function)])
        yield unnumbered(
            kind="early_read",
            call=call,
            count=count,
            in_flight_count=flying,
            file=place.file,
            line=line,
            function=place.function,
            source_line=place.source,
            copy_file=copy_file,
            copy_line=copy_line,
        )
