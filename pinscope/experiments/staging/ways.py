"""Ways to bring data from pageable host memory to the GPU, over the few calls that they are made of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from typing import Protocol

from pinscope.lab.copy_threads import CopyThreads, copy_words, stretches
from pinscope.lab.harness import Clock
from pinscope.lab.pattern import Pattern
from pinscope.lab.protocol import DeviceBuffer, HostBuffer, Lab

SLOTS = 2
"""Pinned buffers that take turns."""


class Lane(Protocol):
    """A stream, and a mark for each of two buffers that says whether the copies from it are done."""

    def copy(self, target: int, source: int, nbytes: int) -> None:
        """cudaMemcpyAsync to the GPU."""
        ...

    def mark(self, slot: int = 0) -> None:
        """Everything queued so far has to be done before a wait for this mark returns."""
        ...

    def wait(self, slot: int = 0) -> None:
        """Until the mark is reached; at once if none was set."""
        ...


class Engine(Protocol):
    """What CUDA is asked for; from any thread that :meth:`prepare` was called in."""

    def prepare(self) -> None:
        """Choose the GPU for the calling thread."""
        ...

    def lane(self, spinning: bool = False) -> AbstractContextManager[Lane]:
        """With marks for which a thread sleeps, or spins."""
        ...

    def copy_now(self, target: int, source: int, nbytes: int) -> None:
        """cudaMemcpy to the GPU. Of pageable memory it returns when all is staged, perhaps not yet on the GPU."""
        ...

    def wait_for_copies(self) -> None:
        """Sleep until what CUDA's default stream was given is done: :meth:`copy_now` uses that."""
        ...

    def allocate(self, nbytes: int) -> int: ...
    def free(self, address: int) -> None: ...
    def register(self, address: int, nbytes: int) -> None: ...
    def unregister(self, address: int) -> None: ...


@dataclass(frozen=True)
class Bench:
    """What all ways are given.

    Attributes:
        lab: lays and checks content.
        engine: copies and pins.
        clock: seconds.
        source: pageable memory in small pages, of the length of the data, written before.
        target: where the data has to go.
        lane: for which a thread sleeps while it waits.
        chunk: bytes of each of a thread's two buffers.
    """

    lab: Lab
    engine: Engine
    clock: Clock
    source: HostBuffer
    target: DeviceBuffer
    lane: Lane
    chunk: int

    @property
    def nbytes(self) -> int:
        """Of the data."""
        return self.source.nbytes


@dataclass(frozen=True)
class Marks:
    """When the parts of a use were over, by the clock.

    Attributes:
        prepared: the data lay where copies start.
        copied: the last copy was complete.
    """

    prepared: float
    copied: float


class Way:
    """One way, with what it keeps between uses. Its set-up is what :meth:`keep` does.

    Args:
        bench: what all ways share.
        threads: of the CPU, where a way copies by them.
    """

    def __init__(self, bench: Bench, threads: int = 1) -> None:
        self.bench, self.threads = bench, threads

    def keep(self, held: ExitStack) -> None:
        """Get what lasts from one time to the next."""

    def ready(self, pattern: Pattern) -> None:
        """Write new data, by the CPU. Not timed."""
        self.bench.lab.fill(self.bench.source, pattern)

    def run(self, uses: int) -> Marks:
        """Bring the data to the GPU so many times; complete on return."""
        raise NotImplementedError

    def wrong_words(self, pattern: Pattern) -> int | None:
        """8-byte words that did not arrive; ``None`` where nothing was to arrive. Not timed."""
        return self.bench.lab.wrong_words(self.bench.target, pattern)

    def _copies(self, source: int, uses: int, lane: Lane | None = None) -> float:
        """Asynchronous copies of all of it, and a wait; when they were complete."""
        bench, lane = self.bench, lane or self.bench.lane
        for _ in range(uses):
            lane.copy(bench.target.address, source, bench.nbytes)
        lane.mark()
        lane.wait()
        return bench.clock()


class Plain(Way):
    """cudaMemcpy as the data lies."""

    def run(self, uses: int) -> Marks:
        bench, begun = self.bench, self.bench.clock()
        source = self._source()
        for _ in range(uses):
            bench.engine.copy_now(bench.target.address, source.address, bench.nbytes)
        bench.engine.wait_for_copies()
        return Marks(begun, bench.clock())

    def _source(self) -> HostBuffer:
        return self.bench.source


class PlainAsync(Way):
    """cudaMemcpyAsync as the data lies."""

    def run(self, uses: int) -> Marks:
        begun = self.bench.clock()
        return Marks(begun, self._copies(self.bench.source.address, uses))


class PlainFresh(Plain):
    """cudaMemcpy of memory that was mapped anew and written once."""

    def keep(self, held: ExitStack) -> None:
        self._fresh = held.enter_context(ExitStack())

    def ready(self, pattern: Pattern) -> None:
        self._fresh.close()
        self._memory = self._fresh.enter_context(self.bench.lab.ordinary_memory(self.bench.nbytes, "4k"))
        self.bench.lab.fill(self._memory, pattern)

    def _source(self) -> HostBuffer:
        return self._memory


