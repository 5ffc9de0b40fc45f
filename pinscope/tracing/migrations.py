"""Managed memory by line: pages that moved and page faults, each given to the line that touched them.

CUPTI's records name no thread and no kernel. So what the GPU asked for belongs to the line that launched the kernel
that ran then, a prefetch to the newest call of one, and what the CPU asked for to the line at which it stood.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from pinscope.records.trace_row import TraceRow
from pinscope.tracing.line_totals import LineTotals, unnumbered
from pinscope.tracing.spool import CPU_FAULT, GPU_FAULT, TO_GPU, TO_HOST

ON_REQUEST, EVICTED = 1, 4
"""Why pages moved: the program asked for it, or the GPU's memory was full."""
_PREFETCHES = ("cuMemPrefetch", "cuMemDiscardAndPrefetch")


def migrated(totals: LineTotals) -> Iterator[TraceRow]:
    """A row for each line of one process that touched managed memory which was elsewhere."""
    if len(totals.migrations):
        yield from _Migrations(totals).rows()


class _Migrations:
    """The records of one process.

    Args:
        totals: these, its calls and kernels, and when it stood at which line.
    """

    def __init__(self, totals: LineTotals) -> None:
        self._totals = totals
        self._records = totals.migrations[np.argsort(totals.migrations["start"], kind="stable")]
        self._standing = totals.standing[np.argsort(totals.standing["until"], kind="stable")]
        kind, cause = self._records["counter_kind"], self._records["flags_"]
        moves = np.isin(kind, (TO_GPU, TO_HOST))
        self._on_request = moves & (cause == ON_REQUEST)
        by_gpu = np.isin(kind, (TO_GPU, GPU_FAULT)) | ((kind == TO_HOST) & (cause == EVICTED))
        self._kernel = np.where(by_gpu & ~self._on_request, self._kernels(), -1)
        self._stood = np.where(by_gpu | self._on_request, -1, self._places_stood())

    def rows(self) -> Iterator[TraceRow]:
        """One for each line."""
        stacks = self._stacks()
        of_line = self._totals.line_of_stacks(stacks)
        for line in np.unique(of_line):
            rows = np.flatnonzero(of_line == line)
            records = self._records[rows]
            kind, value, took = records["counter_kind"], records["value"], records["end"] - records["start"]
            moved = np.isin(kind, (TO_GPU, TO_HOST))
            yield unnumbered(
                kind="migration",
                count=int(moved.sum()),
                to_gpu_bytes=int(value[kind == TO_GPU].sum()),
                to_host_bytes=int(value[kind == TO_HOST].sum()),
                prefetched_bytes=int(value[self._on_request[rows]].sum()),
                gpu_fault_groups=int((kind == GPU_FAULT).sum()),
                cpu_faults=int((kind == CPU_FAULT).sum()),
                copy_seconds=float(took[moved & (records["end"] > 0)].sum()) / 1e9,
                kernel_seconds=self._kernel_seconds(self._kernel[rows]),
                cpu_seconds=self._cpu_seconds(rows),
                first_seconds=self._totals.since_first(records["start"]),
                **self._totals.where(int(stacks[rows][0])),
            )

    def _stacks(self) -> NDArray[np.intp]:
        """Of each record the number of the stack that it belongs to; 0 where that is not known."""
        totals = self._totals
        stacks = np.zeros(len(self._records), np.intp)
        stood = self._places_stood()
        known = stood >= 0
        stacks[known] = self._standing["stack"][stood[known]]
        launched = np.flatnonzero(self._kernel >= 0)
        if len(launched):
            launches = totals.stacks(totals.kernels[self._kernel[launched]])
            of_python = totals.files[totals.line_of_stacks(launches)] != ""  # else a thread of a library launched it
            stacks[launched[of_python]] = launches[of_python]
        asked = np.flatnonzero(self._on_request)
        calls = totals.calls[np.asarray([name.startswith(_PREFETCHES) for name in totals.call_names], bool)]
        calls = calls[np.argsort(calls["start"], kind="stable")]
        newest = np.searchsorted(calls["start"], self._records["start"][asked], side="right") - 1
        stacks[asked[newest >= 0]] = calls["stack"][newest[newest >= 0]]
        return totals.known_stacks(stacks)

    def _kernels(self) -> NDArray[np.intp]:
        """Of each record the place of the kernel that ran then, the newest if several did; −1 where none did."""
        kernels = self._totals.kernels
        if not len(kernels):
            return np.full(len(self._records), -1)
        order = np.argsort(kernels["start"], kind="stable")
        newest = np.searchsorted(kernels["start"][order], self._records["start"], side="right") - 1
        place = order[np.maximum(newest, 0)]
        ends = kernels["end"][place]
        return np.where((newest >= 0) & ((ends == 0) | (ends >= self._records["start"])), place, -1)

    def _places_stood(self) -> NDArray[np.intp]:
        """Of each record where the program stood then, as a place in what was noted; −1 where that is not known.

        Between two notes the line changed at some moment. Where a call is the next that is known, it was on the line
        before until then, else on the line behind.
        """
        standing, totals = self._standing, self._totals
        if not len(standing):
            return np.full(len(self._records), -1)
        starts = self._records["start"]
        place = np.minimum(np.searchsorted(standing["until"], starts), len(standing) - 1)
        inside = (standing["since"][place] <= starts) & (starts <= standing["until"][place])
        calls = np.sort(totals.calls["start"][totals.files[totals.lines(totals.calls)] != ""])
        calls = np.append(calls, np.iinfo(np.int64).max)
        next_call = calls[np.searchsorted(calls, standing["since"][place], side="right")]
        follows = (place > 0) & (standing["until"][np.maximum(place - 1, 0)] == standing["since"][place])
        is_before = follows & (starts < next_call) & (next_call <= standing["until"][place])
        return np.where(inside, place - is_before, -1)

    def _kernel_seconds(self, places: NDArray[np.intp]) -> float:
        """How long the kernels ran for which pages moved."""
        kernels = self._totals.kernels[np.unique(places[places >= 0])]
        done = kernels["end"] > 0
        return float((kernels["end"] - kernels["start"])[done].sum()) / 1e9

    def _cpu_seconds(self, rows: NDArray[np.intp]) -> float:
        """How long the CPU stood at the line while it asked for pages: from the first record to the end of the last,
        each time that it stood there."""
        rows = rows[self._stood[rows] >= 0]
        starts, places = self._records["start"][rows], self._stood[rows]
        ends = np.maximum(starts, self._records["end"][rows])
        first = np.flatnonzero(np.diff(places, prepend=-1))
        if not len(first):
            return 0.0
        return float((np.maximum.reduceat(ends, first) - starts[first]).sum()) / 1e9
