"""The processes of a brim run, from the experiment's side: two in the group, one outside."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, Literal, Self

from pinscope.experiments.brim.holder import Way
from pinscope.lab.child_processes import Child, ChildProcesses, Order

Rounds = Sequence[Mapping[str, Any]]
_Who = Literal["ordinary", "holder"]
START_SECONDS = 90.0
"""To write a file of gigabytes on a slow disk, and to open a GPU."""
GRACE_SECONDS = 60.0
"""How much longer than it was given one may take to answer before it is taken for hung: memory may come from a disk."""
LEAST_ROUNDS = 3
_FOLDER = "pinscope.experiments.brim"


@dataclass(frozen=True)
class Work:
    """What an ordinary process works on.

    Attributes:
        folder: where its file is to be; ``None`` for no file.
        file_bytes: how long the file is.
        memory_bytes: how much memory it writes to.
        seconds: how long it works at a step.
    """

    folder: str | None
    file_bytes: int
    memory_bytes: int
    seconds: float

    def child(self, name: str, group: str | None) -> Child:
        """A process that does it; in a group it is the one to be killed first."""
        configuration = {
            "folder": self.folder,
            "file_bytes": self.file_bytes,
            "memory_bytes": self.memory_bytes,
            "victim": group is not None,
        }
        return Child(name, f"{_FOLDER}.ordinary", configuration, group)


class _Processes:
    """Started on entering, gone on leaving.

    Args:
        children: what to start.
        seconds: how long the ordinary one works at a step.
        check: called while waiting; raises to stop.
    """

    def __init__(self, children: Mapping[_Who, Child], seconds: float, check: Callable[[], None]) -> None:
        self._processes: ChildProcesses[_Who] = ChildProcesses(children, seconds + GRACE_SECONDS, check)
        self._start: Mapping[_Who, Order] = {who: {"do": "start"} for who in children}
        self._order: Mapping[_Who, Order] = {"ordinary": {"do": "work", "seconds": seconds, "rounds": LEAST_ROUNDS}}
        self._open = ExitStack()
        self.ways: Sequence[Way] = ()
        """In which memory can be pinned in the group, once entered."""

    def __enter__(self) -> Self:
        """Start them, and wait until they have what they work on.

        Raises:
            MeasurementFailed: one does not start.
        """
        with ExitStack() as opening:
            opening.enter_context(self._processes)
            for who, order in self._start.items():  # one after the other: each fills the group by itself
                ((_, reply),) = self._processes.ask("getting ready", {who: order}, limit=START_SECONDS).values()
                self.ways = reply.get("ways", self.ways)
            self._open = opening.pop_all()
        return self

    def __exit__(self, *exception: object) -> None:
        self._open.__exit__(*exception)  # type: ignore[arg-type]

    def tell(self) -> None:
        """Have the ordinary one work; :meth:`answer` waits for it."""
        self._processes.tell(self._order)

    def answer(self) -> Rounds:
        """Its rounds.

        Raises:
            ChildDied: it was killed.
            MeasurementFailed: it hung or broke off.
        """
        ((_, reply),) = self._processes.answers("working", self._order).values()
        rounds: Rounds = reply["rounds"]
        return rounds

    def work(self) -> Rounds:
        """Both; errors as of :meth:`answer`."""
        self.tell()
        return self.answer()


class Outside(_Processes):
    """An ordinary process outside the group."""

    def __init__(self, work: Work, check: Callable[[], None]) -> None:
        child = work.child("the ordinary process outside the group", None)
        super().__init__({"ordinary": child}, work.seconds, check)


class Inside(_Processes):
    """In the group: one that pins, and an ordinary one.

    Args:
        work: of the ordinary one.
        check: called while waiting; raises to stop.
        group: folder of the control group.
        place: where memory is pinned (:attr:`Lab.place`).
    """

    def __init__(self, work: Work, check: Callable[[], None], group: str, place: str) -> None:
        holder = Child("the process that pins in the group", f"{_FOLDER}.holder", {"place": place, "seed": 0}, group)
        ordinary = work.child("the ordinary process in the group", group)
        super().__init__({"holder": holder, "ordinary": ordinary}, work.seconds, check)

    def pin(self, nbytes: int, way: Way = "registered") -> None:
        """Pin so much more.

        Raises:
            NotEnoughMemory: it was refused.
            ChildDied: the kernel killed the process that pins.
        """
        self._processes.ask("pinning", {"holder": {"do": "pin", "nbytes": nbytes, "way": way}})

    def release(self) -> None:
        """Give back all that is pinned."""
        self._processes.ask("giving back", {"holder": {"do": "release"}})

    def holds(self) -> bool:
        """Whether the process that pins still lives."""
        return self._processes.lives("holder")
