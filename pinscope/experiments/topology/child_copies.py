"""GPUs alone, in pairs and all at once, with host memory near each or on one NUMA node, and their time in common.

Each GPU knows the time of its own events only; the host's clock is what they have in common. A flow is set into it by
its end, which the host sees. The moment at which streams are let go would not do: a start event lies in the channel of
the stream's last work, and an engine that is busy with another stream's copies reaches it after them. On an H200 that
was up to 23 ms late; copies that ran one after the other looked as if they had run side by side.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, product
from typing import Any, Literal

from pinscope.experiments.topology.child_team import Team
from pinscope.experiments.topology.ways import FLOWS, OneWay, gpus_words, issuer
from pinscope.lab.harness import Precision, Turn
from pinscope.records.run import Direction

Placed = Literal["near", "node"]
GATE_SECONDS = 0.005
"""From the order to copy until copies begin that several processes start together."""
LEAST_COMMON = 0.5
"""Part of the shortest flow's time in which all must have copied: less tells of turns, not of a link."""


@dataclass(frozen=True)
class Flight:
    """The copies of one flow in time.

    Attributes:
        device: the GPU.
        way: ``h2d`` or ``d2h``.
        begun: when the first copy began, by the host's monotonic clock, which all processes share.
        ends: seconds from there until each copy ended.
    """

    device: int
    way: str
    begun: float
    ends: tuple[float, ...]

    @property
    def ended(self) -> float:
        """When the last copy ended, by the same clock."""
        return self.begun + self.ends[-1]

    def done(self, moment: float) -> float:
        """How many copies were done by then; a copy moves its bytes evenly."""
        since, before = moment - self.begun, 0.0
        for number, end in enumerate(self.ends):
            if since < end:
                return number + max(since - before, 0.0) / (end - before)
            before = end
        return float(len(self.ends))


def common_window(flights: Sequence[Flight]) -> tuple[float, float] | None:
    """When the last flow had begun and the first one ended.

    ``None`` if they took turns: less than :data:`LEAST_COMMON` of the shortest one's time was common to all.
    """
    first, last = max(flight.begun for flight in flights), min(flight.ended for flight in flights)
    enough = LEAST_COMMON * min(flight.ends[-1] for flight in flights)
    return (first, last) if last - first >= enough else None


@dataclass(frozen=True)
class Plan:
    """What is copied.

    Attributes:
        nbytes: of one copy.
        copies: how many follow each other.
        directions: to measure.
        precision: when to stop repeating.
        nodes: NUMA nodes with memory, where host memory can lie on several.
    """

    nbytes: int
    copies: int
    directions: Sequence[Direction]
    precision: Precision
    nodes: Sequence[int]

    @property
    def ways(self) -> list[OneWay]:
        """That any of the directions goes."""
        return [way for way in FLOWS["bidirectional"] if any(way in FLOWS[direction] for direction in self.directions)]


@dataclass(frozen=True)
class Case:
    """GPUs that copy at once, each from host memory on its node."""

    devices: tuple[int, ...]
    direction: Direction
    placed: Placed
    nodes: Mapping[int, int | None]


def groups(devices: Sequence[int], placed: Placed, pairs: bool) -> list[tuple[int, ...]]:
    """Which GPUs copy at once: each alone, every pair, all; none twice."""
    alone = [(device,) for device in devices]
    between = list(combinations(devices, 2)) if pairs and placed == "near" else []
    return list(dict.fromkeys([*alone, *between, tuple(devices)]))


def cases(devices: Sequence[int], plan: Plan, near: Mapping[int, int], pairs: bool) -> list[list[Case]]:
    """All cases, those together that take the same buffers. Host memory near each GPU first, then on each node."""
    near_nodes: dict[int, int | None] = {device: near.get(device) for device in devices}
    placements: list[tuple[Placed, dict[int, int | None]]] = [("near", near_nodes)]
    placements += [("node", dict.fromkeys(devices, node)) for node in plan.nodes]
    placed_cases = []
    for placed, nodes in placements:
        fresh = [
            group
            for group in groups(devices, placed, pairs)
            if placed == "near" or any(nodes[device] != near_nodes[device] for device in group)
        ]
        if fresh:
            placed_cases.append([Case(group, way, placed, nodes) for group, way in product(fresh, plan.directions)])
    return placed_cases


