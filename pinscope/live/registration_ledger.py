"""The books on pinned memory: calls go in, and out comes what each process pinned and has not released.

Registered memory is booked by address, which each call gives. So is allocated memory whose address the probe could
read. A piece of unknown address counts with its size all the same; a release of an address that is not booked is put
down to the oldest such piece of the process.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Protocol

from pinscope.probes.callers import Caller
from pinscope.probes.pinned_address import Wanted
from pinscope.probes.uprobes import CALLS, FLAGLESS, Entered, Executed, Lost, Returned, TraceEvent
from pinscope.records.registration import PidRegistrations, Piece, PieceKind

MOST_PIECES = 20_000
"""Of one process."""
MOST_PIECES_OF_ALL = 200_000
MOST_PROCESSES = 4096
MOST_UNFINISHED = 1000
"""Calls that were entered and have not returned, before it is looked whether their threads are there still."""
MOST_BYTES = 2**50
"""Of one process: more than any host has. What claims more is no driver's library, and the sum over all processes must
fit 63 bits."""
WRITE_COMBINED = 0x04
"""CU_MEMHOSTALLOC_WRITECOMBINED (CUDA driver API)."""
IO_MEMORY = 0x04
"""CU_MEMHOSTREGISTER_IOMEMORY: another device's memory, which the kernel does not pin."""
START_SLACK_SECONDS = 0.05
"""The kernel gives the start of a process in hundredths of a second."""


class Callers(Protocol):
    """Tells who calls the driver; see :class:`pinscope.probes.callers.LiveCallers`."""

    def of(self, pid: int) -> Caller | None:
        """The process that has this pid now; ``None`` if there is none or it has ended."""

    def owner(self, thread: int) -> int | None:
        """The pid of a thread's process; ``None`` if the thread has ended."""


@dataclass
class Pieces:
    """Live memory of one process."""

    registered: dict[int, Piece] = field(default_factory=dict)
    """By address; likewise below."""
    allocated: dict[int, Piece] = field(default_factory=dict)
    unknown: dict[int, Piece] = field(default_factory=dict)
    """Allocated pieces of unknown address, by number in order of time."""

    def __len__(self) -> int:
        return len(self.registered) + len(self.allocated) + len(self.unknown)

    def __iter__(self) -> Iterator[Piece]:
        """Oldest first."""
        every = [*self.registered.values(), *self.allocated.values(), *self.unknown.values()]
        return iter(sorted(every, key=lambda piece: piece.since))


