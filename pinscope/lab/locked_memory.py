"""Anonymous memory of the process itself, touched or locked into RAM, for the host model."""

from __future__ import annotations

import ctypes
import mmap
import os
import resource
from typing import Self

from pinscope.errors import NotEnoughMemory
from pinscope.units import format_bytes

_LIBC = ctypes.CDLL(None, use_errno=True)


class Mapping:
    """Private anonymous memory, page-aligned; the system takes it back on ``close``.

    Args:
        nbytes: its length; the system rounds up to whole pages.

    Raises:
        NotEnoughMemory: the system gives no address space of that size.
    """

    def __init__(self, nbytes: int) -> None:
        self.nbytes = nbytes
        try:
            self._memory = mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        except (OSError, OverflowError) as error:
            raise NotEnoughMemory(
                f"the system gives no {format_bytes(nbytes)} of memory: {error}; ask for less"
            ) from None
        # The exporting object must go at once: a mapping with exports cannot be closed.
        self._address: int | None = ctypes.addressof(ctypes.c_char.from_buffer(self._memory))

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
        """Keep every page in RAM (``mlock``, which also touches it); undone by ``close``.

        Raises:
            NotEnoughMemory: the limit on locked memory, or the memory itself, does not suffice.
        """
        if _LIBC.mlock(ctypes.c_void_p(self.address), ctypes.c_size_t(self.nbytes)) == 0:
            return
        reason = os.strerror(ctypes.get_errno())
        limit = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
        allowed = "unlimited" if limit == resource.RLIM_INFINITY else format_bytes(limit)
        raise NotEnoughMemory(
            f"cannot lock {format_bytes(self.nbytes)} of memory ({reason}): RLIMIT_MEMLOCK is {allowed}, "
            "less what is locked already; raise it with 'ulimit -l' or 'memlock' in "
            "/etc/security/limits.conf, or give the process CAP_IPC_LOCK"
        )

    def close(self) -> None:
        """Give the memory back; ``munmap`` unlocks it as well. Closing twice is harmless."""
        self._address = None
        self._memory.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()
