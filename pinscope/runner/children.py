"""The processes that a traced program starts, seen from outside: which used CUDA and were not recorded, and which
lived too briefly to be looked at."""

from __future__ import annotations

import json
import time
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from pathlib import Path, PurePath

from pinscope.probes.gpu import Nvml
from pinscope.probes.proc import HERE, Proc
from pinscope.probes.process_scan import UVM
from pinscope.records.trace_row import ChildKind, TraceRow
from pinscope.tracing.line_totals import unnumbered
from pinscope.tracing.spool_folder import CHILDREN, FAILED, SHELL, STACK, STARTED

LIBRARY = "libcuda.so"
LOOK_SECONDS = 0.1
"""Between two looks: CUDA alone takes longer to start and to end."""
MOST_OF_A_CORE = 0.1
"""Spent on looking."""
_STATE, _PARENT = 0, 1
"""Places in ``stat``, behind the name."""

Image = tuple[int, int]
"""A process, and where its stack begins: a fork does not change that, another program in its place does."""


def pids_on_gpus() -> Collection[int]:
    """The processes that NVML names."""
    with Nvml() as nvml:
        indices = range(nvml.device_count().value or 0)
        return {process.pid for index in indices for process in nvml.processes(index).value or ()}


class Children:
    """Those of one program. A process used CUDA that had :data:`UVM` open and :data:`LIBRARY` mapped at any look, or,
    where another user's files cannot be seen, that NVML names. A child by fork of a process that has used CUDA has both
    from there, and CUDA refuses it: it counts only if it was seen without the file before.

    Args:
        program: its process.
        handover: of the spool's folder, as the variables of the program's processes name it.
        spool: that folder.
        proc: where /proc is read.
        on_gpus: the processes that NVML names.
    """

    def __init__(
        self,
        program: int,
        handover: str,
        spool: Path,
        proc: Proc = HERE,
        on_gpus: Callable[[], Collection[int]] = pids_on_gpus,
    ) -> None:
        self._handover, self._spool, self._proc, self._on_gpus = handover, spool, proc, on_gpus
        self._ours, self._others, self._without = {program}, set[int](), set[int]()
        self._users: dict[Image, tuple[ChildKind, str]] = {}
        """With the name of its program's file."""
        self._seen: set[Image] = set()
        self._looks: list[int] = []
        self.pause_seconds = LOOK_SECONDS
        """Until the next look: on a host with many processes one takes longer."""

    def look(self) -> None:
        """See who is there now."""
        begun = time.monotonic_ns()
        pids = set(self._proc.pids().value or ())
        self._ours, self._others = self._ours & pids, self._others & pids
        for pid in sorted(pids - self._ours - self._others):
            variables = self._proc.beginning(f"/proc/{pid}/environ", 2**20).value or ("", True)
            is_ours = self._status(pid).parent in self._ours or self._handover in variables[0]
            (self._ours if is_ours else self._others).add(pid)
        there = {pid: status for pid in self._ours if (status := self._status(pid)).is_alive}
        self._seen |= {(pid, status.stack) for pid, status in there.items()}
        users = self._users_of(there)
        self._without = (set(there) - users) | (self._ours & self._without)
        for pid in users:
            image, parent = (pid, there[pid].stack), there[pid].parent
            is_fork = parent in there and there[parent].stack == there[pid].stack
            is_own = pid in self._without or parent not in users or not is_fork
            if is_own and image not in self._users and self._has_library(pid):
                self._users[image] = self._described(pid, is_fork)
        self._looks.append(begun)
        self.pause_seconds = max(LOOK_SECONDS, (time.monotonic_ns() - begun) / 1e9 / MOST_OF_A_CORE)

    def _users_of(self, there: Collection[int]) -> set[int]:
        files = {pid: self._proc.links(f"/proc/{pid}/fd").value for pid in there}
        hidden = {pid for pid, links in files.items() if links is None and self._proc.exists(f"/proc/{pid}/fd")}
        named = hidden & set(self._on_gpus()) if hidden else set[int]()
        return named | {pid for pid, links in files.items() if links and UVM in links.values()}

    def _has_library(self, pid: int) -> bool:
        return LIBRARY in (self._proc.read(f"/proc/{pid}/maps").value or LIBRARY)

    def _described(self, pid: int, is_fork: bool) -> tuple[ChildKind, str]:
        name = PurePath(self._proc.link(f"/proc/{pid}/exe").value or "").name
        return "fork" if is_fork else "python" if name.startswith("python") else "native", name

    def _status(self, pid: int) -> _Status:
        fields = (self._proc.read(f"/proc/{pid}/stat").value or "").rpartition(")")[2].split()
        return _Status(int(fields[_PARENT]), int(fields[STACK]), fields[_STATE]) if len(fields) > STACK else _Status()

    # At the end

    def unrecorded(self) -> Iterator[TraceRow]:
        """A row for each that used CUDA and was not recorded."""
        said = self._said()
        recorded = set(self._recorded())
        known = recorded | said.joined
        for image, (kind, name) in self._users.items():
            if image not in recorded:
                child = _kind_beside(known, image) or kind
                yield unnumbered(kind="unrecorded", process=image[0], child=child, executable=name)

    def unseen(self) -> int:
        """How many lived too briefly to be looked at, of those that recorded processes say that they started."""
        said = self._said()
        known = said.joined | set(self._recorded())
        stacks = {stack for _, stack in known}  # a child may have been seen while it still was its parent's fork
        looked_at = known | {(pid, stack) for pid, stack in self._seen if stack not in stacks}
        brief = [
            pid
            for pid, left in said.started.items()
            if not any(pid == looked_pid and stack not in left for looked_pid, stack in looked_at)
        ]
        return len(brief) + sum(not self._looked_between(begun, ended) for begun, ended in said.shells)

    def has_become_another(self, pid: int) -> bool:
        """Whether a process said that it would become another program, and did."""
        return any(self._said().started.get(pid, ()))

    def _looked_between(self, begun: int, ended: int) -> bool:
        place = bisect_left(self._looks, begun)
        return place < len(self._looks) and self._looks[place] <= ended

    def _recorded(self) -> Iterator[Image]:
        for path in (self._spool / "started.json", *self._spool.glob("process.*/started.json")):
            if path.exists():
                started = json.loads(path.read_bytes())
                yield started["pid"], started["stack"]

    def _said(self) -> _Said:
        said, path = _Said(), self._spool / CHILDREN
        for line in path.read_text("ascii").splitlines() if path.exists() else ():
            first, second, word = line.split()
            said.add(int(first), int(second), word)
        return said


