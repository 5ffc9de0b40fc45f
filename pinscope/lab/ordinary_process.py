"""An ordinary process beside one that pins: a program that :mod:`pinscope.lab.worker_protocol` starts.

It pins nothing. On a request it does what every program does – touch fresh memory, write to memory that it has, read a
file that it has read before – and says how long that took. Its file has no name: it is gone with the process, however
that ends. It imports little, so that it is small and starts at once.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import resource
import sys
import tempfile
import time
from array import array
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Final

from pinscope.errors import MeasurementFailed
from pinscope.lab.worker_protocol import Reply, serve_requests
from pinscope.probes.containers import IN_MEMORY, file_system
from pinscope.probes.proc import HERE, Proc
from pinscope.units import format_bytes

if TYPE_CHECKING:
    from pinscope.lab.backing import OwnMemory

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


MOST_ROUNDS = 200
FIRST_VICTIM = 1000
"""The kernel kills the process with the highest score first (proc_pid_oom_score_adj(5)); this is the highest."""


class OrdinaryProcess:
    """What it can do: each public method is a request.

    Args:
        folder: where its file is to be; ``None`` for no file.
        file_bytes: how long the file is.
        sample_bytes: how much fresh memory it touches each time.
        memory_bytes: how much memory of its own it works on.
        victim: whether the kernel is to choose it when there is no memory left.
    """

    def __init__(
        self, folder: str | None, file_bytes: int, sample_bytes: int = 0, memory_bytes: int = 0, victim: bool = False
    ) -> None:
        self._folder, self._file_bytes, self._sample_bytes = folder, file_bytes, sample_bytes
        self._memory = _own_memory(memory_bytes) if memory_bytes else None
        self._file: CachedFile | None = None
        if victim:
            Path("/proc/self/oom_score_adj").write_text(str(FIRST_VICTIM))

    def start(self) -> Reply:
        """Take all that it works on: its memory, and its file, written and read once: in the page cache, and clean."""
        self._touch()
        if self._folder is not None:
            self._file = CachedFile(self._folder, self._file_bytes)
            self._file.read(None)
        return {}

    def feel(self, seconds: float) -> Reply:
        """Touch fresh memory and read the file once, in about ``seconds`` at most; the share in the cache before."""
        cached = self._file.cached_bytes() if self._file else None
        faults = fault_nanoseconds(self._sample_bytes, seconds / 2)
        return {
            "fault_pages": len(faults),
            "fault_median_seconds": median(faults) / 1e9,
            "fault_longest_seconds": max(faults) / 1e9,
            "file_cached_bytes": cached,
            **self._read(seconds / 2),
        }

    def work(self, seconds: float, rounds: int) -> Reply:
        """Rounds until so many seconds are over, and at least so many; reading one file may take that long too."""
        begun = time.perf_counter()
        done: list[Reply] = []
        while len(done) < MOST_ROUNDS and (len(done) < rounds or time.perf_counter() - begun < seconds):
            done.append(self._round(seconds))
        return {"rounds": done}

    def _round(self, seconds: float) -> Reply:
        faults = resource.getrusage(resource.RUSAGE_SELF).ru_majflt
        cached = self._file.cached_bytes() if self._file else None
        read = self._read(seconds)
        begun = time.perf_counter()
        self._touch()
        return {
            "file_cached_bytes": cached,
            **read,
            "write_seconds": time.perf_counter() - begun,
            "major_faults": resource.getrusage(resource.RUSAGE_SELF).ru_majflt - faults,
        }

    def _read(self, seconds: float) -> Reply:
        read = self._file.read(seconds) if self._file else (None, None)
        return {"read_bytes": read[0], "read_seconds": read[1]}

    def _touch(self) -> None:
        if self._memory:
            ctypes.memset(self._memory.address, 1, self._memory.nbytes)


def _own_memory(nbytes: int) -> OwnMemory:
    from pinscope.lab.backing import OwnMemory  # noqa: PLC0415 - large; not needed for fresh memory

    return OwnMemory(nbytes, "4k")


def fault_nanoseconds(nbytes: int, seconds: float, clock: Callable[[], int] = time.perf_counter_ns) -> array[int]:
    """How long writing to each page of fresh anonymous memory took; fewer pages if ``seconds`` are over before.

    Small pages: a huge one would be one fault instead of 512. Python and the clock are in it, about 0.1 µs.
    """
    page = mmap.PAGESIZE
    taken = array("q", bytes(8 * (nbytes // page)))  # written in place: growing it would fault too
    with mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as memory:
        with suppress(OSError):  # a kernel without transparent huge pages does not know the advice
            memory.madvise(mmap.MADV_NOHUGEPAGE)
        end = clock() + int(seconds * 1e9)
        for number in range(len(taken)):
            begun = clock()
            memory[number * page] = 1
            ended = clock()
            taken[number] = ended - begun
            if ended > end:
                return taken[: number + 1]
    return taken


if __name__ == "__main__":
    sys.exit(serve_requests(OrdinaryProcess))
