"""The account of one process: which host memory it took through the driver and has not given back."""

from __future__ import annotations

import os
from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime

from pinscope.probes.process_identity import Caller
from pinscope.probes.uprobes import CALLS, FLAGLESS, Action, Entered
from pinscope.records.registration import DRIVER_MEMORY, PidRegistrations, Piece, PieceKind

MOST_UNREAD = 100
"""Pieces of unknown handle; each handle that nobody knows is looked for among them."""


@dataclass(eq=False)
class _Made:
    bytes: int
    piece: Piece | None
    """``None``: it lies on a GPU. Its handle must be known all the same, or it would be taken for another's."""
    handle: int | None
    handles: int = 1
    """How often its handle was given out and not released."""
    mappings: int = 0

    @property
    def is_gone(self) -> bool:
        return self.handles <= 0 and self.mappings <= 0


class CreatedMemory:
    """What one process made and has not given back.

    Where the trace gives no handle, the next one that nobody knows is taken for it: to map memory, of that size.
    """

    def __init__(self) -> None:
        self._known: dict[int, _Made] = {}
        self._unread: list[_Made] = []
        self._mapped: dict[int, tuple[int, _Made]] = {}
        """By first address: the address behind the last, and what is mapped there."""
        self._starts: list[int] = []
        """The first addresses, in order."""
        self.guessed = False
        """Some handle could not be read."""

    @property
    def is_full(self) -> bool:
        """One more piece of unknown handle would be too many."""
        return len(self._unread) >= MOST_UNREAD

    def __len__(self) -> int:
        return len(self._known) + len(self._unread) + len(self._mapped)

    def __iter__(self) -> Iterator[Piece]:
        """What lies on the host, in no order."""
        behind = (made for _, made in self._mapped.values() if made.handles <= 0)
        every = dict.fromkeys([*self._known.values(), *self._unread, *behind])
        return (made.piece for made in every if made.piece is not None)

    def create(self, handle: int | None, size: int, piece: Piece | None) -> list[Piece]:
        """Book memory; gives what had the same handle, which must be gone.

        Args:
            handle: ``None`` where it could not be read.
            size: in bytes.
            piece: ``None`` if it lies on a GPU.
        """
        made = _Made(size, piece, handle)
        if handle is None:
            self._unread.append(made)
            self.guessed = True
            return []
        before = self._known.pop(handle, None)
        gone = [] if before is None else self._forget(before)
        self._known[handle] = made
        return gone

    def import_again(self, handle: int) -> bool:
        """A handle was imported; false if it is not of memory that is known."""
        made = self._known.get(handle)
        if made is not None:
            made.handles += 1
        return made is not None

    def retain(self, address: int) -> None:
        """The handle of what is mapped at an address was given out once more."""
        before = bisect_right(self._starts, address) - 1
        end, made = self._mapped[self._starts[before]] if before >= 0 else (0, None)
        if made is None or made.handle is None or address >= end:
            return
        if self._known.setdefault(made.handle, made) is made:  # or it is another's number by now
            made.handles += 1

    def release(self, handle: int) -> list[Piece]:
        """A handle was given back; gives the memory on the host that is gone with it."""
        made = self._known.get(handle) or (self._unread[0] if self._unread else None)
        if made is None:  # created before anybody looked, or imported
            return []
        made.handles -= 1
        return self._swept(made)

    def map(self, start: int, size: int, handle: int) -> list[Piece]:
        """Memory was mapped; gives what was mapped there before, if it must be gone."""
        gone = self._unmapped(start) if start in self._mapped else []
        made = self._known.get(handle)
        if made is None:
            made = next((one for one in self._unread if one.bytes == size), None)
            if made is None:
                return gone
            self._unread.remove(made)
            self._known[handle], made.handle = made, handle
        made.mappings += 1
        self._mapped[start] = (start + size, made)
        insort(self._starts, start)
        return gone

    def unmap(self, start: int, size: int) -> list[Piece]:
        """All mappings within a range are gone; gives the memory on the host that is gone with them."""
        begins = self._starts[bisect_left(self._starts, start) : bisect_left(self._starts, start + size)]
        whole = [at for at in begins if self._mapped[at][0] <= start + size]
        return [piece for at in whole for piece in self._unmapped(at)]

    def _unmapped(self, start: int) -> list[Piece]:
        """One mapping is gone."""
        del self._starts[bisect_left(self._starts, start)]
        _, made = self._mapped.pop(start)
        made.mappings -= 1
        return self._swept(made)

    def _forget(self, made: _Made) -> list[Piece]:
        """Its handle means other memory now: the calls that gave it back were lost."""
        for start in [start for start, (_, one) in self._mapped.items() if one is made] if made.mappings else ():
            self._unmapped(start)
        return [made.piece] if made.piece is not None else []

    def _swept(self, made: _Made) -> list[Piece]:
        """Forget memory that nothing refers to any more."""
        if made.handles <= 0:
            if made.handle is not None and self._known.get(made.handle) is made:
                del self._known[made.handle]  # the driver may give its number to another
            elif made in self._unread and made.is_gone:
                self._unread.remove(made)
        return [made.piece] if made.is_gone and made.piece is not None else []


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