def _kind_beside(known: Collection[Image], image: Image) -> ChildKind | None:
    """What a process is beside those that recorders know, if that says it: its parent may be gone, or another program
    have stood in its place."""
    if any(stack == image[1] and pid != image[0] for pid, stack in known):
        return "fork"
    return "exec" if any(pid == image[0] and stack != image[1] for pid, stack in known) else None


@dataclass(frozen=True)
class _Status:
    parent: int = 0
    stack: int = 0
    state: str = ""

    @property
    def is_alive(self) -> bool:
        """Neither gone nor a zombie."""
        return self.state not in {"", "Z", "X"}


@dataclass
class _Said:
    """What recorded processes said of their children."""

    joined: set[Image] = field(default_factory=set)
    started: dict[int, set[int]] = field(default_factory=dict)
    """Process → the stacks of its images that became another program; none where it was started as one."""
    shells: list[tuple[int, int]] = field(default_factory=list)

    def add(self, first: int, second: int, word: str) -> None:
        if word == SHELL:
            self.shells.append((first, second))
        elif word == STARTED:
            self.started.setdefault(first, set()).update({second} - {0})
        elif word == FAILED:
            left = self.started.get(first, set())
            left.discard(second)
            if not left:
                self.started.pop(first, None)
        else:
            self.joined.add((first, second))
