"""Processes of a traced program that could use CUDA and are not recorded, as /proc shows them while it runs."""

from __future__ import annotations

from pathlib import Path

from pinscope.probes.proc import HERE, Proc
from pinscope.probes.processes import UVM

LIBRARY = "libcuda.so"
_PARENT, _STACK = 1, 25
"""Places in ``stat``, behind the name: the parent, and where the stack begins, which a fork does not change."""


class Unrecorded:
    """Those that had :data:`UVM` open and :data:`LIBRARY` mapped at any look. A child by fork of a process that has
    used CUDA has both from there, and CUDA refuses it: it counts only if it was seen without the file before.

    Args:
        program: its process.
        handover: of the spool's folder, as the variables of the program's processes name it.
        spool: that folder, which has one for each other process that is recorded.
        proc: where /proc is read.
    """

    def __init__(self, program: int, handover: str, spool: Path, proc: Proc = HERE) -> None:
        self.pids: set[int] = set()
        self._program, self._handover, self._spool, self._proc = program, handover, spool, proc
        self._ours, self._others, self._without = {program}, set[int](), set[int]()

    def look(self) -> None:
        """Find those that are there now."""
        pids = set(self._proc.pids().value or ())
        self._ours, self._others = self._ours & pids, self._others & pids
        for pid in sorted(pids - self._ours - self._others):
            variables = self._proc.beginning(f"/proc/{pid}/environ", 2**20).value or ("", True)
            is_ours = self._origin(pid)[0] in self._ours or self._handover in variables[0]
            (self._ours if is_ours else self._others).add(pid)
        users = {pid for pid in self._ours if UVM in (self._proc.links(f"/proc/{pid}/fd").value or ())}
        self._without = (self._ours - users) | (self._ours & self._without)
        recorded = {self._program, *(int(path.name.split(".")[1]) for path in self._spool.glob("process.*"))}
        for pid in users - recorded - self.pids:
            parent, stack = self._origin(pid)
            is_own = pid in self._without or parent not in users or stack != self._origin(parent)[1]
            if is_own and LIBRARY in (self._proc.read(f"/proc/{pid}/maps").value or LIBRARY):
                self.pids.add(pid)

    def _origin(self, pid: int) -> tuple[int, str]:
        """Its parent, and where its stack begins."""
        fields = (self._proc.read(f"/proc/{pid}/stat").value or "").rpartition(")")[2].split()
        return (int(fields[_PARENT]), fields[_STACK]) if len(fields) > _STACK else (0, "")
