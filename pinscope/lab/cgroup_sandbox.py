"""A control group of its own, with a limit on its memory: made for a measurement, and gone after it.

Below the process's own group where that may have groups below it (version 1), else beside it: version 2 passes a
controller on only from a group without processes of its own. A group that a killed run left behind says in its name
whose it was; the next one that is made here removes it.
"""

from __future__ import annotations

import os
import re
import signal
import time
from contextlib import suppress
from pathlib import Path
from typing import Self

from pinscope.errors import MeasurementFailed, NotPossible
from pinscope.probes.containers import memory_groups
from pinscope.probes.host_memory import GroupMemory, read_group
from pinscope.probes.proc import HERE, Answer, Proc
from pinscope.probes.process import current_process, start_ticks
from pinscope.records.run import Process
from pinscope.text import quoted

END_SECONDS = 20.0
"""How long killed processes may take to leave the group, and the kernel to let it go."""
_LEFT = re.compile(r"pinscope-(?P<pid>[0-9]{1,9})-(?P<started>[0-9]{1,20})-(?P<namespace>[0-9]{1,20})", re.ASCII)
_PAUSE_SECONDS = 0.02
_ADVICE = "run it as root, or in a group that is yours: systemd-run --user --scope -p Delegate=yes pinscope run …"


def find_place(proc: Proc = HERE) -> Answer[tuple[str, str]]:
    """(file system type, folder) of the group in which one can be made, the nearest; missing with what is needed."""

    def nearest(groups: tuple[tuple[str, str], ...]) -> tuple[str, str] | None:
        return next((group for group in groups if _takes_groups(*group, proc)), None)

    why = f"no control group that limits memory can be made from here; {_ADVICE}"
    return memory_groups(proc).then(nearest, why)


def _takes_groups(kind: str, folder: str, proc: Proc) -> bool:
    if kind == "cgroup2":
        passed_on = (proc.read(f"{folder}/cgroup.subtree_control").value or "").split()
        # A process moves within the part of the tree that is the user's: the group that holds both must be.
        return "memory" in passed_on and proc.may_write(folder) and proc.may_write(f"{folder}/cgroup.procs")
    return proc.may_write(folder)


class CgroupSandbox:
    """Made on entering, removed on leaving with all that is still in it.

    Args:
        limit_bytes: how much memory those in it may have together.
        swap: whether their memory may be swapped out.
        place: where it is made, as :func:`find_place` gives it; found now by default.
    """

    def __init__(self, limit_bytes: int, swap: bool = False, place: tuple[str, str] | None = None) -> None:
        self._limit_bytes, self._swap = limit_bytes, swap
        self._place = place
        self.kind = self.folder = ""
        """Its hierarchy's file system type and its folder, once entered."""

    def __enter__(self) -> Self:
        """Make it.

        Raises:
            NotPossible: nobody but root, or the owner of a group, can; or the kernel refuses the limit.
        """
        place = Answer(self._place) if self._place else find_place()
        if place.value is None:
            raise NotPossible(str(place.reason))
        self.kind, parent = place.value
        folder = Path(parent, _name())
        try:
            _remove_left(parent)
            folder.mkdir()
            self.folder = str(folder)
            self._limit(folder)
        except OSError as error:
            if self.folder:
                _remove(folder)
            why = f"no control group can be made in {parent} ({error.strerror or error})"
            raise NotPossible(f"{why}; {_ADVICE}") from None
        return self

    def _limit(self, folder: Path) -> None:
        """The limit on swapping may be missing where nothing is ever swapped."""
        limit, swap, most_swap = {
            "cgroup2": ("memory.max", "memory.swap.max", 0),
            "cgroup": ("memory.limit_in_bytes", "memory.memsw.limit_in_bytes", self._limit_bytes),
        }[self.kind]
        (folder / limit).write_text(str(self._limit_bytes))
        if not self._swap and (folder / swap).exists():
            (folder / swap).write_text(str(most_swap))

    def read(self) -> GroupMemory:
        """What it holds at this moment."""
        return read_group(self.kind, self.folder)

    def is_gone(self) -> bool:
        """Whether the group is not there any more: it goes only without processes, and memory without both."""
        return not Path(self.folder).exists()

    def __exit__(self, *exception: object) -> None:
        """End what is left in it, and remove it.

        Raises:
            MeasurementFailed: the kernel keeps it.
        """
        _remove(Path(self.folder))


def swap_bytes(proc: Proc = HERE) -> int:
    """Bytes of swap that this host has; 0 where it has none."""
    return proc.fields("/proc/meminfo").amount("SwapTotal").value or 0


def _remove_left(parent: str) -> None:
    """Remove the groups that runs left there which were killed before they could."""
    here = current_process()
    for path in Path(parent).iterdir():
        name = _LEFT.fullmatch(path.name)
        if name is None or name["namespace"] != _namespace(here):
            continue
        if start_ticks(int(name["pid"])).value != int(name["started"]):
            _remove(path)


def _name() -> str:
    me = current_process()
    return f"pinscope-{me.pid}-{int(me.started)}-{_namespace(me)}"


def _namespace(process: Process) -> str:
    """The number of the namespace in which a process id counts."""
    return "".join(filter(str.isdigit, process.namespace or "")) or "0"


def _remove(folder: Path) -> None:
    deadline = time.monotonic() + END_SECONDS
    while True:
        try:
            for pid in map(int, (folder / "cgroup.procs").read_text().split()):
                with suppress(ProcessLookupError):
                    if pid:  # 0: of another namespace
                        os.kill(pid, signal.SIGKILL)
            folder.rmdir()
        except FileNotFoundError:
            return  # somebody else has removed it
        except OSError as error:
            if time.monotonic() > deadline:
                raise MeasurementFailed(
                    f"the control group {quoted(str(folder))} cannot be removed ({error.strerror}); rmdir removes it"
                ) from None
            time.sleep(_PAUSE_SECONDS)
        else:
            return
