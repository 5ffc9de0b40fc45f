"""Data lies in pageable memory, or has to go there: which way to the GPU, or from it, is fastest?"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from importlib.util import find_spec
from itertools import groupby, product
from typing import Self

from pinscope.analysis.cells import of_kind
from pinscope.analysis.statistics import LEAST_VALUES
from pinscope.experiments.contract import AnyExperiment, Case, Params, Progress, Reason, possible
from pinscope.experiments.staging.reading import USUAL_BYTES
from pinscope.experiments.staging.ways import CHOICES, HALVES, MOST_SLOTS, WAYS, Bench, Choice, WayName, function_of
from pinscope.lab.harness import Harness, Precision
from pinscope.lab.protocol import Lab
from pinscope.probes.environment import install_command
from pinscope.records.environment import Environment
from pinscope.records.parameters import Bytes, Counts, Several, Sizes, parameter, sizes
from pinscope.records.run import LabKind, Lasted, Observation, Positive
from pinscope.units import format_bytes

LEAST = 3
LEAST_SHARE = 2**16
"""Bytes that each thread copies at least: fewer are copied by fewer threads."""
MOST_BYTES = 2**31
"""That are brought in one repeat of several uses: of more, all parts take longer alike."""
PACE, FRESH_PACE = 1.2e10, 1.4e9
"""Bytes/second at which data is written, brought to the GPU and checked, for the estimate of a run's length; and at
which it comes from there into fresh memory."""
TORCH_SECONDS = 4.0
"""To import PyTorch, for the same."""
SHORT_SECONDS = 0.1
"""What all repeats of small data take together, roughly."""


class StagingParams(Params):
    """Which data, in which ways, with how many threads and how often."""

    sizes: Sizes = parameter("Sizes", "Lengths of the data.")
    ways: Several[Choice] = parameter("Ways", "; ".join(f"{name}: {WAYS[name].help}" for name in CHOICES) + ".")
    threads: Counts = parameter("Threads", "Number of CPU threads that copy, where a way copies by them.")
    chunk: Bytes = parameter("Chunk", "Length of each buffer of a thread, at most.", 2**23, ge=2**12, le=2**30)
    uses: Counts = parameter(
        "Uses",
        "Number of times that the same data is brought to the GPU before new data comes. More than the first number "
        f"is measured where it says something new and that comes to {format_bytes(MOST_BYTES)} at most.",
    )

    @classmethod
    def preset(cls, lab: LabKind, quick: bool) -> Self:
        return cls(
            sizes=sizes("1MiB 64MiB" if quick else "64KiB 1MiB 16MiB 256MiB 1GiB"),
            ways=tuple(name for name in CHOICES if not quick or not {"back", "torch"} & WAYS[name].kinds),
            threads=(1, 8) if quick else (1, 2, 4, 8, 16),
            uses=(1,) if quick else (1, 8),
            precision=0.05,
            repeats=10 if quick else 20,
            time_limit=0.4 if quick else 0.2,  # 8 repeats of 64 MiB, even where a buffer is allocated each time
        )

    def harness_precision(self) -> Precision:
        """The first time of each way is the warm-up: it is kept, as what a program sees at first."""
        return Precision(relative=self.precision, least=LEAST, most=self.repeats, seconds=self.time_limit, warmups=1)

    def smaller(self) -> Self | None:
        return self.with_overrides({"sizes": self.sizes[:-1]}) if len(self.sizes) > 1 else None


class StagingObservation(Observation):
    """Data brought to the GPU, or from it, once or several times, from when it was ready until it was there."""

    way: WayName
    """How, such as ``plain``, ``pin_then_copy`` or ``two_buffers``; ``fill_only`` and ``copy_only`` are halves of
    ``two_buffers``. ``back_…`` and ``ring_…`` bring it from the GPU."""
    bytes: Positive
    """Length of the data."""
    threads: Positive
    """CPU threads that copy host memory, as far as the program chooses: PyTorch's are those it may use."""
    chunk: int | None = None
    """Length of each of a thread's buffers, at most; ``None`` for ways without."""
    uses: Positive
    """How often the data was brought."""
    setup_seconds: float | None = None
    """Getting what is kept from one time to the next, before the first; ``None`` after that."""
    wall_seconds: Lasted
    """From data that is ready until it is on the GPU, for the last time, and what was taken for it is given back."""
    prepare_seconds: float
    """Of that: before the first copy to the GPU began. 0 where copies begin at once."""
    finish_seconds: float
    """Of that: after the last copy was complete, such as to free a buffer."""
    cpu_seconds: float
    """Processor time of all threads of the process meanwhile, also the driver's."""
    thread_cpu_seconds: float
    """Of that: of the thread that made the calls."""
    wrong_words: int | None = None
    """8-byte words that did not arrive; ``None`` for halves, which bring no data."""


