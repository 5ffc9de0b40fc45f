"""Ways between pageable host memory and the GPU: a record each, and a function of the same name that does it.

The functions of CuPy's and PyTorch's ways stand in modules that import those.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any, Literal, cast

from pinscope.analysis.cells import LineStyle, Way, way
from pinscope.lab.harness import Clock
from pinscope.lab.pattern import CopyThreads, Pattern, copy_words, stretches, threads_take_turns_quickly
from pinscope.lab.protocol import DeviceBuffer, HostBuffer, Lab

WAYS: Mapping[str, Way] = {
    "plain": way("plain copy", "a plain copy", LineStyle("pageable", "diamond"), "choice", "cudaMemcpy"),
    "plain_async": way("plain copy, asynchronous call", "a plain asynchronous copy", None, "choice alike",
                       "cudaMemcpyAsync"),
    "plain_fresh": way("plain copy of fresh memory", "", None, "once alike", "cudaMemcpy of newly mapped memory"),
    "pin_then_copy": way("pin, then copy", "a buffer that is pinned each time", LineStyle("stall", "x"),
                         "choice prepared", "a pinned buffer each time"),
    "register": way("register, copy, unregister", "registering it where it lies",
                    LineStyle("registered", "triangle-down"), "choice prepared", "pinned in place each time"),
    "reused_buffer": way("one pinned buffer, kept", "one pinned buffer that is kept", LineStyle("compute", "square"),
                         "choice prepared threads", "copied by CPU threads to a pinned buffer that is kept"),
    "two_buffers": way("two pinned buffers in turn", "", LineStyle("copy", "star"), "choice threads turns",
                       "two small pinned buffers a thread"),
    "fill_only": way("two buffers: filling alone", "", LineStyle("touch", "square", "dash"),
                     "half once threads turns", "the CPU's half of two_buffers"),
    "copy_only": way("two buffers: copying alone", "", LineStyle("pinned", "circle", "dash"),
                     "half once threads turns", "the other half"),
    "in_place": way("data made in pinned memory", "", LineStyle("pinned"), "", "data written into pinned memory"),
    "in_place_spin": way("data made in pinned memory, spinning", "", LineStyle("pinned", "circle-open", "dot"),
                         "alike", "the same, waited for without sleep"),
    "cupy_asarray_first": way("cupy.asarray, newly pinned", "", None, "once cupy",
                              "cupy.asarray with no pinned memory left over from before"),
    "cupy_asarray": way("cupy.asarray, pool reused", "cupy.asarray", None, "choice cupy", "cupy.asarray"),
    "torch_to": way("PyTorch to()", "PyTorch's to()", LineStyle("workers", "diamond-open", "dash"), "choice torch",
                    "tensor.to"),
    "torch_pin_then_to_first": way("pin_memory().to(), newly pinned", "", LineStyle("page_table", "triangle-up", "dot"),
                                   "once prepared torch", "tensor.pin_memory().to with none left over from before"),
    "torch_pin_then_to": way("pin_memory().to(), pool reused",
                             "PyTorch's pin_memory().to() in pinned memory that it has kept",
                             LineStyle("intact", "pentagon", "dash"), "choice prepared torch",
                             "tensor.pin_memory().to"),
    "torch_pinned": way("PyTorch to(), tensor made pinned", "", None, "torch", "tensor.to of a pinned tensor"),
    "back_plain": way("from the GPU, written before", "memory that was written before",
                      LineStyle("pageable", "diamond"), "once back",
                      "cudaMemcpy from the GPU to memory that was written before"),
    "back_fresh": way("from the GPU, fresh memory", "fresh memory", LineStyle("stall", "x"), "once back",
                      "cudaMemcpy from the GPU to newly mapped memory"),
    "back_pinned": way("from the GPU, pinned memory", "pinned memory", LineStyle("pinned"), "once back",
                       "cudaMemcpyAsync from the GPU to pinned memory"),
    "ring_two": way("ring of two, drained", "a ring of two pinned buffers", LineStyle("copy", "star"),
                    "once back threads turns", "each thread drains two pinned buffers in turn, which the GPU fills"),
    "ring_four": way("ring of four, drained", "a ring of four pinned buffers", LineStyle("compute", "square"),
                     "once back threads turns", "the same with four"),
    "ring_copies": way("ring: copying beside draining", "copying", LineStyle("pinned", "circle", "dash"),
                       "half once back threads turns", "the GPU's half of ring_two while other threads do the other"),
    "ring_drain": way("ring: draining beside copying", "draining", LineStyle("touch", "square", "dash"),
                      "half once back threads turns", "the CPU's half while the GPU does the other"),
    "ring_copies_alone": way("ring: copying alone", "", None, "half once back threads turns",
                             "the GPU's half with nothing beside it"),
    "ring_drain_alone": way("ring: draining alone", "", None, "half once back threads turns",
                            "the CPU's half with nothing beside it"),
}  # fmt: skip
"""Kinds: ``choice`` for data that lies in pageable memory, again and again; ``prepared`` gets the data into pinned
memory once for all uses; ``threads`` of the CPU as the program says; ``turns`` two buffers a thread, ``half`` one part
of that; ``once`` a second use would say nothing new; ``alike`` takes about as long as another one; ``back`` from the
GPU."""
HALVES = tuple(name for name, way in WAYS.items() if {"half", "back"} <= way.kinds)
"""Of a ring of two, which is measured with them."""
CHOICES = tuple(name for name in WAYS if name not in HALVES)
if TYPE_CHECKING:
    WayName = str
    Choice = str
else:
    WayName, Choice = Literal[tuple(WAYS)], Literal[CHOICES]
SLOTS = 2
"""Pinned buffers that take turns."""
MOST_SLOTS = 4
"""In the deepest ring."""
RING_TURNS, LEAST_PIECE = 16, 2**20
"""Pieces of a thread's part that its ring takes at least, where they are not shorter than this: nothing is drained
before the first one is there, and Python takes some microseconds for each."""
Engine = Any
"""What CUDA is asked for: ``cuda_staging.CudaEngine``, which needs CuPy; in tests one that copies late."""
Lane = Any
"""A stream of it: ``cuda_staging.CudaLane``."""


@dataclass(frozen=True)
class Marks:
    """When the parts of a use were over, by the clock.

    Attributes:
        prepared: the data lay where copies start.
        copied: the last copy was complete.
    """

    prepared: float
    copied: float


Ready = Callable[[Pattern], None]
Run = Callable[[int], Marks]
Check = Callable[[Pattern], int | None]


@dataclass(frozen=True)
class Steps:
    """What a way does with each new data.

    Attributes:
        ready: write new data, by the CPU. Not timed.
        run: bring the data to the GPU so many times; complete on return.
        wrong_words: 8-byte words that did not arrive; ``None`` where nothing was to arrive. Not timed.
    """

    ready: Ready
    run: Run
    wrong_words: Check


@dataclass(frozen=True)
class Bench:
    """What all ways are given.

    Attributes:
        lab: lays and checks content.
        engine: copies and pins.
        clock: seconds.
        source: pageable memory in small pages, of the length of the data, written before; where data from the GPU goes.
        target: the same on the GPU.
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

    def steps(self, run: Run, ready: Ready | None = None, wrong_words: Check | None = None) -> Steps:
        """With new data in the source, and a look at the target, where nothing else is given."""
        return Steps(
            ready or (lambda pattern: self.lab.fill(self.source, pattern)),
            run,
            wrong_words or (lambda pattern: self.lab.wrong_words(self.target, pattern)),
        )

    def copies_now(self, source: int, uses: int) -> Marks:
        """cudaMemcpy of all of it."""
        begun = self.clock()
        for _ in range(uses):
            self.engine.copy_now(self.target.address, source, self.nbytes)
        self.engine.wait_for_copies()
        return Marks(begun, self.clock())

    def copies(self, source: int, uses: int, lane: Lane | None = None) -> Marks:
        """Asynchronous copies of all of it, and a wait."""
        lane, prepared = lane or self.lane, self.clock()
        for _ in range(uses):
            lane.copy(self.target.address, source, self.nbytes)
        lane.mark()
        lane.wait()
        return Marks(prepared, self.clock())


