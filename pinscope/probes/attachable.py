"""A running process as one who wants to attach to it sees it: which Python it runs, and why one cannot."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass

from pinscope.probes.proc import HERE, Answer, Proc, whole
from pinscope.probes.process import PARENT, PYTHON, STACK, STARTED, stat_fields, user_name

OLDEST = (3, 9)
"""Python that the recorder runs in."""
_CUPTI = re.compile(r"(/\S*/libcupti\.so[.\d]*)$", re.ASCII | re.MULTILINE)
_CUDA = "/libcuda.so"
_YAMA = "/proc/sys/kernel/yama/ptrace_scope"


@dataclass(frozen=True)
class Attachable:
    """A process that one may attach to.

    Attributes:
        pid: its number.
        started: when it began, in ticks since the machine did: no later process has both.
        stack: where its stack begins: another program in its place has another one.
        command: its command line.
        version: of its Python.
        cupti: the file of CUPTI's library that it has loaded, if it has.
        uses_cuda: it has loaded the driver's library.
    """

    pid: int
    started: int
    stack: int
    command: tuple[str, ...]
    version: tuple[int, int]
    cupti: str | None
    uses_cuda: bool

    def is_there(self, proc: Proc = HERE) -> bool:
        """Whether it runs on, as the same program."""
        return _times(self.pid, proc) == (self.started, self.stack)


def read_attachable(pid: int, proc: Proc = HERE) -> Answer[Attachable]:
    """A process, or why one cannot attach to it."""
    status = proc.fields(f"/proc/{pid}/status")
    state, uids = status.text("State").value, (status.text("Uid").value or "").split()
    tracer, mounts = whole(status.text("TracerPid").value or "0"), proc.link(f"/proc/{pid}/ns/mnt").value
    why = None
    if state is None or state[:1] in "ZX":
        why = "there is no such process, or it has ended"
    elif set(uids) != {str(os.geteuid())}:
        name = user_name(int(uids[0])) if uids else "another user"
        why = f"it is a process of {name}, who must trace it: sudo -u {name} pinscope trace …"
    elif tracer:
        why = f"a debugger is attached to it already, process {tracer}"
    elif state[:1] in "Tt":
        why = f"it is stopped; let it go on first: kill -CONT {pid}"
    elif mounts is None:
        why = forbidden(proc)
    elif mounts != proc.link("/proc/self/ns/mnt").value:
        why = "it runs in a container, with other files: start PinScope inside that"
    return _read_python(pid, proc) if why is None else Answer.missing(why)


def _read_python(pid: int, proc: Proc) -> Answer[Attachable]:
    maps, times = proc.read(f"/proc/{pid}/maps").value, _times(pid, proc)
    if not maps or times is None:
        return Answer.missing(forbidden(proc))
    python = PYTHON.search(proc.link(f"/proc/{pid}/exe").value or "") or PYTHON.search(maps)
    if python is None:
        return Answer.missing("it is no Python: no file of one is mapped in it")
    version = int(python[1]), int(python[2])
    if version < OLDEST:
        oldest = ".".join(map(str, OLDEST))
        return Answer.missing(f"it runs Python {version[0]}.{version[1]}; the recorder needs {oldest} or newer")
    cupti = _CUPTI.search(maps)
    return Answer(
        Attachable(
            pid=pid,
            started=times[0],
            stack=times[1],
            command=tuple((proc.read(f"/proc/{pid}/cmdline").value or "").rstrip("\0").split("\0")),
            version=version,
            cupti=cupti[1] if cupti else None,
            uses_cuda=_CUDA in maps,
        )
    )


def uses_cuda(pid: int, proc: Proc = HERE) -> bool:
    """Whether a process has loaded the driver's library; not where that cannot be seen."""
    return _CUDA in (proc.read(f"/proc/{pid}/maps").value or "")


def _times(pid: int, proc: Proc) -> tuple[int, int] | None:
    """When a process began, and where its stack does; ``None`` if it has ended."""
    fields = stat_fields(pid, proc).value or []
    return (int(fields[STARTED]), int(fields[STACK])) if len(fields) > STACK else None


def forbidden(proc: Proc = HERE) -> str:
    """Why this machine lets nobody attach, and what to change."""
    if scope := whole(proc.line(_YAMA).value or "0"):
        return f"the system forbids to attach ({_YAMA} is {scope}): as root, sysctl kernel.yama.ptrace_scope=0"
    return "the system forbids to attach (ptrace): in a container, start that with --cap-add=SYS_PTRACE"


def descendants_of(pid: int, proc: Proc = HERE) -> Iterator[int]:
    """The processes that a process has started, and those that these have."""
    parents: dict[int, list[int]] = {}
    for child in proc.pids().value or ():
        if fields := stat_fields(child, proc).value:
            parents.setdefault(int(fields[PARENT]), []).append(child)
    waiting = list(parents.get(pid, ()))
    while waiting:
        yield (child := waiting.pop(0))
        waiting += parents.get(child, ())
