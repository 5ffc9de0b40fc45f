"""How long does a program that serves wait for its own calls while another of its threads pins memory?"""

from __future__ import annotations

import gc
import time
from array import array
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from itertools import product
from typing import Literal, NamedTuple, TypeVar

import numpy as np
from pydantic import field_validator

from pinscope.experiments.contract import AnyExperiment, BareParams, Case, Progress
from pinscope.experiments.while_serving.ways import WAYS, Apparatus, Taken, WayName
from pinscope.lab.backing import HUGE_PAGE, PAGE, why_not_backing
from pinscope.lab.harness import Clock, Harness
from pinscope.lab.pinned_array import LONGEST_WAIT
from pinscope.lab.pinning import SPARE_PROCESSORS, default_threads
from pinscope.lab.protocol import Lab, require_type
from pinscope.records.environment import Environment
from pinscope.records.parameters import Bytes, Seconds, Several, Sizes, parameter, sizes
from pinscope.records.run import LabKind, Lasted, Observation, Positive
from pinscope.units import format_bytes, parse_bytes

Phase = Literal["idle", "taken", "given_back"]
KERNEL_SECONDS = 2e-4
"""Of a round: what a step of a small model takes. While the program waits for it, other threads of Python may run."""
IDLE_SECONDS = 1.0
"""For how long the calls are timed with no other work, for comparison."""
COPY_BYTES = 2**20
SMALLEST = 2**26
RATES: Mapping[WayName, float] = {"touch": 40e9, "host_alloc": 2.1e9, "register": 15.5e9, "chunks": 18e9, "auto": 16e9}
"""Bytes/second of each way to pin and give back, for the estimate of a run's length (H200)."""
CHUNK_SECONDS = 2e-4
"""What a chunk takes beyond that."""


class Beside(NamedTuple):
    """What goes on beside the loop: which repeat of which way, and the length of a chunk where it takes one."""

    repeat: int
    way: WayName | Literal["idle"]
    chunk: int | None = None


