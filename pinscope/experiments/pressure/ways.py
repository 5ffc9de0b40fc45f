"""Ways to pin in a control group, and the processes that do it or feel it. On the host model the first two ways are
mlock, and there is no third."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

from pinscope.analysis.cells import Way, way
from pinscope.lab.child_processes import Child, ChildProcesses, Reply, Request

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
    """An ordinary process, which pins nothing; ``work``: of :class:`pinscope.lab.child_processes.OrdinaryProcess`."""
    return Child(name, "pinscope.lab.child_processes", {"folder": folder, **work}, group)


class Workers(ChildProcesses[str]):
    """An ordinary process, and in a group one that pins (``holder``): gone on leaving, whatever happens between.

    Args:
        children: what to start.
        seconds: how long the ordinary one works at a time.
        check: called while waiting; raises to stop.
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
