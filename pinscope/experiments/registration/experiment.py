"""Several processes need the same host memory: each registers it, or one owner copies for all."""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from itertools import permutations, product
from typing import Any, Literal, Self, cast

from pydantic import model_validator

from pinscope.errors import NotPossible
from pinscope.experiments.contract import AnyExperiment, BareParams, Case
from pinscope.experiments.registration import reading
from pinscope.lab.backing import Segment, shared_region, why_not_segment
from pinscope.lab.child_processes import Child, ChildProcesses, Reply, Request
from pinscope.lab.harness import CONTEXT_BYTES, PROCESS_BYTES, Harness
from pinscope.lab.pattern import BLOCK_WORDS, Pattern
from pinscope.lab.protocol import Lab
from pinscope.records.environment import Environment
from pinscope.records.parameters import Bytes, Counts, Several, parameter
from pinscope.records.run import LabKind, Lasted, Observation, Positive
from pinscope.units import format_bytes, parse_bytes

Step = Literal["before", "start", "buffers", "pin", "copy", "open", "through", "end"]
SMALLEST_BUFFER = 2 * 2**20
"""Smaller device buffers may share one allocation, which an IPC handle would export as a whole."""
STEP_SECONDS = 120.0
"""How long a step of a process may take: to start, pin, copy, free."""
COPIES = 4
"""Into the opened memory of another GPU, back to back."""

_AMOUNTS: Mapping[tuple[LabKind, bool], str] = {
    ("host", True): "32MiB 4MiB",
    ("host", False): "256MiB 16MiB",
    ("cuda", True): "1GiB 64MiB",
    ("cuda", False): "8GiB 256MiB",
}
"""Shared memory and GPU buffer of the presets: of a lab, quick or not."""
_WITHOUT_CONTEXTS: tuple[reading.Sharing, ...] = tuple(
    sharing for sharing in reading.SHARINGS if sharing != reading.PORTABLE
)


