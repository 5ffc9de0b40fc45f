"""What does it take for copies to run beside kernels, and which ingredient is missing when they do not?"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import asdict, replace
from itertools import groupby, product
from typing import Any, Literal

from pinscope.analysis.statistics import summarize
from pinscope.experiments.contract import AnyExperiment, Case, Params, Progress
from pinscope.experiments.overlap.ways import BALANCES, FULL_DEPTH, Balance, Pipeline, Recipe
from pinscope.lab.harness import Harness, Precision
from pinscope.lab.protocol import Lab, Load
from pinscope.records.environment import Environment
from pinscope.records.parameters import Bytes, Several, parameter
from pinscope.records.run import LabKind, Lasted, Observation, OneWay, Positive
from pinscope.units import parse_bytes

Combination = tuple[OneWay, Balance, Recipe]

SMALLEST_CHUNK = 4 * 2**20
"""Below it a preset is not made smaller: starting an operation would take longer than what it overlaps with."""
ALONE_PASSES = 5
"""Passes of each side alone, by whose median the kernels get their length."""


class OverlapParams(Params):
    """The pipeline that runs with the full recipe, then with each ingredient left out in turn."""

    chunk: Bytes = parameter("Chunk", "Number of bytes that one copy of the pipeline moves.")
    chunks: int = parameter("Chunks", "Number of copies, and of kernels, in one pass.", unit="count", ge=4, le=4096)
    directions: Several[OneWay] = parameter(
        "Directions", "Copies that feed kernels (h2d), or copies that take their results back (d2h)."
    )
    balance: Several[Balance] = parameter(
        "Balance",
        "Length of a kernel: half that of a pinned copy (copy_bound), the same (balanced), or twice that "
        "(compute_bound).",
    )
    depths: Several[Literal["1", "2", "4", "8"]] = parameter(
        "Ring depths", "Device buffers in the ring. 1 and 2 are always measured; deeper ones with all ingredients."
    )

    @classmethod
    def preset(cls, lab: LabKind, quick: bool) -> OverlapParams:
        chunk = "16MiB" if not quick else "8MiB" if lab == "cuda" else "4MiB"
        return cls(
            chunk=parse_bytes(chunk),
            chunks=16 if lab == "host" else 32 if quick else 64,
            directions=("h2d", "d2h"),
            balance=("balanced",) if quick else ("copy_bound", "balanced", "compute_bound"),
            depths=("1", "2") if quick else ("1", "2", "4"),
            precision=0.05 if lab == "host" else 0.01,
            repeats=8 if quick else 15,
            time_limit=0.5 if quick else 4.0,
        )

    @property
    def deepest(self) -> int:
        """Device buffers in the ring: as many as the deepest recipe needs."""
        return max(recipe.depth for recipe in recipes(self))

    def smaller(self) -> OverlapParams | None:
        return self.with_overrides({"chunk": self.chunk // 2}) if self.chunk > SMALLEST_CHUNK else None


PASS_VALUES = (
    "device_seconds",
    "wall_seconds",
    "issue_seconds",
    "stall_seconds",
    "copy_alone_seconds",
    "pinned_copy_seconds",
    "compute_alone_seconds",
    "corrupted_chunks",
)
SPAN_VALUES = ("lane", "chunk", "start_seconds", "end_seconds")


class OverlapObservation(Observation):
    """Either one pass of a pipeline (``kind`` = pass) or one kernel or copy inside it (``kind`` = span)."""

    kind: Literal["pass", "span"]
    """``pass`` (a whole pipeline) or ``span`` (one copy or kernel in it)."""
    direction: OneWay
    """``h2d`` (host to device) or ``d2h``."""
    balance: Balance
    """How long kernels last beside copies: ``copy_bound``, ``balanced`` or ``compute_bound``."""
    memory: Literal["pageable", "pinned"]
    """Kind of the host memory."""
    separate_stream: bool
    """Copies on a stream of their own."""
    depth: int
    """Device buffers in the ring."""
    events: bool
    """Events order copies and kernels across the two streams."""
    bytes: Positive
    """One chunk."""
    chunks: Positive
    """In one pass."""
    # One pass:
    device_seconds: Lasted | None = None
    """From the first kernel's or copy's start to the last one's end, by device events."""
    wall_seconds: float | None = None
    """The pass by the host clock."""
    issue_seconds: float | None = None
    """Time that the copy calls of the pass kept the CPU, together."""
    stall_seconds: float | None = None
    """Time that the compute stream stood idle between its first and its last kernel."""
    copy_alone_seconds: Lasted | None = None
    """Copies with nothing beside them, right after the pass; in older runs once, before all passes."""
    pinned_copy_seconds: Lasted | None = None
    """Copies from pinned memory with nothing beside them: the yardstick of all recipes. Of a pass from pageable memory
    the median before."""
    compute_alone_seconds: Lasted | None = None
    """Kernels with nothing beside them (median)."""
    corrupted_chunks: int | None = None
    """Chunks that a kernel (h2d) or the host (d2h) found wrong."""
    # One span:
    lane: Literal["copy", "compute"] | None = None
    """Of a span: ``copy`` or ``compute``."""
    chunk: int | None = None
    """Of a span: number of the chunk."""
    start_seconds: float | None = None
    """Since the pass began."""
    end_seconds: float | None = None
    """Since the pass began."""

    def needs(self) -> tuple[str, Iterable[str]]:
        """A pass has all values of a pass, a span all of a span."""
        return f"a {self.kind}", PASS_VALUES if self.kind == "pass" else SPAN_VALUES


