"""The books on pinned memory: calls go in, and out comes what each process took and has not given back.

Registered memory is booked by address, which each call gives. So is allocated memory whose address the probe could
read. A piece of unknown address counts with its size all the same; a release of an address that is not booked is put
down to the oldest such piece of the process. Memory of cuMemCreate is booked by its handle, and what was allocated from
pools of host memory by address.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Protocol

from pinscope.live.account import Account
from pinscope.probes.pinned_address import Wanted
from pinscope.probes.process_identity import Caller
from pinscope.probes.uprobes import CALLS, FLAGLESS, Action, Entered, Executed, Lost, Returned, TraceEvent
from pinscope.records.registration import PidRegistrations, Piece

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
    """Tells who calls the driver; see :class:`pinscope.probes.process_identity.LiveCallers`."""

    def of(self, pid: int) -> Caller | None:
        """The process that has this pid now; ``None`` if there is none or it has ended."""

    def owner(self, thread: int) -> int | None:
        """The pid of a thread's process; ``None`` if the thread has ended."""


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
        return any(account.may_use_pools for account in self._accounts.values())

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

    def unresolved(self) -> Mapping[int, Sequence[Wanted]]:
        """Pieces whose address nobody has looked for yet, by pid."""
        found: dict[int, list[Wanted]] = {}
        for pid, wanted in self._unresolved:
            account = self._accounts.get(pid)
            if account is not None and wanted.number in account.pieces.unknown:  # not released meanwhile
                found.setdefault(pid, []).append(wanted)
        self._unresolved = []
        return found

    def resolve(self, pid: int, number: int, address: int) -> None:
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
        return {pid: account.as_record() for pid, account in self._accounts.items()}

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
        kept, action = len(account.pieces), CALLS[returned.call]
        if action in _TAKES:
            self._pin(account, entered, returned, moment)
        elif action == "end_context":
            account.context_ended_at = moment
        elif action in ("make_pool", "find_pool"):
            self._book_pool(account, entered, returned)
        elif action == "end_pool":  # what was allocated from it stays until it is freed
            account.pieces.pools.discard(entered.arguments[0])
        elif action in ("free", "unregister", "give"):
            account.release(entered.arguments[0], action)
        else:
            self._refer(account, entered, returned)
        self._pieces += len(account.pieces) - kept

    def _is_full(self, account: Account) -> bool:
        return len(account.pieces) >= MOST_PIECES or self._pieces >= MOST_PIECES_OF_ALL

    def _pin(self, account: Account, entered: Entered, returned: Returned, moment: datetime) -> None:
        """Memory was taken: on the host, or on a GPU by cuMemCreate."""
        first, size, third = entered.arguments
        creates = CALLS[entered.call] == "create"
        kind = account.kind(entered)
        if kind is None and not creates:
            return
        account.calls += kind is not None
        if self._is_full(account) or not 0 < size < MOST_BYTES - account.registered_bytes - account.driver_memory_bytes:
            account.dropped_pieces += 1
            return
        address_or_handle = first if kind == "register" else returned.word_at(first) or None
        piece = (
            None
            if kind is None
            else Piece(
                kind=kind,
                address=None if creates else address_or_handle,
                bytes=size,
                flags=third & 0xFFFFFFFF if entered.call in _FLAGGED else 0,
                since=moment,
                seconds=max(0.0, returned.seconds - entered.seconds),
            )
        )
        if creates and address_or_handle is None and account.pieces.created.is_full:
            account.dropped_pieces += 1
            return
        if creates:
            account.book(*account.pieces.created.create(address_or_handle, size, piece), sign=-1)
        elif piece is not None and not self._place(account, piece, Wanted(self._serial, first, size)):
            return
        if piece is not None:
            account.book(piece, sign=1)

    def _place(self, account: Account, piece: Piece, wanted: Wanted) -> bool:
        """Put a piece on the books by its address; false if it is left out."""
        if piece.address is not None:
            account.take_off(account.pieces.of_kind(piece.kind), piece.address)  # released in a call that was lost
            account.pieces.of_kind(piece.kind)[piece.address] = piece
        elif piece.kind == "pool":  # programs free so much on GPUs that its release could not be followed
            account.dropped_pieces += 1
            return False
        else:
            account.pieces.unknown[wanted.number] = piece
            self._unresolved.append((account.caller.pid, wanted))
            self._serial += 1
        return True

    def _book_pool(self, account: Account, entered: Entered, returned: Returned) -> None:
        if not entered.is_pinned_on_host:
            return
        pool = returned.word_at(entered.arguments[0])
        account.host_pools += pool not in account.pieces.pools
        if pool and not self._is_full(account):
            account.pieces.pools.add(pool)
        else:
            account.unread_pools += 1

    def _refer(self, account: Account, entered: Entered, returned: Returned) -> None:
        """A handle or a mapping of created memory came or went."""
        first, second, _ = entered.arguments
        created = account.pieces.created
        gone: Sequence[Piece] = ()
        match CALLS[entered.call]:
            case "import":
                handle = returned.word_at(first)
                account.imported |= handle is None or not created.import_again(handle)
            case "retain":
                created.retain(second)
            case "map" if self._is_full(account):
                account.dropped_pieces += 1
            case "map":
                gone = created.map(first, second, entered.words.get("d", 0))
            case "unmap":
                gone = created.unmap(first, second)
            case _:
                gone = created.release(first)
        account.book(*gone, sign=-1)


_TAKES: frozenset[Action] = frozenset({"allocate", "register", "create", "take"})
_FLAGGED = {call for call, action in CALLS.items() if action in ("allocate", "register")} - FLAGLESS
