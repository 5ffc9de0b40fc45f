"""Rows of copies to the host that were watched in a program, and of calls that read their data too early."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from pinscope.records.trace_row import TraceRow
from pinscope.tracing.line_totals import DIRECTIONS, MEMORY, LineTotals, find, unnumbered

CLOCKS_APART_NS = 100_000
"""So far the end of a copy may lie behind a read that came after a wait, without a word: CUPTI tells the times of the
GPU by the host's clock. On an H200 each of 404 waits returned 5 µs or more after the copy that it was for had ended."""


def watched_copies(totals: LineTotals) -> Iterator[TraceRow]:
    """Lines whose copies to the host were watched, and how many."""
    places = _places(totals, np.unique(totals.watched["copy"]))
    lines, counts = np.unique(totals.lines(totals.copies[places[places >= 0]]), return_counts=True)
    for line, count in zip(lines.tolist(), counts.tolist(), strict=True):
        yield unnumbered(kind="watched", file=totals.files[line], line=int(totals.line_numbers[line]), count=int(count))


def early_reads(totals: LineTotals) -> Iterator[TraceRow]:
    """Reads of these copies while they ran, and before anything waited, by line and call; of a line and copy one."""
    reads = totals.watched[(totals.watched["name"] > 0) & (totals.watched["name"] < len(totals.host_names))]
    places = _places(totals, reads["copy"])
    reads, places = reads[places >= 0], places[places >= 0]
    runs_on, is_early = _judged(totals, reads, places)
    reads, places, runs_on = reads[is_early], places[is_early], runs_on[is_early]
    stacks, copied_at = totals.known_stacks(reads["stack"]), totals.lines(totals.copies[places])
    by = np.stack([copied_at, totals.line_of_stacks(stacks), reads["name"]], axis=1)
    _, first = np.unique(np.column_stack([by, places]), axis=0, return_index=True)
    groups, group = np.unique(by[first], axis=0, return_inverse=True)
    for number, (copy, _, name) in enumerate(groups.tolist()):
        rows = first[group.reshape(-1) == number]
        yield unnumbered(
            kind="early_read",
            call=totals.host_names[name][0],
            count=len(rows),
            in_flight_count=int(runs_on[rows].sum()),
            **totals.where(int(stacks[rows[0]])),
            copy_file=totals.files[copy],
            copy_line=int(totals.line_numbers[copy]),
        )


def _places(totals: LineTotals, numbers: NDArray[np.uint32]) -> NDArray[np.intp]:
    """Places of the copies into pinned memory of the host that have these correlation ids; −1 where there is none."""
    ways = [number for number, way in enumerate(DIRECTIONS) if way == "d2h"]
    is_back = np.isin(totals.copies["copy_kind"], ways) & (totals.copies["dst_kind"] == MEMORY.index("pinned"))
    rows = np.flatnonzero(is_back)
    places = find(totals.copies["correlation_id"][rows], numbers, ascending=False)
    return np.where(places < 0, -1, np.append(rows, -1)[places]).astype(np.intp)


def _judged(
    totals: LineTotals, reads: NDArray[np.void], places: NDArray[np.intp]
) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Of each read whether its copy still ran, and whether it came too early: that, or nothing had waited since."""
    copies, moments = totals.copies[places], reads["moment"]
    told = totals.watched["moment"][totals.watched["copy"] == 0]
    switched = np.asarray([moment for moment, _ in totals.switches], np.int64)
    waits = np.sort(np.concatenate([totals.calls["end"][totals.waits()], told, switched]))
    calls = totals.call_places(copies)
    issued = np.where(calls < 0, copies["start"], np.append(totals.calls["end"], 0)[calls])
    has_waited = np.searchsorted(waits, moments, side="right") > np.searchsorted(waits, issued, side="right")
    left = np.where(copies["end"] > 0, copies["end"] - moments, np.iinfo(np.int64).max)  # it died meanwhile
    runs_on = left > np.where(has_waited, CLOCKS_APART_NS, 0)
    return runs_on, runs_on | ~has_waited
