"""The processes of a traced program, joined in one result: their spools while they grow, their rows in the end."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pinscope.records.trace_row import TraceRow, copies_large_from_or_to
from pinscope.tracing.gathered import Gathered
from pinscope.tracing.spool import Spool
from pinscope.tracing.summed import Ended, Summed

MOST_RECORDS = 20_000_000
"""Kept of one trace, of all kinds: about 1 GiB on the disk. The recording ends there; the program goes on."""
MOST_SITES = 1000
"""Rows of a kind. Those with the least are left out; of copies, those of large pageable ones last."""


@dataclass(frozen=True)
class Process:
    """One process of a program that was recorded.

    Attributes:
        pid: its id.
        rank: among the processes of a job, where its launcher says so.
        seconds: from its recording's start to its end; ``None`` where it was killed.
        summed: its records.
        first_site: what is added to the numbers of its sites, so that they differ from those of the others.
    """

    pid: int
    rank: int | None
    seconds: float | None
    summed: Summed
    first_site: int

    def row(self) -> TraceRow:
        """The process itself."""
        return TraceRow(
            kind="process",
            repeat=0,
            warmup=False,
            process=self.pid,
            seconds=self.seconds,
            active_seconds=_active_seconds([self.summed]),
            copies=len(self.summed.copies),
            kernels=len(self.summed.kernels),
        )


class GatheredProcesses:
    """The spools of a program and of the processes that it starts, emptied as they grow.

    Args:
        spool: the program's.
        folder: where the records are kept.
    """

    def __init__(self, spool: Spool, folder: Path) -> None:
        self.spool = spool
        self.is_full = False
        """No more records are taken; the recorders have been asked to end."""
        self._folder = folder
        self._gathered: dict[Path, Gathered] = {}
        self._find()

    @property
    def records(self) -> int:
        """How many there were when they were last taken."""
        return sum(gathered.records for gathered in self._gathered.values())

    def take(self, ended: bool = False) -> None:
        """Take what is there; ``ended``: the program has."""
        self._find()
        for gathered in self._gathered.values():
            gathered.take(ended)
            if self.records >= MOST_RECORDS and not self.is_full:
                self.is_full = True
                self.spool.stop()
                for other in self._gathered.values():
                    other.is_full = True

    def _find(self) -> None:
        """Processes that are new."""
        for spool in (self.spool, *self.spool.children()):
            if spool.folder not in self._gathered:
                kept = self._folder / str(len(self._gathered))
                kept.mkdir()
                self._gathered[spool.folder] = Gathered(spool, kept)
                self._gathered[spool.folder].is_full = self.is_full

    def faults(self) -> Iterator[str]:
        """Why a recording ended early, or could not begin, each a line."""
        yield from self._said(lambda spool: spool.fault)

    def unnamed(self) -> Iterator[str]:
        """Which lines are named, where not all are, each a line."""
        yield from self._said(lambda spool: spool.full)

    def _said(self, line: Callable[[Spool], str | None]) -> Iterator[str]:
        for gathered in self._gathered.values():
            spool, started = gathered.spool, gathered.spool.document("started.json")
            process = f"process {started['pid']}: " if started and spool.program else ""
            if said := line(spool):
                yield process + said

    def unrecorded(self) -> int:
        """How many processes beside the program itself could not be recorded: CUPTI did not let us, or a fault came
        before the recording began."""
        return sum(
            gathered.spool.program is not None
            and (gathered.spool.document("refused.json") is not None or gathered.spool.document("started.json") is None)
            for gathered in self._gathered.values()
        )

    def join(self, ended: Ended, is_part: bool) -> Joined:
        """What was recorded of all of them.

        Args:
            ended: how the program did.
            is_part: only a part was to be recorded.
        """
        processes: list[Process] = []
        first_site = 0
        for gathered in self._gathered.values():
            summed = Summed(gathered)
            if summed.is_empty and gathered.spool.program:
                continue
            started = gathered.spool.document("started.json") or {}
            over = gathered.spool.document("ended.json")
            seconds = Ended(started["ns"], over["ns"], None).seconds if over and started else None
            processes.append(Process(int(started.get("pid", 0)), started.get("rank"), seconds, summed, first_site))
            first_site += int(summed.site_of_copies.max(initial=-1)) + 1
        recorded = self.spool.recorded_ns(ended.begun_ns, ended.ended_ns) / 1e9 if is_part else None
        return Joined(processes, ended, recorded)


class Joined:
    """What was recorded of the processes of a program; the first is the program itself.

    Args:
        processes: all that recorded something, and the first.
        ended: how the program did.
        recorded_seconds: how long of it was recorded; ``None``: all.
    """

    def __init__(self, processes: Sequence[Process], ended: Ended, recorded_seconds: float | None) -> None:
        self.processes = processes
        self.begun_ns = ended.begun_ns
        self._ended = ended
        self._recorded_seconds = recorded_seconds

    def rows(self) -> Iterator[TraceRow]:
        """All of them: the program, its processes if there are several, the devices, then sites, allocations and
        synchronisations, most first."""
        summed = [process.summed for process in self.processes]
        sites = self._numbered(_sites)
        yield TraceRow(
            kind="program",
            repeat=0,
            warmup=False,
            seconds=self._ended.seconds,
            active_seconds=_active_seconds(summed),
            recorded_seconds=self._recorded_seconds,
            exit_code=self._ended.exit_code,
            copies=sum(len(process.copies) for process in summed),
            kernels=sum(len(process.kernels) for process in summed),
            unfinished=sum(process.unfinished for process in summed),
            lost_bytes=sum(process.lost_bytes for process in summed),
            sites_left_out=max(len(sites) - MOST_SITES, 0),
            unrecorded=self._ended.unrecorded,
            managed_bytes=sum(process.managed_bytes for process in summed),
        )
        if len(self.processes) > 1:
            yield from self._numbered(lambda process: [process.row()])
        yield from self._numbered(lambda process: process.summed.devices())
        yield from _most(sites, lambda row: (copies_large_from_or_to(row, "pageable"), row.bytes or 0))
        yield from _most(self._numbered(lambda process: process.summed.allocated()), lambda row: row.bytes or 0)
        yield from _most(self._numbered(lambda process: process.summed.waited()), lambda row: row.idle_seconds or 0.0)

    def _numbered(self, rows: Callable[[Process], Iterable[TraceRow]]) -> list[TraceRow]:
        """Rows of one kind, of all processes; each names its process where there are several."""
        found = [
            row.model_copy(update={"process": process.pid, "rank": process.rank} if len(self.processes) > 1 else {})
            for process in self.processes
            for row in rows(process)
        ]
        return [row.model_copy(update={"repeat": repeat}) for repeat, row in enumerate(found)]


def _most(rows: Iterable[TraceRow], size: Callable[[TraceRow], Any]) -> Iterator[TraceRow]:
    """The first of them by size, numbered anew."""
    for repeat, row in enumerate(sorted(rows, key=size, reverse=True)[:MOST_SITES]):
        yield row.model_copy(update={"repeat": repeat})


def _sites(process: Process) -> Iterator[TraceRow]:
    for row in process.summed.sites():
        yield row.model_copy(update={"number": (row.number or 0) + process.first_site})


def _active_seconds(processes: Sequence[Summed]) -> float:
    active = [process.active_ns for process in processes if process.active_ns]
    return (max(end for _, end in active) - min(begin for begin, _ in active)) / 1e9 if active else 0.0
