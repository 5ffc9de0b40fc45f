"""An ordinary process beside one that pins: a program that :mod:`pinscope.lab.child_processes` starts.

It pins nothing. On an order it does what every program does – touch fresh memory, read a file that it has read
before – and says how long that took. Its file has no name: it is gone with the process, however that ends.
:mod:`pinscope.experiments.pressure.bystander` is the starter's side. It imports little, so that it is small and starts
at once.
"""

from __future__ import annotations

import mmap
import sys
import time
from array import array
from collections.abc import Callable
from statistics import median

from pinscope.lab.cached_file import CachedFile
from pinscope.lab.orders import Reply, obey


class OrdinaryProcess:
    """What it can do: each public method is an order.

    Args:
        folder: where its file is to be; ``None`` for no file.
        file_bytes: how long the file is.
        sample_bytes: how much fresh memory it touches each time.
    """

    def __init__(self, folder: str | None, file_bytes: int, sample_bytes: int) -> None:
        self._folder, self._file_bytes, self._sample_bytes = folder, file_bytes, sample_bytes
        self._file: CachedFile | None = None

    def start(self) -> Reply:
        """Write the file and read it once: it is in the page cache then, and clean."""
        if self._folder is not None:
            self._file = CachedFile(self._folder, self._file_bytes)
            self._file.read(None)
        return {}

    def feel(self, seconds: float) -> Reply:
        """Do everything once, in about ``seconds`` at most; the share in the cache before the file is read again."""
        cached = self._file.cached_bytes() if self._file else None
        faults = fault_nanoseconds(self._sample_bytes, seconds / 2)
        read = self._file.read(seconds / 2) if self._file else (None, None)
        return {
            "fault_pages": len(faults),
            "fault_median_seconds": median(faults) / 1e9,
            "fault_longest_seconds": max(faults) / 1e9,
            "file_cached_bytes": cached,
            "read_bytes": read[0],
            "read_seconds": read[1],
        }


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
