"""Which memory processes have pinned: calls go in, and out comes what each process took and has not given back.

Registered memory is kept by address, which each call gives. So is allocated memory whose address the probe could
read. A piece of unknown address counts with its size all the same; a release of an address that is not kept is put
down to the oldest such piece of the process.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Protocol

from pinscope.probes.process import Caller
from pinscope.probes.uprobes import CALLS, FLAGLESS, Entered, Executed, Lost, Returned, TraceEvent
from pinscope.records.registration import PidRegistrations, Piece

WRITE_COMBINED = 0x04
"""CU_MEMHOSTALLOC_WRITECOMBINED (CUDA driver API)."""
IO_MEMORY = 0x04
"""CU_MEMHOSTREGISTER_IOMEMORY: another device's memory, which the kernel does not pin."""


@dataclass
class ProcessPieces:
    """One process: its live memory, and sums since it was first seen."""

    caller: Caller
    from_start: bool
    registered: dict[int, Piece] = field(default_factory=dict)
    """By address."""
    allocated: dict[int, Piece] = field(default_factory=dict)
    """By address."""
    unknown: list[Piece] = field(default_factory=list)
    """Allocated pieces of unknown address, oldest first."""
    registered_bytes: int = 0
    pinned_registered_bytes: int = 0
    calls: int = 0
    dropped_pieces: int = 0
    context_ended_at: datetime | None = None
    record: PidRegistrations | None = None
    """Made when it is asked for; ``None`` when something has happened since."""

    def __len__(self) -> int:
        """How many pieces are kept."""
        return len(self.registered) + len(self.allocated) + len(self.unknown)

    def count(self, piece: Piece, sign: int) -> None:
        """Count a piece in (1) or out (-1)."""
        if piece.kind == "register":
            self.registered_bytes += sign * piece.bytes
            self.pinned_registered_bytes += sign * pinned_bytes(piece)

    def free(self, address: int) -> None:
        """Memory was freed; an address that nobody knows is put down to the oldest piece of unknown address."""
        if address and self.allocated.pop(address, None) is None and self.unknown:  # to free nothing is allowed
            del self.unknown[0]

    def unregister(self, address: int) -> None:
        """Memory was unregistered; nothing happens if nobody saw it registered."""
        piece = self.registered.pop(address, None)
        if piece is not None:
            self.count(piece, sign=-1)

    def as_record(self) -> PidRegistrations:
        """What is known of it, as a record; oldest pieces first."""
        if self.record is None:
            pieces = (*self.registered.values(), *self.allocated.values(), *self.unknown)
            self.record = PidRegistrations(
                pid=self.caller.pid,
                name=self.caller.name,
                from_start=self.from_start,
                registered_bytes=self.registered_bytes,
                registrations=len(self.registered),
                pinned_registered_bytes=self.pinned_registered_bytes,
                pieces=tuple(sorted(pieces, key=lambda piece: piece.since)),
                calls=self.calls,
                dropped_pieces=self.dropped_pieces,
                context_ended_at=self.context_ended_at,
            )
        return self.record


