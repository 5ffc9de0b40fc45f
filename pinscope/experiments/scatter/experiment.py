"""Many small copies: which way moves scattered pieces fastest, what does it hold, and what does it disturb?"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack
from itertools import groupby, product
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import Field, field_validator, model_validator

from pinscope.analysis.statistics import LEAST_VALUES
from pinscope.experiments.contract import AnyExperiment, Params, Progress, Reason, possible
from pinscope.experiments.contract import Case as RunCase
from pinscope.experiments.scatter import reading
from pinscope.experiments.scatter.ways import MEASURED, WAYS, Case, Choice, Layout, Variant, WayName, pieces_in
from pinscope.lab.harness import Harness, Turn
from pinscope.lab.protocol import Lab, require_type
from pinscope.records.environment import Environment
from pinscope.records.parameters import Ascending, Bytes, Counts, Several, Sizes, parameter, sizes
from pinscope.records.run import LabKind, Lasted, Observation, OneWay, Positive
from pinscope.units import format_bytes

if TYPE_CHECKING:
    from pinscope.experiments.scatter.cuda_ways import Bench, Compute, Mover

Move = tuple[Case, Variant]
LEAST_PIECES = 2
MOST_BLOCKS = 4096
LARGEST_PIECE = 2**24
SMALLEST_AREA, LARGEST_AREA = 2**22, 2**35
COMPUTE_SECONDS = 5e-3
"""Length of the compute load that runs beside a kernel or a batch: many times what the small pieces take together."""
LINK, CPU = 48e9, 5.5e9
"""Bytes/second of the link, and of a CPU thread that collects, for the estimate of a run's length (H100 and H200)."""
CALL = 2e-6
"""Seconds for each piece of a loop or a batch, for the same."""
EXPECTED_REPEATS = 9
"""Until a median is known, for the same."""
CHECKED = 22e9
"""Bytes/second of the area at which a way is made ready and compared, for the same."""

Blocks = Ascending[Annotated[int, Field(ge=1, le=MOST_BLOCKS)]]
"""Numbers of blocks of a kernel, ascending; takes a list by comma."""


