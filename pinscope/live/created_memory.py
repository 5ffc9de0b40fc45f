"""Memory that cuMemCreate made, of one process. It is there as long as a handle or a mapping refers to it."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterator
from dataclasses import dataclass

from pinscope.records.registration import Piece

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