def pinned_bytes(piece: Piece) -> int:
    """Bytes of the whole pages that a registered piece pins; 0 for any other."""
    if piece.kind != "register" or piece.address is None or piece.flags & IO_MEMORY:
        return 0
    page = os.sysconf("SC_PAGE_SIZE")
    return -(-(piece.address + piece.bytes) // page) * page - piece.address // page * page


MOST_PIECES = 20_000
"""Of one process."""
MOST_PIECES_OF_ALL = 200_000
MOST_PROCESSES = 4096
MOST_UNFINISHED = 1000
"""Calls that were entered and have not returned, before it is looked whether their threads are there still."""
MOST_BYTES = 2**50
"""Of one process: more than any host has. What claims more is no driver's library, and the sum over all processes must
fit 63 bits."""
START_SLACK_SECONDS = 0.05
"""The kernel gives the start of a process in hundredths of a second."""


class Callers(Protocol):
    """Tells who calls the driver; see :class:`pinscope.probes.process.LiveCallers`."""

    def of(self, pid: int) -> Caller | None:
        """The process that has this pid now; ``None`` if there is none or it has ended."""

    def owner(self, thread: int) -> int | None:
        """The pid of a thread's process; ``None`` if the thread has ended."""


class PinnedPieces:
    """Pinned memory of all processes.

    Args:
        callers: tells which process a call came from.
        since: when the probes were set, in seconds since boot.
    """

    def __init__(self, callers: Callers, since: float) -> None:
        self._callers = callers
        self._since = since
        self._processes: dict[int, ProcessPieces] = {}
        self._entered: dict[tuple[int, str], Entered] = {}
        self._pieces = 0
        self.lost_events = 0
        self._left_out: set[Caller] = set()

    @property
    def left_out_processes(self) -> int:
        """Processes that are not followed because there were too many; of those, too, only so many are kept apart."""
        return len(self._left_out)

    def apply(self, events: Iterable[TraceEvent], boot: float) -> None:
        """Apply what happened.

        Args:
            events: in their order.
            boot: when the events' clock was zero, in seconds since 1970.
        """
        known: dict[int, Caller | None] = {}  # asked once for all events of a batch
        for event in events:
            match event:
                case Entered():
                    # Two probes on one file report each call twice; the second report changes nothing.
                    self._entered[event.thread, event.call] = event
                case Returned():
                    entered = self._entered.pop((event.thread, event.call), None)
                    if entered is not None:
                        key = event.process or event.thread
                        if key not in known:
                            known[key] = self._caller(event)
                        self._apply_call(known[key], entered, event, datetime.fromtimestamp(boot + event.seconds, UTC))
                case Executed():
                    self._forget(event.process, before=event.seconds)
                case Lost():
                    self.lost_events += event.events

    def _caller(self, event: Returned) -> Caller | None:
        pid = event.process or self._callers.owner(event.thread)
        return self._callers.of(pid) if pid is not None else None

    def check(self) -> None:
        """Forget processes that have ended."""
        for pid, process in list(self._processes.items()):
            if self._callers.of(pid) != process.caller:
                self._forget(pid)
        if len(self._entered) > MOST_UNFINISHED:  # threads that ended in a call
            self._entered = {key: entered for key, entered in self._entered.items() if self._callers.owner(key[0])}

    def by_pid(self) -> Mapping[int, PidRegistrations]:
        """What is known of each process."""
        return {pid: process.as_record() for pid, process in self._processes.items()}

    def _process(self, caller: Caller) -> ProcessPieces | None:
        process = self._processes.get(caller.pid)
        if process is not None and process.caller == caller:
            return process
        self._forget(caller.pid)
        if len(self._processes) >= MOST_PROCESSES:
            if len(self._left_out) < MOST_PROCESSES:
                self._left_out.add(caller)
            return None
        process = ProcessPieces(caller, from_start=caller.started > self._since)
        self._processes[caller.pid] = process
        return process

    def _forget(self, pid: int, before: float | None = None) -> None:
        """Forget a process; with ``before``, unless its process started after that."""
        process = self._processes.get(pid)
        if process is not None and (before is None or process.caller.started <= before):
            del self._processes[pid]
            self._pieces -= len(process)

    def _apply_call(self, caller: Caller | None, entered: Entered, returned: Returned, moment: datetime) -> None:
        # An event older than the process is that of an earlier one with the same number.
        if caller is None or returned.result != 0 or entered.seconds < caller.started - START_SLACK_SECONDS:
            return
        process = self._process(caller)
        if process is None:
            return
        process.record = None
        kept = len(process)
        match CALLS[returned.call]:
            case "free":
                process.free(entered.arguments[0])
            case "unregister":
                process.unregister(entered.arguments[0])
            case "end_context":
                process.context_ended_at = moment
            case _:
                self._pin(process, entered, returned, moment)
        self._pieces += len(process) - kept

    def _pin(self, process: ProcessPieces, entered: Entered, returned: Returned, moment: datetime) -> None:
        """Memory was registered or allocated."""
        process.calls += 1
        first, size, flags = entered.arguments
        is_full = len(process) >= MOST_PIECES or self._pieces >= MOST_PIECES_OF_ALL
        if is_full or not 0 < size < MOST_BYTES - process.registered_bytes:
            process.dropped_pieces += 1
            return
        flags = 0 if entered.call in FLAGLESS else flags & 0xFFFFFFFF
        registers = CALLS[entered.call] == "register"
        piece = Piece(
            kind="register" if registers else "write_combined" if flags & WRITE_COMBINED else "alloc",
            address=first if registers else returned.word_at(first) or None,
            bytes=size,
            flags=flags,
            since=moment,
            seconds=max(0.0, returned.seconds - entered.seconds),
        )
        if piece.address is None:
            process.unknown.append(piece)
        elif registers:
            process.unregister(piece.address)  # in a call that was lost
            process.registered[piece.address] = piece
        else:
            process.allocated[piece.address] = piece
        process.count(piece, sign=1)