class PinThenCopy(Way):
    """A pinned buffer each time: allocated, filled by one thread of the CPU, copied, freed."""

    def run(self, uses: int) -> Marks:
        bench = self.bench
        address = bench.engine.allocate(bench.nbytes)
        try:
            copy_words(address, bench.source.address, bench.nbytes)
            prepared = bench.clock()
            return Marks(prepared, self._copies(address, uses))
        finally:
            bench.engine.free(address)


class Registered(Way):
    """Pinned where it lies, copied, and unpinned."""

    def run(self, uses: int) -> Marks:
        bench = self.bench
        bench.engine.register(bench.source.address, bench.nbytes)
        try:
            prepared = bench.clock()
            return Marks(prepared, self._copies(bench.source.address, uses))
        finally:
            bench.engine.unregister(bench.source.address)


class ReusedBuffer(Way):
    """One pinned buffer that is kept: filled by threads, then copied."""

    def keep(self, held: ExitStack) -> None:
        bench = self.bench
        self._buffer = held.enter_context(bench.lab.host_buffer(bench.nbytes, "pinned"))
        self._threads = held.enter_context(CopyThreads(self.threads))

    def run(self, uses: int) -> Marks:
        bench = self.bench
        self._threads.copy(self._buffer.address, bench.source.address, bench.nbytes)
        prepared = bench.clock()
        return Marks(prepared, self._copies(self._buffer.address, uses))


class InPlace(Way):
    """The data is written into pinned memory in the first place."""

    spinning = False

    def keep(self, held: ExitStack) -> None:
        bench = self.bench
        self._data = held.enter_context(bench.lab.host_buffer(bench.nbytes, "pinned"))
        self._lane = held.enter_context(bench.engine.lane(spinning=True)) if self.spinning else bench.lane

    def ready(self, pattern: Pattern) -> None:
        self.bench.lab.fill(self._data, pattern)

    def run(self, uses: int) -> Marks:
        begun = self.bench.clock()
        return Marks(begun, self._copies(self._data.address, uses, self._lane))


class InPlaceSpinning(InPlace):
    """The same, waited for as CUDA does by default: the thread asks again and again."""

    spinning = True


@dataclass
class _Worker:
    """One thread's part of the data, and its two buffers."""

    at: int
    nbytes: int
    buffers: Sequence[int]
    lane: Lane


class TwoBuffers(Way):
    """Each thread fills one of two pinned buffers of its own while the other is copied.

    Before it fills a buffer again it waits for the copy from it.
    """

    fills, copies = True, True

    def keep(self, held: ExitStack) -> None:
        bench = self.bench
        self._pool = held.enter_context(CopyThreads(self.threads, bench.engine.prepare))
        parts = stretches(bench.nbytes, self.threads)
        longest = min(bench.chunk, parts[0][1])
        memory = held.enter_context(bench.lab.host_buffer(len(parts) * SLOTS * longest, "pinned"))
        self._length = longest
        self._workers = [
            _Worker(
                at,
                nbytes,
                [memory.address + (SLOTS * number + slot) * longest for slot in range(SLOTS)],
                held.enter_context(bench.engine.lane()),
            )
            for number, (at, nbytes) in enumerate(parts)
        ]

    def run(self, uses: int) -> Marks:
        begun = self.bench.clock()
        for _ in range(uses):
            self._pool.each(self._bring, self._workers)
        return Marks(begun, self.bench.clock())

    def _bring(self, worker: _Worker) -> None:
        """A part, chunk by chunk; complete on return."""
        bench, lane = self.bench, worker.lane
        for number, done in enumerate(range(0, worker.nbytes, self._length)):
            slot, at, length = number % SLOTS, worker.at + done, min(self._length, worker.nbytes - done)
            if self.copies:
                lane.wait(slot)
            if self.fills:
                copy_words(worker.buffers[slot], bench.source.address + at, length)
            if self.copies:
                lane.copy(bench.target.address + at, worker.buffers[slot], length)
                lane.mark(slot)
        if self.copies:
            for slot in range(SLOTS):
                lane.wait(slot)


class Filling(TwoBuffers):
    """Half of it: the buffers are filled, and nothing is copied to the GPU."""

    copies = False

    def wrong_words(self, pattern: Pattern) -> None:
        return None


class Draining(TwoBuffers):
    """The other half: the buffers are copied to the GPU as they are."""

    fills = False

    def ready(self, pattern: Pattern) -> None:
        return None

    def wrong_words(self, pattern: Pattern) -> None:
        return None


OWN_WAYS: Mapping[str, type[Way]] = {
    "plain": Plain,
    "plain_async": PlainAsync,
    "plain_fresh": PlainFresh,
    "pin_then_copy": PinThenCopy,
    "register": Registered,
    "reused_buffer": ReusedBuffer,
    "two_buffers": TwoBuffers,
    "fill_only": Filling,
    "copy_only": Draining,
    "in_place": InPlace,
    "in_place_spin": InPlaceSpinning,
}
