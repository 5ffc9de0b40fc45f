"""A driver that pins nothing: it takes notes, and its calls take time on a clock of its own."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable

import numpy as np

from pinscope.errors import MeasurementFailed
from pinscope.lab.backing import PAGE, OwnMemory

RATE = 50e9
"""Bytes/second at which it registers; it unregisters at twice that."""


def resident_bytes(address: int, nbytes: int) -> int:
    """Bytes of whole pages that are backed by memory (mincore)."""
    states = (ctypes.c_ubyte * -(-nbytes // PAGE))()
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.mincore(ctypes.c_void_p(address), ctypes.c_size_t(nbytes), states) == 0
    return int((np.frombuffer(states, dtype=np.uint8) & 1).sum()) * PAGE


class Driver:
    """The calls that pin memory.

    Args:
        can_register: whether memory can be pinned where it is.
        fail_at: the piece that is refused, counted from 0.
        seconds: (bytes, number of the call) → how long a registration takes.

    Attributes:
        held: address → bytes of what is pinned now.
        log: (call, bytes, seconds).
        untouched: pieces that were registered before all of their pages were there.
    """

    def __init__(
        self,
        can_register: bool = True,
        fail_at: int | None = None,
        seconds: Callable[[int, int], float] = lambda nbytes, _: nbytes / RATE,
    ) -> None:
        self.can_register = can_register
        self.now = 0.0
        self.held: dict[int, int] = {}
        self.log: list[tuple[str, int, float]] = []
        self.untouched = 0
        self._fail_at, self._seconds = fail_at, seconds
        self._allocated: dict[int, OwnMemory] = {}
        self._lock = threading.Lock()

    @property
    def calls(self) -> list[str]:
        return [call for call, _, _ in self.log]

    def of(self, name: str) -> list[tuple[int, float]]:
        """(bytes, seconds) of the calls of that name."""
        return [(nbytes, seconds) for call, nbytes, seconds in self.log if call == name]

    def clock(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self._note("sleep", 0, seconds)

    def synchronize(self) -> None:
        self._note("synchronize", 0, 0.0)

    def allocate(self, nbytes: int) -> int:
        mapping = OwnMemory(nbytes)
        self._allocated[mapping.address] = mapping
        self._hold(mapping.address, nbytes)
        self._note("allocate", nbytes, 0.0)
        return mapping.address

    def free(self, address: int) -> None:
        self._allocated.pop(address).close()
        self._note("free", self.held.pop(address), 0.0)

    def register(self, address: int, nbytes: int) -> None:
        with self._lock:
            self.untouched += resident_bytes(address, nbytes) < nbytes // PAGE * PAGE
            self._hold(address, nbytes)
            self._note("register", nbytes, self._seconds(nbytes, len(self.of("register"))))

    def unregister(self, address: int) -> None:
        nbytes = self.held.pop(address)
        self._note("unregister", nbytes, nbytes / RATE / 2)

    def _hold(self, address: int, nbytes: int) -> None:
        if len(self.held) == self._fail_at:
            raise MeasurementFailed("refused")
        self.held[address] = nbytes

    def _note(self, call: str, nbytes: int, seconds: float) -> None:
        self.now += seconds
        self.log.append((call, nbytes, seconds))