def copy_all(team: Team, plan: Plan, near: Mapping[int, int], begun: float) -> Iterator[dict[str, Any]]:
    """Every case of a team, as values of observations. Pairs are copied by one process only.

    Args:
        begun: how much of the team's work is done before.
    """
    issued_by = _issued_by(team)
    placements = cases(team.devices, plan, near, pairs=issued_by == "one_process")
    total, done = sum(map(len, placements)), 0
    for group in placements:
        lies = take(team, plan, group[0])
        for case in group if lies else ():
            names = " and ".join(f"GPU {device}" for device in case.devices)
            team.progress(begun + (1 - begun) * done / total, f"{names}, {case.direction}")
            for row in _repeat(team, plan, case):
                yield row | {"issued_by": issued_by, "node": lies[row["device"]]}
            done += 1
        team.all("giving buffers back", {"do": "give_back"})


def _issued_by(team: Team) -> str:
    return "one_process" if len(set(team.copiers.values())) == 1 else "process_each"


def take(team: Team, plan: Plan, case: Case) -> dict[int, int | None]:
    """Take the buffers of these cases: for each GPU the node on which its host memory lies, as far as it is known.

    Empty where the system puts memory elsewhere than on the one node that is measured; that is noted.
    """
    orders: dict[int, dict[str, Any]] = {}
    for device, rank in team.copiers.items():
        order = orders.setdefault(
            rank, {"do": "take", "nodes": {}, "nbytes": plan.nbytes, "ways": plan.ways, "copies": plan.copies}
        )
        order["nodes"][str(device)] = case.nodes[device]
    replies = team.ask("taking buffers", orders).values()
    seen = {int(device): nodes for reply in replies for device, nodes in reply["on_nodes"].items()}
    elsewhere = sorted({node for device, nodes in seen.items() for node in nodes if node != case.nodes[device]})
    if case.placed == "node" and elsewhere:
        team.harness.note(
            f"Left out: host memory on NUMA node {next(iter(case.nodes.values()))}. Buffers that were asked for there "
            f"lie on node {', '.join(map(str, elsewhere))}; in a container it takes CAP_SYS_NICE."
        )
        return {}
    return {device: nodes[0] if len(nodes) == 1 else case.nodes[device] for device, nodes in seen.items()}


def _repeat(team: Team, plan: Plan, case: Case) -> Iterator[dict[str, Any]]:
    """One case until the rate is known; what arrived is compared after the last repeat."""
    ways = FLOWS[case.direction]
    counted: list[float] = []
    held: list[dict[str, Any]] = []
    team.ask_copiers("laying content", {"do": "prepare", "ways": ways}, case.devices)
    for turn in team.harness.turns(plan.precision, counted):
        yield from held
        flights = _fly(team, case, ways)
        held = [_row(plan, case, turn, flight, flights) for flight in flights]
        if not turn.warmup and (window := common_window(flights)):
            counted.append((window[1] - window[0]) / sum(row["window_bytes"] for row in held))
    if not counted:
        team.harness.note(
            f"Left out: {gpus_words(case.devices)}, {case.direction}, by {issuer(_issued_by(team))}. Their copies "
            "took turns: all copied at once for less than half of the time, which tells nothing of a link. Copy more "
            "(size)."
        )
    checked = team.ask_copiers("checking what arrived", {"do": "check", "ways": ways}, case.devices)
    wrong = {(flow["device"], flow["way"]): flow["words"] for reply in checked.values() for flow in reply["wrong"]}
    yield from (row | {"wrong_words": wrong[row["device"], row["way"]]} for row in held)


def _fly(team: Team, case: Case, ways: Sequence[OneWay]) -> list[Flight]:
    """Copy once on all GPUs of the case."""
    several = len({team.copiers[device] for device in case.devices}) > 1
    at = time.monotonic() + GATE_SECONDS if several else None
    replies = team.ask_copiers("copying", {"do": "copy", "ways": ways, "at": at}, case.devices)
    flows = (flow for reply in replies.values() for flow in reply["flights"])
    flights = [Flight(**{**flow, "ends": tuple(flow["ends"])}) for flow in flows]
    return sorted(flights, key=lambda flight: (flight.device, flight.way))


def _row(plan: Plan, case: Case, turn: Turn, flight: Flight, flights: Sequence[Flight]) -> dict[str, Any]:
    window, first = common_window(flights), min(other.begun for other in flights)
    labels = {"kind": "copy", "repeat": turn.repeat, "warmup": turn.warmup, "device": flight.device, "way": flight.way}
    labels |= {"gpus": "+".join(map(str, case.devices)), "devices": len(case.devices), "placed": case.placed}
    labels |= {"direction": case.direction, "bytes": plan.nbytes, "copies": plan.copies}
    labels |= {"begun_seconds": flight.begun - first, "device_seconds": flight.ends[-1]}
    if window is None:
        return labels
    moved = (flight.done(window[1]) - flight.done(window[0])) * plan.nbytes
    return labels | {"window_seconds": window[1] - window[0], "window_bytes": round(moved)}