Function = Callable[[Bench, int, ExitStack], Steps]
"""Sets a way up: with a bench, with so many threads of the CPU where it copies by them, and with what it keeps from one
time to the next held by the stack."""


def function_of(name: str) -> Function:
    """The function that does a way; imports the library that it needs."""
    library = {"cupy": "cuda_staging", "torch": "torch_staging"}
    module = next((module for kind, module in library.items() if kind in WAYS[name].kinds), "ways")
    return cast("Function", getattr(import_module(f"pinscope.experiments.staging.{module}"), name))


def plain(bench: Bench, threads: int, held: ExitStack) -> Steps:
    """cudaMemcpy as the data lies."""
    return bench.steps(lambda uses: bench.copies_now(bench.source.address, uses))


def plain_async(bench: Bench, threads: int, held: ExitStack) -> Steps:
    """cudaMemcpyAsync as the data lies."""
    return bench.steps(lambda uses: bench.copies(bench.source.address, uses))


def plain_fresh(bench: Bench, threads: int, held: ExitStack) -> Steps:
    """cudaMemcpy of memory that was mapped anew and written once."""
    fresh, memory = held.enter_context(ExitStack()), [bench.source]

    def ready(pattern: Pattern) -> None:
        fresh.close()
        memory[0] = fresh.enter_context(bench.lab.ordinary_memory(bench.nbytes, "4k"))
        bench.lab.fill(memory[0], pattern)

    return bench.steps(lambda uses: bench.copies_now(memory[0].address, uses), ready)


