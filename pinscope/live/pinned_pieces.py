"""Which memory processes have pinned: calls go in, and out comes what each process took and has not given back.

Registered memory is kept by address, which each call gives. So is allocated memory whose address the probe could
read. A piece of unknown address counts with its size all the same; a release of an address that is not kept is put
down to the oldest such piece of the process. Memory of cuMemCreate is kept by its handle, and what was allocated from
pools of host memory by address.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Protocol

from pinscope.probes.process import Caller
from pinscope.probes.uprobes import CALLS, FLAGLESS, Action, Entered, Executed, Lost, Returned, TraceEvent, Wanted
from pinscope.records.registration import DRIVER_MEMORY, PidRegistrations, Piece, PieceKind


@dataclass(eq=False)
class _Made:
    piece: Piece
    handle: int
    handles: int = 1
    """How often its handle was given out and not released."""
    mappings: int = 0


class CreatedMemory:
    """Host memory that one process made by cuMemCreate: it is there while a handle or a mapping refers to it."""

    def __init__(self) -> None:
        self._by_handle: dict[int, _Made] = {}
        self._mapped: dict[int, tuple[int, _Made]] = {}
        """By first address: the address behind the last, and what is mapped there."""

    def __len__(self) -> int:
        return len(self._by_handle) + len(self._mapped)

    def __iter__(self) -> Iterator[Piece]:
        """In no order."""
        mapped = (made for _, made in self._mapped.values())
        return (made.piece for made in dict.fromkeys([*self._by_handle.values(), *mapped]))

    def create(self, handle: int, piece: Piece) -> None:
        """Keep memory that a handle stands for from now on."""
        self._by_handle[handle] = _Made(piece, handle)

    def forget(self, handle: int) -> list[Piece]:
        """A handle means other memory now: the calls that gave back what it meant were lost; gives that."""
        made = self._by_handle.pop(handle, None)
        if made is None:
            return []
        self._mapped = {start: known for start, known in self._mapped.items() if known[1] is not made}
        return [made.piece]

    def retain(self, address: int) -> None:
        """The handle of what is mapped at an address was given out once more."""
        made = next((made for start, (end, made) in self._mapped.items() if start <= address < end), None)
        # Its number may be another's by now.
        if made is not None and self._by_handle.setdefault(made.handle, made) is made:
            made.handles += 1

    def release(self, handle: int) -> list[Piece]:
        """A handle was given back; gives the memory that is gone with it."""
        made = self._by_handle.get(handle)
        if made is None:  # on a GPU, created before anybody looked, or imported
            return []
        made.handles -= 1
        return self._without_unused(made)

    def map(self, start: int, size: int, handle: int) -> list[Piece]:
        """Memory was mapped; gives what was mapped there before, if it must be gone."""
        gone = self._unmap_at(start)
        made = self._by_handle.get(handle)
        if made is not None:
            made.mappings += 1
            self._mapped[start] = (start + size, made)
        return gone

    def unmap(self, start: int, size: int) -> list[Piece]:
        """All mappings within a range are gone; gives the memory that is gone with them."""
        within = [at for at, (end, _) in self._mapped.items() if start <= at and end <= start + size]
        return [piece for at in within for piece in self._unmap_at(at)]

    def _unmap_at(self, start: int) -> list[Piece]:
        if start not in self._mapped:
            return []
        _, made = self._mapped.pop(start)
        made.mappings -= 1
        return self._without_unused(made)

    def _without_unused(self, made: _Made) -> list[Piece]:
        if made.handles > 0:
            return []
        if self._by_handle.get(made.handle) is made:
            del self._by_handle[made.handle]  # the driver may give its number to another
        return [] if made.mappings > 0 else [made.piece]


WRITE_COMBINED = 0x04
"""CU_MEMHOSTALLOC_WRITECOMBINED (CUDA driver API)."""
IO_MEMORY = 0x04
"""CU_MEMHOSTREGISTER_IOMEMORY: another device's memory, which the kernel does not pin."""


@dataclass
class Pieces:
    """Live memory of one process."""

    registered: dict[int, Piece] = field(default_factory=dict)
    """By address; likewise below."""
    allocated: dict[int, Piece] = field(default_factory=dict)
    from_pools: dict[int, Piece] = field(default_factory=dict)
    unknown: dict[int, Piece] = field(default_factory=dict)
    """Allocated pieces of unknown address, by number in order of time."""
    created: CreatedMemory = field(default_factory=CreatedMemory)
    pools: set[int] = field(default_factory=set)
    """Handles of pools of host memory."""

    def __len__(self) -> int:
        """How much is kept."""
        by_key = len(self.registered) + len(self.allocated) + len(self.from_pools) + len(self.unknown)
        return by_key + len(self.created) + len(self.pools)

    def __iter__(self) -> Iterator[Piece]:
        """Oldest first."""
        by_key = (self.registered, self.allocated, self.from_pools, self.unknown)
        every = [*self.created, *(piece for pieces in by_key for piece in pieces.values())]
        return iter(sorted(every, key=lambda piece: piece.since))

    def of_kind(self, kind: PieceKind) -> dict[int, Piece]:
        """Those that are kept by address as this kind is."""
        return {"register": self.registered, "pool": self.from_pools}.get(kind, self.allocated)