class ScatterParams(Params):
    """Which pieces, where they lie, and how they are moved."""

    sizes: Sizes = parameter("Piece sizes", "Length of a piece; a multiple of 16 bytes, up to 16 MiB.")
    pieces: int = parameter(
        "Pieces", "How many are moved; of large ones half of the area.", 4096, unit="count", ge=LEAST_PIECES, le=65_536
    )
    area: Bytes = parameter("Area", "Pinned memory in which they lie.", 2**30, ge=SMALLEST_AREA, le=LARGEST_AREA)
    layouts: Several[Layout] = parameter(
        "Layouts", "scattered: in random places, in random order; strided: every other."
    )
    directions: Several[OneWay] = parameter("Directions", "h2d: from the host, side by side onto the GPU; d2h: back.")
    ways: Several[Choice] = parameter("Ways", "; ".join(f"{name}: {WAYS[name].help}" for name in MEASURED) + ".")
    blocks: Blocks = parameter("Blocks", "Of the kernel, 512 threads each: one takes one multiprocessor.", unit="count")
    threads: Counts = parameter("CPU threads", "That collect or spread the pieces; at most the CPUs of the run.")

    @field_validator("sizes")
    @classmethod
    def _whole_words(cls, value: tuple[int, ...]) -> tuple[int, ...]:
        if wrong := [size for size in value if size % 16 or size > LARGEST_PIECE]:
            raise ValueError(f"{wrong[0]} is no multiple of 16 bytes up to {format_bytes(LARGEST_PIECE)}")
        return value

    @model_validator(mode="after")
    def _something_to_measure(self) -> Self:
        least = 2 * LEAST_PIECES * max(self.sizes)
        if self.area < least:
            raise ValueError(f"area: pieces of {format_bytes(max(self.sizes))} take at least {format_bytes(least)}")
        if set(self.ways) == {"copy_2d"} and "strided" not in self.layouts:
            raise ValueError("ways: copy_2d takes the layout strided")
        return self

    @classmethod
    def preset(cls, lab: LabKind, quick: bool) -> Self:
        return cls(
            sizes=sizes("4KiB 64KiB") if quick else sizes("4KiB 16KiB 64KiB 256KiB 1MiB 4MiB"),
            pieces=2048 if quick else 4096,
            area=2**28 if quick else 2**30,
            layouts=("scattered", "strided"),
            directions=("h2d", "d2h"),
            ways=MEASURED,
            blocks=(4, 8, 132) if quick else (1, 2, 4, 8, 16, 32, 132),
            threads=(1, 4) if quick else (1, 4, 16),
            precision=0.05 if quick else 0.03,
            repeats=8 if quick else 30,
            time_limit=0.05 if quick else 0.2,
        )

    @property
    def most_bytes(self) -> int:
        """Of all pieces of one size, at most."""
        return max(self.case("h2d", "scattered", size).nbytes for size in self.sizes)

    def smaller(self) -> Self | None:
        if self.area // 2 < max(SMALLEST_AREA, 2 * LEAST_PIECES * max(self.sizes)):
            return None
        return self.with_overrides({"area": self.area // 2})

    def case(self, direction: OneWay, layout: Layout, size: int) -> Case:
        """The pieces of one combination."""
        return Case(direction, layout, size, pieces_in(self.area, size, self.pieces), self.area)


class ScatterObservation(Observation):
    """All pieces moved once in one way; or a compute load, alone and with that way beside it."""

    kind: Literal["move", "compute"]
    """``move``, or ``compute``: a load on all multiprocessors."""
    way: WayName
    """``contiguous``, ``loop``, ``batch``, ``batch_queued``, ``graph``, ``copy_2d``, ``kernel``, ``cpu``,
    ``managed``."""
    direction: OneWay
    """``h2d`` (from scattered places onto the GPU) or ``d2h`` (back)."""
    layout: Layout
    """``scattered`` or ``strided``."""
    bytes: Positive
    """Of a piece."""
    pieces: Positive
    """How many."""
    blocks: int | None = None
    """Of the kernel."""
    threads: int | None = None
    """Of the CPU that collect or spread pieces."""
    sms: int | None = None
    """Multiprocessors on which the way runs; 0 for copy engines."""
    wall_seconds: Lasted
    """From the first call until all pieces were where they should be; in a ``compute`` row, on the average."""
    device_seconds: float | None = None
    """From the first to the last work on the GPU."""
    issue_seconds: float | None = None
    """For which calls, and copying of its own, held the program's thread."""
    call_seconds: float | None = None
    """Of one call of a loop, before the stream is full and makes the next one wait."""
    wrong_words: int | None = None
    """8-byte words that did not arrive, or changed beside the pieces; ``None`` where not compared."""
    alone_seconds: Lasted | None = None
    """Of the compute load with nothing beside it."""
    together_seconds: Lasted | None = None
    """Of the compute load while pieces were moved."""

    def needs(self) -> tuple[str, Sequence[str]]:
        if self.kind == "compute":
            return "a compute load", ("alone_seconds", "together_seconds")
        return "a move", ("device_seconds", "issue_seconds")


class Scatter:
    """Pieces of memory, moved in eight ways."""

    name = "scatter"
    title = "Many small copies"
    summary = "How to move thousands of small pieces"
    question = "Thousands of small pieces lie scattered over pinned memory: what moves them fastest, and at what cost?"
    labs: Mapping[LabKind, str | None] = {
        "cuda": None,
        "host": "it compares calls and kernels of a GPU; without one a loop of copies is all there is",
    }
    Params = ScatterParams
    Observation = ScatterObservation
    start_seconds = 3.0

    def cases(self, params: ScatterParams, environment: Environment | None = None) -> list[RunCase[Move]]:
        """Every direction, layout and size in every way. The area, and as much beside it, lie on the GPU all along."""
        most = params.most_bytes
        return [
            RunCase(
                f"{direction}, {layout}, {format_bytes(size)}: {variant.way}{variant.words}",
                (case, variant),
                _seconds(params, case, variant),
                pinned_bytes=params.area + (variant.way == "cpu") * most,
                device_bytes=params.area + most,
            )
            for direction, layout, size in product(params.directions, params.layouts, params.sizes)
            for case in [params.case(direction, layout, size)]
            for variant in _variants(params, direction, layout)
        ]

    def measure(self, params: ScatterParams, lab: Lab, harness: Harness) -> Iterator[ScatterObservation]:
        """Every direction, layout and size in every way; then compute beside the kernel and the batch."""
        from pinscope.experiments.scatter.cuda_ways import Bench, Compute  # noqa: PLC0415
        from pinscope.lab.cuda import CudaLab  # noqa: PLC0415 - imports CuPy

        with ExitStack() as stack:
            bench = Bench(require_type(lab, CudaLab), params.area, params.most_bytes, stack, harness.clock)
            moves = possible(self.cases(params), harness, _why_not, "ways=loop,kernel")
            progress = Progress(moves, harness)
            seen: list[ScatterObservation] = []
            for _, group in groupby(moves, lambda move: move.what[0]):
                bench.restore()
                for case, variant in progress.through(group):
                    for row in _repeat(bench, case, variant, params, harness):
                        seen.append(row)
                        yield row
            ways = {move.what[1].way for move in moves}
            if {"kernel", "batch"} & ways:
                harness.progress(0.99, "compute beside the copies")
                compute = Compute(bench, COMPUTE_SECONDS, stack)
                for case, variant in _disturbing(params, ways, seen):
                    yield from _beside(compute, case, variant, params, harness)


def _variants(params: ScatterParams, direction: OneWay, layout: Layout) -> list[Variant]:
    """Every way that takes this direction and layout, with each number of blocks or threads."""
    variants: list[Variant] = []
    for way in params.ways:
        if way == "kernel":
            variants += [Variant(way, blocks=blocks) for blocks in params.blocks]
        elif way == "cpu":
            variants += [Variant(way, threads=threads) for threads in params.threads]
        elif (way != "copy_2d" or layout == "strided") and (way != "batch_queued" or direction == "h2d"):
            variants.append(Variant(way))
    return variants


def _seconds(params: ScatterParams, case: Case, variant: Variant) -> float:
    """What one way takes until its median is known."""
    calls, once = variant.way in ("loop", "graph", "batch", "batch_queued"), case.nbytes / LINK
    once += case.nbytes / (CPU * variant.threads**0.5) if variant.threads else 0.0
    once += case.pieces * CALL if calls else 0.0
    repeats = max(min(params.time_limit / once, EXPECTED_REPEATS, params.repeats), LEAST_VALUES)
    return (2 + repeats) * once + params.area / CHECKED


def _why_not(move: Move) -> Reason:
    """What this machine has not: the way, or so many processors."""
    from pinscope.experiments.scatter.cuda_ways import why_not  # noqa: PLC0415

    there, (_, variant) = len(os.sched_getaffinity(0)), move
    if (variant.threads or 0) > there:
        return f"more than {there} CPU threads", f"The run has {there} CPUs."
    reason = why_not(variant.way)
    return variant.way, f"{reason[0].upper()}{reason[1:]}." if reason else None


def _repeat(
    bench: Bench, case: Case, variant: Variant, params: ScatterParams, harness: Harness
) -> Iterator[ScatterObservation]:
    """One way until its median is known; its content is compared after the first move, which does not count."""
    from pinscope.experiments.scatter.cuda_ways import time_once  # noqa: PLC0415

    def move(mover: Mover, turn: Turn) -> dict[str, Any]:
        first = turn.warmup and turn.repeat == 0
        if first:
            mover.spoil()
        seconds = time_once(bench, mover)
        return {**seconds, "call_seconds": mover.call_seconds, "wrong_words": mover.wrong_words() if first else None}

    return _rows("move", bench, case, variant, params, harness, move)


def _beside(
    compute: Compute, case: Case, variant: Variant, params: ScatterParams, harness: Harness
) -> Iterator[ScatterObservation]:
    """The load beside one way until the median of its slowdown is known."""
    return _rows("compute", compute.bench, case, variant, params, harness, lambda mover, _: compute.beside(mover))


def _rows(
    kind: Literal["move", "compute"],
    bench: Bench,
    case: Case,
    variant: Variant,
    params: ScatterParams,
    harness: Harness,
    once: Callable[[Mover, Turn], dict[str, Any]],
) -> Iterator[ScatterObservation]:
    """What ``once`` measures of one way, again and again."""
    from pinscope.experiments.scatter.cuda_ways import MOVERS  # noqa: PLC0415

    with ExitStack() as held:
        mover = MOVERS[variant.way](bench, case, variant, held)
        for turn in harness.turns(params.harness_precision()):
            values = once(mover, turn)
            alone = values.get("alone_seconds")
            turn.count(values["together_seconds"] / alone if alone else values["wall_seconds"])
            yield ScatterObservation(
                kind=kind,
                **vars(variant),
                sms=mover.sms,
                direction=case.direction,
                layout=case.layout,
                bytes=case.piece_bytes,
                pieces=case.pieces,
                **turn.labels,
                **values,
            )


def _disturbing(
    params: ScatterParams, ways: Collection[WayName], seen: Sequence[ScatterObservation]
) -> Iterator[tuple[Case, Variant]]:
    """What moves the smallest pieces beside compute: the kernel, with enough blocks and with more; the batch."""
    cases = reading.Scatter.of([row.model_dump() for row in seen]).cases
    layout, size = params.layouts[0], params.sizes[0]
    for direction in params.directions:
        case, pieces = params.case(direction, layout, size), cases.get((direction, layout, size))
        if pieces and (kernel := pieces.ways.get("kernel")):
            for blocks in params.blocks:
                if blocks >= (kernel.blocks or 0):
                    yield case, Variant("kernel", blocks=blocks)
        if "batch" in ways:
            yield case, Variant("batch")


EXPERIMENT: AnyExperiment = Scatter()
