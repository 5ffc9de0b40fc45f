"""Several processes need the same host memory: each registers it, or one owner copies for all."""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Self, cast

from pydantic import model_validator

from pinscope.analysis.rows import Row
from pinscope.errors import NotPossible
from pinscope.experiments.contract import AnyExperiment, BareParams
from pinscope.experiments.registration import findings, reading
from pinscope.experiments.registration.ways import PORTABLE, SHARINGS, WAYS, Sharing, Strategy
from pinscope.lab.backing import Segment, shared_region, why_not_segment
from pinscope.lab.budget import CONTEXT_BYTES
from pinscope.lab.child_processes import Child, ChildProcesses, Order, Reply
from pinscope.lab.harness import Harness
from pinscope.lab.pattern import BLOCK_WORDS
from pinscope.lab.protocol import Lab
from pinscope.records.budget import Budget
from pinscope.records.environment import Environment
from pinscope.records.finding import Reading
from pinscope.records.parameters import Bytes, Counts, Seconds, Several, parameter
from pinscope.records.run import ExperimentRun, LabKind, Observation, Positive
from pinscope.units import format_bytes, parse_bytes

Step = Literal["before", "start", "buffers", "pin", "copy", "end"]
PROCESS_BYTES = 512 * 2**20
"""Set aside of host memory for each process: Python, NumPy, CuPy and the driver's part."""
SMALLEST_BUFFER = 2 * 2**20
"""Smaller device buffers may share one allocation, which an IPC handle would export as a whole."""


_AMOUNTS: Mapping[tuple[LabKind, bool], str] = {
    ("host", True): "32MiB 4MiB",
    ("host", False): "256MiB 16MiB",
    ("cuda", True): "1GiB 64MiB",
    ("cuda", False): "8GiB 256MiB",
}
"""Shared memory and GPU buffer of the presets: of a lab, quick or not."""
_WITHOUT_CONTEXTS: tuple[Sharing, ...] = tuple(sharing for sharing in SHARINGS if sharing != PORTABLE)


