"""A pipeline, copies between a host area and a ring of device buffers beside kernels, and what it may lack."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

from pinscope.analysis.cells import Way, way
from pinscope.lab.harness import Clock
from pinscope.lab.pattern import Pattern
from pinscope.lab.protocol import Counters, Event, HostBuffer, Lab, Load, Stream, Touch
from pinscope.records.run import HostMemory

OneWay = Literal["h2d", "d2h"]
FULL_DEPTH = 2
"""Ring depth of the recipe: double buffering."""
EVERYTHING = "Pinned memory, a copy stream, two buffers and events"
"""The full recipe, as it begins a sentence."""
WAYS: dict[str, Way] = {
    "pinned memory": way(
        "no pinned memory",
        "pageable memory",
        help="Allocate the host buffers with cudaHostAlloc (cupyx.empty_pinned, torch pin_memory=True).",
    ),
    "separate copy stream": way(
        "no separate copy stream",
        "one stream for both",
        help="Issue the copies on a stream of their own, created with the non-blocking flag.",
    ),
    "double buffering": way(
        "no double buffering",
        "a single device buffer",
        help="Use at least two device buffers in turn, so that one is copied while the other is used.",
    ),
    "events": way(
        "no events",
        "no events",
        help="Record an event after each copy and each kernel and let the other stream wait for it "
        "(cudaStreamWaitEvent).",
    ),
}
"""The recipe's ingredients, in its order → what a pipeline without it is; ``help``: how to have it."""


@dataclass(frozen=True, order=True)
class Recipe:
    """One combination of the ingredients."""

    memory: Literal["pageable", "pinned"]
    separate_stream: bool
    depth: int
    events: bool

    @property
    def missing(self) -> tuple[str, ...]:
        """Ingredients left out, in words; empty for the full recipe."""
        there = (self.memory == "pinned", self.separate_stream, self.depth >= FULL_DEPTH, self.events)
        return tuple(name for name, is_there in zip(WAYS, there, strict=True) if not is_there)

    @property
    def ordered(self) -> bool:
        """Whether something keeps copies and kernels in order: events, or one stream for both."""
        return self.events or not self.separate_stream

    @property
    def label(self) -> str:
        """``full recipe``, ``no events``, ``no pinned memory, no events`` …, with the depth beyond double."""
        words = ", ".join(WAYS[name].title for name in self.missing) or "full recipe"
        return f"{words}, ring of {self.depth}" if self.depth > FULL_DEPTH else words


@dataclass(frozen=True)
class Shape:
    """Size of a pipeline.

    Attributes:
        chunk: bytes of one copy.
        chunks: copies, and kernels, in one pass.
        deepest: device buffers in the ring.
    """

    chunk: int
    chunks: int
    deepest: int


@dataclass(frozen=True)
class Lane:
    """Start and end events of every kernel, or of every copy, of a pass."""

    starts: Sequence[Event]
    ends: Sequence[Event]


@dataclass(frozen=True)
class Timings:
    """One pass, read from its events and the host clock. Seconds; spans are since the pass began."""

    device_seconds: float
    wall_seconds: float
    issue_seconds: float
    stall_seconds: float
    copies: list[tuple[float, float]]
    kernels: list[tuple[float, float]]


@dataclass(frozen=True)
class Work:
    """What every chunk of a pass is queued with."""

    recipe: Recipe
    copy_stream: Stream
    load: Load
    counters: Counters
    clock: Clock


