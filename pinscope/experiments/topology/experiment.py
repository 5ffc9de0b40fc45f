"""How fast are all GPUs of a host, alone and at once, and what does each process take on each of them?"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import comb
from typing import Any, Literal

from pydantic import Field

from pinscope.analysis.page_table_model import GPU_PAGE_SIZES, page_table_memory_bytes
from pinscope.analysis.rows import Row
from pinscope.experiments.contract import AnyExperiment, Params
from pinscope.experiments.topology import findings, reading
from pinscope.experiments.topology.child_copies import Placed, Plan, copy_all
from pinscope.experiments.topology.child_team import Contexts, Team, register_all, share_all, started
from pinscope.experiments.topology.ways import OneWay
from pinscope.lab.backing import shared_region
from pinscope.lab.budget import CONTEXT_BYTES
from pinscope.lab.harness import Harness
from pinscope.lab.placement import NEAR
from pinscope.lab.protocol import Lab
from pinscope.probes.numa import read_nodes
from pinscope.records.budget import Budget
from pinscope.records.environment import Environment
from pinscope.records.finding import Reading
from pinscope.records.parameters import Bytes, Several, parameter
from pinscope.records.run import Direction, ExperimentRun, LabKind, Lasted, Observation, Positive
from pinscope.units import parse_bytes

Part = Literal["copies", "registration", "ipc"]
PROCESS_BYTES = 512 * 2**20
"""Set aside of host memory for each process: Python, NumPy, CuPy and the driver's part."""
COPIES = 4
"""That follow each other in a repeat: the common window of several GPUs holds at least three of each."""
SHARE_REPEATS = 4
USUAL_REPEATS = 0.57
"""Share of the most repeats that the cases of copies took: on a quiet host those one way stopped at 8 (two H200s)."""
_ISSUED = Literal["one_process", "process_each"]