def pin_then_copy(bench: Bench, threads: int, held: ExitStack) -> Steps:
    """A pinned buffer each time: allocated, filled by one thread of the CPU, copied, freed."""

    def run(uses: int) -> Marks:
        address = bench.engine.allocate(bench.nbytes)
        try:
            copy_words(address, bench.source.address, bench.nbytes)
            return bench.copies(address, uses)
        finally:
            bench.engine.free(address)

    return bench.steps(run)


def register(bench: Bench, threads: int, held: ExitStack) -> Steps:
    """Pinned where it lies, copied, and unpinned."""

    def run(uses: int) -> Marks:
        bench.engine.register(bench.source.address, bench.nbytes)
        try:
            return bench.copies(bench.source.address, uses)
        finally:
            bench.engine.unregister(bench.source.address)

    return bench.steps(run)


def reused_buffer(bench: Bench, threads: int, held: ExitStack) -> Steps:
    """One pinned buffer that is kept: filled by threads, then copied."""
    buffer = held.enter_context(bench.lab.host_buffer(bench.nbytes, "pinned"))
    pool = held.enter_context(CopyThreads(threads))

    def run(uses: int) -> Marks:
        pool.copy(buffer.address, bench.source.address, bench.nbytes)
        return bench.copies(buffer.address, uses)

    return bench.steps(run)


def in_place(bench: Bench, threads: int, held: ExitStack, spinning: bool = False) -> Steps:
    """The data is written into pinned memory in the first place."""
    data = held.enter_context(bench.lab.host_buffer(bench.nbytes, "pinned"))
    lane = held.enter_context(bench.engine.lane(spinning=True)) if spinning else bench.lane
    return bench.steps(
        lambda uses: bench.copies(data.address, uses, lane), lambda pattern: bench.lab.fill(data, pattern)
    )


in_place_spin = partial(in_place, spinning=True)
"""``in_place``, waited for as CUDA does by default: the thread asks again and again."""


def two_buffers(bench: Bench, threads: int, held: ExitStack, fills: bool = True, copies: bool = True) -> Steps:
    """Each thread fills one of two pinned buffers of its own while the other is copied.

    Before it fills a buffer again it waits for the copy from it.
    """
    pool = held.enter_context(CopyThreads(threads, bench.engine.prepare))
    parts = stretches(bench.nbytes, threads)
    longest = min(bench.chunk, parts[0][1])
    memory = held.enter_context(bench.lab.host_buffer(len(parts) * SLOTS * longest, "pinned"))
    workers = []
    for number, (at, nbytes) in enumerate(parts):
        buffers = [memory.address + (SLOTS * number + slot) * longest for slot in range(SLOTS)]
        workers.append((at, nbytes, buffers, held.enter_context(bench.engine.lane())))

    def bring(worker: tuple[int, int, Sequence[int], Lane]) -> None:
        """A thread's part of the data by its own two buffers, chunk by chunk; complete on return."""
        begin, nbytes, buffers, lane = worker
        for number, done in enumerate(range(0, nbytes, longest)):
            slot, at, length = number % SLOTS, begin + done, min(longest, nbytes - done)
            if copies:
                lane.wait(slot)
            if fills:
                copy_words(buffers[slot], bench.source.address + at, length)
            if copies:
                lane.copy(bench.target.address + at, buffers[slot], length)
                lane.mark(slot)
        if copies:
            for slot in range(SLOTS):
                lane.wait(slot)

    def run(uses: int) -> Marks:
        begun = bench.clock()
        for _ in range(uses):
            pool.run(bring, workers)
        return Marks(begun, bench.clock())

    if fills and copies:
        return bench.steps(run)
    return bench.steps(run, None if fills else lambda _: None, lambda _: None)


