"""Processor time that this process has used: what a copy costs the CPU, waiting included."""

from __future__ import annotations

import resource
from dataclasses import dataclass
from typing import Self


@dataclass(frozen=True)
class ProcessorTime:
    """In user and kernel mode together, seconds (getrusage(2)).

    Attributes:
        process_seconds: of all threads, also those of libraries and of the driver.
        thread_seconds: of the calling thread.
    """

    process_seconds: float
    thread_seconds: float

    @classmethod
    def so_far(cls) -> Self:
        """Used since the process, and the calling thread, began."""
        return cls(_seconds(resource.RUSAGE_SELF), _seconds(resource.RUSAGE_THREAD))

    def since(self, earlier: Self) -> Self:
        """Used between two readings of the same thread."""
        return type(self)(self.process_seconds - earlier.process_seconds, self.thread_seconds - earlier.thread_seconds)


def _seconds(who: int) -> float:
    used = resource.getrusage(who)
    return used.ru_utime + used.ru_stime