class TopologyParams(Params):
    """What to measure on which GPUs."""

    size: Bytes = parameter("Copy size", "Number of bytes of one copy; four follow each other in a repeat.")
    directions: Several[Direction] = parameter(
        "Directions", "Host to device (h2d), device to host (d2h), or both at once (bidirectional)."
    )
    parts: Several[Part] = parameter(
        "Parts",
        "copies: each GPU alone, every pair, all at once. registration: page tables of several processes on "
        "each GPU. ipc: memory of one GPU opened by a process on another one.",
    )
    shared: Bytes = parameter("Registered memory", "Size of the host memory that every process registers.")
    processes: int = parameter(
        "Processes",
        "Number of processes that register the memory, each with a context on every GPU.",
        unit="count",
        ge=1,
        le=16,
    )
    all_devices: bool = parameter("All GPUs", "Measure all GPUs of this machine, not only the chosen one.", True)

    @classmethod
    def preset(cls, lab: LabKind, quick: bool) -> TopologyParams:
        return cls(
            size=parse_bytes("128MiB" if quick else "256MiB"),
            directions=("h2d", "d2h", "bidirectional"),
            parts=("copies", "registration", "ipc"),
            shared=parse_bytes("1GiB" if quick else "8GiB"),
            processes=2 if quick else 4,
            precision=0.01 if quick else 0.002,
            repeats=8 if quick else 30,
            time_limit=0.2 if quick else 0.8,
        )

    def smaller(self) -> TopologyParams | None:
        """Half as much memory, for both uses."""
        if min(self.size, self.shared) < 2**23:
            return None
        return self.with_overrides({"size": self.size // 16 * 8, "shared": self.shared // 16 * 8})


_NEEDS: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "copy": ("a copy", ("gpus", "devices", "issued_by", "placed", "direction", "way", "copies", "device_seconds")),
    "pin": ("a registration", ("contexts", "processes", "step")),
    "open": ("opened memory", ("opener", "open_seconds")),
    "through": ("a copy through opened memory", ("opener", "source", "copies", "device_seconds")),
}


class TopologyObservation(Observation):
    """Copies of one GPU in one direction; or memory of one GPU, after a process registered or opened some."""

    kind: Literal["copy", "pin", "open", "through"]
    """``copy``; ``pin``: memory registered; ``open``: another process's GPU memory opened; ``through``: copied
    there."""
    device: int
    """Index of the GPU; of ``open`` and ``through`` that on which the memory lies."""
    bytes: Positive
    """Of one copy; of ``pin`` the registered memory; of ``open`` the GPU memory."""
    gpus: str | None = None
    """GPUs that copied at once, as ``0+1``."""
    devices: Positive | None = None
    """How many."""
    issued_by: _ISSUED | None = None
    """``one_process`` for all GPUs, or ``process_each``."""
    placed: Placed | None = None
    """Host memory ``near`` each GPU (where there is nothing to choose, as the run is bound), or all on one ``node``."""
    node: int | None = None
    """NUMA node on which this GPU's host memory lay; ``None``: not known, or on several."""
    direction: Direction | None = None
    """What was measured: ``h2d``, ``d2h`` or ``bidirectional``."""
    way: OneWay | None = None
    """Direction of this row's copies."""
    copies: Positive | None = None
    """How many followed each other."""
    begun_seconds: float | None = None
    """When they began, from the first GPU's beginning, by the host's clock."""
    device_seconds: Lasted | None = None
    """Their time by the GPU's events."""
    window_seconds: Lasted | None = None
    """While all of these GPUs copied; ``None`` where they never did together."""
    window_bytes: int | None = Field(default=None, ge=0)
    """What this GPU moved this way in that time."""
    wrong_words: int | None = None
    """8-byte words that did not arrive; ``None`` where not compared."""
    contexts: Contexts | None = None
    """Of the processes that register: a context on ``every_gpu``, or each on its ``own_gpu``."""
    processes: Positive | None = None
    """How many register."""
    process: int | None = None
    """Which of them just has; ``None`` before the first."""
    step: Literal["before", "pin"] | None = None
    """``before`` any has registered, or after one has (``pin``)."""
    pin_seconds: float | None = None
    """That its registration took."""
    used_bytes: int | None = None
    """Of the GPU, by everybody, now (NVML; else cudaMemGetInfo)."""
    used_before_bytes: int | None = None
    """The same before the memory was opened."""
    opener: int | None = None
    """GPU of the process that opened the memory."""
    open_seconds: float | None = None
    """That opening took."""
    source: Literal["host", "device"] | None = None
    """From where the opener copied: its pinned ``host`` memory, or its own GPU's memory (``device``)."""

    def needs(self) -> tuple[str, Iterable[str]]:
        return _NEEDS[self.kind]


class Topology:
    """GPUs alone, in pairs and all at once; processes on each; memory opened across GPUs."""

    name = "topology"
    title = "All GPUs at once"
    summary = "Several GPUs at once: uplinks, nodes, processes"
    question = (
        "How fast do all GPUs of this host copy together, which share an uplink, and what does each process take?"
    )
    labs: Mapping[LabKind, str | None] = {
        "cuda": None,
        "host": "it compares GPUs and the links that they share; the host model stands for one GPU without a link",
    }
    Params = TopologyParams
    Observation = TopologyObservation

    def budget(self, params: TopologyParams, environment: Environment) -> Budget:
        """Buffers of all GPUs; contexts, page tables and the shared memory of the most processes."""
        gpus = max(len(environment.devices), 1) if params.all_devices else 1
        ways = 1 if len(params.directions) == 1 and "bidirectional" not in params.directions else 2
        registering, shared = (params.processes, params.shared) if "registration" in params.parts else (1, 0)
        buffers = params.size * ways
        tables = page_table_memory_bytes(shared + gpus * buffers, GPU_PAGE_SIZES[0])
        most = max(registering, gpus)
        return Budget(
            pinned_bytes=shared + gpus * buffers,
            pageable_bytes=most * PROCESS_BYTES,
            device_bytes=most * (CONTEXT_BYTES + tables) + 2 * buffers,
            seconds=_seconds(params, gpus, len(environment.nodes), registering),
        )

    def measure(self, params: TopologyParams, lab: Lab, harness: Harness) -> Iterator[TopologyObservation]:
        """Processes with contexts on every GPU, then, where there are several GPUs, a process for each."""
        devices = tuple(lab.peers()) if params.all_devices else (lab.device,)
        several = len(devices) > 1
        registering = params.processes if "registration" in params.parts else 1
        with shared_region(params.shared) as descriptor:
            shared = (descriptor, params.shared)
            members = dict.fromkeys(range(registering), devices)
            part = 0.5 if several else 1.0
            with started("every_gpu", members, lab, harness, shared, begun=0.0, part=part) as team:
                yield from map(_observed, _work(team, params, touched=False))
            if several:
                apart = {rank: (device,) for rank, device in enumerate(devices)}
                touched = "registration" in params.parts
                with started("own_gpu", apart, lab, harness, shared, begun=part, part=1 - part) as team:
                    yield from map(_observed, _work(team, params, touched=touched))

    def read(self, run: ExperimentRun, rows: Sequence[Row]) -> Reading:
        """Which GPUs share an uplink, and what far nodes and processes cost; empty where nothing was measured yet."""
        host = reading.Host(rows)
        concluded = findings.findings(run, host)
        verdict, headline = reading.verdict(host, concluded), reading.headline(host)
        return Reading(verdict=verdict, headline=headline, tables=reading.tables(host), findings=concluded)


def _observed(values: Mapping[str, Any]) -> TopologyObservation:
    return TopologyObservation(**{"repeat": 0, "warmup": False, **values})


def _work(team: Team, params: TopologyParams, touched: bool) -> Iterator[dict[str, Any]]:
    """Registration first: page tables that copies leave behind would be taken by it. IPC where each has one GPU."""
    if "registration" in params.parts:
        yield from register_all(team, params.shared, touched)
    if "copies" in params.parts:
        nodes = [node.number for node in read_nodes().value or () if node.memory_bytes]
        several = nodes if params.node == NEAR and len(nodes) > 1 else []
        plan = Plan(params.size, COPIES, params.directions, params.harness_precision(), several)
        yield from copy_all(team, plan, team.lab.near, begun=0.3)
    if "ipc" in params.parts and team.contexts == "own_gpu":
        yield from share_all(team, params.size, COPIES, SHARE_REPEATS, begun=0.8)


def _seconds(params: TopologyParams, gpus: int, nodes: int, registering: int) -> float:
    """Starting processes, touching and registering memory, cases of copies, pairs of processes that share memory.

    On an H200 host registering took 0.035 s a GiB, and 0.11 s more where another process had touched the memory;
    touching it and giving it back took 0.65 s a GiB.
    """
    once, several, copied = params.shared / 2**30, gpus > 1, COPIES * params.size / 50e9
    seconds = 1.5 + 0.4 * registering * gpus + several * (1.5 + 0.4 * gpus)
    if "registration" in params.parts:
        again = gpus * several
        seconds += once * (0.65 + 0.035 * (registering * gpus + again) + 0.11 * (registering - 1 + again))
    if "copies" in params.parts:
        near, far = gpus + comb(gpus, 2) + (gpus > 2), (gpus + 1) * max(nodes - 1, 0)
        cases, usual = near + far + several * (gpus + 1 + far), copied + 0.004
        repeat = USUAL_REPEATS * min(params.time_limit, params.repeats * usual) + 2 * usual + 0.05 + params.size / 5e9
        seconds += cases * len(params.directions) * repeat
    if several and "ipc" in params.parts:
        seconds += gpus * (gpus - 1) * (0.5 + 2 * (SHARE_REPEATS + 1) * (copied + 0.01))
    return seconds


EXPERIMENT: AnyExperiment = Topology()