class RegistrationParams(BareParams):
    """How much is shared by how many."""

    shared: Bytes = parameter("Shared memory", "Size of the host memory that all processes share and copy whole.")
    buffer: Bytes = parameter(
        "GPU buffer", "GPU memory of each process, through which the shared memory is copied piece by piece."
    )
    processes: Counts = parameter("Processes", "Number of processes that share it.")
    strategies: Several[reading.Strategy] = parameter(
        "Strategies",
        "each_registers: each process registers the shared memory. one_owner: one process owns pinned "
        "memory and copies into the GPU buffers of all (CUDA IPC).",
    )
    sharing: Several[reading.Sharing] = parameter(
        "Shared memory",
        "What each process registers. memfd: shared memory without a name; shm_open: a POSIX segment; "
        "shm_open_portable: the same, registered for all contexts (cudaHostRegisterPortable); hugetlb: reserved huge "
        "pages of the usual size; hugetlb_1g: of 1 GiB.",
        ("memfd",),
    )
    repeats: int = parameter(
        "Rounds",
        "Number of rounds; in each, all processes copy all of the shared memory at once.",
        unit="count",
        ge=1,
        le=1000,
    )
    all_devices: bool = parameter(
        "All GPUs",
        "Where there are several GPUs, measure also what the processes take on each, and copies into memory of another "
        "GPU.",
        True,
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
            sharing=("memfd",) if quick else tuple(reading.SHARINGS) if lab == "cuda" else _WITHOUT_CONTEXTS,
            repeats=8 if quick else 7,
        )

    def smaller(self) -> RegistrationParams | None:
        """Half as much memory, through buffers half as large."""
        if self.buffer < 2 * SMALLEST_BUFFER or (self.buffer // 2) % SMALLEST_BUFFER:
            return None
        return self.with_overrides({"shared": self.shared // 2, "buffer": self.buffer // 2})


_NEEDS: Mapping[str, tuple[str, ...]] = {
    "copy": ("begun_seconds", "ended_seconds", "copied_bytes", "wrong_words", "checked_words"),
    "open": ("device", "opener", "open_seconds"),
    "through": ("device", "opener", "source", "copies", "device_seconds", "wrong_words"),
}
"""Step → what such a row must have."""


class RegistrationObservation(Observation):
    """One process after one step, or all of them (``process`` is ``None``). ``repeat`` is the round of a copy."""

    strategy: reading.Strategy
    """``each_registers`` or ``one_owner``."""
    processes: Positive
    """How many take part."""
    process: int | None
    """0, 1, 2 …; 0 is the one that touches the shared memory, or owns it."""
    sharing: reading.Sharing | None = None
    """What is shared and how it is registered; ``None`` for one owner, and in older runs, where it is memfd."""
    step: Step
    """After which step: ``before``, ``start``, ``buffers``, ``pin``, ``copy`` or ``end``; across GPUs also ``open``:
    memory of another GPU was opened, and ``through``: something was copied there."""
    bytes: int
    """Shared host memory."""
    buffer_bytes: int
    """GPU memory of each process for the copies."""
    device_used_bytes: int | None = None
    """Of the GPU, by everybody, after the step: cudaMemGetInfo."""
    nvml_used_bytes: int | None = None
    """Used memory by NVML."""
    pinned_bytes: int | None = None
    """Pinned on the whole host after the step."""
    page_table_bytes: int | None = None
    """The kernel's page tables of this process after the step."""
    start_seconds: float | None = None
    """From starting the process until it was ready to pin."""
    touch_seconds: float | None = None
    """Writing to each page of the shared memory for the first time."""
    pin_seconds: float | None = None
    """Registering, with mapping what another process has touched; or allocating pinned memory."""
    all_seconds: float | None = None
    """Until all processes had it pinned, from where the first began to touch it; in the row of the last. Older runs
    had not several threads touch, and registered in turn."""
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
    contexts: reading.Contexts | None = None
    """Of processes on several GPUs: a context on ``every_gpu``, or each on its ``own_gpu``; ``None``: on one GPU."""
    device: int | None = None
    """Of these the GPU on which was read what is used, or on which the opened memory lies."""
    opener: int | None = None
    """GPU of the process that opened the memory."""
    open_seconds: float | None = None
    """That opening took."""
    source: reading.Source | None = None
    """From where it copied: its pinned ``host`` memory, or its own GPU's memory (``device``)."""
    copies: Positive | None = None
    """How many of ``buffer_bytes`` followed each other."""
    device_seconds: Lasted | None = None
    """Their time by the GPU's events."""

    def needs(self) -> tuple[str, Iterable[str]]:
        """A copy has its times and what it brought."""
        return f"a row of step {self.step}", _NEEDS.get(self.step, ())

    @model_validator(mode="after")
    def _takes_time(self) -> Self:
        begun, ended = self.begun_seconds, self.ended_seconds
        if begun is not None and ended is not None and ended <= begun:
            raise ValueError("copies that ended before they had begun")
        return self


class Registration:
    """Host memory for N processes, in two ways."""

    name = "registration"
    title = "Registration"
    summary = "Memory shared by processes: each pins it, or one does"
    question = "When several processes copy from the same host memory, should each register it, or one own it for all?"
    labs: Mapping[LabKind, str | None] = {"cuda": None, "host": None}
    Params = RegistrationParams
    Observation = RegistrationObservation

    start_seconds = 1.5

    def cases(self, params: RegistrationParams, environment: Environment | None = None) -> list[Case[Sharers]]:
        """Of a machine: the shared memory once; contexts, buffers and page tables of all processes."""
        gpus = [device.index for device in environment.devices] if environment else []
        sharers = _sharers(params, gpus[0] if gpus else 0, gpus, params.sharing)
        host, context = (PROCESS_BYTES, CONTEXT_BYTES) if gpus else (PROCESS_BYTES // 4, 0)
        each = params.buffer + params.shared // 512 + context
        pace = (1.5, 40e9) if gpus else (0.6, 2e9)
        return [
            Case(what.words, what, what.seconds(*pace), params.shared, count * host, count * each)
            for what in sharers
            for count in (len(what.members),)
        ]

    def measure(self, params: RegistrationParams, lab: Lab, harness: Harness) -> Iterator[RegistrationObservation]:
        """Every number of processes with every strategy, each with processes of its own; then several GPUs."""
        sharers = _sharers(params, lab.device, tuple(lab.peers()), self._possible(params, lab, harness))
        if not sharers:
            raise NotPossible("none of the kinds of shared memory that were asked for can be had here: see the notes")
        for number, case in enumerate(sharers):
            kind = _Across if case.contexts else _Trial
            yield from kind(case, lab, harness, number / len(sharers)).run()

    def _possible(self, params: RegistrationParams, lab: Lab, harness: Harness) -> list[reading.Sharing]:
        """The sorts of shared memory that this machine gives; the others are noted."""
        reasons = {sharing: why_not_segment(_segment(sharing), params.shared) for sharing in params.sharing}
        if reading.PORTABLE in reasons and lab.kind == "host":
            reasons[reading.PORTABLE] = "The host model has one context."
        for sharing, reason in reasons.items():
            if reason and "each_registers" in params.strategies:
                harness.note(f"Left out: {sharing}. {reason}")
        return [sharing for sharing, reason in reasons.items() if not reason]


Timed = dict[int, tuple[float, Reply]]
"""Process → seconds that its answer took, and the answer."""
_MEMBER = "pinscope.experiments.registration.child_member"


@dataclass(frozen=True)
class Sharers:
    """One strategy with one number of processes.

    Attributes:
        members: the GPUs of each process.
        contexts: of processes on several GPUs.
    """

    strategy: reading.Strategy
    members: Sequence[Sequence[int]]
    params: RegistrationParams
    sharing: reading.Sharing | None = None
    contexts: reading.Contexts | None = None

    @property
    def words(self) -> str:
        """For people."""
        on = f"a context on {reading.CONTEXTS[self.contexts]}" if self.contexts else None
        words = [reading.WAYS[self.strategy].words, f"{len(self.members)} processes", *filter(None, [self.sharing, on])]
        return ", ".join(words)

    def seconds(self, start: float, rate: float) -> float:
        """Starting processes (seconds), touching and registering memory, and copies at that rate (bytes/second), or
        pairs of processes of which one opens the other's memory.

        On an H200 host touching memory by several threads and giving it back took 0.3 s a GiB, by one 0.65 s,
        registering it 0.035 s on each GPU, and 0.11 s more where another process had touched it.
        """
        params, count, once = self.params, len(self.members), self.params.shared / 2**30
        rounds = params.repeats + 1
        if self.contexts is None:
            return start + 0.3 * once + count * (0.05 * once + rounds * params.shared / rate)
        if self.strategy == "each_registers":
            return start + 0.65 * once + sum(map(len, self.members)) * (0.4 + 0.08 * once)
        opening = 0.5 + 2 * rounds * (COPIES * params.buffer / 50e9 + 0.01)
        return start + count * (0.4 + (count - 1) * opening)


def _sharers(
    params: RegistrationParams, device: int, gpus: Sequence[int], sharings: Sequence[reading.Sharing]
) -> list[Sharers]:
    """Each sort of shared memory with each number of processes on one GPU. Of several GPUs then the most processes
    with a context on every one, a process for each, and each with each other one."""
    registers = sharings if "each_registers" in params.strategies else ()
    most, owned = max(params.processes), "one_owner" in params.strategies
    sharers: list[Sharers] = []
    for count, strategy in product(params.processes, params.strategies):
        kinds: Sequence[reading.Sharing | None] = (None,) if strategy == "one_owner" else registers
        sharers += [Sharers(strategy, [(device,)] * count, params, sharing) for sharing in kinds]
    if params.all_devices and len(gpus) > 1:
        apart = [(gpu,) for gpu in gpus]
        for first in registers[:1]:
            sharers.append(Sharers("each_registers", [gpus] * most, params, first, "every_gpu"))
            sharers.append(Sharers("each_registers", apart, params, first, "own_gpu"))
        sharers += [Sharers("one_owner", apart, params, contexts="own_gpu")] if owned else []
    return sharers


def _segment(sharing: reading.Sharing | None) -> Segment:
    """What is mapped; the owner's memory is its own, whatever is shared beside it."""
    return "shm_open" if sharing == reading.PORTABLE else cast("Segment", sharing or "memfd")


class _Members:
    """The processes of one case, and what they are asked to do."""

    def __init__(self, case: Sharers, lab: Lab, harness: Harness, done: float) -> None:
        self._case, self._lab, self._harness, self._done = case, lab, harness, done
        self._ranks = range(len(case.members))
        self._nodes: set[int] = set()
        """NUMA nodes of the host memory that the processes hold."""

    @contextmanager
    def _started(self) -> Iterator[Timed]:
        """Processes that have opened their labs, and the time that each took to; they end with the block."""
        case, limit, check = self._case, STEP_SECONDS, self._harness.check_cancelled
        with shared_region(case.params.shared, _segment(case.sharing)) as descriptor:
            common = {"seed": secrets.randbits(63), "descriptor": descriptor, "nbytes": case.params.shared}
            children = {
                rank: Child(
                    f"process {rank + 1} of {len(case.members)}",
                    _MEMBER,
                    {**common, "rank": rank, "device_ids": {str(gpu): self._lab.device_id_of(gpu) for gpu in gpus}},
                )
                for rank, gpus in enumerate(case.members)
            }
            begun = self._harness.clock()
            with ChildProcesses(children, limit, check, (descriptor,)) as self._processes:
                yield self._all("starting", {"do": "start"}, begun)
                self._all("ending", {"do": "end"})
        self._nodes.clear()

    def _register(self, *ranks: int) -> Timed:
        """Let processes register the shared memory, all at once; the first of all touches it before."""
        order = {"do": "register", "portable": self._case.sharing == reading.PORTABLE}
        return self._ask("pinning", {rank: {**order, "first": rank == 0} for rank in ranks})

    def _all(self, step: str, order: Request, since: float | None = None) -> Timed:
        """One order for every process; the seconds that each took."""
        return self._ask(step, dict.fromkeys(self._ranks, order), since)

    def _tell(self, step: str, rank: int, order: Request) -> Reply:
        return self._ask(step, {rank: order})[rank][1]

    def _ask(self, step: str, orders: Mapping[int, Request], since: float | None = None) -> Timed:
        begun = self._harness.clock() if since is None else since
        self._harness.progress(self._done, f"{self._case.words}: {step}")
        replies = self._processes.ask(f"{step} ({self._case.words})", orders, self._harness.clock)
        self._nodes.update(*(reply.get("nodes", ()) for _, reply in replies.values()))
        return {rank: (at - begun, reply) for rank, (at, reply) in replies.items()}

    def _row(self, step: Step, rank: int | None, **values: Any) -> RegistrationObservation:
        self._lab.host_nodes.add(self._nodes)
        case, params = self._case, self._case.params
        return RegistrationObservation(
            **{"repeat": 0, "warmup": False, "step": step, "process": rank, **values},
            **{"strategy": case.strategy, "processes": len(case.members), "sharing": case.sharing},
            contexts=case.contexts,
            bytes=params.shared,
            buffer_bytes=params.buffer,
        )


class _Trial(_Members):
    """One case on one GPU, step by step."""

    def run(self) -> Iterator[RegistrationObservation]:
        """Start, take buffers, pin, copy, end; every observation as soon as it is known."""
        generator = secrets.SystemRandom()
        self._pattern = Pattern(generator.randrange(BLOCK_WORDS), generator.getrandbits(62) + 1)
        yield self._observe("before", None)
        with self._started() as started:
            for rank, (seconds, reply) in started.items():
                yield self._observe("start", rank, reply, start_seconds=seconds)
            yield from self._buffers()
            yield from self._pin()
            for number in range(self._case.params.repeats + 1):
                yield from self._round(number)
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
        """The first process; then, unless it owns the memory, all others at once."""
        owned = self._case.strategy == "one_owner"
        waves = [self._ranks[:1], *([] if owned else [self._ranks[1:]])]
        taken = 0.0
        for wave in filter(None, waves):
            replies = self._ask("pinning", {0: {"do": "own"}}) if owned else self._register(*wave)
            taken += max(seconds for seconds, _ in replies.values())
            for rank in wave:
                reply, is_last = replies[rank][1], owned or rank == self._ranks[-1]
                yield self._observe("pin", rank, reply, **_times(reply), all_seconds=taken if is_last else None)
        self._tell("filling the memory", 0, {"do": "fill", **asdict(self._pattern)})

    def _round(self, number: int) -> Iterator[RegistrationObservation]:
        """Everybody gets everything once; round 0 warms up."""
        params = self._case.params
        windows = params.shared // params.buffer
        starts = {rank: (number + rank * windows // len(self._ranks)) % windows for rank in self._ranks}
        self._all("clearing GPU memory", {"do": "clear"})
        orders: dict[int, Request] = {rank: {"do": "copy", "starts": {rank: starts[rank]}} for rank in self._ranks}
        if self._case.strategy == "one_owner":
            orders = {0: {"do": "copy", "starts": starts}}
        copied = {rank: reply for rank, (_, reply) in self._ask("copying", orders).items()}
        first = min(reply["begun"] for reply in copied.values())
        last = {rank: self._pattern.part((start - 1) % windows * params.buffer) for rank, start in starts.items()}
        checks = {rank: {"do": "check", **asdict(pattern)} for rank, pattern in last.items()}
        for rank, (_, checked) in self._ask("checking what arrived", checks).items():
            own = copied.get(rank, copied[0])
            yield self._row(
                "copy",
                rank,
                repeat=max(number - 1, 0),
                warmup=number == 0,
                copied_bytes=own["copied"],
                begun_seconds=own["begun"] - first,
                ended_seconds=own["ended"] - first,
                **checked,
            )

    def _observe(
        self, step: Step, rank: int | None, reply: Reply | None = None, **values: Any
    ) -> RegistrationObservation:
        """An observation with what is used after the step."""
        state = self._lab.memory_state()
        meters = {name: getattr(state, name) for name in ("device_used_bytes", "nvml_used_bytes", "pinned_bytes")}
        return self._row(step, rank, **meters, page_table_bytes=reply["kernel_tables"] if reply else None, **values)


class _Across(_Members):
    """One case on several GPUs: what is used of each, and memory of one opened from another one."""

    def run(self) -> Iterator[RegistrationObservation]:
        """All processes register in turn; or each opens the memory of every other one."""
        with self._started():
            if self._case.strategy == "each_registers":
                yield from self._reads("before", None)
                for rank in self._ranks:
                    yield from self._reads("pin", rank, **_times(self._register(rank)[rank][1]))
            else:
                for owner, opener in permutations(self._ranks, 2):
                    yield from self._opened(owner, opener)

    def _reads(self, step: Step, rank: int | None, **values: Any) -> Iterator[RegistrationObservation]:
        for gpu, used in self._used().items():
            yield self._row(step, rank, device=gpu, **used, **values)

    def _used(self) -> dict[int, dict[str, int | None]]:
        """What is used of each GPU now, as the first process with a context there reads it."""
        readers = {gpu: rank for rank in reversed(self._ranks) for gpu in self._case.members[rank]}
        replies = self._ask("reading the GPUs' memory", {rank: {"do": "used"} for rank in readers.values()})
        return {gpu: replies[rank][1]["used"][str(gpu)] for gpu, rank in sorted(readers.items())}

    def _opened(self, owner: int, opener: int) -> Iterator[RegistrationObservation]:
        """Memory of one process's GPU, opened by another process, and copies there."""
        (device,), (other,), nbytes = self._case.members[owner], self._case.members[opener], self._case.params.buffer
        labels = {"device": device, "opener": other}
        handle = self._tell("exporting memory", owner, {"do": "export", "nbytes": nbytes})["handle"]
        self._tell("clearing GPU memory", owner, {"do": "clear"})
        before = self._used()[device]
        order = {"do": "open", "owner": owner, "handle": handle, "nbytes": nbytes}
        reply = self._tell("opening memory", opener, order)
        if reply["refused"]:
            self._harness.note(f"GPU {other}'s process cannot open memory of GPU {device}: {reply['refused']}")
        else:
            yield self._row("before", None, **labels, **before)
            yield self._row("open", opener, **labels, open_seconds=reply["seconds"], **self._used()[device])
            for source, number in product(reading.SOURCES, range(-1, self._case.params.repeats)):
                order = {"do": "through", "owner": owner, "source": source, "copies": COPIES}
                copied = self._tell("copying through", opener, order)
                check = {"do": "check", **copied["pattern"]}
                values = {"source": source, "copies": COPIES, "device_seconds": copied["seconds"]}
                values |= {"repeat": max(number, 0), "warmup": number < 0}
                values |= self._tell("checking what arrived", owner, check)
                yield self._row("through", opener, **labels, **values)
        for rank in (opener, owner):
            self._tell("closing memory", rank, {"do": "release"})


def _times(reply: Reply) -> dict[str, float | None]:
    return {name: reply[name] for name in ("touch_seconds", "pin_seconds")}


EXPERIMENT: AnyExperiment = Registration()
