"""An ordinary process beside one that pins: a program that :mod:`pinscope.lab.child_processes` starts.

It pins nothing. On an order it does what every program does – touch fresh memory, write to memory that it has, read a
file that it has read before – and says how long that took. Its file has no name: it is gone with the process, however
that ends. It imports little, so that it is small and starts at once.
"""

from __future__ import annotations

import ctypes
import mmap
import resource
import sys
import time
from array import array
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

from pinscope.lab.cached_file import CachedFile
from pinscope.lab.orders import Reply, obey

if TYPE_CHECKING:
    from pinscope.lab.backing import OwnMemory

MOST_ROUNDS = 200
FIRST_VICTIM = 1000
"""The kernel kills the process with the highest score first (proc_pid_oom_score_adj(5)); this is the highest."""


class OrdinaryProcess:
    """What it can do: each public method is an order.

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
        _keep_small(memory)
        end = clock() + int(seconds * 1e9)
        for number in range(len(taken)):
            begun = clock()
            memory[number * page] = 1
            ended = clock()
            taken[number] = ended - begun
            if ended > end:
                return taken[: number + 1]
    return taken


def _keep_small(memory: mmap.mmap) -> None:
    try:
        memory.madvise(mmap.MADV_NOHUGEPAGE)
    except OSError:
        return  # a kernel without transparent huge pages does not know the advice


if __name__ == "__main__":
    sys.exit(obey(OrdinaryProcess))