class RegistrationParams(BareParams):
    """How much is shared by how many."""

    shared: Bytes = parameter("Shared memory", "Size of the host memory that all processes share and copy whole.")
    buffer: Bytes = parameter(
        "GPU buffer", "GPU memory of each process, through which the shared memory is copied piece by piece."
    )
    processes: Counts = parameter("Processes", "Number of processes that share it.")
    strategies: Several[Strategy] = parameter(
        "Strategies",
        "each_registers: each process registers the shared memory. one_owner: one process owns pinned "
        "memory and copies into the GPU buffers of all (CUDA IPC).",
    )
    sharing: Several[Sharing] = parameter(
        "Shared memory",
        "What each process registers. memfd: shared memory without a name; shm_open: a POSIX segment; "
        "shm_open_portable: the same, registered for all contexts (cudaHostRegisterPortable); hugetlb: reserved huge "
        "pages of the usual size; hugetlb_1g: of 1 GiB. The first is measured with each number of processes, the "
        "others with the most.",
        ("memfd",),
    )
    repeats: int = parameter(
        "Rounds",
        "Number of rounds; in each, all processes copy all of the shared memory at once.",
        unit="count",
        ge=1,
        le=1000,
    )
    step_limit: Seconds = parameter(
        "Step limit",
        "Time limit of each step of a process: start, pin, copy, free. If one exceeds it, the run fails; what "
        "was measured until then is kept.",
        gt=0,
        le=3600,
    )

    @model_validator(mode="after")
    def _fits(self) -> RegistrationParams:
        if self.buffer < SMALLEST_BUFFER or self.buffer % SMALLEST_BUFFER:
            raise ValueError(f"buffer: it takes a multiple of {format_bytes(SMALLEST_BUFFER)}")
        if self.shared % self.buffer:
            raise ValueError("shared: it takes a multiple of the GPU buffer")
        return self

    @classmethod
    def preset(cls, lab: LabKind, quick: bool) -> RegistrationParams:
        shared, buffer = map(parse_bytes, _AMOUNTS[lab, quick].split())
        return cls(
            shared=shared,
            buffer=buffer,
            processes=(2,) if quick else (1, 4),
            strategies=("each_registers", "one_owner"),
            sharing=("memfd",) if quick else tuple(SHARINGS) if lab == "cuda" else _WITHOUT_CONTEXTS,
            repeats=3 if quick else 7,
            step_limit=120.0,
        )

    def smaller(self) -> RegistrationParams | None:
        """Half as much memory, through buffers half as large."""
        if self.buffer < 2 * SMALLEST_BUFFER or (self.buffer // 2) % SMALLEST_BUFFER:
            return None
        return self.with_overrides({"shared": self.shared // 2, "buffer": self.buffer // 2})


COPY_VALUES = ("begun_seconds", "ended_seconds", "copied_bytes", "wrong_words", "checked_words")


class RegistrationObservation(Observation):
    """One process after one step, or all of them (``process`` is ``None``). ``repeat`` is the round of a copy."""

    strategy: Strategy
    """``each_registers`` or ``one_owner``."""
    processes: Positive
    """How many take part."""
    process: int | None
    """0, 1, 2 …; 0 is the one that touches the shared memory, or owns it."""
    sharing: Sharing | None = None
    """What is shared and how it is registered; ``None`` for one owner, and in older runs, where it is memfd."""
    step: Step
    """After which step: ``before``, ``start``, ``buffers``, ``pin``, ``copy`` or ``end``."""
    bytes: int
    """Shared host memory."""
    buffer_bytes: int
    """GPU memory of each process for the copies."""
    device_used_bytes: int | None = None
    """Of the GPU, by everybody, after the step: cudaMemGetInfo."""
    nvml_used_bytes: int | None = None
    """The same by NVML."""
    pinned_bytes: int | None = None
    """Pinned on the whole host after the step."""
    page_table_bytes: int | None = None
    """The kernel's page tables of this process after the step."""
    start_seconds: float | None = None
    """From starting the process until it was ready to pin."""
    touch_seconds: float | None = None
    """Writing to each page of the shared memory for the first time."""
    pin_seconds: float | None = None
    """Registering, or allocating pinned memory."""
    begun_seconds: float | None = None
    """When the copies of this process began, from the first beginning of the round."""
    ended_seconds: float | None = None
    """When they ended, by the same clock."""
    copied_bytes: int | None = None
    """What this process copied in the round."""
    wrong_words: int | None = None
    """8-byte words of the last piece that were not what the shared memory holds there."""
    checked_words: int | None = None
    """8-byte words that were compared."""

    def needs(self) -> tuple[str, Iterable[str]]:
        """A copy has its times and what it brought."""
        return f"a row of step {self.step}", COPY_VALUES if self.step == "copy" else ()

    @model_validator(mode="after")
    def _takes_time(self) -> Self:
        begun, ended = self.begun_seconds, self.ended_seconds
        if begun is not None and ended is not None and ended <= begun:
            raise ValueError("copies that ended before they had begun")
        return self


class Registration:
    """The same host memory for N processes, in two ways."""

    name = "registration"
    title = "Registration"
    summary = "Memory shared by processes: each pins it, or one does"
    question = "When several processes copy from the same host memory, should each register it, or one own it for all?"
    labs: Mapping[LabKind, str | None] = {"cuda": None, "host": None}
    Params = RegistrationParams
    Observation = RegistrationObservation

    def budget(self, params: RegistrationParams, environment: Environment) -> Budget:
        """The shared memory once; contexts, buffers and page tables for the most processes."""
        most = max(params.processes)
        contexts = most * CONTEXT_BYTES if environment.devices else 0
        once = params.shared / 2**30
        more = [most] * (len(params.sharing) - 1) if "each_registers" in params.strategies else []
        numbers = (*params.processes * len(params.strategies), *more)
        rounds = (params.repeats + 1) * params.shared / (40e9 if environment.devices else 2e9)
        return Budget(
            pinned_bytes=params.shared,
            pageable_bytes=most * (PROCESS_BYTES if environment.devices else PROCESS_BYTES // 4),
            device_bytes=most * (params.buffer + params.shared // 512) + contexts,
            seconds=sum(1.5 + 0.5 * once + number * (0.05 * once + rounds) for number in numbers),
        )

    def measure(self, params: RegistrationParams, lab: Lab, harness: Harness) -> Iterator[RegistrationObservation]:
        """Every number of processes with every strategy, each with processes of its own."""
        cases = list(_cases(params, self._possible(params, lab, harness)))
        if not cases:
            raise NotPossible("none of the kinds of shared memory that were asked for can be had here: see the notes")
        for number, case in enumerate(cases):
            yield from _Trial(case, lab, harness, number / len(cases)).run()

    def _possible(self, params: RegistrationParams, lab: Lab, harness: Harness) -> list[Sharing]:
        """The sorts of shared memory that this machine gives; the others are noted."""
        if "each_registers" not in params.strategies:
            return []
        possible: list[Sharing] = []
        for sharing in params.sharing:
            reason = why_not_segment(_segment(sharing), params.shared)
            if sharing == PORTABLE and lab.kind == "host":
                reason = "The host model has one context."
            if reason:
                harness.note(f"Left out: {sharing}. {reason}")
            else:
                possible.append(sharing)
        return possible

    def read(self, run: ExperimentRun, rows: Sequence[Row]) -> Reading:
        """What each strategy takes, and how fast it copies; empty where nothing was measured yet."""
        shared = reading.Registrations(run, rows)
        return Reading(
            verdict=reading.verdict(shared),
            headline=tuple(reading.headline(shared)),
            tables=reading.tables(shared),
            findings=findings.findings(shared),
        )


Timed = dict[int, tuple[float, Reply]]
"""Process → seconds that its answer took, and the answer."""
_MEMBER = "pinscope.experiments.registration.child_member"


@dataclass(frozen=True)
class Case:
    """One strategy with one number of processes."""

    strategy: Strategy
    processes: int
    params: RegistrationParams
    sharing: Sharing | None = None

    @property
    def words(self) -> str:
        """For people."""
        words = [WAYS[self.strategy].words, f"{self.processes} processes", *filter(None, [self.sharing])]
        return ", ".join(words)


def _cases(params: RegistrationParams, possible: Sequence[Sharing]) -> Iterator[Case]:
    """The first sort of shared memory with each number of processes, the others with the most."""
    for count in params.processes:
        for strategy in params.strategies:
            if strategy == "one_owner":
                yield Case(strategy, count, params)
            elif possible:
                yield Case(strategy, count, params, possible[0])
    for sharing in possible[1:]:
        yield Case("each_registers", max(params.processes), params, sharing)


def _segment(sharing: Sharing | None) -> Segment:
    """What is mapped; the owner's memory is its own, whatever is shared beside it."""
    return "shm_open" if sharing == PORTABLE else cast("Segment", sharing or "memfd")


class _Trial:
    """One case, step by step."""

    def __init__(self, case: Case, lab: Lab, harness: Harness, done: float) -> None:
        self._case, self._lab, self._harness, self._done = case, lab, harness, done
        self._ranks = range(case.processes)
        self._nodes: set[int] = set()
        """NUMA nodes of the host memory that the processes hold."""
        generator = secrets.SystemRandom()
        self._pattern = {"offset": generator.randrange(BLOCK_WORDS), "key": generator.getrandbits(62) + 1}

    def run(self) -> Iterator[RegistrationObservation]:
        """Start, take buffers, pin, copy, end; every observation as soon as it is known."""
        params = self._case.params
        yield self._observe("before", None)
        with shared_region(params.shared, _segment(self._case.sharing)) as descriptor:
            configuration = {"place": self._lab.place, "seed": secrets.randbits(63)}
            configuration |= {"descriptor": descriptor, "nbytes": params.shared}
            children = {
                rank: Child(f"process {rank + 1} of {self._case.processes}", _MEMBER, {**configuration, "rank": rank})
                for rank in self._ranks
            }
            limit, check = params.step_limit, self._harness.check_cancelled
            begun = self._harness.clock()
            with ChildProcesses(children, limit, check, (descriptor,)) as self._members:
                for rank, (seconds, reply) in self._all("starting", {"do": "start"}, begun).items():
                    yield self._observe("start", rank, reply, start_seconds=seconds)
                yield from self._buffers()
                yield from self._pin()
                for number in range(params.repeats + 1):
                    yield from self._round(number)
                self._all("ending", {"do": "end"}, begun)
        self._nodes.clear()
        yield self._observe("end", None)

    def _buffers(self) -> Iterator[RegistrationObservation]:
        """GPU memory for each process; the owner opens all of it."""
        nbytes = self._case.params.buffer
        replies = self._all("taking GPU memory", {"do": "export", "nbytes": nbytes})
        tables = {rank: reply for rank, (_, reply) in replies.items()}
        if self._case.strategy == "one_owner":
            handles = {str(rank): reply["handle"] for rank, reply in tables.items() if rank}
            reach = {0: {"do": "reach", "handles": handles, "nbytes": nbytes}}
            tables[0] = self._ask("reaching the others' GPU memory", reach)[0][1]
        for rank, reply in tables.items():
            yield self._observe("buffers", rank, reply)

    def _pin(self) -> Iterator[RegistrationObservation]:
        """Each in turn, or the owner alone."""
        if self._case.strategy == "one_owner":
            turns: dict[int, Order] = {0: {"do": "own"}}
        else:
            portable = self._case.sharing == PORTABLE
            turns = {rank: {"do": "register", "first": rank == 0, "portable": portable} for rank in self._ranks}
        for rank, order in turns.items():
            reply = self._ask("pinning", {rank: order})[rank][1]
            times = {name: reply[name] for name in ("touch_seconds", "pin_seconds")}
            yield self._observe("pin", rank, reply, **times)
        self._ask("filling the memory", {0: {"do": "fill", **self._pattern}})

    def _round(self, number: int) -> Iterator[RegistrationObservation]:
        """Everybody gets everything once; round 0 warms up."""
        params = self._case.params
        windows = params.shared // params.buffer
        starts = {rank: (number + rank * windows // self._case.processes) % windows for rank in self._ranks}
        self._all("clearing GPU memory", {"do": "clear"})
        orders: dict[int, Order] = {rank: {"do": "copy", "starts": {rank: starts[rank]}} for rank in self._ranks}
        if self._case.strategy == "one_owner":
            orders = {0: {"do": "copy", "starts": starts}}
        copied = {rank: reply for rank, (_, reply) in self._ask("copying", orders).items()}
        first = min(reply["begun"] for reply in copied.values())
        checks = {rank: {"do": "check", "start": starts[rank], **self._pattern} for rank in self._ranks}
        for rank, (_, reply) in self._ask("checking what arrived", checks).items():
            own = copied.get(rank, copied[0])
            yield self._observe(
                "copy",
                rank,
                repeat=max(number - 1, 0),
                warmup=number == 0,
                copied_bytes=own["copied"],
                begun_seconds=own["begun"] - first,
                ended_seconds=own["ended"] - first,
                wrong_words=reply["wrong"],
                checked_words=reply["checked"],
            )

    def _all(self, step: str, order: Order, since: float | None = None) -> Timed:
        """The same order for everybody; the seconds that each took."""
        return self._ask(step, dict.fromkeys(self._ranks, order), since)

    def _ask(self, step: str, orders: Mapping[int, Order], since: float | None = None) -> Timed:
        begun = self._harness.clock() if since is None else since
        self._harness.progress(self._done, f"{self._case.words}: {step}")
        replies = self._members.ask(f"{step} ({self._case.words})", orders, self._harness.clock)
        self._nodes.update(*(reply.get("nodes", ()) for _, reply in replies.values()))
        return {rank: (at - begun, reply) for rank, (at, reply) in replies.items()}

    def _observe(
        self, step: Step, rank: int | None, reply: Reply | None = None, **values: Any
    ) -> RegistrationObservation:
        """An observation; what is used is read except in the midst of copies."""
        if step != "copy":
            state = self._lab.memory_state()
            meters = ("device_used_bytes", "nvml_used_bytes", "pinned_bytes")
            values |= {name: getattr(state, name) for name in meters}
            values["page_table_bytes"] = reply["kernel_tables"] if reply else None
        self._lab.host_nodes.add(self._nodes)
        case, params = self._case, self._case.params
        return RegistrationObservation(
            **{"repeat": 0, "warmup": False, "step": step, "process": rank, **values},
            **{"strategy": case.strategy, "processes": case.processes, "sharing": case.sharing},
            bytes=params.shared,
            buffer_bytes=params.buffer,
        )


EXPERIMENT: AnyExperiment = Registration()
