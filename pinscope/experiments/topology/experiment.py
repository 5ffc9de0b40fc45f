"""How fast are all GPUs of a host, alone, in pairs and at once? With host memory near each GPU or on one NUMA node,
and beside NCCL's all-reduce.

Each GPU knows the time of its own events only; the host's clock is what they have in common. A flow is set into it by
its end, which the host sees. The moment at which streams are let go would not do: a start event lies in the channel of
the stream's last work, and an engine that is busy with another stream's copies reaches it after them. On an H200 that
was up to 23 ms late; copies that ran one after the other looked as if they had run side by side.
"""

from __future__ import annotations

import math
import secrets
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import combinations, product
from math import comb
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from pinscope.analysis.models import GPU_PAGE_SIZES, page_table_memory_bytes
from pinscope.errors import MeasurementFailed
from pinscope.experiments.contract import AnyExperiment, Case, Params
from pinscope.experiments.topology.reading import FLOWS, WAYS, IssuedBy, gpus_words, issuer
from pinscope.lab.child_processes import Child, ChildProcesses, Reply, Request
from pinscope.lab.harness import CONTEXT_BYTES, PROCESS_BYTES, Harness, Turn
from pinscope.lab.placement import NEAR
from pinscope.lab.protocol import Lab
from pinscope.probes.environment import install_command
from pinscope.probes.host_memory import read_nodes
from pinscope.records.environment import Environment
from pinscope.records.parameters import Bytes, Several, parameter
from pinscope.records.run import Direction, LabKind, Lasted, Observation, OneWay, Positive
from pinscope.units import parse_bytes

Placed = Literal["near", "node"]
What = IssuedBy | Literal["all_reduce"]
TORCH_PROCESS_BYTES = 2**31
"""Set aside of host memory for each process with PyTorch and NCCL."""
COPIES = 4
"""That follow each other in a repeat: the common window of several GPUs holds at least three of each."""
USUAL_REPEATS = 0.57
"""Share of the most repeats that the cases of copies took: on a quiet host those one way stopped at 8 (two H200s)."""
GATE_SECONDS = 0.005
"""From the order to copy until copies begin that several processes start together."""
LEAST_COMMON = 0.5
"""Part of the shortest flow's time in which all must have copied: less tells of turns, not of a link."""
LIMIT_SECONDS = 120.0
"""How long a step of a process may take."""
_MEMBER = "pinscope.experiments.topology.child_member"
_RANK = "pinscope.experiments.topology.torch_collective"
COLLECTIVE_SECONDS = 14.0
"""What the all-reduce and the copies beside it take, mostly to start PyTorch in each process."""
OUTLAST = 2.0
"""All-reduces go on for so many times as long as copies take alone, so that all copies have some beside them."""