class WhileServingParams(BareParams):
    """How much is pinned, in which ways, and how long a call may wait."""

    size: Bytes = parameter("Size", "Amount of memory that each way pins.", ge=SMALLEST)
    ways: Several[WayName] = parameter(
        "Ways", "; ".join(f"{name}: {way.help}" for name, way in WAYS.items()) + ".", tuple(WAYS)
    )
    chunks: Sizes = parameter("Chunks", "Lengths of a chunk, shorter than the size; multiples of 4 KiB.")
    longest_wait: Seconds = parameter(
        "Longest wait", "The limit: how long a call of the program that serves may take.", LONGEST_WAIT, gt=0, le=60
    )
    threads: int = parameter(
        "Threads",
        "Number of threads that touch memory. 0: one for each processor except three, at most 16. If all "
        "processors touch, calls wait for a processor.",
        0,
        unit="count",
        ge=0,
        le=1024,
    )
    repeats: int = parameter(
        "Repeats",
        "Number of times that each way pins, except one cudaHostAlloc: it takes longer than all other ways "
        "together and is made once. The longest wait of all repeats counts.",
        unit="count",
        ge=1,
        le=100,
    )

    @field_validator("chunks")
    @classmethod
    def _whole_pages(cls, value: tuple[int, ...]) -> tuple[int, ...]:
        if wrong := [length for length in value if length % PAGE]:
            raise ValueError(f"{wrong[0]} is no multiple of 4 KiB")
        return value

    @classmethod
    def preset(cls, lab: LabKind, quick: bool) -> WhileServingParams:
        return cls(
            size=parse_bytes("1GiB" if quick else "16GiB"),
            chunks=sizes("16MiB 128MiB" if quick else "2MiB 16MiB 64MiB 256MiB 1GiB 4GiB"),
            repeats=1 if quick else 3,
        )

    def thread_count(self) -> int:
        """How many threads to use here."""
        return self.threads or default_threads(SPARE_PROCESSORS)

    def smaller(self) -> WhileServingParams | None:
        if self.size < 2 * SMALLEST:
            return None
        return self.with_overrides({"size": self.size // 2 // HUGE_PAGE * HUGE_PAGE})


class WhileServingObservation(Observation):
    """The calls of the serving loop while one way took memory, or gave it back."""

    way: WayName | Literal["idle"]
    """How memory was pinned; ``touch``: only touched; ``idle``: nothing went on."""
    phase: Phase
    """What was done to the memory meanwhile."""
    bytes: Positive
    """How much was pinned."""
    chunk_bytes: int | None
    """Length of a piece; ``None`` where one call pins all, or nothing is pinned. Of ``auto``: the length found."""
    threads: int
    """Threads that touched."""
    work_seconds: Lasted
    """Until all was pinned, or given back (idle: how long the calls were timed)."""
    rounds: Positive
    """How often the loop made all of its calls meanwhile."""
    launch_longest_seconds: float
    """The longest launch of a kernel."""
    copy_longest_seconds: float
    """The longest cudaMemcpyAsync of 1 MiB from pinned memory."""
    query_longest_seconds: float
    """The longest recording and query of an event."""
    synchronize_longest_seconds: float
    """The longest cudaStreamSynchronize, with the work on the GPU that it waits for."""
    round_longest_seconds: float
    """The longest round of these calls."""
    launch_typical_seconds: float
    """The median; the others likewise."""
    copy_typical_seconds: float
    """Of the copies."""
    query_typical_seconds: float
    """Of the events."""
    synchronize_typical_seconds: float
    """Of the waits."""
    round_typical_seconds: Lasted
    """Of the rounds."""
    pinned: bool | None = None
    """Whether CUDA says of both ends of the memory that it is pinned; ``None`` where it should not be."""


class WhileServing:
    """A loop that serves, beside a thread that pins."""

    name = "while_serving"
    title = "Pinning while serving"
    summary = "How long a program's calls wait while it pins"
    question = "How long do a program's own launches and copies wait while one of its threads pins memory?"
    labs: Mapping[LabKind, str | None] = {
        "cuda": None,
        "host": "it measures the locks of a GPU driver, which the host model does not have",
    }
    Params = WhileServingParams
    Observation = WhileServingObservation
    start_seconds = 2.0

    def cases(self, params: WhileServingParams, environment: Environment | None = None) -> list[Case[Beside]]:
        """The loop alone, then beside every way, all of them once before any of them again.

        One way at a time with its page table is held, and the loop's copy.
        """
        held = {"pinned_bytes": params.size + COPY_BYTES, "device_bytes": COPY_BYTES + params.size // 512 + HUGE_PAGE}
        first = IDLE_SECONDS + params.size / RATES["register"]
        cases = [Case("the calls alone", Beside(0, "idle"), first, **held)]
        for repeat, way in product(range(params.repeats), params.ways):
            if way == "host_alloc" and repeat > 0:
                continue
            for chunk in [length for length in params.chunks if length < params.size] if way == "chunks" else [None]:
                words = f"{way} {format_bytes(chunk)}" if chunk else way
                seconds = params.size / RATES[way] + (params.size / chunk * CHUNK_SECONDS if chunk else 0.0)
                cases.append(Case(words, Beside(repeat, way, chunk), seconds, **held))
        return cases

    def measure(self, params: WhileServingParams, lab: Lab, harness: Harness) -> Iterator[WhileServingObservation]:
        """Every case."""
        from pinscope.experiments.while_serving.cuda_serving import serving_calls  # noqa: PLC0415 - imports CuPy
        from pinscope.lab.cuda import CudaLab  # noqa: PLC0415
        from pinscope.lab.cuda_memory import CudaCalls, is_pinned  # noqa: PLC0415

        if reason := why_not_backing("thp"):
            harness.note(f"Memory stands on 4 KiB pages: {reason}")
        apparatus = Apparatus(params.size, params.longest_wait, params.thread_count(), CudaCalls.here(), is_pinned)
        with ExitStack() as stack:
            harness.progress(0.0, "getting ready")
            calls = serving_calls(require_type(lab, CudaLab), KERNEL_SECONDS, COPY_BYTES, stack)
            bench = _Bench(lab, calls, params, harness)
            with apparatus.taken("register", None):
                harness.check_cancelled()
            for repeat, way, chunk in Progress(self.cases(params), harness):
                if way == "idle":
                    yield bench.idle()
                else:
                    yield from bench.beside(way, apparatus.taken(way, chunk), repeat)


ROUND = "round"
"""All calls once, with what the loop itself takes."""
_Result = TypeVar("_Result")


@dataclass(frozen=True)
class Served:
    """What the loop saw while the work went on, in seconds.

    Attributes:
        longest: call, or ``round`` → the longest.
        typical: likewise, the median.
    """

    seconds: float
    rounds: int
    longest: Mapping[str, float]
    typical: Mapping[str, float]


@dataclass(frozen=True)
class _Bench:
    """The serving loop."""

    lab: Lab
    calls: Mapping[str, Callable[[], object]]
    params: WhileServingParams
    harness: Harness

    def idle(self) -> WhileServingObservation:
        """The loop with nothing going on."""
        serve_during(lambda: time.sleep(IDLE_SECONDS / 4), self.calls, self.harness.clock)  # warms up
        _, served = serve_during(lambda: time.sleep(IDLE_SECONDS), self.calls, self.harness.clock)
        return self._row("idle", "idle", 0, served)

    def beside(
        self, way: WayName, memory: AbstractContextManager[Taken], repeat: int
    ) -> Iterator[WhileServingObservation]:
        """The loop while memory is taken, and while it is given back."""
        with ExitStack() as stack:
            taken, served = serve_during(lambda: stack.enter_context(memory), self.calls, self.harness.clock)
            self.lab.host_nodes.look([(taken.address, self.params.size)])
            yield self._row(way, "taken", repeat, served, taken)
            _, served = serve_during(stack.close, self.calls, self.harness.clock)
        yield self._row(way, "given_back", repeat, served, taken)

    def _row(
        self, way: WayName | Literal["idle"], phase: Phase, repeat: int, served: Served, taken: Taken | None = None
    ) -> WhileServingObservation:
        return WhileServingObservation(
            repeat=repeat,
            warmup=False,
            way=way,
            phase=phase,
            bytes=self.params.size,
            chunk_bytes=taken.chunk if taken else None,
            threads=self.params.thread_count(),
            work_seconds=served.seconds,
            rounds=served.rounds,
            pinned=taken.pinned if taken and phase == "taken" else None,
            **{f"{call}_longest_seconds": longest for call, longest in served.longest.items()},
            **{f"{call}_typical_seconds": typical for call, typical in served.typical.items()},
        )


def serve_during(
    work: Callable[[], _Result], calls: Mapping[str, Callable[[], object]], clock: Clock
) -> tuple[_Result, Served]:
    """Do the work in a thread of its own and make the calls meanwhile, one round at least.

    Returns:
        What the work gave, and what it and the calls took.
    """

    def timed() -> tuple[_Result, float]:
        begun = clock()
        result = work()
        return result, clock() - begun

    stamps, chosen = array("d"), tuple(calls.values())
    with _nothing_collected(), ThreadPoolExecutor(1) as pool:
        going = pool.submit(timed)
        while True:
            stamps.append(clock())
            for call in chosen:
                call()
                stamps.append(clock())
            if going.done():
                break
        stamps.append(clock())
    result, seconds = going.result()
    return result, _served(seconds, stamps, tuple(calls))


@contextmanager
def _nothing_collected() -> Iterator[None]:
    """Python's search for circular garbage holds its lock for 25 ms in a process as large as this: not meanwhile."""
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def _served(seconds: float, stamps: array[float], names: tuple[str, ...]) -> Served:
    """Of each round its begin and the end of each call; then the end of all."""
    rounds = np.asarray(stamps[:-1]).reshape(-1, len(names) + 1)
    took = dict(zip(names, np.diff(rounds, axis=1).T, strict=True))
    took[ROUND] = np.diff(np.append(rounds[:, 0], stamps[-1]))
    return Served(
        seconds,
        len(rounds),
        {name: float(times.max()) for name, times in took.items()},
        {name: float(np.median(times)) for name, times in took.items()},
    )


EXPERIMENT: AnyExperiment = WhileServing()
