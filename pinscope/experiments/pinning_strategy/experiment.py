"""How is a lot of memory pinned fastest, and how long do other processes on the GPU wait meanwhile?"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from itertools import product
from typing import Any, Literal

from pinscope.experiments.contract import AnyExperiment, BareParams, Case, Progress, Reason, possible
from pinscope.experiments.pinning_strategy.reading import NEIGHBOURS, WAYS, WITH_CONTEXT
from pinscope.lab.backing import HUGE_PAGE, PAGE, why_not_backing
from pinscope.lab.child_processes import Child, ChildProcesses
from pinscope.lab.harness import CONTEXT_BYTES, Harness
from pinscope.lab.pinning import Pinned, Pinner, default_threads
from pinscope.lab.protocol import Lab
from pinscope.records.environment import Environment
from pinscope.records.parameters import Bytes, Several, parameter
from pinscope.records.registration import STRATEGIES, StrategyName
from pinscope.records.run import LabKind, Lasted, Observation, Positive
from pinscope.units import parse_bytes

Pinning = tuple[int, StrategyName]
"""Which repeat of which strategy."""
IDLE_SECONDS = 1.0
"""How long the waits of other processes are measured before anything is pinned, for comparison."""
SLOWEST = 1.5e9
"""Bytes/second at which the slowest strategy pins and frees, for the estimate of a run's length."""
COPY_BYTES = 2**30
"""What the copies that check pinned memory move at most."""
SMALLEST = 2**26
ANSWER_SECONDS = 60.0
_NEIGHBOUR = "pinscope.experiments.pinning_strategy.cuda_neighbour"


