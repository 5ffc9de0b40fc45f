"""Data lies in pageable memory: which way to the GPU is fastest, and how long does it hold the CPU?"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from importlib.util import find_spec
from typing import Self

from pinscope.analysis.rows import Row
from pinscope.analysis.ways import of_kind
from pinscope.experiments.contract import AnyExperiment, Params
from pinscope.experiments.staging import findings, reading
from pinscope.experiments.staging.ways import WAYS, Bench, WayName, function_of
from pinscope.lab.harness import Harness, Precision
from pinscope.lab.processor_time import ProcessorTime
from pinscope.lab.protocol import Lab
from pinscope.probes.installation import install_command
from pinscope.records.budget import Budget
from pinscope.records.environment import Environment
from pinscope.records.finding import Reading
from pinscope.records.parameters import Bytes, Counts, Several, Sizes, parameter, sizes
from pinscope.records.run import ExperimentRun, LabKind, Lasted, Observation, Positive
from pinscope.units import format_bytes

LEAST = 3
LEAST_SHARE = 2**16
"""Bytes that each thread copies at least: fewer are copied by fewer threads."""
MOST_BYTES = 2**31
"""That are brought in one repeat of several uses: of more, all parts take longer alike."""
PACE = 1.2e10
"""Bytes/second at which data is written, brought to the GPU and checked, for the estimate of a run's length."""
SHORT_SECONDS = 0.1
"""What all repeats of small data take together, roughly."""
START_SECONDS = 4.5
"""Until the first reading, and PyTorch's import."""


class StagingParams(Params):
    """Which data, in which ways, with how many threads and how often."""

    repeats: int = parameter(
        "Most repeats", "Number of repeats after which to stop at the latest.", 20, unit="count", ge=LEAST, le=10_000
    )
    sizes: Sizes = parameter("Sizes", "Lengths of the data.")
    ways: Several[WayName] = parameter("Ways", "; ".join(f"{name}: {way.help}" for name, way in WAYS.items()) + ".")
    threads: Counts = parameter("Threads", "Number of CPU threads that copy, where a way copies by them.")
    chunk: Bytes = parameter("Chunk", "Length of each of the two buffers of a thread.", 2**23, ge=2**12, le=2**30)
    uses: Counts = parameter(
        "Uses",
        "Number of times that the same data is brought to the GPU before new data comes. More than the first number "
        f"is measured where it says something new and that comes to {format_bytes(MOST_BYTES)} at most.",
    )

    @classmethod
    def preset(cls, lab: LabKind, quick: bool) -> Self:
        return cls(
            sizes=sizes("1MiB 64MiB" if quick else "64KiB 1MiB 16MiB 256MiB 1GiB"),
            ways=tuple(WAYS),
            threads=(1, 8) if quick else (1, 2, 4, 8, 16),
            uses=(1,) if quick else (1, 8),
            precision=0.05,
            repeats=10 if quick else 20,
            time_limit=0.05 if quick else 0.2,
        )

    def harness_precision(self) -> Precision:
        """The first time of each way is the warm-up: it is kept, as what a program sees at first."""
        return Precision(relative=self.precision, least=LEAST, most=self.repeats, seconds=self.time_limit, warmups=1)

    def smaller(self) -> Self | None:
        return self.with_overrides({"sizes": self.sizes[:-1]}) if len(self.sizes) > 1 else None


class StagingObservation(Observation):
    """Data brought to the GPU once or several times, from when it was ready until it was there."""

    way: WayName
    """How, such as ``plain``, ``pin_then_copy`` or ``two_buffers``; ``fill_only`` and ``copy_only`` are halves of
    ``two_buffers``."""
    bytes: Positive
    """Length of the data."""
    threads: Positive
    """CPU threads that copy host memory, as far as the program chooses: PyTorch's are those it may use."""
    chunk: int | None = None
    """Length of each of a thread's two buffers; ``None`` for other ways."""
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
    """The same data in pageable memory, brought to the GPU in several ways."""

    name = "staging"
    title = "Staging"
    summary = "Ways from pageable memory to the GPU"
    question = "Data lies in pageable memory: which way to the GPU is fastest, and how long does it hold the CPU?"
    labs: Mapping[LabKind, str | None] = {
        "cuda": None,
        "host": "it compares what the CPU and a GPU's copy engine do; the host model's is a thread of the CPU",
    }
    Params = StagingParams
    Observation = StagingObservation

    def budget(self, params: StagingParams, environment: Environment) -> Budget:
        """One way at a time; PyTorch rounds what it pins up to powers of two."""
        largest = max(params.sizes)
        torch_pins = set(of_kind(WAYS, "torch")) & set(params.ways)
        pinned = max(2 ** (largest - 1).bit_length() if torch_pins else largest, 2 * params.chunk * max(params.threads))
        cases = _cases(params, params.ways, params.threads, 1)
        seconds = sum(
            max((1 + LEAST) * size * (uses + 1) / PACE, min(params.time_limit, SHORT_SECONDS))
            for size in params.sizes
            for case in cases
            for uses in case.uses_of(size)
        )
        return Budget(
            pinned_bytes=pinned, pageable_bytes=2 * largest, device_bytes=2 * largest, seconds=seconds + START_SECONDS
        )

    def measure(self, params: StagingParams, lab: Lab, harness: Harness) -> Iterator[StagingObservation]:
        """Every size, every way."""
        from pinscope.experiments.staging.cuda_staging import CudaEngine  # noqa: PLC0415 - imports CuPy

        ways = set(params.ways)
        torch_threads = _without_torch(ways, harness)
        if "register" in ways and (reason := lab.why_not("registered")):
            harness.note(f"Left out: register. {reason}")
            ways.remove("register")
        cases = _cases(params, ways, _processors(params, harness), torch_threads)
        with CudaEngine() as engine:
            for size in params.sizes:
                with ExitStack() as stack:
                    source = stack.enter_context(lab.ordinary_memory(size, "4k"))
                    target = stack.enter_context(lab.device_buffer(size))
                    lane = stack.enter_context(engine.lane())
                    bench = Bench(lab, engine, harness.clock, source, target, lane, params.chunk)
                    lab.fill(bench.source, lab.fresh_pattern())
                    fitting = [case for case in cases if case.fits(size)]
                    before = sum(other for other in params.sizes if other < size)
                    for done, case in enumerate(fitting):
                        harness.progress(
                            (before + size * done / len(fitting)) / sum(params.sizes),
                            f"{case.way.replace('_', ' ')}, {format_bytes(size)}",
                        )
                        yield from _repeat(case, bench, params, harness)

    def read(self, run: ExperimentRun, rows: Sequence[Row]) -> Reading:
        """Which way is fastest for which size and number of uses, and what each holds the CPU for."""
        staging = reading.Staging.of(rows)
        if not staging.cells:
            return Reading(headline=(), tables=(), findings=())
        return Reading(
            verdict=reading.verdict(staging),
            headline=tuple(reading.headline(staging)),
            tables=tuple(reading.tables(staging)),
            findings=findings.staging_findings(run, staging),
        )


