"""The processes of a traced program merged into one result: their spools while they grow, rows and single events in the
end."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from pinscope.records.trace_row import TraceRow, copies_large_from_or_to
from pinscope.tracing.early_reads import early_reads, watched_copies
from pinscope.tracing.line_totals import DIRECTIONS, MEMORY, LineTotals, numbered, unnumbered
from pinscope.tracing.migrations import migrated
from pinscope.tracing.needless import needless
from pinscope.tracing.spool import RecordFiles, Spool

if TYPE_CHECKING:
    import pyarrow as pa

MOST_RECORDS = 20_000_000
"""Kept of one trace, of all kinds: about 1 GiB on the disk. The recording ends there; the program goes on."""
MOST_SITES = 1000
"""Rows of a kind. Those with the least are left out; of copies, those of large pageable ones last."""


@dataclass(frozen=True)
class Ended:
    """How a program, or one of its processes, ended.

    Attributes:
        begun_ns: when it started, as CUPTI counts time.
        ended_ns: when it was gone.
        exit_code: its own; below 0 the signal that killed it; ``None`` where it goes on, or is not known.
        unrecorded: a row for each process that it started, that used CUDA and was not recorded.
        unseen: how many it started that ended before one could look at them; ``None``: nobody looked.
        has_become_another: it said that it became another program, which may be recorded as a process of its own.
        notes: what is to be known of the recording, sentences.
        before_bytes: pinned memory that it had before it was recorded; ``None``: not known.
    """

    begun_ns: int
    ended_ns: int
    exit_code: int | None
    unrecorded: tuple[TraceRow, ...] = ()
    unseen: int | None = None
    has_become_another: bool = False
    notes: tuple[str, ...] = ()
    before_bytes: int | None = None

    @property
    def seconds(self) -> float:
        """From its start to its end; 0 where the clock was set back by more."""
        return max(self.ended_ns - self.begun_ns, 0) / 1e9


@dataclass(frozen=True)
class Process:
    """One process of a program that was recorded.

    Attributes:
        pid: its id.
        rank: among the processes of a job, where its launcher says so.
        seconds: from its recording's start to its end; ``None`` where it was killed.
        totals: its records.
    """

    pid: int
    rank: int | None
    seconds: float | None
    totals: LineTotals

    def row(self) -> TraceRow:
        """The process itself."""
        return unnumbered(
            kind="process",
            process=self.pid,
            rank=self.rank,
            seconds=self.seconds,
            active_seconds=_active_seconds([self.totals]),
            copies=len(self.totals.copies),
            kernels=len(self.totals.kernels),
        )


class ProcessFiles:
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
        self._files: dict[Path, RecordFiles] = {}
        self._find()

    @property
    def records(self) -> int:
        """How many there were when they were last taken."""
        return sum(files.records for files in self._files.values())

    def take(self, ended: bool = False) -> None:
        """Take what is there; ``ended``: the program has."""
        self._find()
        for files in self._files.values():
            files.take(ended)
            if self.records >= MOST_RECORDS and not self.is_full:
                self.is_full = True
                self.spool.stop()
                for other in self._files.values():
                    other.is_full = True

    def _find(self) -> None:
        """Processes that are new."""
        for spool in (self.spool, *self.spool.children()):
            if spool.folder not in self._files:
                kept = self._folder / str(len(self._files))
                kept.mkdir()
                self._files[spool.folder] = RecordFiles(spool, kept)
                self._files[spool.folder].is_full = self.is_full

    def said(self, name: str) -> Iterator[str]:
        """A line of each process that has one: :meth:`Spool.said`."""
        for files in self._files.values():
            spool, started = files.spool, files.spool.document("started.json")
            process = f"process {started['pid']}: " if started and spool.program else ""
            if said := spool.said(name):
                yield process + said

    def refused(self) -> Iterator[TraceRow]:
        """A row for each process beside the program itself that could not be recorded: CUPTI did not let us, or a fault
        came before the recording began."""
        for spool in (files.spool for files in self._files.values()):
            if spool.program and (spool.document("refused.json") or not spool.document("started.json")):
                yield unnumbered(kind="unrecorded", process=int(spool.folder.name.split(".")[1]), child="refused")

    def join(self, ended: Ended, is_part: bool) -> MergedTrace:
        """What was recorded of all of them.

        Args:
            ended: how the program did.
            is_part: only a part was to be recorded.
        """
        processes: list[Process] = []
        first_site = 0
        for files in self._files.values():
            totals = LineTotals(files, first_site)
            if totals.is_empty and files.spool.program:
                continue
            started = files.spool.document("started.json") or {}
            over = files.spool.document("ended.json")
            seconds = Ended(started["ns"], over["ns"], None).seconds if over and started else None
            processes.append(Process(int(started.get("pid", 0)), started.get("rank"), seconds, totals))
            first_site = int(totals.site_of_copies.max(initial=first_site - 1)) + 1
        recorded = self.spool.recorded_ns(ended.begun_ns, ended.ended_ns) / 1e9 if is_part else None
        return MergedTrace(processes, ended, recorded)


class MergedTrace:
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
        """All of them: the program, its processes if there are several, the devices, then sites, allocations,
        synchronisations and migrations, most first."""
        return numbered(self._rows())

    def _rows(self) -> Iterator[TraceRow]:
        totals = [process.totals for process in self.processes]
        sites = self._of_each(LineTotals.sites)
        peak_ns, peak_bytes = self._peak()
        failed = self._of_each(LineTotals.failed_calls)
        yield unnumbered(
            kind="program",
            seconds=self._ended.seconds,
            active_seconds=_active_seconds(totals),
            recorded_seconds=self._recorded_seconds,
            exit_code=self._ended.exit_code,
            copies=sum(len(process.copies) for process in totals),
            kernels=sum(len(process.kernels) for process in totals),
            unfinished=sum(process.unfinished for process in totals),
            lost_bytes=sum(process.lost_bytes for process in totals),
            sites_left_out=max(len(sites) - MOST_SITES, 0),
            unrecorded=len(self._ended.unrecorded),
            unseen=self._ended.unseen,
            managed_bytes=sum(process.managed_bytes for process in totals),
            peak_bytes=peak_bytes,
            before_bytes=self._ended.before_bytes,
            peak_at_seconds=max(peak_ns - self.begun_ns, 0) / 1e9 if peak_bytes else None,
            failed_calls=sum(row.count or 0 for row in failed) if all(each.notices_errors for each in totals) else None,
            migrations_recorded=_all_known([process.follows_managed for process in totals]),
        )
        if len(self.processes) > 1:
            yield from (process.row() for process in self.processes)
        yield from self._ended.unrecorded
        yield from self._of_each(LineTotals.devices)
        yield from failed[:MOST_SITES]
        yield from _most(sites, lambda row: (copies_large_from_or_to(row, "pageable"), row.bytes or 0))
        yield from _most(self._of_each(needless), lambda row: row.bytes or 0)
        yield from _most(self._of_each(LineTotals.loaders), lambda row: row.count or 0)
        yield from _most(self._of_each(lambda each: each.allocated(peak_ns)), lambda row: row.bytes or 0)
        yield from _most(self._of_each(LineTotals.waited), lambda row: row.idle_seconds or 0.0)
        yield from _most(self._of_each(migrated), lambda row: (row.to_gpu_bytes or 0) + (row.to_host_bytes or 0))
        yield from _most(self._of_each(LineTotals.host_calls), lambda row: row.host_seconds or 0)
        yield from _most(self._of_each(watched_copies), lambda row: row.count or 0)
        yield from _most(self._of_each(early_reads), lambda row: row.count or 0)
        yield from self._sizes()

    def _peak(self) -> tuple[int, int]:
        """When all processes together had most pinned memory, on CUPTI's clock, and how much; 0 where none had any."""
        moments, changes = (
            np.concatenate(parts)
            for parts in zip(*(each.totals.pinned.changes() for each in self.processes), strict=True)
        )
        order = np.argsort(moments, kind="stable")
        there = np.cumsum(changes[order])
        place = int(there.argmax()) if len(there) else -1
        return (int(moments[order][place]), int(there[place])) if place >= 0 else (0, 0)

    def _sizes(self) -> Iterator[TraceRow]:
        counts: dict[tuple[str, int], tuple[int, int]] = {}
        for process in self.processes:
            for direction, most, count, size in process.totals.sizes():
                before = counts.get((direction, most), (0, 0))
                counts[direction, most] = (before[0] + count, before[1] + size)
        for (direction, most), (count, size) in sorted(counts.items()):
            yield unnumbered(kind="size", direction=direction, most_bytes=most, count=count, bytes=size)

    def _of_each(self, rows: Callable[[LineTotals], Iterable[TraceRow]]) -> list[TraceRow]:
        """Rows of all processes; each names its process where there are several."""
        if len(self.processes) == 1:
            return list(rows(self.processes[0].totals))
        return [
            row.model_copy(update={"process": process.pid, "rank": process.rank})
            for process in self.processes
            for row in rows(process.totals)
        ]


