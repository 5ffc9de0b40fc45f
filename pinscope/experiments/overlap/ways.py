"""A pipeline, copies between a host area and a ring of device buffers beside kernels, and what it may lack."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

from pinscope.analysis.cells import Way, way
from pinscope.lab.harness import Clock
from pinscope.lab.pattern import Pattern
from pinscope.lab.protocol import Counters, Event, HostBuffer, Lab, Load, LoadData, Stream
from pinscope.records.run import HostMemory, OneWay

Balance = Literal["copy_bound", "balanced", "compute_bound"]
BALANCES: Mapping[Balance, tuple[float, str]] = {
    "balanced": (1.0, "a kernel takes as long as a pinned copy"),
    "copy_bound": (0.5, "a kernel takes half as long as a pinned copy"),
    "compute_bound": (2.0, "a kernel takes twice as long as a pinned copy"),
}
"""Balance → length of a kernel over that of a pinned copy, and what it means; what is said of one only, of the first
that was measured."""
FULL_DEPTH = 2
"""Ring depth of the recipe: double buffering."""
EVERYTHING = "Pinned memory, a copy stream, two buffers and events"
"""The full recipe, as it begins a sentence."""
WAYS: dict[str, Way] = {
    "pinned memory": way(
        "no pinned memory",
        "pageable memory",
        help="Pin the host buffers once and keep them: from about 16 MiB on by pinscope.pinned_empty, which registers "
        "touched memory, below by cupyx.empty_pinned or torch pin_memory=True (see the experiment allocation).",
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
    def is_simple(self) -> bool:
        """Whether it lacks one ingredient at most, with no deeper ring than the recipe's: what sentences compare."""
        return len(self.missing) <= 1 and self.depth <= FULL_DEPTH

    @property
    def label(self) -> str:
        """``full recipe``, ``no events``, ``no pinned memory, no events`` …, with the depth beyond double."""
        words = ", ".join(WAYS[name].title for name in self.missing) or "full recipe"
        return f"{words}, ring of {self.depth}" if self.depth > FULL_DEPTH else words


Spans = list[tuple[float, float]]
"""Start and end of each kernel, or each copy, in seconds since the pass began."""


@dataclass(frozen=True)
class Lane:
    """Start and end events of every kernel, or of every copy, of a pass."""

    starts: Sequence[Event]
    ends: Sequence[Event]


class Pipeline:
    """Chunks that flow between one host area and a ring of device buffers, beside kernels that work on them.

    Args:
        stack: releases what it takes.
        lab: where it runs.
        chunk: bytes of one copy.
        chunks: copies, and kernels, in one pass.
        deepest: device buffers in the ring.
        direction, memory: of the copies.
    """

    def __init__(
        self, stack: ExitStack, lab: Lab, chunk: int, chunks: int, deepest: int, direction: OneWay, memory: HostMemory
    ) -> None:
        self.lab = lab
        self.direction = direction
        self.chunk, self.chunks = chunk, chunks
        self.area = stack.enter_context(lab.host_buffer(self.chunk * self.chunks, memory))
        self.ring = [stack.enter_context(lab.device_buffer(self.chunk)) for _ in range(deepest)]
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
        data = LoadData(self.ring[slot], pattern, "consume" if self.direction == "h2d" else "produce")
        self.lab.compute(self.compute_stream, load, data, counters, index)
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

    def run(self, recipe: Recipe, load: Load, clock: Clock) -> tuple[dict[str, float], dict[str, Spans]]:
        """One pass: its values as an observation names them, and lane → its spans."""
        self._poison(recipe.depth)
        if self.direction == "d2h":
            self.patterns = [self.lab.fresh_pattern() for _ in range(self.chunks)]
        copy_stream = self.copy_stream if recipe.separate_stream else self.compute_stream
        with self.lab.counters(self.chunks) as counters:
            begun = clock()
            self.begin.record(self.compute_stream)
            self.lab.wait(copy_stream, self.begin)
            issue = sum(self._queue(index, recipe, copy_stream, load, counters, clock) for index in range(self.chunks))
            self.compute_stream.synchronize()
            copy_stream.synchronize()
            wall = clock() - begun
            copies, kernels = self._since_begin(self.copies), self._since_begin(self.kernels)
            wrong = sum(count > 0 for count in counters.read())
        if self.direction == "d2h":
            wrong = sum(
                self.lab.wrong_words(self._host(index), pattern) > 0 for index, pattern in enumerate(self.patterns)
            )
        values = {
            "device_seconds": max(copies[-1][1], kernels[-1][1]),
            "wall_seconds": wall,
            "issue_seconds": issue,
            "stall_seconds": sum(max(0.0, later[0] - earlier[1]) for earlier, later in pairwise(kernels)),
            "corrupted_chunks": wrong,
        }
        return values, {"copy": copies, "compute": kernels}

    def _queue(
        self, index: int, recipe: Recipe, copy_stream: Stream, load: Load, counters: Counters, clock: Clock
    ) -> float:
        """Queue one chunk's copy and kernel; how long the copy call kept the CPU.

        With events, the second stage of a chunk waits for its first, and the first waits until the second stage of
        the chunk that used the buffer before is done. Without them nothing keeps the stages in order.
        """
        slot, previous = index % recipe.depth, index - recipe.depth

        def after(stream: Stream, event: Event) -> None:
            if recipe.events:
                self.lab.wait(stream, event)

        if self.direction == "h2d":
            if previous >= 0:
                after(copy_stream, self.kernels.ends[previous])
            held = self._copy(index, slot, copy_stream, clock)
            after(self.compute_stream, self.copies.ends[index])
            self._compute(index, slot, self.patterns[index], load, counters)
            return held
        if previous >= 0:
            after(self.compute_stream, self.copies.ends[previous])
        self._compute(index, slot, self.patterns[index], load, counters)
        after(copy_stream, self.kernels.ends[index])
        return self._copy(index, slot, copy_stream, clock)

    def _since_begin(self, lane: Lane) -> Spans:
        return [
            (self.lab.elapsed(self.begin, start), self.lab.elapsed(self.begin, end))
            for start, end in zip(lane.starts, lane.ends, strict=True)
        ]