class Staging:
    """The same data in pageable memory, brought to the GPU in several ways, and back."""

    name = "staging"
    title = "Staging"
    summary = "Ways from pageable memory to the GPU, and back"
    question = "Which way from pageable memory to the GPU, and back, is fastest, and how long does it hold the CPU?"
    labs: Mapping[LabKind, str | None] = {
        "cuda": None,
        "host": "it compares what the CPU and a GPU's copy engine do; the host model's is a thread of the CPU",
    }
    Params = StagingParams
    Observation = StagingObservation
    start_seconds = 1.5

    def cases(self, params: StagingParams, environment: Environment | None = None) -> list[Case[Bringing]]:
        """Every size in every way, with every number of threads. PyTorch rounds what it pins up to powers of two."""
        cases, halves = [], HALVES if "ring_two" in params.ways else ()
        for size, name in product(params.sizes, (*params.ways, *halves)):
            kinds = WAYS[name].kinds
            several = [uses for uses in params.uses[1:] if uses * size <= MOST_BYTES and "once" not in kinds]
            pinned = 2 ** (size - 1).bit_length() if "torch" in kinds else size
            for threads in params.threads if "threads" in kinds else (1,):
                if threads > 1 and size < threads * LEAST_SHARE:
                    continue
                uses = (params.uses[0], *several)
                once = min(params.time_limit, SHORT_SECONDS)
                loading = ("torch" in kinds) * TORCH_SECONDS / len(of_kind(WAYS, "torch")) / len(params.sizes)
                pace, least = (FRESH_PACE if name == "back_fresh" else PACE), LEAST
                if "back" in kinds:
                    least, once = LEAST_VALUES if size <= USUAL_BYTES else LEAST, once / 4
                cases.append(
                    Case(
                        f"{name.replace('_', ' ')}, {format_bytes(size)}",
                        Bringing(name, size, threads, uses),
                        loading + sum(max((1 + least) * size * (times + 1) / pace, once) for times in uses),
                        pinned_bytes=max(pinned, MOST_SLOTS * params.chunk * threads),
                        pageable_bytes=2 * size,
                        device_bytes=2 * size,
                    )
                )
        return cases

    def measure(self, params: StagingParams, lab: Lab, harness: Harness) -> Iterator[StagingObservation]:
        """Every case; those of one size share the data."""
        from pinscope.experiments.staging.cuda_staging import CudaEngine  # noqa: PLC0415 - imports CuPy

        torch_threads, no_torch = _torch(params, harness)
        cases = possible(self.cases(params), harness, partial(_why_not, params, lab, no_torch))
        progress = Progress(cases, harness)
        with CudaEngine() as engine:
            for size, group in groupby(cases, lambda case: case.what.bytes):
                with ExitStack() as stack:
                    source = stack.enter_context(lab.ordinary_memory(size, "4k"))
                    target = stack.enter_context(lab.device_buffer(size))
                    lane = stack.enter_context(engine.lane())
                    bench = Bench(lab, engine, harness.clock, source, target, lane, params.chunk)
                    lab.fill(bench.source, lab.fresh_pattern())
                    for bringing in progress.through(group):
                        by_torch = "torch" in WAYS[bringing.way].kinds
                        threads = torch_threads if by_torch else bringing.threads
                        yield from _repeat(replace(bringing, threads=threads), bench, params, harness)


