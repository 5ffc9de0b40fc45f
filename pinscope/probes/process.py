"""Which process is which: a pid alone may be used again, with its start time and boot it may not."""

from __future__ import annotations

import os

from pinscope.errors import NotPossible
from pinscope.probes.answer import Answer
from pinscope.probes.proc import HERE, Proc, whole
from pinscope.records.run import Process

_ENDED = frozenset("ZXx")
"""States of a process that has ended: a zombie waits for its parent only."""
_STATE, _STARTED = 0, 19
"""Fields 3 and 22 of /proc/PID/stat, counted after the name."""
_UNKNOWN_BOOT = "unknown"


def current_process(proc: Proc = HERE) -> Process:
    """This process.

    Raises:
        NotPossible: /proc does not show it.
    """
    process = process_of(os.getpid(), proc)
    if process is None:
        raise NotPossible("/proc does not show this process; PinScope needs Linux with /proc mounted")
    return process


def process_of(pid: int, proc: Proc = HERE) -> Process | None:
    """The process that has this pid now; ``None`` if there is none or it has ended."""
    if pid <= 0:
        return None
    started = start_ticks(pid, proc).value
    if started is None:
        return None
    return Process(pid=pid, started=float(started), boot_id=_boot(proc), namespace=_namespace(proc))


def start_ticks(pid: int, proc: Proc = HERE) -> Answer[int]:
    """Clock ticks from the boot to the start of a process; missing if it has ended."""
    path = f"/proc/{pid}/stat"
    return proc.read(path).then(_start_ticks, f"{path} shows no running process")


def _start_ticks(text: str) -> int | None:
    # The name, in parentheses, may itself hold blanks and parentheses: the last one ends it.
    fields = text.rpartition(")")[2].split()
    if len(fields) <= _STARTED or fields[_STATE] in _ENDED:
        return None
    return whole(fields[_STARTED])


def is_alive(process: Process, proc: Proc = HERE) -> bool:
    """True while that very process runs: same pid, same start, same boot, and not a zombie."""
    now = process_of(process.pid, proc)
    return now is not None and (now.started, now.boot_id) == (process.started, process.boot_id)


def on_this_boot(process: Process, proc: Proc = HERE) -> bool:
    """True if it ran under the kernel that runs now, in whatever container."""
    return process.boot_id == _boot(proc) != _UNKNOWN_BOOT


def is_in_sight(process: Process, proc: Proc = HERE) -> bool:
    """True if :func:`is_alive` can tell: pids of other containers mean other processes here, or none."""
    namespace = _namespace(proc)
    return process.namespace is None or namespace is None or process.namespace == namespace


def _boot(proc: Proc) -> str:
    return proc.line("/proc/sys/kernel/random/boot_id").value or _UNKNOWN_BOOT


def _namespace(proc: Proc) -> str | None:
    return proc.link("/proc/self/ns/pid").value