class Pipeline:
    """Chunks that flow between one host area and a ring of device buffers, beside kernels that work on them."""

    def __init__(self, stack: ExitStack, lab: Lab, shape: Shape, direction: OneWay, memory: HostMemory) -> None:
        self.lab = lab
        self.direction = direction
        self.chunk, self.chunks = shape.chunk, shape.chunks
        self.area = stack.enter_context(lab.host_buffer(self.chunk * self.chunks, memory))
        self.ring = [stack.enter_context(lab.device_buffer(self.chunk)) for _ in range(shape.deepest)]
        self.compute_stream = stack.enter_context(lab.stream())
        self.copy_stream = stack.enter_context(lab.stream())
        self.begin = stack.enter_context(lab.event())
        self.kernels, self.copies = (
            Lane(*([stack.enter_context(lab.event()) for _ in range(self.chunks)] for _ in range(2))) for _ in range(2)
        )
        self.patterns = [lab.fresh_pattern() for _ in range(self.chunks)]
        if direction == "h2d":
            for index, pattern in enumerate(self.patterns):
                lab.fill(self._host(index), pattern)

    def _host(self, index: int) -> HostBuffer:
        return self.area.part(index * self.chunk, self.chunk)

    def _copy(self, index: int, slot: int, stream: Stream, clock: Clock) -> float:
        """Queue one copy between its events; how long the copy call itself kept the CPU."""
        self.copies.starts[index].record(stream)
        called = clock()
        if self.direction == "h2d":
            self.lab.copy_to_device(self.ring[slot], self._host(index), stream)
        else:
            self.lab.copy_to_host(self._host(index), self.ring[slot], stream)
        held = clock() - called
        self.copies.ends[index].record(stream)
        return held

    def _compute(self, index: int, slot: int, pattern: Pattern, load: Load, counters: Counters) -> None:
        self.kernels.starts[index].record(self.compute_stream)
        touch = Touch(self.ring[slot], pattern, "consume" if self.direction == "h2d" else "produce")
        self.lab.compute(self.compute_stream, load, touch, counters, index)
        self.kernels.ends[index].record(self.compute_stream)

    def copies_alone(self, clock: Clock) -> float:
        """Device seconds of all copies in a row with nothing beside them."""
        for index in range(self.chunks):
            self._copy(index, index % FULL_DEPTH, self.copy_stream, clock)
        self.copy_stream.synchronize()
        return self.lab.elapsed(self.copies.starts[0], self.copies.ends[-1])

    def kernels_alone(self, load: Load) -> float:
        """Device seconds of all kernels in a row with nothing beside them, on data that they find right."""
        poison = self._poison(FULL_DEPTH)
        with self.lab.counters(self.chunks) as counters:
            for index in range(self.chunks):
                self._compute(index, index % FULL_DEPTH, poison, load, counters)
            self.compute_stream.synchronize()
        return self.lab.elapsed(self.kernels.starts[0], self.kernels.ends[-1])

    def _poison(self, depth: int) -> Pattern:
        """Fill the ring with content that no chunk has."""
        poison = self.lab.fresh_pattern()
        for buffer in self.ring[:depth]:
            self.lab.fill(buffer, poison)
        return poison

    def run(self, recipe: Recipe, load: Load, clock: Clock) -> tuple[Timings, int]:
        """One pass: its timings, and how many chunks arrived wrong."""
        self._poison(recipe.depth)
        if self.direction == "d2h":
            self.patterns = [self.lab.fresh_pattern() for _ in range(self.chunks)]
        copy_stream = self.copy_stream if recipe.separate_stream else self.compute_stream
        with self.lab.counters(self.chunks) as counters:
            begun = clock()
            self.begin.record(self.compute_stream)
            self.lab.wait(copy_stream, self.begin)
            work = Work(recipe, copy_stream, load, counters, clock)
            issue = sum(self._queue(index, work) for index in range(self.chunks))
            self.compute_stream.synchronize()
            copy_stream.synchronize()
            timings = self._timings(clock() - begun, issue)
            wrong = sum(count > 0 for count in counters.read())
        if self.direction == "d2h":
            wrong = sum(
                self.lab.wrong_words(self._host(index), pattern) > 0 for index, pattern in enumerate(self.patterns)
            )
        return timings, wrong

    def _queue(self, index: int, work: Work) -> float:
        """Queue one chunk's copy and kernel; how long the copy call kept the CPU.

        With events, the second stage of a chunk waits for its first, and the first waits until the second stage of
        the chunk that used the buffer before is done. Without them nothing keeps the stages in order.
        """
        slot, previous = index % work.recipe.depth, index - work.recipe.depth

        def after(stream: Stream, event: Event) -> None:
            if work.recipe.events:
                self.lab.wait(stream, event)

        if self.direction == "h2d":
            if previous >= 0:
                after(work.copy_stream, self.kernels.ends[previous])
            held = self._copy(index, slot, work.copy_stream, work.clock)
            after(self.compute_stream, self.copies.ends[index])
            self._compute(index, slot, self.patterns[index], work.load, work.counters)
            return held
        if previous >= 0:
            after(self.compute_stream, self.copies.ends[previous])
        self._compute(index, slot, self.patterns[index], work.load, work.counters)
        after(work.copy_stream, self.kernels.ends[index])
        return self._copy(index, slot, work.copy_stream, work.clock)

    def _timings(self, wall: float, issue: float) -> Timings:
        def since_begin(lane: Lane) -> list[tuple[float, float]]:
            return [
                (self.lab.elapsed(self.begin, start), self.lab.elapsed(self.begin, end))
                for start, end in zip(lane.starts, lane.ends, strict=True)
            ]

        copies, kernels = since_begin(self.copies), since_begin(self.kernels)
        idle = sum(max(0.0, later[0] - earlier[1]) for earlier, later in pairwise(kernels))
        return Timings(max(copies[-1][1], kernels[-1][1]), wall, issue, idle, copies, kernels)
