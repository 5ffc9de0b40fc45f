"""Shared anonymous memory that lies in the address space as cudaHostAlloc's does, but is not pinned."""

from __future__ import annotations

import ctypes
import mmap

_STEP = 2 * 2**20
_LIBC = ctypes.CDLL(None)
_LIBC.mmap.restype = ctypes.c_void_p
_LIBC.mmap.argtypes = [
    ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long
]  # fmt: skip
_LIBC.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
_MAP_FIXED = 0x10


def room_of(size: int) -> int:
    """Bytes of address space that are set aside for so much memory."""
    return -(-size // _STEP) * _STEP


def map_like_cuda(size: int) -> int:
    """Map and touch it; gives its address. Give ``room_of(size)`` bytes back with :func:`unmap`."""
    room = room_of(size)
    private = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    begin = _LIBC.mmap(None, room + _STEP, 0, private, -1, 0)
    place: int = -(-begin // _STEP) * _STEP
    unmap(begin, place - begin)
    unmap(place + room, begin + _STEP - place)
    shared = mmap.MAP_SHARED | mmap.MAP_ANONYMOUS | _MAP_FIXED
    if _LIBC.mmap(place, size, mmap.PROT_READ | mmap.PROT_WRITE, shared, -1, 0) != place:
        raise MemoryError(size)
    ctypes.memset(place, 1, size)
    return place


def unmap(address: int, size: int) -> None:
    """Give address space back."""
    if size:
        _LIBC.munmap(address, size)
