"""Ways to move many pieces between host memory and the GPU, how long they take, and what compute beside them does."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from cupy.cuda import runtime
from numpy.typing import NDArray

from pinscope.experiments.scatter.cuda_bench import ROUNDS, Bench, Launch
from pinscope.experiments.scatter.ways import Case, Variant, WayName
from pinscope.lab.cuda_handles import DEVICE_TO_HOST, HOST_TO_DEVICE, CudaEvent, CudaStream
from pinscope.lab.cuda_managed import Location, check, managed_memory, prefetch_to_host, why_not_managed
from pinscope.lab.cuda_memory import driver_library
from pinscope.lab.pattern import words_at
from pinscope.lab.protocol import own

WARM_SECONDS = 0.3
"""Compute this long before a load's length is chosen: an idle GPU needs it to reach its clock."""
SHORT_SECONDS = 1e-3
"""Moves shorter than this are made twice, and the second counts: by then neither caches nor GPU are idle."""
FIRST_CALLS = 256
"""Calls of a loop that are timed apart: a stream takes that many before it makes the next one wait."""
MANAGED_PIECES, MANAGED_BYTES = 256, 2**26
"""Managed memory is moved in small amounts: each range costs the driver some 10 µs and more."""
MANAGED_SHARE = 0.25
"""Of what the GPU has free: more managed memory than is free can hang the GPU."""
_BY_ADDRESS = 4
"""cudaMemcpyDefault: the addresses tell where they are."""
_IN_STREAM_ORDER = 1
"""CU_MEMCPY_SRC_ACCESS_ORDER_STREAM."""
_BATCH = "cuMemcpyBatchAsync"
"""cudaMemcpyBatchAsync as the driver has it, from CUDA 12.8 on; ``_v2``, of CUDA 13, names no failed copy."""


class _Attributes(ctypes.Structure):
    """CUmemcpyAttributes of the driver API."""

    _fields_ = (("order", ctypes.c_int), ("source", Location), ("target", Location), ("flags", ctypes.c_uint))


def why_not(way: WayName, bench: Bench) -> str | None:
    """Why a way cannot be had on this machine; ``None`` if it can."""
    if way == "batch" and _batch_call() is None:
        return f"the driver has no {_BATCH} (CUDA 12.8, driver 570)"
    if way == "managed":
        if runtime.memGetInfo()[0] * MANAGED_SHARE < MANAGED_BYTES:
            return "the GPU has too little memory free"
        return why_not_managed(bench.ordinal)
    return None


