"""The processes of the experiment, from the side of the one that starts them; what they register and open."""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from itertools import permutations, product
from typing import Any, Literal

from pinscope.experiments.topology.ways import CONTEXTS, SOURCES
from pinscope.lab.child_processes import Child, ChildProcesses, Order, Reply
from pinscope.lab.harness import Harness
from pinscope.lab.protocol import Lab

Contexts = Literal["every_gpu", "own_gpu"]
Members = Mapping[int, Sequence[int]]
LIMIT_SECONDS = 120.0
"""How long a step of a process may take."""
_MEMBER = "pinscope.experiments.topology.child_member"


@dataclass(frozen=True)
class Team:
    """Processes, each with contexts on GPUs of its own, or on all; :func:`started` makes one.

    Attributes:
        processes: as they run.
        contexts: how their contexts lie.
        members: process → its GPUs.
        lab: takes the account of where their host memory lies.
        harness: takes progress, and says when to stop.
        begun: how far the experiment is when they start, 0 to 1.
        part: how much of it is theirs.
    """

    processes: ChildProcesses[int]
    contexts: Contexts
    members: Members
    lab: Lab
    harness: Harness
    begun: float
    part: float

    @cached_property
    def copiers(self) -> dict[int, int]:
        """GPU → the first process with a context there: it copies, and says what is used."""
        return {device: rank for rank in sorted(self.members, reverse=True) for device in self.members[rank]}

    @property
    def devices(self) -> tuple[int, ...]:
        """All GPUs on which one of them has a context."""
        return tuple(sorted(self.copiers))

    def progress(self, done: float, step: str) -> None:
        """Report how far they are, 0 to 1, and with what."""
        many = f"{len(self.members)} process{'es' if len(self.members) > 1 else ''}"
        self.harness.progress(self.begun + self.part * done, f"{many}, a context on {CONTEXTS[self.contexts]}: {step}")

    def all(self, step: str, order: Order) -> dict[int, Reply]:
        """The same order for every process."""
        return self.ask(step, dict.fromkeys(self.members, order))

    def ask(self, step: str, orders: Mapping[int, Order]) -> dict[int, Reply]:
        """Give orders at once and wait for all answers; errors as of :class:`ChildProcesses`."""
        replies = {rank: reply for rank, (_, reply) in self.processes.ask(step, orders).items()}
        for reply in replies.values():
            self.lab.host_nodes.add(reply.get("nodes", ()))
        return replies

    def ask_copiers(self, step: str, order: Order, devices: Iterable[int]) -> dict[int, Reply]:
        """Give those that copy for these GPUs an order, each with its own GPUs among them."""
        own: dict[int, list[int]] = {}
        for device in devices:
            own.setdefault(self.copiers[device], []).append(device)
        return self.ask(step, {rank: {**order, "devices": gpus} for rank, gpus in own.items()})

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
        team = Team(processes, contexts, members, lab, harness, begun, part)
        team.progress(0.0, "starting")
        team.all("starting", {"do": "start"})
        yield team
        team.all("ending", {"do": "end"})


def register_all(team: Team, nbytes: int, touched: bool) -> Iterator[dict[str, Any]]:
    """One process after the other registers it; values of observations for each GPU, before and after each.

    Args:
        nbytes: of the memory.
        touched: whether its pages are there already.
    """
    team.progress(0.0, "registering memory")
    common = {"kind": "pin", "contexts": team.contexts, "processes": len(team.members), "bytes": nbytes}
    first = not touched
    for rank in (None, *team.members):
        step: dict[str, Any] = {"step": "before", "process": None}
        if rank is not None:
            reply = team.ask("registering memory", {rank: {"do": "register", "first": first}})[rank]
            first, step = False, {"step": "pin", "process": rank, "pin_seconds": reply["seconds"]}
        for device, used in team.used().items():
            yield common | step | {"device": device, "used_bytes": used}
    team.all("giving registered memory back", {"do": "unregister"})


def share_all(team: Team, nbytes: int, copies: int, repeats: int, begun: float) -> Iterator[dict[str, Any]]:
    """Every GPU's memory opened from every other GPU's process, as values of observations.

    Args:
        nbytes: of one copy.
        copies: how many follow each other.
        repeats: how often, after one to warm up.
        begun: how much of the team's work is done before.
    """
    pairs = list(permutations(team.devices, 2))
    for number, (device, opener) in enumerate(pairs):
        team.progress(begun + (1 - begun) * number / len(pairs), f"memory of GPU {device} opened from GPU {opener}")
        owner, other = team.copiers[device], team.copiers[opener]
        common = {"device": device, "opener": opener, "bytes": nbytes}
        exported = team.ask("exporting memory", {owner: {"do": "export", "device": device, "nbytes": nbytes}})[owner]
        before = team.used()[device]
        order = {"do": "reach", "device": opener, "handle": exported["handle"], "nbytes": nbytes}
        opened = team.ask("opening memory", {other: order})[other]
        if opened["refused"]:
            team.harness.note(f"GPU {opener}'s process cannot open memory of GPU {device}: {opened['refused']}")
        else:
            readings = {"used_before_bytes": before, "used_bytes": team.used()[device]}
            yield common | readings | {"kind": "open", "open_seconds": opened["seconds"]}
            for row in _through(team, owner, other, copies, repeats):
                yield common | row
        for rank in (other, owner):
            team.ask("closing memory", {rank: {"do": "let_go"}})


def _through(team: Team, owner: int, other: int, copies: int, repeats: int) -> Iterator[dict[str, Any]]:
    """Copies of one process into another's memory, from each source; the first of each warms up."""
    for source, number in product(SOURCES, range(-1, repeats)):
        order = {"do": "through", "source": source, "copies": copies}
        reply = team.ask("copying through", {other: order})[other]
        check = {"do": "verify", "offset": reply["offset"], "key": reply["key"]}
        wrong = team.ask("checking what arrived", {owner: check})[owner]["wrong"]
        row = {"kind": "through", "repeat": max(number, 0), "warmup": number < 0, "source": source, "copies": copies}
        yield row | {"device_seconds": reply["seconds"], "wrong_words": wrong}
