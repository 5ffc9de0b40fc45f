"""Ways to pin in a control group, and the processes that do it or feel it. On the host model the first two ways are
mlock, and there is no third."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from typing import Any, Literal

from pinscope.analysis.cells import Way, way
from pinscope.lab.backing import touch
from pinscope.lab.child_processes import Child, ChildProcesses, Reply, Request, serve_requests
from pinscope.lab.harness import open_lab
from pinscope.lab.protocol import Lab

WayName = Literal["registered", "pinned", "write_combined"]
WAYS: Mapping[WayName, Way] = {
    "registered": way("touched and registered"),
    "pinned": way("cudaHostAlloc"),
    "write_combined": way("write-combined"),
}
Rounds = Sequence[Mapping[str, Any]]
LEAST_ROUNDS = 3
START_SECONDS = 90.0
"""To write a file of gigabytes on a slow disk, and to open a GPU."""
GRACE_SECONDS = 60.0
"""How much longer than it was given a process may take to answer before it is taken for hung: a full group reads its
memory from the disk."""


def ordinary(name: str, folder: str | None, group: str | None = None, **work: Any) -> Child:
    """An ordinary process, which pins nothing; ``work``: of :class:`pinscope.lab.child_processes.Bystander`."""
    return Child(name, "pinscope.lab.child_processes", {"folder": folder, **work}, group)


class Workers(ChildProcesses[str]):
    """An ordinary process, and in a group one that pins (``holder``): gone on leaving, whatever happens between.

    Args:
        seconds: how long the ordinary one works at a time.
        grace: how much longer it may take before it is taken for hung.
    """

    def __init__(
        self, children: Mapping[str, Child], seconds: float, check: Callable[[], None], grace: float = GRACE_SECONDS
    ) -> None:
        super().__init__(children, seconds + grace, check, ready_limit=START_SECONDS)
        self._seconds = seconds
        self._work: Mapping[str, Request] = {"ordinary": {"do": "work", "seconds": seconds, "rounds": LEAST_ROUNDS}}

    def feel(self) -> Reply:
        """One round on the host, by the names of an observation.

        Raises:
            MeasurementFailed: it died, hung or broke off.
        """
        order = {"ordinary": {"do": "feel", "seconds": self._seconds}}
        return self.ask("touching memory and reading its file", order)["ordinary"][1]

    def begin(self) -> None:
        """Have the ordinary one work in rounds; :meth:`rounds` waits for it."""
        self.tell(self._work)

    def rounds(self) -> Rounds:
        """Its rounds; errors as of :meth:`feel`."""
        rounds: Rounds = self.answers("working", self._work)["ordinary"][1]["rounds"]
        return rounds

    def work(self) -> Rounds:
        """Both; errors as of :meth:`feel`."""
        self.begin()
        return self.rounds()

    def pin(self, nbytes: int, way: WayName = "registered") -> None:
        """Pin so much more.

        Raises:
            NotEnoughMemory: it was refused.
            ChildDied: the kernel killed the process that pins.
        """
        self.ask("pinning", {"holder": {"do": "pin", "nbytes": nbytes, "way": way}})


class Holder:
    """What it can do: each public method is an order."""

    def __init__(self, device_id: str, seed: int) -> None:
        self._lab = open_lab(device_id, seed)
        self._open, self._held = ExitStack(), ExitStack()

    def start(self) -> Reply:
        """Open the lab, and pin once: what a driver takes at the first use is no pinned memory."""
        lab = self._open.enter_context(self._lab)
        ways = [way for way in WAYS if lab.why_not(way) is None]
        with ExitStack() as stack:
            for way in ways:
                _pin(lab, stack, way, 2**21)
        return {"ways": ways}

    def pin(self, nbytes: int, way: WayName = "registered") -> Reply:
        """Pin so much more."""
        _pin(self._lab, self._held, way, nbytes)
        return {}

    def release(self) -> Reply:
        """Give all of it back."""
        self._held.close()
        return {}


def _pin(lab: Lab, held: ExitStack, way: WayName, nbytes: int) -> None:
    if way != "registered":
        held.enter_context(lab.host_buffer(nbytes, way))
        return
    memory = held.enter_context(lab.ordinary_memory(nbytes))
    touch(memory)  # before it is pinned: a limit is met here, where the kernel can still look for memory
    held.enter_context(lab.register(memory))


if __name__ == "__main__":
    sys.exit(serve_requests(Holder))