class Mover:
    """One way with what it prepares beforehand: where each piece comes from and where it goes."""

    call_seconds: float | None = None
    """Of one call of a loop, while nothing makes it wait."""
    sms: int | None = 0
    """Multiprocessors that it takes; ``None`` where the driver does not say."""

    def __init__(self, bench: Bench, case: Case, variant: Variant, held: ExitStack) -> None:
        self.bench, self.case, self.variant, self._held = bench, case, variant, held
        self.to_device = case.direction == "h2d"
        self.kind = HOST_TO_DEVICE if self.to_device else DEVICE_TO_HOST
        self.prepare()

    def prepare(self) -> None:
        """Everything that need not be repeated."""

    def get_ready(self) -> None:
        """Everything where it comes from; complete on return. Not for timed parts."""

    def before(self) -> None:
        """What the CPU does before the first call."""

    def issue(self) -> None:
        """The calls."""
        raise NotImplementedError

    def after(self) -> None:
        """What the CPU does when the GPU is done."""

    def spoil(self) -> None:
        """Other content where the pieces go, so that what does not arrive is seen; new content to send back."""
        case, bench = self.case, self.bench
        bench.lab.fill(bench.row.part(0, case.nbytes), bench.lab.fresh_pattern())
        if not self.to_device:
            bench.restore()

    def wrong_words(self) -> int:
        """Words that did not arrive, or where no piece goes were changed. Not for timed parts."""
        bench, case = self.bench, self.case
        row, right = bench.row.address, bench.right.address
        with ExitStack() as held:
            if self.to_device:
                places = bench.numbers(self.places(), held)
                return bench.wrong((row, case.nbytes // 8), places, case.piece_bytes, right, right)
            numbers = bench.numbers(self.place_on_device(), held)
            return bench.wrong(
                (bench.area.address, case.slots * case.piece_bytes // 8), numbers, case.piece_bytes, row, right
            )

    def places(self) -> NDArray[np.int64]:
        return self.case.places()

    def place_on_device(self) -> NDArray[np.int64]:
        return self.case.place_on_device()

    def ends(self) -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:
        """Addresses of all pieces: where they go, and where they come from."""
        case, bench = self.case, self.bench
        host = (bench.area.address + self.places() * case.piece_bytes).astype(np.uint64)
        device = (bench.row.address + np.arange(case.pieces) * case.piece_bytes).astype(np.uint64)
        return (device, host) if self.to_device else (host, device)


class Contiguous(Mover):
    """One cudaMemcpyAsync of the same amount, from the area's beginning."""

    def issue(self) -> None:
        bench = self.bench
        ends = (bench.row.address, bench.area.address) if self.to_device else (bench.area.address, bench.row.address)
        runtime.memcpyAsync(*ends, self.case.nbytes, self.kind, bench.stream.handle)

    def places(self) -> NDArray[np.int64]:
        return np.arange(self.case.pieces, dtype=np.int64)

    def place_on_device(self) -> NDArray[np.int64]:
        numbers = np.arange(self.case.slots, dtype=np.int64)
        return np.where(numbers < self.case.pieces, numbers, -1)


class Loop(Mover):
    """cudaMemcpyAsync for each piece."""

    def prepare(self) -> None:
        targets, sources = self.ends()
        self._pairs = list(zip(targets.tolist(), sources.tolist(), strict=True))

    def issue(self) -> None:
        clock = self.bench.clock
        begun = clock()
        self._copy(self._pairs[:FIRST_CALLS])
        self.call_seconds = (clock() - begun) / min(FIRST_CALLS, len(self._pairs))
        self._copy(self._pairs[FIRST_CALLS:])

    def _copy(self, pairs: Sequence[tuple[int, int]]) -> None:
        copy, nbytes, kind, stream = runtime.memcpyAsync, self.case.piece_bytes, self.kind, self.bench.stream.handle
        for target, source in pairs:
            copy(target, source, nbytes, kind, stream)


class Graph(Loop):
    """The loop's copies, captured once into a CUDA graph."""

    def prepare(self) -> None:
        super().prepare()
        handle = self.bench.stream.handle
        runtime.streamBeginCapture(handle, runtime.streamCaptureModeRelaxed)
        try:
            self._copy(self._pairs)
        finally:
            graph = runtime.streamEndCapture(handle)
        self._held.callback(runtime.graphDestroy, graph)
        self._graph = runtime.graphInstantiate(graph)
        self._held.callback(runtime.graphExecDestroy, self._graph)

    def issue(self) -> None:
        runtime.graphLaunch(self._graph, self.bench.stream.handle)


class Batch(Mover):
    """One cudaMemcpyBatchAsync; its arguments are made once."""

    def prepare(self) -> None:
        batch = _batch_call()
        assert batch is not None  # noqa: S101 - why_not() said so
        self._call, names_failed = batch
        self._targets, self._sources = self.ends()
        self._sizes = np.full(self.case.pieces, self.case.piece_bytes, dtype=np.uint64)
        self._attributes = _Attributes(order=_IN_STREAM_ORDER)
        self._first, self._failed = ctypes.c_size_t(0), ctypes.c_size_t(0)
        self._arguments = (
            *(ctypes.c_void_p(array.ctypes.data) for array in (self._targets, self._sources, self._sizes)),
            ctypes.c_size_t(self.case.pieces),
            ctypes.byref(self._attributes),
            ctypes.byref(self._first),
            ctypes.c_size_t(1),
            *((ctypes.byref(self._failed),) if names_failed else ()),
            ctypes.c_void_p(self.bench.stream.handle),
        )

    def issue(self) -> None:
        check(self._call(*self._arguments))


def _batch_call() -> tuple[Any, bool] | None:
    """The driver's call and whether it takes a place for the number of a failed copy; ``None`` without one."""
    library = driver_library()
    if hasattr(library, f"{_BATCH}_v2"):
        return getattr(library, f"{_BATCH}_v2"), False
    return (getattr(library, _BATCH), True) if hasattr(library, _BATCH) else None


class Copy2D(Mover):
    """One cudaMemcpy2DAsync: rows of a piece, two pieces apart on the host."""

    def issue(self) -> None:
        case, bench = self.case, self.bench
        host, device = (bench.area.address, 2 * case.piece_bytes), (bench.row.address, case.piece_bytes)
        ends = (*device, *host) if self.to_device else (*host, *device)
        runtime.memcpy2DAsync(*ends, case.piece_bytes, case.pieces, self.kind, bench.stream.handle)


class Kernel(Mover):
    """Threads of the GPU that reach the area through its mapping."""

    def prepare(self) -> None:
        case, bench = self.case, self.bench
        places = bench.numbers(self.places().astype(np.int32), self._held)
        blocks = self.variant.blocks or bench.sms
        self.sms = min(blocks, bench.sms)
        addresses = map(ctypes.c_uint64, (bench.area.address, bench.row.address, places))
        counts = ctypes.c_uint(case.piece_bytes // 16), ctypes.c_uint(case.nbytes // 16), ctypes.c_int(self.to_device)
        self._launch = Launch(bench.kernels["move_pieces"], blocks, bench.stream.handle, *addresses, *counts)

    def issue(self) -> None:
        self._launch()


class Cpu(Mover):
    """Threads of the CPU collect the pieces in a pinned buffer for one copy, or spread what one copy brought there."""

    def prepare(self) -> None:
        case, bench = self.case, self.bench
        words = case.piece_bytes // 8
        self._area = words_at(bench.area.address, case.slots * case.piece_bytes).reshape(-1, words)
        self._staging = words_at(bench.staging.address, case.nbytes).reshape(-1, words)
        self._places = self.places()
        threads = self.variant.threads or 1
        bounds = np.linspace(0, case.pieces, threads + 1).astype(int)
        self._parts = [slice(int(begin), int(end)) for begin, end in pairwise(bounds)]
        self._threads = self._held.enter_context(ThreadPoolExecutor(threads)) if threads > 1 else None

    def before(self) -> None:
        if self.to_device:
            self._each(self._gather)

    def issue(self) -> None:
        bench, staging = self.bench, self.bench.staging.address
        ends = (bench.row.address, staging) if self.to_device else (staging, bench.row.address)
        runtime.memcpyAsync(*ends, self.case.nbytes, self.kind, bench.stream.handle)

    def after(self) -> None:
        if not self.to_device:
            self._each(self._scatter)

    def _each(self, work: Callable[[slice], None]) -> None:
        if self._threads is None:
            work(self._parts[0])
        else:
            list(self._threads.map(work, self._parts))

    def _gather(self, part: slice) -> None:
        # With another mode NumPy would collect into memory of its own first.
        np.take(self._area, self._places[part], axis=0, out=self._staging[part], mode="clip")

    def _scatter(self, part: slice) -> None:
        self._area[self._places[part]] = self._staging[part]


class Managed(Mover):
    """Managed memory: a cudaMemPrefetchAsync for each piece, which stays in its place."""

    def prepare(self) -> None:
        size = self.case.piece_bytes
        self.case = self.case.within(
            min(MANAGED_BYTES, 2 * MANAGED_PIECES * size, self.case.area_bytes), MANAGED_PIECES
        )
        self._area = self._held.enter_context(managed_memory(self.case.area_bytes))
        runtime.memcpy(self._area.address, self.bench.right.address, self._area.nbytes, _BY_ADDRESS)
        runtime.deviceSynchronize()
        self._ranges = (self._area.address + self.places() * size).tolist()

    def get_ready(self) -> None:
        self._prefetch([self._area.address], self._area.nbytes, to_device=not self.to_device)
        self.bench.stream.synchronize()

    def issue(self) -> None:
        self._prefetch(self._ranges, self.case.piece_bytes, self.to_device)

    def _prefetch(self, ranges: Sequence[int], nbytes: int, to_device: bool) -> None:
        stream, device = self.bench.stream.handle, self.bench.ordinal
        for address in ranges:
            if to_device:
                runtime.memPrefetchAsync(address, nbytes, device, stream)
            else:
                prefetch_to_host(address, nbytes, stream)

    def spoil(self) -> None:
        """Nothing: the pieces have one place."""

    def wrong_words(self) -> int:
        with ExitStack() as held:
            numbers = self.bench.numbers(self.place_on_device(), held)
            right, words = self.bench.right.address, self.case.slots * self.case.piece_bytes // 8
            return self.bench.wrong((self._area.address, words), numbers, self.case.piece_bytes, right, right)

    def place_on_device(self) -> NDArray[np.int64]:
        return np.arange(self.case.slots, dtype=np.int64)


MOVERS: Mapping[WayName, type[Mover]] = {
    "contiguous": Contiguous,
    "loop": Loop,
    "batch": Batch,
    "graph": Graph,
    "copy_2d": Copy2D,
    "kernel": Kernel,
    "cpu": Cpu,
    "managed": Managed,
}


@dataclass(frozen=True)
class Timing:
    """One repeat, in seconds.

    Attributes:
        wall: from the first call until all is where it should be.
        device: from the first to the last work on the GPU.
        held: for which the calling thread issued calls or copied.
    """

    wall: float
    device: float
    held: float


def time_once(bench: Bench, mover: Mover) -> Timing:
    """Move all pieces; short moves count when they are made once more right away."""
    timing = _time(bench, mover)
    return _time(bench, mover) if timing.wall < SHORT_SECONDS else timing


def _time(bench: Bench, mover: Mover) -> Timing:
    mover.get_ready()
    clock, stream = bench.clock, bench.stream
    begun = clock()
    mover.before()
    bench.start.record(stream)
    mover.issue()
    issued = clock()
    bench.end.record(stream)
    stream.synchronize()
    arrived = clock()
    mover.after()
    done = clock()
    return Timing(done - begun, bench.lab.elapsed(bench.start, bench.end), issued - begun + done - arrived)


@dataclass(frozen=True)
class Beside:
    """A compute load alone and with copies beside it, in seconds.

    Attributes:
        alone: the load alone.
        together: the load while pieces were moved.
        move: until all pieces were moved once, meanwhile.
    """

    alone: float
    together: float
    move: float


class Compute:
    """A compute load of that many seconds on all multiprocessors, in a stream of its own."""

    def __init__(self, bench: Bench, seconds: float, stack: ExitStack) -> None:
        self.bench = bench
        self._stream = own(stack.enter_context(bench.lab.stream()), CudaStream)
        self._start, self._end, *self._moved = (stack.enter_context(bench.lab.event()) for _ in range(4))
        self._words = stack.enter_context(bench.lab.device_buffer(8))
        self._load = self._of(64 * bench.sms)
        warmed = 0.0
        while warmed < WARM_SECONDS:
            warmed += self._alone()
        self._load = self._of(max(round(64 * bench.sms * seconds / self._alone()), 1))

    def beside(self, mover: Mover) -> Beside:
        """The load alone, then with all pieces moved again and again until it ends."""
        self._alone()
        alone = self._alone()
        begun = self.bench.clock()
        self._begin()
        turns = 0
        while not self._is_done():  # one turn waits while the next is issued: the link is never idle
            mover.issue()
            self._moved[turns % 2].record(self.bench.stream)
            turns += 1
            if turns > 1:
                self._moved[turns % 2].synchronize()
        self.bench.stream.synchronize()
        return Beside(alone, self._took(), (self.bench.clock() - begun) / turns)

    def _of(self, items: int) -> Launch:
        """A load of so many items of work; the first word says which is next."""
        bench, words = self.bench, self._words.address
        arguments = ctypes.c_uint64(words), ctypes.c_uint(items), ctypes.c_uint(ROUNDS), ctypes.c_uint64(words + 4)
        return Launch(bench.kernels["busy"], bench.sms, self._stream.handle, *arguments)

    def _alone(self) -> float:
        self._begin()
        self._stream.synchronize()
        return self._took()

    def _begin(self) -> None:
        runtime.memsetAsync(self._words.address, 0, 8, self._stream.handle)
        self._start.record(self._stream)
        self._load()
        self._end.record(self._stream)

    def _is_done(self) -> bool:
        return bool(runtime.eventQuery(own(self._end, CudaEvent).handle) == 0)

    def _took(self) -> float:
        self._end.synchronize()
        return self.bench.lab.elapsed(self._start, self._end)