def recipes(params: OverlapParams) -> list[Recipe]:
    """The combinations to run, pinned ones first: the full recipe, then what is left out."""
    full = Recipe("pinned", True, FULL_DEPTH, True)
    depths = sorted(int(depth) for depth in params.depths)
    return [
        full,
        *(replace(full, depth=depth) for depth in depths if depth > FULL_DEPTH),
        replace(full, separate_stream=False),
        replace(full, depth=1),
        replace(full, events=False),
        replace(full, memory="pageable"),
    ]


class Overlap:
    """The recipe for asynchronous copies, one ingredient at a time."""

    name = "overlap"
    title = "Overlap"
    summary = "What copies need in order to run beside kernels"
    question = "What does it take for copies to run beside kernels, and what does each missing ingredient cost?"
    labs: Mapping[LabKind, str | None] = {"cuda": None, "host": None}
    Params = OverlapParams
    Observation = OverlapObservation
    start_seconds = 1.5

    def cases(self, params: OverlapParams, environment: Environment | None = None) -> list[Case[Combination]]:
        """Every recipe in each balance and direction. One host area is held at a time, and the deepest ring."""
        area, memories = params.chunk * params.chunks, ("pinned", "pageable")
        return [
            Case(
                f"{direction} {balance}: {recipe.label}",
                (direction, balance, recipe),
                # Ten passes, and their check: an H200's host takes less, an H100's more.
                10 * area / (1.2e9 if environment and not environment.devices else 5.2e9),
                pinned_bytes=(memory == "pinned") * area,
                pageable_bytes=(memory == "pageable") * area,
                device_bytes=params.chunk * params.deepest,
            )
            for direction, memory, balance, recipe in product(
                params.directions, memories, params.balance, recipes(params)
            )
            if recipe.memory == memory
        ]

    def measure(self, params: OverlapParams, lab: Lab, harness: Harness) -> Iterator[OverlapObservation]:
        """Per direction and memory: how long kernels must last, then each recipe in each balance."""
        cases = self.cases(params)
        progress, pinned_seconds = Progress(cases, harness), 0.0
        for (direction, memory), same in groupby(cases, lambda case: (case.what[0], case.what[2].memory)):
            with ExitStack() as stack:
                harness.check_cancelled()
                pipeline = Pipeline(stack, lab, params.chunk, params.chunks, params.deepest, direction, memory)
                if memory == "pinned":
                    pinned_seconds = _median(lambda: pipeline.copies_alone(harness.clock))  # noqa: B023 - called at once
                for balance, group in groupby(same, lambda case: case.what[1]):
                    load, compute_alone = _load(lab, pipeline, pinned_seconds / params.chunks * BALANCES[balance][0])
                    labels = {
                        "direction": direction,
                        "balance": balance,
                        "bytes": params.chunk,
                        "chunks": params.chunks,
                        "pinned_copy_seconds": pinned_seconds,
                        "compute_alone_seconds": compute_alone,
                    }
                    for *_, recipe in progress.through(group):
                        yield from _passes(harness, params.harness_precision(), pipeline, recipe, load, labels)


def _median(measure: Callable[[], float]) -> float:
    """Median of a side alone, after one pass to warm up."""
    measure()
    return summarize([measure() for _ in range(ALONE_PASSES)]).median


def _load(lab: Lab, pipeline: Pipeline, seconds: float) -> tuple[Load, float]:
    """A load whose kernel lasts ``seconds`` with its data work, and the kernels' own median time alone."""
    load = lab.calibrate(seconds)
    surplus = _median(lambda: pipeline.kernels_alone(load)) / pipeline.chunks / seconds - 1
    corrected = replace(load, amount=load.amount * max(1 - surplus, 0.25))
    return corrected, _median(lambda: pipeline.kernels_alone(corrected))


def _passes(
    harness: Harness, precision: Precision, pipeline: Pipeline, recipe: Recipe, load: Load, labels: Mapping[str, Any]
) -> Iterator[OverlapObservation]:
    """All passes of one combination; the first counted one also as spans where it is a recipe worth drawing.

    After each pass its copies alone. ``labels``: what all its passes share.
    """
    shared = {name: value for name, value in {**labels, **asdict(recipe)}.items() if name not in PASS_VALUES}
    for turn in harness.turns(precision):
        values, lanes = pipeline.run(recipe, load, harness.clock)
        alone = {"copy_alone_seconds": pipeline.copies_alone(harness.clock)}  # in turn: drift meets both
        if recipe.memory == "pinned":
            alone["pinned_copy_seconds"] = alone["copy_alone_seconds"]
        yield OverlapObservation(kind="pass", **turn.labels, **{**labels, **asdict(recipe), **values, **alone})
        if turn.warmup:
            continue
        if not turn.values and recipe.is_simple:
            for lane, spans in lanes.items():
                for chunk, (start, end) in enumerate(spans):
                    times = {"start_seconds": start, "end_seconds": end}
                    yield OverlapObservation(kind="span", **turn.labels, **shared, lane=lane, chunk=chunk, **times)
        turn.count(values["device_seconds"])


EXPERIMENT: AnyExperiment = Overlap()