fill_only = partial(two_buffers, copies=False)
"""Half of it: the buffers are filled, and nothing is copied to the GPU."""
copy_only = partial(two_buffers, fills=False)
"""The other half: the buffers are copied to the GPU as they are."""


def back_plain(bench: Bench, threads: int, held: ExitStack, fresh: bool = False) -> Steps:
    """cudaMemcpy from the GPU to pageable memory: to the same again, or to memory that was mapped anew."""
    new, memory = held.enter_context(ExitStack()), [bench.source]

    def ready(pattern: Pattern) -> None:
        bench.lab.fill(bench.target, pattern)
        if fresh:
            new.close()
            memory[0] = new.enter_context(bench.lab.ordinary_memory(bench.nbytes, "4k"))

    def run(uses: int) -> Marks:
        begun = bench.clock()
        for _ in range(uses):
            bench.engine.copy_back_now(memory[0].address, bench.target.address, bench.nbytes)
        return Marks(begun, bench.clock())

    return bench.steps(run, ready, lambda pattern: bench.lab.wrong_words(memory[0], pattern))


back_fresh = partial(back_plain, fresh=True)
"""Nobody has touched the memory: the kernel hands out each page in the middle of the copy."""


def back_pinned(bench: Bench, threads: int, held: ExitStack) -> Steps:
    """cudaMemcpyAsync from the GPU to pinned memory, and a wait."""
    data = held.enter_context(bench.lab.host_buffer(bench.nbytes, "pinned"))

    def run(uses: int) -> Marks:
        begun = bench.clock()
        for _ in range(uses):
            bench.lane.copy_back(data.address, bench.target.address, bench.nbytes)
        bench.lane.mark()
        bench.lane.wait()
        return Marks(begun, bench.clock())

    return bench.steps(
        run, lambda pattern: bench.lab.fill(bench.target, pattern), lambda pattern: bench.lab.wrong_words(data, pattern)
    )


@dataclass(frozen=True)
class Ring:
    """A thread's ring of pinned buffers, and its part of the data.

    Attributes:
        bench: of the way.
        lane: of its own, with a mark for each buffer.
        buffers: addresses.
        pieces: (offset, bytes) of its part, in order; piece n takes the buffer n % len(buffers).
    """

    bench: Bench
    lane: Lane
    buffers: Sequence[int]
    pieces: Sequence[tuple[int, int]]

    def fetch(self, number: int) -> None:
        """Queue the copy of a piece into its buffer."""
        (at, nbytes), slot = self.pieces[number], number % len(self.buffers)
        self.lane.copy_back(self.buffers[slot], self.bench.target.address + at, nbytes)
        self.lane.mark(slot)

    def empty(self, number: int) -> None:
        """Copy a piece out of its buffer, by the CPU."""
        at, nbytes = self.pieces[number]
        copy_words(self.bench.source.address + at, self.buffers[number % len(self.buffers)], nbytes)

    def drain(self) -> None:
        """All pieces: a buffer is drained once its copy is done, and filled again once it is drained."""
        slots = len(self.buffers)
        for number in range(min(slots, len(self.pieces))):
            self.fetch(number)
        for number in range(len(self.pieces)):
            self.lane.wait(number % slots)
            self.empty(number)
            if number + slots < len(self.pieces):
                self.fetch(number + slots)

    def empty_all(self) -> None:
        """The CPU's half: all pieces, whatever the buffers hold."""
        for number in range(len(self.pieces)):
            self.empty(number)


