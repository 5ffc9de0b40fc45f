"""The processes of a traced program merged into one result: their spools while they grow, rows and single events in the
end."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from pinscope.records.trace_row import TraceRow, copies_large_from_or_to
from pinscope.tracing.early_reads import early_reads, watched_copies
from pinscope.tracing.line_totals import DIRECTIONS, MEMORY, Ended, LineTotals, unnumbered
from pinscope.tracing.loader_feeds import loaders
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
class Process:
    """One process of a program that was recorded.

    Attributes:
        pid: its id.
        rank: among the processes of a job, where its launcher says so.
        seconds: from its recording's start to its end; ``None`` where it was killed.
        totals: its records.
        first_site: what is added to the numbers of its sites, so that they differ from those of the others.
    """

    pid: int
    rank: int | None
    seconds: float | None
    totals: LineTotals
    first_site: int

    def row(self) -> TraceRow:
        """The process itself."""
        return unnumbered(
            kind="process",
            process=self.pid,
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
            totals = LineTotals(files)
            if totals.is_empty and files.spool.program:
                continue
            started = files.spool.document("started.json") or {}
            over = files.spool.document("ended.json")
            seconds = Ended(started["ns"], over["ns"], None).seconds if over and started else None
            processes.append(Process(int(started.get("pid", 0)), started.get("rank"), seconds, totals, first_site))
            first_site += int(totals.site_of_copies.max(initial=-1)) + 1
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
        totals = [process.totals for process in self.processes]
        sites = self._numbered(_sites)
        peak_ns, peak_bytes = self._peak()
        failed = self._numbered(lambda process: process.totals.failed_calls())
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
            yield from self._numbered(lambda process: [process.row()])
        yield from (row.model_copy(update={"repeat": repeat}) for repeat, row in enumerate(self._ended.unrecorded))
        yield from self._numbered(lambda process: process.totals.devices())
        yield from failed[:MOST_SITES]
        yield from _most(sites, lambda row: (copies_large_from_or_to(row, "pageable"), row.bytes or 0))
        yield from _most(self._numbered(_needless), lambda row: row.bytes or 0)
        yield from _most(self._numbered(_loaders), lambda row: row.count or 0)
        yield from _most(self._numbered(lambda process: process.totals.allocated(peak_ns)), lambda row: row.bytes or 0)
        yield from _most(self._numbered(lambda process: process.totals.waited()), lambda row: row.idle_seconds or 0.0)
        yield from _most(self._numbered(lambda process: migrated(process.totals)), _migrated_bytes)
        yield from _most(self._numbered(lambda process: process.totals.host_calls()), lambda row: row.host_seconds or 0)
        yield from _most(self._numbered(lambda each: watched_copies(each.totals)), lambda row: row.count or 0)
        yield from _most(self._numbered(lambda each: early_reads(each.totals)), lambda row: row.count or 0)
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
        for repeat, ((direction, most), (count, size)) in enumerate(sorted(counts.items())):
            row = unnumbered(kind="size", direction=direction, most_bytes=most, count=count, bytes=size)
            yield row.model_copy(update={"repeat": repeat})

    def _numbered(self, rows: Callable[[Process], Iterable[TraceRow]]) -> list[TraceRow]:
        """Rows of one kind, of all processes; each names its process where there are several."""
        numbered = [
            row.model_copy(update={"process": process.pid, "rank": process.rank} if len(self.processes) > 1 else {})
            for process in self.processes
            for row in rows(process)
        ]
        return [row.model_copy(update={"repeat": repeat}) for repeat, row in enumerate(numbered)]


def _most(rows: Iterable[TraceRow], size: Callable[[TraceRow], Any]) -> Iterator[TraceRow]:
    """The first of them by size, numbered anew."""
    for repeat, row in enumerate(sorted(rows, key=size, reverse=True)[:MOST_SITES]):
        yield row.model_copy(update={"repeat": repeat})


def _sites(process: Process) -> Iterator[TraceRow]:
    for row in process.totals.sites():
        yield row.model_copy(update={"number": (row.number or 0) + process.first_site})


def _needless(process: Process) -> Iterator[TraceRow]:
    first = process.first_site
    for row in needless(process.totals):
        sender = None if row.sent_by is None else row.sent_by + first
        yield row.model_copy(update={"number": (row.number or 0) + first, "sent_by": sender})


def _loaders(process: Process) -> Iterator[TraceRow]:
    for row in loaders(process.totals):
        yield row.model_copy(update={"number": (row.number or 0) + process.first_site})


def _migrated_bytes(row: TraceRow) -> int:
    return (row.to_gpu_bytes or 0) + (row.to_host_bytes or 0)


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

    text = {"direction", "source", "target", "call", "file"}
    for name, (count, columns_of) in _TABLES.items():
        tables = [
            (count(process.totals), {**columns_of(process, merged.begun_ns), **_process(process)})
            for process in merged.processes
        ]
        schema = pa.schema(
            [
                (key, pa.string() if key in text else pa.from_numpy_dtype(column(slice(0, 0)).dtype))
                for key, column in tables[0][1].items()
            ]
        )
        yield name, schema, _pieces(tables, schema)


_Columns = Mapping[str, Callable[[slice], NDArray[Any]]]


def _pieces(tables: Sequence[tuple[int, _Columns]], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    import pyarrow as pa  # noqa: PLC0415

    for count, columns in tables:
        for begin in range(0, count, PIECE_ROWS):
            piece = slice(begin, min(begin + PIECE_ROWS, count))
            yield pa.RecordBatch.from_arrays(
                [pa.array(columns[field.name](piece), field.type) for field in schema], schema=schema
            )


def _process(process: Process) -> _Columns:
    return {"process": lambda piece: np.full(piece.stop - piece.start, process.pid, np.int32)}


def _copies(process: Process, begun: int) -> _Columns:
    totals = process.totals
    timed = slice(totals.untimed, None)
    copies, sites, idle = totals.copies[timed], totals.site_of_copies[timed], totals.idle_of_copies[timed]
    places = totals.call_places(copies)
    known = places >= 0
    calls = totals.calls if len(totals.calls) else np.zeros(1, totals.calls.dtype)
    words, directions = np.asarray(MEMORY, object), np.asarray(DIRECTIONS, object)
    return {
        "at_ns": lambda piece: copies["start"][piece] - begun,
        "took_ns": lambda piece: np.where(copies["end"][piece] > 0, copies["end"][piece] - copies["start"][piece], -1),
        "call_at_ns": lambda piece: np.where(known[piece], calls["start"][places[piece]] - begun, -1),
        "call_took_ns": lambda piece: np.where(known[piece], _took(calls)[places[piece]], -1),
        "bytes": lambda piece: copies["bytes"][piece],
        "direction": lambda piece: directions[np.minimum(copies["copy_kind"][piece], len(DIRECTIONS) - 1)],
        "source": lambda piece: words[np.minimum(copies["src_kind"][piece], len(MEMORY) - 1)],
        "target": lambda piece: words[np.minimum(copies["dst_kind"][piece], len(MEMORY) - 1)],
        "device": lambda piece: copies["device_id"][piece].astype(np.int32),
        "stream": lambda piece: copies["stream_id"][piece].astype(np.int64),
        "site": lambda piece: (sites[piece] + process.first_site).astype(np.int32),
        "idle_ns": lambda piece: idle[piece],
    }


def _kernels(process: Process, begun: int) -> _Columns:
    kernels = process.totals.kernels
    return {
        "at_ns": lambda piece: kernels["start"][piece] - begun,
        "took_ns": lambda piece: np.where(kernels["end"][piece] > 0, _took(kernels[piece]), -1),
        "device": lambda piece: kernels["device_id"][piece].astype(np.int32),
        "stream": lambda piece: kernels["stream_id"][piece].astype(np.int64),
    }


def _calls(process: Process, begun: int) -> _Columns:
    totals = process.totals
    calls, names, lines = totals.calls, totals.call_names, totals.lines(totals.calls)
    return {
        "at_ns": lambda piece: calls["start"][piece] - begun,
        "took_ns": lambda piece: _took(calls[piece]),
        "call": lambda piece: names[piece],
        "thread": lambda piece: calls["thread"][piece].astype(np.int64),
        "file": lambda piece: totals.files[lines[piece]],
        "line": lambda piece: totals.line_numbers[lines[piece]],
    }


def _pinned(process: Process, begun: int) -> _Columns:
    moments, changes = process.totals.pinned.changes()
    return {"at_ns": lambda piece: moments[piece] - begun, "change_bytes": lambda piece: changes[piece]}


def _took(records: NDArray[Any]) -> NDArray[np.int64]:
    return np.asarray(records["end"] - records["start"], np.int64)


_TABLES: Mapping[str, tuple[Callable[[LineTotals], int], Callable[[Process, int], _Columns]]] = {
    "copies": (lambda totals: len(totals.copies) - totals.untimed, _copies),
    "kernels": (lambda totals: len(totals.kernels), _kernels),
    "calls": (lambda totals: len(totals.calls), _calls),
    "pinned": (lambda totals: len(totals.pinned.changes()[0]), _pinned),
}
"""Name → number of rows, and the columns, of a process."""