@dataclass(frozen=True)
class Case:
    """One way with so many threads, for each of these numbers of uses."""

    way: WayName
    threads: int
    uses: Sequence[int]

    def uses_of(self, size: int) -> list[int]:
        """The numbers of uses to be measured for data of this size."""
        return [uses for uses in self.uses if uses == self.uses[0] or uses * size <= MOST_BYTES]

    def fits(self, size: int) -> bool:
        """Whether so many threads have something to copy each."""
        return self.threads == 1 or "threads" not in WAYS[self.way].kinds or size >= self.threads * LEAST_SHARE


def _cases(params: StagingParams, ways: Collection[str], threads: Sequence[int], torch: int) -> list[Case]:
    """What is measured for each size."""
    cases = []
    for name in (name for name in params.ways if name in ways):
        kinds = WAYS[name].kinds
        counts = threads if "threads" in kinds else [torch if "torch" in kinds else 1]
        cases += [Case(name, count, params.uses[:1] if "once" in kinds else params.uses) for count in counts]
    return cases


def _processors(params: StagingParams, harness: Harness) -> list[int]:
    """Numbers of threads that have a processor each; at least the fewest."""
    here = len(os.sched_getaffinity(0))
    kept = [count for count in params.threads if count <= here] or [min(params.threads)]
    if len(kept) < len(params.threads):
        harness.note(f"Left out: more than {max(kept)} threads. This run may use {here} processors.")
    return kept


def _without_torch(ways: set[str], harness: Harness) -> int:
    """Take PyTorch's ways out, with a note, where it is not there; with how many threads it copies."""
    wanted = ways & set(of_kind(WAYS, "torch"))
    if not wanted:
        return 1
    if find_spec("torch") is None:
        reason: str | None = f"PyTorch is not installed here; run: {install_command('torch')}"
    else:
        from pinscope.experiments.staging.torch_staging import threads  # noqa: PLC0415 - imports PyTorch
        from pinscope.lab.torch_pinned import empty_pinned_cache, version, why_not_torch  # noqa: PLC0415

        reason = why_not_torch()
    if reason:
        harness.note(f"Left out: PyTorch's ways. {reason}")
        ways -= wanted
        return 1
    harness.note(f"PyTorch {version()}, which copies host memory with up to {threads()} threads.")
    if not empty_pinned_cache():
        harness.note("Left out: torch_pin_then_to_first. This PyTorch cannot give its pinned memory back.")
        ways.discard("torch_pin_then_to_first")
    return threads()


def _repeat(case: Case, bench: Bench, params: StagingParams, harness: Harness) -> Iterator[StagingObservation]:
    """One way: set up, then each number of uses until its median is known."""
    function = function_of(case.way)
    with ExitStack() as held:
        begun = harness.clock()
        steps = function(bench, case.threads, held)
        setup: float | None = harness.clock() - begun
        for uses in case.uses_of(bench.nbytes):
            precision = params.harness_precision()
            counted: list[float] = []
            for turn in harness.turns(precision if setup is not None else replace(precision, warmups=0), counted):
                pattern = bench.lab.fresh_pattern()
                steps.ready(pattern)
                used = ProcessorTime.so_far()
                begun = harness.clock()
                marks = steps.run(uses)
                ended = harness.clock()
                spent = ProcessorTime.so_far().since(used)
                if not turn.warmup:
                    counted.append(ended - begun)
                yield StagingObservation(
                    repeat=turn.repeat,
                    warmup=turn.warmup,
                    way=case.way,
                    bytes=bench.nbytes,
                    threads=case.threads,
                    chunk=params.chunk if "turns" in WAYS[case.way].kinds else None,
                    uses=uses,
                    setup_seconds=setup,
                    wall_seconds=ended - begun,
                    prepare_seconds=marks.prepared - begun,
                    finish_seconds=ended - marks.copied,
                    cpu_seconds=spent.process_seconds,
                    thread_cpu_seconds=spent.thread_seconds,
                    wrong_words=steps.wrong_words(pattern),
                )
                setup = None


EXPERIMENT: AnyExperiment = Staging()