def _fetch_all(rings: Sequence[Ring]) -> None:
    """The GPU's half: all pieces of all rings, though nobody drains them; complete on return."""
    for number in range(max(len(ring.pieces) for ring in rings)):
        for ring in rings:  # in turn, as rings that are drained ask for them: what is drained was just brought
            if number < len(ring.pieces):
                ring.fetch(number)
    for ring in rings:
        for slot in range(min(len(ring.buffers), len(ring.pieces))):
            ring.lane.wait(slot)


class Meanwhile:
    """Work that threads do again and again beside what is timed.

    Args:
        held: ends them.
        prepare: what each does first.
        jobs: one for each thread.
    """

    def __init__(self, held: ExitStack, prepare: Callable[[], None], jobs: Sequence[Callable[[], None]]) -> None:
        self._pool = held.enter_context(ThreadPoolExecutor(max(len(jobs), 1), initializer=prepare))
        self._jobs, self._over = jobs, threading.Event()
        self._going: list[Future[None]] = []
        held.callback(self.stop)

    def start(self) -> None:
        """Begin; all are under way on return."""
        self._over.clear()
        under_way = threading.Barrier(len(self._jobs) + 1)
        self._going = [self._pool.submit(self._repeat, job, under_way) for job in self._jobs]
        under_way.wait()

    def _repeat(self, job: Callable[[], None], under_way: threading.Barrier) -> None:
        under_way.wait()
        while True:
            job()
            if self._over.is_set():
                return

    def stop(self) -> None:
        """End after the job that goes on. Raises what one of them raised."""
        self._over.set()
        while self._going:
            self._going.pop().result()


def ring_two(
    bench: Bench,
    threads: int,
    held: ExitStack,
    slots: int = SLOTS,
    half: Literal["copies", "drain"] | None = None,
    beside: bool = False,
) -> Steps:
    """Each thread drains pinned buffers of a ring of its own, which copies from the GPU fill.

    ``half``: one half alone, or ``beside`` the other, which takes no heed of it.
    """
    held.enter_context(threads_take_turns_quickly())
    pool = held.enter_context(CopyThreads(threads, bench.engine.prepare))
    parts = stretches(bench.nbytes, threads)
    piece = min(bench.chunk, max(stretches(parts[0][1], RING_TURNS)[0][1], LEAST_PIECE))
    memory = held.enter_context(bench.lab.host_buffer(len(parts) * slots * piece, "pinned"))
    rings = []
    for number, (begin, nbytes) in enumerate(parts):
        buffers = [memory.address + (slots * number + slot) * piece for slot in range(slots)]
        pieces = [(begin + done, min(piece, nbytes - done)) for done in range(0, nbytes, piece)]
        rings.append(Ring(bench, held.enter_context(bench.engine.lane(slots=slots)), buffers, pieces))
    work: Mapping[str | None, Callable[[], None]] = {
        None: lambda: pool.run(Ring.drain, rings),
        "drain": lambda: pool.run(Ring.empty_all, rings),
        "copies": lambda: _fetch_all(rings),
    }

    def run(uses: int) -> Marks:
        begun = bench.clock()
        for _ in range(uses):
            work[half]()
        return Marks(begun, bench.clock())

    if half is None:
        return bench.steps(
            run,
            lambda pattern: bench.lab.fill(bench.target, pattern),
            lambda pattern: bench.lab.wrong_words(bench.source, pattern),
        )
    other = {"drain": [work["copies"]], "copies": [ring.empty_all for ring in rings]}[half] if beside else []
    meanwhile = Meanwhile(held, bench.engine.prepare, other)
    return bench.steps(run, lambda _: meanwhile.start(), lambda _: meanwhile.stop())


ring_four = partial(ring_two, slots=MOST_SLOTS)
"""With four buffers a thread."""
ring_copies = partial(ring_two, half="copies", beside=True)
"""The copies, while threads drain the same buffers without a pause."""
ring_drain = partial(ring_two, half="drain", beside=True)
"""The draining, while copies fill the same buffers without a pause."""
ring_copies_alone = partial(ring_two, half="copies")
"""The copies with nothing beside them."""
ring_drain_alone = partial(ring_two, half="drain")
"""The draining with nothing beside it."""