class PinningStrategyParams(BareParams):
    """How much to pin, and in which ways."""

    size: Bytes = parameter("Size", "Amount of memory that each strategy pins.")
    chunk: Bytes = parameter(
        "Chunk", "Length of a piece, for the strategies that pin in pieces; a multiple of 2 MiB.", multiple_of=HUGE_PAGE
    )
    threads: int = parameter(
        "Threads",
        "Number of threads that touch memory, and register it where a strategy does so in threads. 0: one "
        "for each processor, 16 at most.",
        0,
        unit="count",
        ge=0,
        le=1024,
    )
    strategies: Several[StrategyName] = parameter(
        "Strategies", f"Ways to pin. {'; '.join(f'{name}: {way.title}' for name, way in WAYS.items())}."
    )
    repeats: int = parameter(
        "Repeats",
        "Number of times that each strategy pins. The longest wait over all of them counts.",
        unit="count",
        ge=1,
        le=100,
    )
    target: Bytes = parameter("Your size", "Amount that your program will pin: the result estimates the time for it.")

    @classmethod
    def preset(cls, lab: LabKind, quick: bool) -> PinningStrategyParams:
        return cls(
            size=parse_bytes("1GiB" if quick else "16GiB"),
            chunk=parse_bytes("64MiB" if quick else "256MiB"),
            strategies=tuple(STRATEGIES),
            repeats=1 if quick else 3,
            target=parse_bytes("64GiB"),
        )

    def thread_count(self) -> int:
        """How many threads to use here."""
        return self.threads or default_threads()

    def smaller(self) -> PinningStrategyParams | None:
        if self.size <= SMALLEST:
            return None
        size = max(self.size // 2 // PAGE * PAGE, SMALLEST)
        return self.with_overrides({"size": size, "chunk": min(self.chunk, size // 8 // HUGE_PAGE * HUGE_PAGE)})


class PinningStrategyObservation(Observation):
    """One strategy, once (or, with strategy ``idle``, the neighbours with nothing going on)."""

    strategy: StrategyName | Literal["idle"]
    """How all of it was pinned; ``idle``: nothing went on."""
    bytes: Positive
    """How much was pinned."""
    chunk_bytes: int | None
    """Length of a piece; ``None`` where all is pinned by one call."""
    threads: int
    """Threads that touched or pinned."""
    total_seconds: Lasted
    """Until all of it was pinned (idle: how long the neighbours were watched)."""
    touch_seconds: float | None = None
    """Of that: until every page was touched; ``None`` where pinning does it, or both go on at once."""
    pin_seconds: float | None = None
    """Of the total: pinning alone."""
    release_seconds: float | None = None
    """Until it was unpinned and given back."""
    neighbour_info_seconds: float
    """The longest cudaMemGetInfo of another process meanwhile."""
    neighbour_nvml_seconds: float
    """The longest NVML memory query of another process meanwhile."""
    neighbour_kernel_seconds: float
    """The longest kernel launch, until the kernel was done, of another process meanwhile."""
    neighbour_allocation_seconds: float
    """The longest cudaMalloc and cudaFree of 1 MiB of another process meanwhile."""
    neighbour_control_seconds: float | None = None
    """How late, at most, another process that makes no driver call woke from its sleep meanwhile."""
    release_neighbour_seconds: float | None = None
    """The longest of the driver calls while the memory was unpinned and given back; then each of them."""
    release_neighbour_info_seconds: float | None = None
    """The longest cudaMemGetInfo meanwhile."""
    release_neighbour_nvml_seconds: float | None = None
    """The longest NVML memory query meanwhile."""
    release_neighbour_kernel_seconds: float | None = None
    """The longest kernel launch, until the kernel was done, meanwhile."""
    release_neighbour_allocation_seconds: float | None = None
    """The longest cudaMalloc and cudaFree of 1 MiB meanwhile."""
    release_neighbour_control_seconds: float | None = None
    """How late, at most, the process that makes no driver call woke meanwhile."""
    pinned: bool | None = None
    """Whether CUDA says of both ends of every piece that it is pinned."""
    copy_bytes: int | None = None
    """Size of the copy that was timed afterwards."""
    copy_seconds: float | None = None
    """One copy of ``copy_bytes`` to the device, within a piece, by device events."""
    crossing_copies: bool | None = None
    """Whether CUDA takes a copy across the boundary of two pieces; ``None`` where there is none."""


class PinningStrategy:
    """Strategies to pin the same amount, with other processes watching the driver."""

    name = "pinning_strategy"
    title = "Pinning strategy"
    summary = "Fastest way to pin a lot; how long others wait"
    question = "What is the fastest way to pin much memory here, and how long do other processes on the GPU wait?"
    labs: Mapping[LabKind, str | None] = {
        "cuda": None,
        "host": "it measures a GPU driver: how it pins, and how long other processes wait for it",
    }
    Params = PinningStrategyParams
    Observation = PinningStrategyObservation
    start_seconds = 3.0

    def cases(self, params: PinningStrategyParams, environment: Environment | None = None) -> list[Case[Pinning]]:
        """Every strategy, all of them once before any of them again.

        The GPU holds the page table, what copies check, and the contexts of the neighbours that have one.
        """
        contexts = len(WITH_CONTEXT) * CONTEXT_BYTES
        plan = list(product(range(params.repeats), params.strategies))
        return [
            Case(
                STRATEGIES[name].title,
                (repeat, name),
                params.size / SLOWEST / 3 + IDLE_SECONDS / len(plan),
                pinned_bytes=params.size,
                device_bytes=min(params.chunk, params.size, COPY_BYTES) + params.size // 512 + contexts,
            )
            for repeat, name in plan
        ]

    def measure(
        self, params: PinningStrategyParams, lab: Lab, harness: Harness
    ) -> Iterator[PinningStrategyObservation]:
        """The neighbours idle, then every case."""
        from pinscope.lab.cuda_memory import CudaCalls, bus_id_here  # noqa: PLC0415 - imports CuPy

        cases = possible(self.cases(params), harness, _why_not)
        calls, threads = CudaCalls.here(), params.thread_count()
        harness.progress(0.0, "starting the neighbours")
        with Neighbours(bus_id_here()) as neighbours, ExitStack() as stack:
            bench = _Bench(lab, stack, min(params.chunk, params.size, COPY_BYTES))
            with Pinner(STRATEGIES["touch_register"], calls, None, threads).pinned(params.size):
                harness.check_cancelled()
            neighbours.longest()
            time.sleep(IDLE_SECONDS)
            yield PinningStrategyObservation(
                repeat=0,
                warmup=False,
                strategy="idle",
                bytes=params.size,
                chunk_bytes=None,
                threads=threads,
                total_seconds=IDLE_SECONDS,
                **_waits(neighbours.longest()),
            )
            for repeat, name in Progress(cases, harness):
                pinner = Pinner(STRATEGIES[name], calls, params.chunk, threads, harness.clock)
                yield _once(pinner, params.size, neighbours, bench, repeat)


class Neighbours(ChildProcesses[str]):
    """Processes beside the measurement that say how long their calls to the GPU's driver had to wait.

    One for each kind of call, so that a call that waits hides no other kind's wait.
    """

    def __init__(self, bus_id: str, calls: Sequence[str] = tuple(NEIGHBOURS), module: str = _NEIGHBOUR) -> None:
        names = {call: f"the neighbour process ({NEIGHBOURS[call].title})" for call in calls}
        children = {call: Child(name, module, {"kind": call, "bus_id": bus_id}) for call, name in names.items()}
        super().__init__(children, ANSWER_SECONDS, ready_limit=ANSWER_SECONDS)
        self._calls = calls

    def longest(self) -> dict[str, float]:
        """Seconds of the longest call of each kind since this was last asked (or since the start).

        Raises:
            MeasurementFailed: a neighbour has ended, or does not answer.
        """
        answers = self.ask("making its calls", {call: {"do": "longest"} for call in self._calls})
        return {call: float(reply["seconds"]) for call, (_, reply) in answers.items()}


class _Bench:
    """What checks pinned memory: a device buffer to copy to."""

    def __init__(self, lab: Lab, stack: ExitStack, nbytes: int) -> None:
        self._lab = lab
        self._stream = stack.enter_context(lab.stream())
        self._start, self._end = stack.enter_context(lab.event()), stack.enter_context(lab.event())
        self._device = stack.enter_context(lab.device_buffer(nbytes))

    def check(self, held: Pinned) -> dict[str, Any]:
        """Values of an observation: is it pinned, how fast does it copy, may copies cross pieces."""
        from pinscope.lab.cuda_memory import HostPart, is_pinned, takes_copy  # noqa: PLC0415

        self._lab.host_nodes.look(held.pieces)
        address, length = held.pieces[0]
        nbytes = min(length, self._device.nbytes)
        # The first warms up, and holds the stream while the second is issued: its time is free of the Python call.
        for _ in range(2):
            self._start.record(self._stream)
            self._lab.copy_to_device(
                self._device.part(0, nbytes), HostPart(address, nbytes, "registered"), self._stream
            )
        self._end.record(self._stream)
        self._stream.synchronize()
        ends = [place for start, size in held.pieces for place in (start, start + size - 1)]
        adjacent = len(held.pieces) > 1 and held.pieces[1][0] == address + length
        return {
            "pinned": all(is_pinned(place) for place in ends),
            "copy_bytes": nbytes,
            "copy_seconds": self._lab.elapsed(self._start, self._end),
            "crossing_copies": takes_copy(self._device.address, address + length - PAGE, 2 * PAGE)
            if adjacent
            else None,
        }


def _why_not(pinning: Pinning) -> Reason:
    strategy = STRATEGIES[pinning[1]]
    return strategy.title, why_not_backing(strategy.backing) if strategy.backing else None


def _once(pinner: Pinner, size: int, neighbours: Neighbours, bench: _Bench, repeat: int) -> PinningStrategyObservation:
    """Pin, check, release, with the neighbours asked before and after."""
    neighbours.longest()
    clock = pinner.clock
    begun = clock()
    with pinner.pinned(size) as held:
        total = clock() - begun
        waits = neighbours.longest()
        checked = bench.check(held)
        neighbours.longest()
        released = clock()
    release = clock() - released
    waits_after = neighbours.longest()
    return PinningStrategyObservation(
        repeat=repeat,
        warmup=False,
        strategy=pinner.strategy.name,
        bytes=size,
        chunk_bytes=pinner.chunk if pinner.strategy.chunked else None,
        threads=pinner.threads,
        total_seconds=total,
        touch_seconds=held.touch_seconds,
        pin_seconds=held.pin_seconds,
        release_seconds=release,
        release_neighbour_seconds=max(seconds for call, seconds in waits_after.items() if call != "control"),
        **_waits(waits),
        **_waits(waits_after, "release_"),
        **checked,
    )


def _waits(longest: Mapping[str, float], phase: Literal["", "release_"] = "") -> dict[str, Any]:
    return {f"{phase}neighbour_{call}_seconds": seconds for call, seconds in longest.items()}


EXPERIMENT: AnyExperiment = PinningStrategy()