@dataclass
class Account:
    """One process: its live memory, and sums since the account was opened."""

    caller: Caller
    from_start: bool
    pieces: Pieces = field(default_factory=Pieces)
    registered_bytes: int = 0
    pinned_registered_bytes: int = 0
    calls: int = 0
    dropped_pieces: int = 0
    context_ended_at: datetime | None = None
    record: PidRegistrations | None = None
    """Made when it is asked for; ``None`` when something has happened since."""

    def book(self, piece: Piece, sign: int) -> None:
        """Count a piece in (1) or out (-1)."""
        if piece.kind == "register":
            self.registered_bytes += sign * piece.bytes
            self.pinned_registered_bytes += sign * pinned_bytes(piece)

    def told(self) -> PidRegistrations:
        """The account as a record."""
        if self.record is None:
            self.record = PidRegistrations(
                pid=self.caller.pid,
                name=self.caller.name,
                from_start=self.from_start,
                registered_bytes=self.registered_bytes,
                registrations=len(self.pieces.registered),
                pinned_registered_bytes=self.pinned_registered_bytes,
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


class Ledger:
    """Books of all processes.

    Args:
        callers: tells which process a call came from.
        since: when the probes were set, in seconds since boot.
    """

    def __init__(self, callers: Callers, since: float) -> None:
        self._callers = callers
        self._since = since
        self._accounts: dict[int, Account] = {}
        self._entered: dict[tuple[int, str], Entered] = {}
        self._pieces = 0
        self._serial = 0
        self._unsettled: list[tuple[int, Wanted]] = []
        self.lost_events = 0
        self._left_out: set[Caller] = set()

    @property
    def left_out_processes(self) -> int:
        """Processes that are not followed because there were too many; of those, too, only so many are told apart."""
        return len(self._left_out)

    def apply(self, events: Iterable[TraceEvent], boot: float) -> None:
        """Book what happened.

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
                        self._book(known[key], entered, event, datetime.fromtimestamp(boot + event.seconds, UTC))
                case Executed():
                    self._forget(event.process, before=event.seconds)
                case Lost():
                    self.lost_events += event.events

    def _caller(self, event: Returned) -> Caller | None:
        pid = event.process or self._callers.owner(event.thread)
        return self._callers.of(pid) if pid is not None else None

    def late(self, pid: int) -> None:
        """The process may have pinned memory before its copy of the driver's library was probed."""
        caller = self._callers.of(pid)
        account = self._account(caller) if caller is not None else None
        if account is not None:
            account.from_start, account.record = False, None

    def check(self) -> None:
        """Close the accounts of processes that have ended."""
        for pid, account in list(self._accounts.items()):
            if self._callers.of(pid) != account.caller:
                self._forget(pid)
        if len(self._entered) > MOST_UNFINISHED:  # threads that ended in a call
            self._entered = {key: one for key, one in self._entered.items() if self._callers.owner(key[0])}

    def unsettled(self) -> Mapping[int, Sequence[Wanted]]:
        """Pieces whose address nobody has looked for yet, by pid."""
        found: dict[int, list[Wanted]] = {}
        for pid, wanted in self._unsettled:
            account = self._accounts.get(pid)
            if account is not None and wanted.number in account.pieces.unknown:  # not released meanwhile
                found.setdefault(pid, []).append(wanted)
        self._unsettled = []
        return found

    def settle(self, pid: int, number: int, address: int) -> None:
        """A piece's address was found after all; one that is another piece's is not believed.

        Nothing happens if the piece was released meanwhile.
        """
        account = self._accounts.get(pid)
        if account is not None and number in account.pieces.unknown and address not in account.pieces.allocated:
            piece = account.pieces.unknown.pop(number)
            account.pieces.allocated[address] = piece.model_copy(update={"address": address})
            account.record = None

    def addresses(self, pid: int) -> frozenset[int]:
        """Addresses of a process's allocated pieces, as far as they are known."""
        return frozenset(self._accounts[pid].pieces.allocated)

    def by_pid(self) -> Mapping[int, PidRegistrations]:
        """Every account."""
        return {pid: account.told() for pid, account in self._accounts.items()}

    def _account(self, caller: Caller) -> Account | None:
        account = self._accounts.get(caller.pid)
        if account is not None and account.caller == caller:
            return account
        self._forget(caller.pid)
        if len(self._accounts) >= MOST_PROCESSES:
            if len(self._left_out) < MOST_PROCESSES:
                self._left_out.add(caller)
            return None
        account = Account(caller, from_start=caller.started > self._since)
        self._accounts[caller.pid] = account
        return account

    def _forget(self, pid: int, before: float | None = None) -> None:
        """Close an account; with ``before``, unless its process started after that."""
        account = self._accounts.get(pid)
        if account is not None and (before is None or account.caller.started <= before):
            del self._accounts[pid]
            self._pieces -= len(account.pieces)

    def _book(self, caller: Caller | None, entered: Entered, returned: Returned, moment: datetime) -> None:
        # An event older than the process is that of an earlier one with the same number.
        if caller is None or returned.result != 0 or entered.seconds < caller.started - START_SLACK_SECONDS:
            return
        account = self._account(caller)
        if account is None:
            return
        account.record = None
        action = CALLS[returned.call]
        if action in ("allocate", "register"):
            self._pin(account, entered, returned, moment)
        elif action == "end_context":
            account.context_ended_at = moment
        elif entered.arguments[0]:  # to free nothing is allowed
            self._release(account, entered.arguments[0], action == "unregister")

    def _pin(self, account: Account, entered: Entered, returned: Returned, moment: datetime) -> None:
        first, size, flags = entered.arguments
        flags = 0 if entered.call in FLAGLESS else flags
        seconds = max(0.0, returned.seconds - entered.seconds)
        account.calls += 1
        too_many = len(account.pieces) >= MOST_PIECES or self._pieces >= MOST_PIECES_OF_ALL
        if too_many or not 0 < size < MOST_BYTES - account.registered_bytes:
            account.dropped_pieces += 1
            return
        registers = CALLS[entered.call] == "register"
        kind: PieceKind = "register" if registers else "write_combined" if flags & WRITE_COMBINED else "alloc"
        address = first if registers else returned.word_at(first) or None
        piece = Piece(kind=kind, address=address, bytes=size, flags=flags, since=moment, seconds=seconds)
        pieces = account.pieces.registered if registers else account.pieces.allocated
        self._take(account, pieces, address)  # it was released in a call that was lost
        if address is not None:
            pieces[address] = piece
        else:
            self._serial += 1
            account.pieces.unknown[self._serial] = piece
            self._unsettled.append((account.caller.pid, Wanted(self._serial, first, size)))
        self._pieces += 1
        account.book(piece, 1)

    def _release(self, account: Account, address: int, registered: bool) -> None:
        if self._take(account, account.pieces.registered if registered else account.pieces.allocated, address):
            return
        if not registered and account.pieces.unknown:
            self._take(account, account.pieces.unknown, next(iter(account.pieces.unknown)))

    def _take(self, account: Account, pieces: dict[int, Piece], key: int | None) -> bool:
        """Take a piece off the books; false if there is none."""
        piece = pieces.pop(key, None) if key is not None else None
        if piece is not None:
            self._pieces -= 1
            account.book(piece, -1)
        return piece is not None