def _most(rows: Iterable[TraceRow], size: Callable[[TraceRow], Any]) -> list[TraceRow]:
    """The first of them by size."""
    return sorted(rows, key=size, reverse=True)[:MOST_SITES]


def _all_known(answers: Sequence[bool | None]) -> bool | None:
    """Whether all that answer say yes; ``None`` where none does."""
    given = [answer for answer in answers if answer is not None]
    return all(given) if given else None


def _active_seconds(processes: Sequence[LineTotals]) -> float:
    active = [process.active_ns for process in processes if process.active_ns]
    return (max(end for _, end in active) - min(begin for begin, _ in active)) / 1e9 if active else 0.0


PIECE_ROWS = 100_000


def attachments(merged: MergedTrace) -> Iterator[tuple[str, pa.Schema, Iterator[pa.RecordBatch]]]:
    """Name, columns and rows of each table. Times are in nanoseconds since the program's start.

    ``copies`` whose time is known: ``at_ns`` and ``took_ns`` of the transfer (−1: its end was not recorded),
    ``call_at_ns`` and ``call_took_ns`` of the call that started it (−1: not recorded), ``bytes``, ``direction``,
    ``source``, ``target``, ``device``, ``stream``, ``site`` (``number`` of a row of kind ``site``), ``idle_ns`` (idle
    compute). ``kernels``: ``at_ns``, ``took_ns``, ``device``, ``stream``. ``calls``: ``at_ns``, ``took_ns``, ``call``,
    ``thread``, ``file`` (empty: no Python code made it), ``line``. ``pinned``: ``at_ns``, ``change_bytes`` (of pinned
    memory: below 0 where some was released). All: ``process``, its id; the events of a process stand together.
    """
    import pyarrow as pa  # noqa: PLC0415

    for name, pieces_of in _TABLES.items():
        pieces = (
            {**piece, "process": np.full(len(piece["at_ns"]), process.pid, np.int32)}
            for process in merged.processes
            for piece in pieces_of(process.totals, merged.begun_ns)
        )
        first = next(pieces)
        schema = pa.schema(
            [
                (key, pa.string() if values.dtype == object else pa.from_numpy_dtype(values.dtype))
                for key, values in first.items()
            ]
        )
        full = (piece for piece in chain([first], pieces) if len(piece["at_ns"]))
        yield name, schema, (pa.RecordBatch.from_pydict(dict(piece), schema=schema) for piece in full)


