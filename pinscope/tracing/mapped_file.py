"""Files as memory, for the recorder: a buffer is an address and no Python object, and outlives the program's death."""

from __future__ import annotations

import ctypes
import mmap
from typing import Any

from pinscope.tracing.bound import bind, os
from pinscope.tracing.spool_folder import SpoolFolder

bind(globals())


_MAP_FIXED = 0x10


def _memory_calls() -> Any:
    """mmap and munmap of the C library."""
    library = ctypes.CDLL(None, use_errno=True)
    library.mmap.restype = ctypes.c_void_p
    library.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long)
    library.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
    return library


_LIBRARY = _memory_calls()


def map_file(folder: SpoolFolder, name: str, size: int) -> int:
    """A new file as memory; its address. The file is closed again.

    Its blocks are taken now: a full disk must be an error here, not a SIGBUS later.

    Raises:
        OSError: no such file can be made.
    """
    descriptor = folder.open(name, os.O_RDWR | os.O_CREAT | os.O_EXCL)
    try:
        os.posix_fallocate(descriptor, 0, size)
        address = _LIBRARY.mmap(None, size, mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_SHARED, descriptor, 0)
    finally:
        os.close(descriptor)
    if address in (None, ctypes.c_void_p(-1).value):
        raise OSError(ctypes.get_errno(), "mmap failed")
    return int(address)


def unmap(address: int, size: int) -> None:
    """Nothing may use the memory any more; the file stays."""
    _LIBRARY.munmap(address, size)


def part_from_file(address: int, size: int) -> None:
    """What is written there from now on stays in this process."""
    _LIBRARY.mmap(
        address, size, mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_FIXED, -1, 0
    )
