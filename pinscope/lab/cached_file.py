"""A file that an ordinary process reads again and again: how much of it is still in the page cache."""

from __future__ import annotations

import ctypes
import mmap
import os
import tempfile
import time
from typing import Final

from pinscope.errors import MeasurementFailed
from pinscope.probes.mounts import IN_MEMORY, file_system
from pinscope.probes.proc import HERE, Proc
from pinscope.units import format_bytes

PIECE_BYTES = 2**20
"""Read at once."""
_LOWEST_BIT = bytes(number & 1 for number in range(256))
"""mincore's other bits mean nothing (mincore(2))."""
_LIBC = ctypes.CDLL(None, use_errno=True)


class CachedFile:
    """A file without a name, of random content (which no file system stores in less), written and synchronised.

    Args:
        folder: where it is to be.
        nbytes: how long it is.
    """

    def __init__(self, folder: str, nbytes: int) -> None:
        self._nbytes = nbytes
        self._file: Final = tempfile.TemporaryFile(dir=folder, buffering=0)  # noqa: SIM115 - open as long as the process
        content = os.urandom(PIECE_BYTES)
        for begin in range(0, nbytes, PIECE_BYTES):
            self._file.write(content[: min(PIECE_BYTES, nbytes - begin)])
        os.fsync(self._file.fileno())
        self._piece = bytearray(PIECE_BYTES)
        self._mapping = mmap.mmap(self._file.fileno(), nbytes)  # never read through: mincore asks about it
        self._resident = (ctypes.c_ubyte * -(-nbytes // mmap.PAGESIZE))()

    def cached_bytes(self) -> int:
        """How much of it is in the page cache (mincore(2))."""
        address = ctypes.addressof(ctypes.c_char.from_buffer(self._mapping))
        if _LIBC.mincore(ctypes.c_void_p(address), ctypes.c_size_t(self._nbytes), self._resident):
            raise MeasurementFailed(f"mincore does not answer: {os.strerror(ctypes.get_errno())}")
        pages = bytes(self._resident).translate(_LOWEST_BIT).count(1)
        return min(pages * mmap.PAGESIZE, self._nbytes)

    def read(self, seconds: float | None) -> tuple[int, float]:
        """Read it from its beginning, all of it or for that long; bytes and seconds."""
        begun = time.perf_counter()
        done, taken = 0, 0.0
        while done < self._nbytes and (seconds is None or taken < seconds):
            got = os.preadv(self._file.fileno(), [self._piece], done)
            if not got:
                raise MeasurementFailed("its file has become shorter")
            done += got
            taken = time.perf_counter() - begun
        return done, taken


def folder_for(nbytes: int, proc: Proc = HERE) -> tuple[str | None, str]:
    """Where a file of that length can be that the page cache may drop; else ``None``, and why.

    The temporary folder (TMPDIR) if it is on a disk and has twice the room, else /var/tmp.
    """
    reasons = []
    for folder in dict.fromkeys((tempfile.gettempdir(), "/var/tmp")):  # noqa: S108 - a file without a name
        kind, free = file_system(folder, proc), proc.free_bytes(folder)
        if kind.value in IN_MEMORY:
            reasons.append(f"{folder} is in memory itself ({kind.value})")
        elif free.value is None or free.value < 2 * nbytes:
            room = free.reason or f"{folder} has {format_bytes(free.value)} free"
            reasons.append(f"{room}, and the file takes twice {format_bytes(nbytes)}")
        else:
            return folder, ""
    return None, "; ".join(reasons)