_Columns = Mapping[str, NDArray[Any]]


def _pieces(count: int) -> Iterator[slice]:
    """So many rows, in pieces; an empty one of none."""
    for begin in range(0, max(count, 1), PIECE_ROWS):
        yield slice(begin, min(begin + PIECE_ROWS, count))


def _copies(totals: LineTotals, begun: int) -> Iterator[_Columns]:
    words, directions = np.asarray(MEMORY, object), np.asarray(DIRECTIONS, object)
    timed: list[NDArray[Any]] = [
        values[totals.untimed :] for values in (totals.copies, totals.site_of_copies, totals.idle_of_copies)
    ]
    calls = totals.calls if len(totals.calls) else np.zeros(1, totals.calls.dtype)
    for piece in _pieces(len(timed[0])):
        copies, sites, idle = (values[piece] for values in timed)
        places = totals.call_places(copies)
        yield {
            "at_ns": copies["start"] - begun,
            "took_ns": np.where(copies["end"] > 0, _took(copies), -1),
            "call_at_ns": np.where(places >= 0, calls["start"][places] - begun, -1),
            "call_took_ns": np.where(places >= 0, _took(calls)[places], -1),
            "bytes": copies["bytes"],
            "direction": directions[np.minimum(copies["copy_kind"], len(DIRECTIONS) - 1)],
            "source": words[np.minimum(copies["src_kind"], len(MEMORY) - 1)],
            "target": words[np.minimum(copies["dst_kind"], len(MEMORY) - 1)],
            "device": copies["device_id"].astype(np.int32),
            "stream": copies["stream_id"].astype(np.int64),
            "site": sites.astype(np.int32),
            "idle_ns": idle,
        }


def _kernels(totals: LineTotals, begun: int) -> Iterator[_Columns]:
    for piece in _pieces(len(totals.kernels)):
        kernels = totals.kernels[piece]
        yield {
            "at_ns": kernels["start"] - begun,
            "took_ns": np.where(kernels["end"] > 0, _took(kernels), -1),
            "device": kernels["device_id"].astype(np.int32),
            "stream": kernels["stream_id"].astype(np.int64),
        }


def _calls(totals: LineTotals, begun: int) -> Iterator[_Columns]:
    for piece in _pieces(len(totals.calls)):
        calls = totals.calls[piece]
        lines = totals.lines(calls)
        yield {
            "at_ns": calls["start"] - begun,
            "took_ns": _took(calls),
            "call": totals.call_names[piece],
            "thread": calls["thread"].astype(np.int64),
            "file": totals.files[lines],
            "line": totals.line_numbers[lines],
        }


def _pinned(totals: LineTotals, begun: int) -> Iterator[_Columns]:
    moments, changes = totals.pinned.changes()
    for piece in _pieces(len(moments)):
        yield {"at_ns": moments[piece] - begun, "change_bytes": changes[piece]}


def _took(records: NDArray[Any]) -> NDArray[np.int64]:
    return np.asarray(records["end"] - records["start"], np.int64)


_TABLES: Mapping[str, Callable[[LineTotals, int], Iterator[_Columns]]] = {
    "copies": _copies,
    "kernels": _kernels,
    "calls": _calls,
    "pinned": _pinned,
}
"""Name → the columns of a process, a piece at a time."""
