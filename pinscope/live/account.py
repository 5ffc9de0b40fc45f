"""The account of one process: which host memory it took through the driver and has not given back."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime

from pinscope.live.created_memory import CreatedMemory
from pinscope.probes.process_identity import Caller
from pinscope.probes.uprobes import CALLS, FLAGLESS, Action, Entered
from pinscope.records.registration import DRIVER_MEMORY, PidRegistrations, Piece, PieceKind

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
        """How much is kept, also of memory on GPUs."""
        by_key = len(self.registered) + len(self.allocated) + len(self.from_pools) + len(self.unknown)
        return by_key + len(self.created) + len(self.pools)

    def __iter__(self) -> Iterator[Piece]:
        """Oldest first."""
        by_key = (self.registered, self.allocated, self.from_pools, self.unknown)
        every = [*self.created, *(piece for pieces in by_key for piece in pieces.values())]
        return iter(sorted(every, key=lambda piece: piece.since))

    def of_kind(self, kind: PieceKind) -> dict[int, Piece]:
        """Those that are booked by address as this kind is."""
        return {"register": self.registered, "pool": self.from_pools}.get(kind, self.allocated)


@dataclass
class Account:
    """One process: its live memory, and sums since the account was opened."""

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
    imported: bool = False
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

    def book(self, *pieces: Piece, sign: int) -> None:
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
        """Take a piece off the books; false if there is none."""
        piece = pieces.pop(key, None)
        if piece is not None:
            self.book(piece, sign=-1)
        return piece is not None

    def as_record(self) -> PidRegistrations:
        """The account as a record."""
        if self.record is None:
            self.record = PidRegistrations(
                pid=self.caller.pid,
                name=self.caller.name,
                from_start=self.from_start,
                registered_bytes=self.registered_bytes,
                registrations=len(self.pieces.registered),
                pinned_registered_bytes=self.pinned_registered_bytes,
                driver_memory_bytes=self.driver_memory_bytes,
                unread_handles=self.pieces.created.guessed,
                host_pools=self.host_pools,
                imported=self.imported,
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