@dataclass
class ProcessPieces:
    """One process: its live memory, and sums since it was first seen."""

    caller: Caller
    from_start: bool
    pieces: Pieces = field(default_factory=Pieces)
    registered_bytes: int = 0
    pinned_registered_bytes: int = 0
    driver_memory_bytes: int = 0
    host_pools: int = 0
    """Pools of host memory that it ever made or found."""
    unread_pools: int = 0
    """Those of them whose handle could not be read."""
    unread_handles: bool = False
    """Some handle of cuMemCreate could not be read."""
    calls: int = 0
    dropped_pieces: int = 0
    context_ended_at: datetime | None = None
    record: PidRegistrations | None = None
    """Made when it is asked for; ``None`` when something has happened since."""

    @property
    def may_use_pools(self) -> bool:
        """It may still take memory from a pool of host memory, or give some back."""
        return bool(self.pieces.pools or self.pieces.from_pools or self.unread_pools)

    def kind(self, entered: Entered) -> PieceKind | None:
        """What a call takes on the host; ``None`` if it takes nothing there."""
        match CALLS[entered.call]:
            case "register":
                return "register"
            case "create":
                return "create" if entered.is_pinned_on_host else None
            case "take":
                return "pool" if entered.arguments[2] in self.pieces.pools else None
        flags = 0 if entered.call in FLAGLESS else entered.arguments[2]
        return "write_combined" if flags & WRITE_COMBINED else "alloc"

    def count(self, *pieces: Piece, sign: int) -> None:
        """Count pieces in (1) or out (-1)."""
        for piece in pieces:
            if piece.kind == "register":
                self.registered_bytes += sign * piece.bytes
                self.pinned_registered_bytes += sign * pinned_bytes(piece)
            elif piece.kind in DRIVER_MEMORY:
                self.driver_memory_bytes += sign * piece.bytes

    def release(self, address: int, action: Action) -> None:
        """Memory was freed or unregistered; what nobody knows, if it was freed, is put down to the oldest piece of
        unknown address."""
        kind: PieceKind = "register" if action == "unregister" else "pool" if action == "give" else "alloc"
        if not address:  # to free nothing is allowed
            return
        if not self.take_off(self.pieces.of_kind(kind), address) and action == "free" and self.pieces.unknown:
            self.take_off(self.pieces.unknown, next(iter(self.pieces.unknown)))

    def take_off(self, pieces: dict[int, Piece], key: int) -> bool:
        """Take a piece away; false if there is none."""
        piece = pieces.pop(key, None)
        if piece is not None:
            self.count(piece, sign=-1)
        return piece is not None

    def as_record(self) -> PidRegistrations:
        """What is known of it, as a record."""
        if self.record is None:
            self.record = PidRegistrations(
                pid=self.caller.pid,
                name=self.caller.name,
                from_start=self.from_start,
                registered_bytes=self.registered_bytes,
                registrations=len(self.pieces.registered),
                pinned_registered_bytes=self.pinned_registered_bytes,
                driver_memory_bytes=self.driver_memory_bytes,
                unread_handles=self.unread_handles,
                host_pools=self.host_pools,
                pieces=tuple(self.pieces),
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
        self._serial = 0
        self._unresolved: list[tuple[int, Wanted]] = []
        self.lost_events = 0
        self._left_out: set[Caller] = set()

    @property
    def left_out_processes(self) -> int:
        """Processes that are not followed because there were too many; of those, too, only so many are kept apart."""
        return len(self._left_out)

    @property
    def has_host_pools(self) -> bool:
        """Some process has a pool of host memory, or memory from one."""
        return any(process.may_use_pools for process in self._processes.values())

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

    def unresolved(self) -> Mapping[int, tuple[Sequence[Wanted], Collection[int]]]:
        """By pid: pieces whose address nobody has looked for yet, and the known addresses of the others."""
        by_pid: dict[int, list[Wanted]] = {}
        for pid, wanted in self._unresolved:
            process = self._processes.get(pid)
            if process is not None and wanted.number in process.pieces.unknown:  # not released meanwhile
                by_pid.setdefault(pid, []).append(wanted)
        self._unresolved = []
        return {pid: (wanted, frozenset(self._processes[pid].pieces.allocated)) for pid, wanted in by_pid.items()}

    def resolve(self, pid: int, number: int, address: int) -> None:
        """A piece's address was found after all; one that is another piece's is not believed.

        Nothing happens if the piece was released meanwhile.
        """
        process = self._processes.get(pid)
        if process is not None and number in process.pieces.unknown and address not in process.pieces.allocated:
            piece = process.pieces.unknown.pop(number)
            process.pieces.allocated[address] = piece.model_copy(update={"address": address})
            process.record = None

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
            self._pieces -= len(process.pieces)

    def _apply_call(self, caller: Caller | None, entered: Entered, returned: Returned, moment: datetime) -> None:
        # An event older than the process is that of an earlier one with the same number.
        if caller is None or returned.result != 0 or entered.seconds < caller.started - START_SLACK_SECONDS:
            return
        process = self._process(caller)
        if process is None:
            return
        process.record = None
        kept, action = len(process.pieces), CALLS[returned.call]
        if action in _TAKES:
            self._pin(process, entered, returned, moment)
        elif action == "end_context":
            process.context_ended_at = moment
        elif action in ("make_pool", "find_pool"):
            self._keep_pool(process, entered, returned)
        elif action == "end_pool":  # what was allocated from it stays until it is freed
            process.pieces.pools.discard(entered.arguments[0])
        elif action in ("free", "unregister", "give"):
            process.release(entered.arguments[0], action)
        else:
            self._refer(process, entered)
        self._pieces += len(process.pieces) - kept

    def _is_full(self, process: ProcessPieces) -> bool:
        return len(process.pieces) >= MOST_PIECES or self._pieces >= MOST_PIECES_OF_ALL

    def _pin(self, process: ProcessPieces, entered: Entered, returned: Returned, moment: datetime) -> None:
        """Memory was taken on the host, or a handle was given to memory on a GPU."""
        first, size, third = entered.arguments
        creates = CALLS[entered.call] == "create"
        kind = process.kind(entered)
        address_or_handle = first if kind == "register" else returned.word_at(first) or None
        if creates and address_or_handle is not None:
            process.count(*process.pieces.created.forget(address_or_handle), sign=-1)
        if kind is None:
            return
        process.calls += 1
        if self._is_full(process) or not 0 < size < MOST_BYTES - process.registered_bytes - process.driver_memory_bytes:
            process.dropped_pieces += 1
            return
        piece = Piece(
            kind=kind,
            address=None if creates else address_or_handle,
            bytes=size,
            flags=third & 0xFFFFFFFF if entered.call in _FLAGGED else 0,
            since=moment,
            seconds=max(0.0, returned.seconds - entered.seconds),
        )
        if not creates:
            kept = self._place(process, piece, Wanted(self._serial, first, size))
        elif kept := address_or_handle is not None:
            process.pieces.created.create(address_or_handle, piece)
        else:
            process.unread_handles = True
        process.count(*[piece] * kept, sign=1)

    def _place(self, process: ProcessPieces, piece: Piece, wanted: Wanted) -> bool:
        """Keep a piece by its address; false if it is left out."""
        if piece.address is not None:
            process.take_off(process.pieces.of_kind(piece.kind), piece.address)  # released in a call that was lost
            process.pieces.of_kind(piece.kind)[piece.address] = piece
        elif piece.kind == "pool":  # programs free so much on GPUs that its release could not be followed
            process.dropped_pieces += 1
            return False
        else:
            process.pieces.unknown[wanted.number] = piece
            self._unresolved.append((process.caller.pid, wanted))
            self._serial += 1
        return True

    def _keep_pool(self, process: ProcessPieces, entered: Entered, returned: Returned) -> None:
        if not entered.is_pinned_on_host:
            return
        pool = returned.word_at(entered.arguments[0])
        process.host_pools += pool not in process.pieces.pools
        if pool and not self._is_full(process):
            process.pieces.pools.add(pool)
        else:
            process.unread_pools += 1

    def _refer(self, process: ProcessPieces, entered: Entered) -> None:
        """A handle or a mapping of created memory came or went."""
        first, second, _ = entered.arguments
        created = process.pieces.created
        gone: Sequence[Piece] = ()
        match CALLS[entered.call]:
            case "retain":
                created.retain(second)
            case "map" if self._is_full(process):
                process.dropped_pieces += 1
            case "map":
                gone = created.map(first, second, entered.words.get("d", 0))
            case "unmap":
                gone = created.unmap(first, second)
            case _:
                gone = created.release(first)
        process.count(*gone, sign=-1)


_TAKES: frozenset[Action] = frozenset({"allocate", "register", "create", "take"})
_FLAGGED = {call for call, action in CALLS.items() if action in ("allocate", "register")} - FLAGLESS