@dataclass(frozen=True)
class Bringing:
    """One way with so much data and so many threads, for each of these numbers of uses."""

    way: WayName
    bytes: int
    threads: int
    uses: Sequence[int]


def _why_not(params: StagingParams, lab: Lab, no_torch: Mapping[str, Reason], bringing: Bringing) -> Reason:
    """Threads without a processor each, beyond the fewest; a way that this machine has not."""
    here, name = len(os.sched_getaffinity(0)), ""
    if "back" in WAYS[bringing.way].kinds:  # the halves of a ring go on beside each other
        here, name = here // 2, "rings with "
    most = max((threads for threads in params.threads if threads <= here), default=min(params.threads))
    if bringing.threads > most:
        return f"{name}more than {most} threads", f"This run may use {len(os.sched_getaffinity(0))} processors."
    if bringing.way == "register":
        return "register", lab.why_not("registered")
    return no_torch.get(bringing.way, (bringing.way, None))


def _torch(params: StagingParams, harness: Harness) -> tuple[int, Mapping[str, Reason]]:
    """With how many threads PyTorch copies, and which of its ways are left out."""
    wanted = [name for name in of_kind(WAYS, "torch") if name in params.ways]
    if not wanted:
        return 1, {}
    if find_spec("torch") is None:
        reason: str | None = f"PyTorch is not installed here; run: {install_command('torch')}"
    else:
        from pinscope.experiments.staging.torch_staging import threads  # noqa: PLC0415 - imports PyTorch
        from pinscope.lab.torch_pinned import empty_pinned_cache, version, why_not_torch  # noqa: PLC0415

        reason = why_not_torch()
    if reason:
        return 1, dict.fromkeys(wanted, ("PyTorch's ways", reason))
    harness.note(f"PyTorch {version()}, which copies host memory with up to {threads()} threads.")
    first = "torch_pin_then_to_first"
    kept = {} if empty_pinned_cache() else {first: (first, "This PyTorch cannot give its pinned memory back.")}
    return threads(), kept


def _repeat(bringing: Bringing, bench: Bench, params: StagingParams, harness: Harness) -> Iterator[StagingObservation]:
    """One way: set up, then each number of uses until its median is known."""
    function = function_of(bringing.way)
    with ExitStack() as held:
        begun = harness.clock()
        steps = function(bench, bringing.threads, held)
        setup: float | None = harness.clock() - begun
        for uses in bringing.uses:
            precision = params.harness_precision()
            if "back" in WAYS[bringing.way].kinds and bringing.bytes <= USUAL_BYTES:
                precision = replace(precision, least=LEAST_VALUES)
            for turn in harness.turns(precision if setup is not None else replace(precision, warmups=0)):
                pattern = bench.lab.fresh_pattern()
                steps.ready(pattern)
                used, used_here = time.process_time(), time.thread_time()
                begun = harness.clock()
                marks = steps.run(uses)
                ended = harness.clock()
                used, used_here = time.process_time() - used, time.thread_time() - used_here
                turn.count(ended - begun)
                yield StagingObservation(
                    **turn.labels,
                    **(vars(bringing) | {"uses": uses}),
                    chunk=params.chunk if "turns" in WAYS[bringing.way].kinds else None,
                    setup_seconds=setup,
                    wall_seconds=ended - begun,
                    prepare_seconds=marks.prepared - begun,
                    finish_seconds=ended - marks.copied,
                    cpu_seconds=used,
                    thread_cpu_seconds=used_here,
                    wrong_words=steps.wrong_words(pattern),
                )
                setup = None


EXPERIMENT: AnyExperiment = Staging()
