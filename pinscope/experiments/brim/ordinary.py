"""An ordinary process, in the group or outside: a program that :mod:`pinscope.lab.child_processes` starts.

It pins nothing. A round is what every program does with memory it has: read a file that it read before, and write to
all of its own. Its file has no name: it is gone with the process, however that ends.
"""

from __future__ import annotations

import resource
import sys
import time
from pathlib import Path

from pinscope.lab.backing import OwnMemory, touch
from pinscope.lab.cached_file import CachedFile
from pinscope.lab.orders import Reply, obey

MOST_ROUNDS = 200
FIRST_VICTIM = 1000
"""The kernel kills the process with the highest score first (proc_pid_oom_score_adj(5)); this is the highest."""


class OrdinaryProcess:
    """What it can do: each public method is an order.

    Args:
        folder: where its file is to be; ``None`` for no file.
        file_bytes: how long the file is.
        memory_bytes: how much memory it works on.
        victim: whether the kernel is to choose it when there is no memory left.
    """

    def __init__(self, folder: str | None, file_bytes: int, memory_bytes: int, victim: bool) -> None:
        self._folder, self._file_bytes = folder, file_bytes
        self._memory = OwnMemory(memory_bytes, "4k")
        self._file: CachedFile | None = None
        if victim:
            Path("/proc/self/oom_score_adj").write_text(str(FIRST_VICTIM))

    def start(self) -> Reply:
        """Take all that it works on: its memory, and its file in the page cache."""
        touch(self._memory)
        if self._folder is not None:
            self._file = CachedFile(self._folder, self._file_bytes)
            self._file.read(None)
        return {}

    def work(self, seconds: float, rounds: int) -> Reply:
        """Rounds until so many seconds are over, and at least so many; reading one file may take that long too."""
        begun = time.perf_counter()
        found: list[Reply] = []
        while len(found) < MOST_ROUNDS and (len(found) < rounds or time.perf_counter() - begun < seconds):
            found.append(self._round(seconds))
        return {"rounds": found}

    def _round(self, seconds: float) -> Reply:
        faults = resource.getrusage(resource.RUSAGE_SELF).ru_majflt
        cached = self._file.cached_bytes() if self._file else None
        read = self._file.read(seconds) if self._file else (None, None)
        begun = time.perf_counter()
        touch(self._memory)
        return {
            "file_cached_bytes": cached,
            "read_bytes": read[0],
            "read_seconds": read[1],
            "write_seconds": time.perf_counter() - begun,
            "major_faults": resource.getrusage(resource.RUSAGE_SELF).ru_majflt - faults,
        }


if __name__ == "__main__":
    sys.exit(obey(OrdinaryProcess))