class TopologyParams(Params):
    """What to measure on which GPUs."""

    size: Bytes = parameter("Copy size", "Number of bytes of one copy; four follow each other in a repeat.")
    directions: Several[Direction] = parameter(
        "Directions", "Host to device (h2d), device to host (d2h), or both at once (bidirectional)."
    )
    all_devices: bool = parameter("All GPUs", "Measure all GPUs of this machine, not only the chosen one.", True)
    all_reduce: bool = parameter(
        "All-reduce", "Copy also beside NCCL's all-reduce, where there are several GPUs and PyTorch.", False
    )

    @property
    def ways(self) -> list[OneWay]:
        """That any of the directions goes."""
        return [way for way in FLOWS["bidirectional"] if any(way in FLOWS[direction] for direction in self.directions)]

    @classmethod
    def preset(cls, lab: LabKind, quick: bool) -> TopologyParams:
        return cls(
            size=parse_bytes("128MiB" if quick else "256MiB"),
            directions=("h2d", "d2h", "bidirectional"),
            all_reduce=not quick,
            precision=0.01 if quick else 0.002,
            repeats=8 if quick else 30,
            time_limit=0.2 if quick else 0.8,
        )

    def smaller(self) -> TopologyParams | None:
        """Copies of half the size."""
        return self.with_overrides({"size": self.size // 16 * 8}) if self.size >= 2**23 else None


_OF_AN_ALL_REDUCE = ("gpus", "devices")
_OF_A_COPY = ("gpus", "devices", "issued_by", "placed", "direction", "way", "copies", "device_seconds")


class TopologyObservation(Observation):
    """Copies of one GPU in one direction, or all-reduces and copies of one GPU."""

    kind: Literal["copy", "all_reduce"]
    """``copy``, or ``all_reduce`` (alone, or beside copies; also these copies alone)."""
    device: int
    """Index of the GPU."""
    bytes: Positive
    """Of one copy."""
    gpus: str | None = None
    """GPUs that copied at once, as ``0+1``."""
    devices: Positive | None = None
    """How many."""
    issued_by: IssuedBy | None = None
    """``one_process`` for all GPUs, or ``process_each``."""
    placed: Placed | None = None
    """Host memory ``near`` each GPU (where there is nothing to choose, as the run is bound), or all on one ``node``."""
    node: int | None = None
    """NUMA node on which this GPU's host memory lay; ``None``: not known, or on several."""
    direction: Direction | None = None
    """What was measured: ``h2d``, ``d2h`` or ``bidirectional``."""
    way: OneWay | None = None
    """Direction of this row's copies; ``None`` of an all-reduce alone."""
    copies: Positive | None = None
    """How many followed each other."""
    begun_seconds: float | None = None
    """When they began, from the first GPU's beginning, by the host's clock."""
    device_seconds: Lasted | None = None
    """Their time by the GPU's events."""
    reduce_seconds: Lasted | None = None
    """Of NCCL's all-reduce of so many bytes, the mean while copies went on; ``None`` of copies without one."""
    window_seconds: Lasted | None = None
    """While all of these GPUs copied; ``None`` where they never did together."""
    window_bytes: int | None = Field(default=None, ge=0)
    """What this GPU moved this way in that time."""
    wrong_words: int | None = None
    """8-byte words that did not arrive; ``None`` where not compared."""

    def needs(self) -> tuple[str, Iterable[str]]:
        return ("a copy", _OF_A_COPY) if self.kind == "copy" else ("an all-reduce", _OF_AN_ALL_REDUCE)


class Topology:
    """GPUs alone, in pairs and all at once."""

    name = "topology"
    title = "All GPUs at once"
    summary = "Several GPUs at once: uplinks and NUMA nodes"
    question = "How fast do all GPUs of this host copy together, and which of them share an uplink?"
    labs: Mapping[LabKind, str | None] = {
        "cuda": None,
        "host": "it compares GPUs and the links that they share; the host model stands for one GPU without a link",
    }
    Params = TopologyParams
    Observation = TopologyObservation

    start_seconds = 1.5

    def cases(self, params: TopologyParams, environment: Environment | None = None) -> list[Case[What]]:
        """One process for all GPUs, then a process for each: buffers of all GPUs, contexts and their page tables; then
        the ranks of an all-reduce."""
        gpus = max(len(environment.devices), 1) if environment and params.all_devices else 1
        nodes = len(environment.nodes) if environment else 1
        buffers = params.size * len(params.ways)
        device = gpus * (CONTEXT_BYTES + page_table_memory_bytes(gpus * buffers, GPU_PAGE_SIZES[0])) + buffers
        teams = [
            Case[What](
                issuer(issued_by),
                issued_by,
                _seconds(params, gpus, nodes, pairs=issued_by == "one_process"),
                gpus * buffers,
                gpus * PROCESS_BYTES,
                device,
            )
            for issued_by in _teams(gpus)
        ]
        if not params.all_reduce or gpus == 1 or find_spec("torch") is None:
            return teams
        ranks = Case[What](
            "copies beside NCCL's all-reduce",
            "all_reduce",
            COLLECTIVE_SECONDS,
            gpus * 2 * params.size,
            gpus * TORCH_PROCESS_BYTES,
            gpus * CONTEXT_BYTES + 8 * params.size,
        )
        return [*teams, ranks]

    def measure(self, params: TopologyParams, lab: Lab, harness: Harness) -> Iterator[TopologyObservation]:
        """One process with contexts on every GPU, then, where there are several GPUs, a process for each."""
        devices = tuple(lab.peers()) if params.all_devices else (lab.device,)
        nodes = [node.number for node in read_nodes().value or () if node.memory_bytes]
        several = nodes if params.node == NEAR and len(nodes) > 1 else []
        if len(nodes) == 1:
            harness.note("Left out: host memory on a far NUMA node. This host shows one node.")
        teams = _teams(len(devices))
        for number, issued_by in enumerate(teams):
            with started(issued_by, devices, lab, harness, number / len(teams), 1 / len(teams)) as team:
                yield from (TopologyObservation(**values) for values in copy_all(team, params, lab.near, several))
        if params.all_reduce:
            yield from (TopologyObservation(**values) for values in _beside_all_reduce(params, devices, lab, harness))


def _teams(gpus: int) -> tuple[IssuedBy, ...]:
    """Of one GPU both are the same."""
    return tuple(WAYS)[: 2 if gpus > 1 else 1]


def _seconds(params: TopologyParams, gpus: int, nodes: int, *, pairs: bool) -> float:
    """Starting processes, and copies of each GPU, of all, and of every pair; near, and on each other node."""
    near = gpus + (comb(gpus, 2) + (gpus > 2) if pairs else 1)
    far, usual = (gpus + 1) * max(nodes - 1, 0), COPIES * params.size / 50e9 + 0.004
    repeat = USUAL_REPEATS * min(params.time_limit, params.repeats * usual) + 2 * usual + 0.05 + params.size / 5e9
    return 1.5 + 0.4 * gpus + (near + far) * len(params.directions) * repeat


@dataclass(frozen=True)
class Team:
    """Processes that copy: one with a context on every GPU, or one for each; :func:`started` makes it.

    Attributes:
        copiers: GPU → the process that copies there.
        lab: takes the account of where their host memory lies.
        begun: how far the experiment is when they start, 0 to 1.
        part: how much of it is theirs.
    """

    processes: ChildProcesses[int]
    issued_by: IssuedBy
    copiers: Mapping[int, int]
    lab: Lab
    harness: Harness
    begun: float
    part: float

    def progress(self, done: float, step: str) -> None:
        """Report how far they are, 0 to 1, and with what."""
        self.harness.progress(self.begun + self.part * done, f"{issuer(self.issued_by)}: {step}")

    def all(self, step: str, order: Request) -> dict[int, Reply]:
        """One order for every process."""
        return self.ask(step, dict.fromkeys(sorted(set(self.copiers.values())), order))

    def ask(self, step: str, orders: Mapping[int, Request]) -> dict[int, Reply]:
        """Give orders at once and wait for all answers; errors as of :class:`ChildProcesses`."""
        replies = {rank: reply for rank, (_, reply) in self.processes.ask(step, orders).items()}
        for reply in replies.values():
            self.lab.host_nodes.add(reply.get("nodes", ()))
        return replies

    def ask_copiers(self, step: str, order: Request, devices: Iterable[int]) -> dict[int, Reply]:
        """Give those that copy for these GPUs an order, each with its own GPUs among them."""
        own: dict[int, list[int]] = {}
        for device in devices:
            own.setdefault(self.copiers[device], []).append(device)
        return self.ask(step, {rank: {**order, "devices": gpus} for rank, gpus in own.items()})


@contextmanager
def started(
    issued_by: IssuedBy, devices: Sequence[int], lab: Lab, harness: Harness, begun: float, part: float
) -> Iterator[Team]:
    """Processes that have opened their contexts, on the lab's devices; they end with the block. As of :class:`Team`."""
    members = [tuple(devices)] if issued_by == "one_process" else [(device,) for device in devices]
    device_ids = [{str(device): lab.device_id_of(device) for device in own} for own in members]
    seed = secrets.randbits(63)
    children = {
        rank: Child(f"process {rank + 1} of {len(device_ids)}", _MEMBER, {"seed": seed, "device_ids": own})
        for rank, own in enumerate(device_ids)
    }
    with ChildProcesses(children, LIMIT_SECONDS, harness.check_cancelled) as processes:
        copiers = {device: rank for rank, own in enumerate(members) for device in own}
        team = Team(processes, issued_by, copiers, lab, harness, begun, part)
        team.progress(0.0, "starting")
        team.all("starting", {"do": "start"})
        yield team
        team.all("ending", {"do": "end"})


@dataclass(frozen=True)
class Flight:
    """The copies of one flow in time.

    Attributes:
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
class AtOnce:
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


def cases(
    devices: Sequence[int], directions: Sequence[Direction], near: Mapping[int, int], nodes: Sequence[int], pairs: bool
) -> list[list[AtOnce]]:
    """All cases, those together that take the same buffers. Host memory near each GPU first, then on each node.

    Args:
        near: GPU → the node near it.
        nodes: with memory, where host memory can lie on several.
        pairs: whether every pair is measured.
    """
    near_nodes: dict[int, int | None] = {device: near.get(device) for device in devices}
    placements: list[tuple[Placed, dict[int, int | None]]] = [("near", near_nodes)]
    placements += [("node", dict.fromkeys(devices, node)) for node in nodes]
    placed_cases = []
    for placed, lies in placements:
        fresh = [
            group
            for group in groups(devices, placed, pairs)
            if placed == "near" or any(lies[device] != near_nodes[device] for device in group)
        ]
        if fresh:
            placed_cases.append([AtOnce(group, way, placed, lies) for group, way in product(fresh, directions)])
    return placed_cases


def copy_all(
    team: Team, params: TopologyParams, near: Mapping[int, int], nodes: Sequence[int]
) -> Iterator[dict[str, Any]]:
    """Every case of a team, as values of observations. Pairs are copied by one process only."""
    placements = cases(sorted(team.copiers), params.directions, near, nodes, pairs=team.issued_by == "one_process")
    total, done = sum(map(len, placements)), 0
    for group in placements:
        lies = take(team, params, group[0])
        for case in group if lies else ():
            names = " and ".join(f"GPU {device}" for device in case.devices)
            team.progress(done / total, f"{names}, {case.direction}")
            for row in _repeat(team, params, case):
                yield row | {"issued_by": team.issued_by, "node": lies[row["device"]]}
            done += 1
        team.all("giving buffers back", {"do": "give_back"})


def take(team: Team, params: TopologyParams, case: AtOnce) -> dict[int, int | None]:
    """Take the buffers of these cases: for each GPU the node on which its host memory lies, as far as it is known.

    Empty where the system puts memory elsewhere than on the one node that is measured; that is noted.
    """
    orders: dict[int, dict[str, Any]] = {}
    for device, rank in team.copiers.items():
        order = orders.setdefault(
            rank, {"do": "take", "nodes": {}, "nbytes": params.size, "ways": params.ways, "copies": COPIES}
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


def _repeat(team: Team, params: TopologyParams, case: AtOnce) -> Iterator[dict[str, Any]]:
    """One case until the rate is known; what arrived is compared after the last repeat."""
    ways = FLOWS[case.direction]
    counted: list[float] = []
    held: list[dict[str, Any]] = []
    team.ask_copiers("laying content", {"do": "prepare", "ways": ways}, case.devices)
    for turn in team.harness.turns(params.harness_precision(), counted):
        yield from held
        flights = _fly(team, case, ways)
        held = [_row(params.size, case, turn, flight, flights) for flight in flights]
        if not turn.warmup and (window := common_window(flights)):
            counted.append((window[1] - window[0]) / sum(row["window_bytes"] for row in held))
    if not counted:
        team.harness.note(
            f"Left out: {gpus_words(case.devices)}, {case.direction}, by {issuer(team.issued_by)}. Their copies "
            "took turns: all copied at once for less than half of the time, which tells nothing of a link. Copy more "
            "(size)."
        )
    checked = team.ask_copiers("checking what arrived", {"do": "check", "ways": ways}, case.devices)
    wrong = {(flow["device"], flow["way"]): flow["words"] for reply in checked.values() for flow in reply["wrong"]}
    yield from (row | {"wrong_words": wrong[row["device"], row["way"]]} for row in held)


def _fly(team: Team, case: AtOnce, ways: Sequence[OneWay]) -> list[Flight]:
    """Copy once on all GPUs of the case."""
    several = len({team.copiers[device] for device in case.devices}) > 1
    at = time.monotonic() + GATE_SECONDS if several else None
    replies = team.ask_copiers("copying", {"do": "copy", "ways": ways, "at": at}, case.devices)
    flows = (flow for reply in replies.values() for flow in reply["flights"])
    flights = [Flight(**{**flow, "ends": tuple(flow["ends"])}) for flow in flows]
    return sorted(flights, key=lambda flight: (flight.device, flight.way))


def _row(nbytes: int, case: AtOnce, turn: Turn, flight: Flight, flights: Sequence[Flight]) -> dict[str, Any]:
    window, first = common_window(flights), min(other.begun for other in flights)
    labels = {"kind": "copy", "repeat": turn.repeat, "warmup": turn.warmup, "device": flight.device, "way": flight.way}
    labels |= {"gpus": "+".join(map(str, case.devices)), "devices": len(case.devices), "placed": case.placed}
    labels |= {"direction": case.direction, "bytes": nbytes, "copies": COPIES}
    labels |= {"begun_seconds": flight.begun - first, "device_seconds": flight.ends[-1]}
    if window is None:
        return labels
    moved = (flight.done(window[1]) - flight.done(window[0])) * nbytes
    return labels | {"window_seconds": window[1] - window[0], "window_bytes": round(moved)}


def _beside_all_reduce(
    params: TopologyParams, devices: Sequence[int], lab: Lab, harness: Harness
) -> Iterator[dict[str, Any]]:
    """A rank on each GPU: all-reduces alone, copies alone, and both. What cannot be had is noted."""
    reason = "It takes several GPUs." if len(devices) == 1 else None
    if find_spec("torch") is None:
        reason = f"PyTorch is not installed here; run: {install_command('torch')}"
    try:
        if reason:
            raise MeasurementFailed(reason)
        harness.progress(0.9, "starting the ranks of an all-reduce")
        with tempfile.TemporaryDirectory() as folder:
            meeting = {"ranks": len(devices), "meeting": str(Path(folder, "meeting"))}
            children = {
                device: Child(f"rank {rank}", _RANK, {"device_id": lab.device_id_of(device), "rank": rank, **meeting})
                for rank, device in enumerate(devices)
            }
            with ChildProcesses(children, LIMIT_SECONDS, harness.check_cancelled) as ranks:
                yield from reduce_and_copy(ranks, params, devices, lab, harness)
    except MeasurementFailed as error:
        harness.note(f"Left out: copies beside NCCL's all-reduce. {error}")


def reduce_and_copy(
    ranks: ChildProcesses[int], params: TopologyParams, devices: Sequence[int], lab: Lab, harness: Harness
) -> Iterator[dict[str, Any]]:
    """In turn: all-reduces alone, then for each way copies alone and both; a row for each GPU."""

    def ask(step: str, **order: Any) -> dict[int, Reply]:
        return {device: reply for device, (_, reply) in ranks.ask(step, dict.fromkeys(devices, order)).items()}

    ask("starting", do="start")
    for reply in ask("taking buffers", do="take", nbytes=params.size, ways=params.ways).values():
        lab.host_nodes.add(reply["nodes"])
    ask("warming up", do="run", reduces=COPIES, way=params.ways[0], copies=COPIES)
    alone = ask("timing both", do="run", reduces=COPIES, way=None, copies=0)
    copied = ask("timing both", do="run", reduces=0, way=params.ways[0], copies=COPIES)
    longest = max(reply["copy_seconds"] for reply in copied.values())
    least = min(reply["reduce_seconds"] for reply in alone.values())
    reduces = math.ceil(OUTLAST * longest / least) + 1
    conditions = [(reduces, None), *((count, way) for way in params.ways for count in (0, reduces))]
    labels = {"kind": "all_reduce", "bytes": params.size, "devices": len(devices), "gpus": "+".join(map(str, devices))}
    held: list[dict[str, Any]] = []
    for turn in harness.turns(params.harness_precision()):
        yield from held
        held = []
        for count, way in conditions:
            harness.progress(0.95, f"all-reduce and copies, {way or 'no copies'}")
            replies = ask("reducing and copying", do="run", reduces=count, way=way, copies=COPIES)
            for device, reply in replies.items():
                values = {"device": device, "way": way, "copies": COPIES if way else None}
                seconds = {"device_seconds": reply["copy_seconds"], "reduce_seconds": reply["reduce_seconds"]}
                held.append({**labels, "repeat": turn.repeat, "warmup": turn.warmup, **values, **seconds})
        turn.count(max(reply["copy_seconds"] for reply in replies.values()))
    wrong = {device: reply["wrong"] for device, reply in ask("checking what arrived", do="check").items()}
    yield from (row | {"wrong_words": wrong[row["device"]]} for row in held)
    ask("ending", do="end")


EXPERIMENT: AnyExperiment = Topology()
