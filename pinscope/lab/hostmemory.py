"""Buffers of the host model, and the ring through which pageable memory is staged."""

from __future__ import annotations

import ctypes
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from typing import Self

from pinscope.lab.backing import OwnMemory
from pinscope.lab.hostengine import Engine, HostStream, Operation
from pinscope.lab.pattern import WORD_BYTES
from pinscope.records.run import HostMemory

SLOT_BYTES = 512 * 1024
"""One slot of a staging ring. A copy up to this long (64 KiB and less in any case) is staged in one piece."""
SLOTS = 2
"""One slot is filled while the other is emptied."""


@dataclass(frozen=True)
class Area:
    """A stretch of a mapping; stands for device memory."""

    mapping: OwnMemory
    nbytes: int
    offset: int = 0

    @property
    def address(self) -> int:
        """Where it begins. Raises ValueError once the memory has been released."""
        return self.mapping.address + self.offset

    def part(self, offset: int, nbytes: int) -> Self:
        """A view of ``nbytes`` bytes from ``offset``.

        Raises:
            ValueError: not multiples of 8, or beyond the end.
        """
        if offset % WORD_BYTES or nbytes % WORD_BYTES or offset < 0 or not 0 < nbytes <= self.nbytes - offset:
            raise ValueError(f"no part of {nbytes} bytes from {offset} in a buffer of {self.nbytes} bytes")
        return replace(self, offset=self.offset + offset, nbytes=nbytes)


@dataclass(frozen=True, kw_only=True)
class HostArea(Area):
    """Host memory of one kind."""

    memory: HostMemory


def move(target: int, source: int, nbytes: int, ready: float = 0.0) -> None:  # noqa: ARG001 - an engine's Work
    """Copy bytes between addresses; other threads run meanwhile."""
    ctypes.memmove(target, source, nbytes)


@dataclass
class _Slot:
    address: int
    user: Operation | None = None
    """The engine's operation that last used the slot."""


class StagingRing:
    """A small locked ring through which an engine reaches pageable memory, as a GPU driver does it.

    The calling thread moves the bytes between the pageable buffer and the ring, the engine between the ring and
    device memory. A second caller waits until the first one's copy is staged.

    Args:
        engine: the copy engine that the ring serves.
    """

    nbytes = SLOTS * SLOT_BYTES

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._lock = threading.Lock()
        self._open = ExitStack()
        self._slots: deque[_Slot] = deque()

    def __enter__(self) -> Self:
        """Lock the ring's memory. Raises NotEnoughMemory."""
        with ExitStack() as opening:
            memory = opening.enter_context(OwnMemory(self.nbytes))
            memory.lock()
            self._slots.extend(_Slot(memory.address + number * SLOT_BYTES) for number in range(SLOTS))
            self._open = opening.pop_all()
        return self

    def __exit__(self, *exception: object) -> None:
        self._slots.clear()
        self._open.close()

    def to_device(self, target: int, source: int, nbytes: int, stream: HostStream) -> None:
        """Return when all is staged; the last piece may still be on its way to ``target``."""
        with self._lock:
            stream.wait_until_idle()
            for offset, length in _pieces(nbytes):
                slot = self._free_slot()
                move(slot.address, source + offset, length)
                slot.user = stream.submit(self._engine, partial(move, target + offset, slot.address, length))

    def to_host(self, target: int, source: int, nbytes: int, stream: HostStream) -> None:
        """Return when all has arrived at ``target``."""
        with self._lock:
            staged: deque[tuple[Operation, int, int, int]] = deque()
            for offset, length in _pieces(nbytes):
                if len(staged) == SLOTS:
                    _take_out(*staged.popleft())
                slot = self._free_slot()
                slot.user = stream.submit(self._engine, partial(move, slot.address, source + offset, length))
                staged.append((slot.user, target + offset, slot.address, length))
            for piece in staged:
                _take_out(*piece)

    def _free_slot(self) -> _Slot:
        """The slot used longest ago, once the engine is done with it."""
        slot = self._slots[0]
        self._slots.rotate(-1)
        if slot.user is not None:
            slot.user.wait()
        return slot


def _pieces(nbytes: int) -> Iterator[tuple[int, int]]:
    """(offset, length) of the pieces that a copy is staged in."""
    for offset in range(0, nbytes, SLOT_BYTES):
        yield offset, min(SLOT_BYTES, nbytes - offset)


def _take_out(operation: Operation, target: int, slot: int, length: int) -> None:
    """Take one piece out of the ring once the engine has put it there."""
    operation.wait()
    move(target, slot, length)
