"""Which process a thread belongs to, and which process it is: a pid alone may be used again."""

from __future__ import annotations

import os
from dataclasses import dataclass, field

from pinscope.probes.proc import HERE, Proc
from pinscope.probes.process import start_ticks
from pinscope.probes.process_memory import ProcessStatus


@dataclass(frozen=True)
class Caller:
    """A process that called a probed function. Equal ones are the same process, whatever it calls itself."""

    pid: int
    started: float
    """Seconds since boot."""
    name: str = field(compare=False)


class LiveCallers:
    """The processes of this machine.

    Args:
        proc: where /proc is read.
    """

    def __init__(self, proc: Proc = HERE) -> None:
        self._proc = proc
        self._ticks_per_second = os.sysconf("SC_CLK_TCK")

    def of(self, pid: int) -> Caller | None:
        """The process that has this pid now; ``None`` if there is none or it has ended."""
        ticks = start_ticks(pid, self._proc).value
        if ticks is None:
            return None
        return Caller(pid, ticks / self._ticks_per_second, self._proc.line(f"/proc/{pid}/comm").value or "")

    def owner(self, thread: int) -> int | None:
        """The pid of a thread's process; ``None`` if the thread has ended."""
        return ProcessStatus(self._proc.read(f"/proc/{thread}/status").value or "").number("Tgid")
