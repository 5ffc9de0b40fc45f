"""Memory of the process itself, touched or locked into RAM."""

from __future__ import annotations

import ctypes
import os
import resource
from typing import Self

from pinscope.errors import NotEnoughMemory
from pinscope.lab.backing import map_file, map_memory
from pinscope.records.run import Backing
from pinscope.units import format_bytes

_LIBC = ctypes.CDLL(None, use_errno=True)


class Mapping:
    """Memory of this process, page-aligned; the system takes it back on ``close``.

    Args:
        nbytes: its length; the system rounds up to whole pages.
        backing: what stands under it; ``None`` leaves that to the system.
        descriptor: of shared memory to map instead of new memory; stays the caller's.

    Raises:
        NotEnoughMemory: the system gives no such memory.
    """

    def __init__(self, nbytes: int, backing: Backing | None = None, descriptor: int | None = None) -> None:
        self.nbytes = nbytes
        if descriptor is None:
            self._memory, offset = map_memory(nbytes, backing)
        else:
            self._memory, offset = map_file(descriptor, nbytes), 0
        # The exporting object must go at once: a mapping with exports cannot be closed.
        self._address: int | None = ctypes.addressof(ctypes.c_char.from_buffer(self._memory)) + offset

    @property
    def address(self) -> int:
        """Where it begins.

        Raises:
            ValueError: it has been closed.
        """
        if self._address is None:
            raise ValueError("this memory has been released")
        return self._address

    def touch(self) -> None:
        """Write to every page, so that each is backed by memory."""
        ctypes.memset(self.address, 0, self.nbytes)

    def lock(self) -> None:
        """Keep every page in RAM; undone by ``close``. Raises as :func:`lock`."""
        lock(self.address, self.nbytes)

    def close(self) -> None:
        """Give the memory back; ``munmap`` unlocks it as well. Closing twice is harmless."""
        self._address = None
        self._memory.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def lock(address: int, nbytes: int) -> None:
    """Keep pages in RAM (``mlock``, which also touches them).

    Raises:
        NotEnoughMemory: the limit on locked memory, or the memory itself, does not suffice.
    """
    if _LIBC.mlock(ctypes.c_void_p(address), ctypes.c_size_t(nbytes)) == 0:
        return
    reason = os.strerror(ctypes.get_errno())
    limit = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
    allowed = "unlimited" if limit == resource.RLIM_INFINITY else format_bytes(limit)
    raise NotEnoughMemory(
        f"cannot lock {format_bytes(nbytes)} of memory ({reason}): RLIMIT_MEMLOCK is {allowed}, "
        "less what is locked already; raise it with 'ulimit -l' or 'memlock' in "
        "/etc/security/limits.conf, or give the process CAP_IPC_LOCK"
    )


def unlock(address: int, nbytes: int) -> None:
    """Undo :func:`lock`."""
    _LIBC.munlock(ctypes.c_void_p(address), ctypes.c_size_t(nbytes))
