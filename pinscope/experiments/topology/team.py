"""The processes of the experiment, from the side of the one that starts them."""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Literal

from pinscope.lab.child_processes import Child, ChildProcesses, Order, Reply
from pinscope.lab.harness import Harness
from pinscope.lab.protocol import Lab

Contexts = Literal["every_gpu", "own_gpu"]
Members = Mapping[int, Sequence[int]]
LIMIT_SECONDS = 120.0
"""How long a step of a process may take."""
_MEMBER = "pinscope.experiments.topology.member"
_TITLES: Mapping[Contexts, str] = {"every_gpu": "a context on every GPU", "own_gpu": "a context on one GPU"}


class Team:
    """Processes, each with contexts on GPUs of its own, or on all; :func:`started` makes one.

    Args:
        processes: as they run.
        contexts: how their contexts lie.
        members: process → its GPUs.
        lab: takes the account of where their host memory lies.
        harness: takes progress, and says when to stop.
        begun: how far the experiment is when they start, 0 to 1.
        part: how much of it is theirs.
    """

    def __init__(
        self,
        processes: ChildProcesses[int],
        contexts: Contexts,
        members: Members,
        *,
        lab: Lab,
        harness: Harness,
        begun: float,
        part: float,
    ) -> None:
        self.contexts, self.members, self.lab, self.harness = contexts, members, lab, harness
        self._processes, self._begun, self._part = processes, begun, part
        self.copiers = {device: rank for rank in sorted(members, reverse=True) for device in members[rank]}
        """GPU → the first process with a context there: it copies, and says what is used."""

    @property
    def devices(self) -> tuple[int, ...]:
        """All GPUs on which one of them has a context."""
        return tuple(sorted(self.copiers))

    def progress(self, done: float, step: str) -> None:
        """Report how far they are, 0 to 1, and with what."""
        many = f"{len(self.members)} process{'es' if len(self.members) > 1 else ''}"
        self.harness.progress(self._begun + self._part * done, f"{many}, {_TITLES[self.contexts]}: {step}")

    def all(self, step: str, order: Order) -> dict[int, Reply]:
        """The same order for every process."""
        return self.ask(step, dict.fromkeys(self.members, order))

    def ask(self, step: str, orders: Mapping[int, Order]) -> dict[int, Reply]:
        """Give orders at once and wait for all answers; errors as of :class:`ChildProcesses`."""
        replies = {rank: reply for rank, (_, reply) in self._processes.ask(step, orders).items()}
        for reply in replies.values():
            self.lab.host_nodes.add(reply.get("nodes", ()))
        return replies

    def ask_copiers(self, step: str, order: Order, devices: Iterable[int]) -> dict[int, Reply]:
        """Give those that copy for these GPUs an order, each with its own GPUs among them."""
        own: dict[int, list[int]] = {}
        for device in devices:
            own.setdefault(self.copiers[device], []).append(device)
        return self.ask(step, {rank: {**order, "devices": mine} for rank, mine in own.items()})

    def used(self) -> dict[int, int | None]:
        """What is used of each GPU now, by everybody."""
        replies = self.ask("reading the GPUs' memory", {rank: {"do": "used"} for rank in set(self.copiers.values())})
        return {device: replies[rank]["used"][str(device)] for device, rank in sorted(self.copiers.items())}


@contextmanager
def started(
    contexts: Contexts,
    members: Members,
    lab: Lab,
    harness: Harness,
    shared: tuple[int, int],
    *,
    begun: float,
    part: float,
) -> Iterator[Team]:
    """Processes that have opened their contexts; they end with the block.

    Args:
        contexts, members, lab, harness, begun, part: as of :class:`Team`; labs are opened at the lab's places.
        shared: descriptor and length of the memory that all may register.
    """
    descriptor, nbytes = shared
    common = {"seed": secrets.randbits(63), "descriptor": descriptor, "nbytes": nbytes}
    children = {
        rank: Child(
            f"process {rank + 1} of {len(members)}",
            _MEMBER,
            {**common, "places": {str(device): lab.place_of(device) for device in devices}},
        )
        for rank, devices in members.items()
    }
    with ChildProcesses(children, LIMIT_SECONDS, harness.check_cancelled, (descriptor,)) as processes:
        team = Team(processes, contexts, members, lab=lab, harness=harness, begun=begun, part=part)
        team.progress(0.0, "starting")
        team.all("starting", {"do": "start"})
        yield team
        team.all("ending", {"do": "end"})
