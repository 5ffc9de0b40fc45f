"""Ways to move many pieces between host memory and the GPU, how long they take, and what compute beside them does."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import cached_property
from importlib.resources import files
from itertools import pairwise
from time import perf_counter
from typing import Any

import cupy
import numpy as np
from cupy.cuda import runtime
from numpy.typing import NDArray

from pinscope.experiments.scatter.ways import MEASURED, Case, Variant, WayName
from pinscope.lab.cuda import CudaLab
from pinscope.lab.cuda_handles import CudaEvent, CudaStream
from pinscope.lab.cuda_memory import DEVICE_TO_HOST, HOST_TO_DEVICE, Location, check, driver_library
from pinscope.lab.harness import Clock
from pinscope.lab.pattern import words_at
from pinscope.lab.protocol import DeviceBuffer, HostBuffer, require_type

THREADS = 512
"""Of a block."""
ROUNDS = 2048
"""Of the compute load, for each item of work: some 20 µs of a multiprocessor."""

WARM_SECONDS = 0.3
"""Compute this long before a load's length is chosen: an idle GPU needs it to reach its clock."""
SHORT_SECONDS = 1e-3
"""Moves shorter than this are made twice, and the second counts: by then neither caches nor GPU are idle."""
FIRST_CALLS = 256
"""Calls of a loop that are timed apart: a stream takes that many before it makes the next one wait."""
BUSY_ITEMS = 2
"""Of the compute load, that a stream is at work with when a batch is queued behind: some 40 µs."""
_IN_STREAM_ORDER = 1
"""CU_MEMCPY_SRC_ACCESS_ORDER_STREAM."""
_BATCH = "cuMemcpyBatchAsync"
"""cudaMemcpyBatchAsync as the driver has it, from CUDA 12.8 on; ``_v2``, of CUDA 13, names no failed copy."""


class Launch:
    """A launch with its arguments, made once: as short a call as a program in C++ makes.

    Args:
        kernel: one of :attr:`Bench.kernels`.
        blocks: of ``THREADS`` threads.
        stream: handle of the stream.
        arguments: as ctypes has them, of the kernel's types.
    """

    def __init__(self, kernel: Any, blocks: int, stream: int, *arguments: Any) -> None:
        self._kept = (kernel, arguments)
        pointers = (ctypes.c_void_p * len(arguments))(*map(ctypes.addressof, arguments))
        single, function = ctypes.c_uint(1), ctypes.c_void_p(kernel.kernel.ptr)
        grid, block = (ctypes.c_uint(blocks), single, single), (ctypes.c_uint(THREADS), single, single)
        self._arguments = (function, *grid, *block, ctypes.c_uint(0), ctypes.c_void_p(stream), pointers, None)

    def __call__(self) -> None:
        """Queue it."""
        check(driver_library().cuLaunchKernel(*self._arguments))


class Bench:
    """What all ways share: the area on the host, what lies in it, pieces on the GPU, a stream and kernels.

    Args:
        lab: an open lab.
        area_bytes: length of the area.
        most_bytes: of all pieces, at most.
        stack: holds the memory.
        clock: seconds.
    """

    def __init__(
        self, lab: CudaLab, area_bytes: int, most_bytes: int, stack: ExitStack, clock: Clock = perf_counter
    ) -> None:
        self.lab, self.clock = lab, clock
        sources = [files(__package__).joinpath(name).read_text("utf-8") for name in ("code_move.cu", "code_check.cu")]
        module = cupy.RawModule(code="".join(sources))
        self.kernels = {name: module.get_function(name) for name in ("move_pieces", "count_wrong", "busy")}
        self.ordinal = int(runtime.getDevice())
        self.sms = int(runtime.getDeviceProperties(self.ordinal)["multiProcessorCount"])
        self.stream = require_type(stack.enter_context(lab.stream()), CudaStream)
        self.start, self.end = stack.enter_context(lab.event()), stack.enter_context(lab.event())
        self.area: HostBuffer = stack.enter_context(lab.host_buffer(area_bytes, "mapped"))
        self.right: DeviceBuffer = stack.enter_context(lab.device_buffer(area_bytes))
        self.row: DeviceBuffer = stack.enter_context(lab.device_buffer(most_bytes))
        self._most, self._stack = most_bytes, stack
        self._counter = stack.enter_context(lab.device_buffer(8))
        lab.fill(self.right, lab.fresh_pattern())
        self.restore()

    @cached_property
    def staging(self) -> HostBuffer:
        """A pinned buffer for all pieces; taken when it is first asked for."""
        return self._stack.enter_context(self.lab.host_buffer(self._most, "pinned"))

    def restore(self) -> None:
        """The area as it was: its content stands beside it on the GPU, where it stays right."""
        self.lab.copy_to_host(self.area, self.right, self.stream)
        self.stream.synchronize()

    def numbers(self, values: NDArray[Any], held: ExitStack) -> int:
        """The address of such numbers on the GPU."""
        buffer = held.enter_context(self.lab.device_buffer(values.nbytes))
        runtime.memcpy(buffer.address, values.ctypes.data, values.nbytes, HOST_TO_DEVICE)
        runtime.deviceSynchronize()  # from pageable memory it returns once the driver has staged it
        return buffer.address

    def wrong(self, words: tuple[int, int], numbers: int, piece_bytes: int, chosen: int, rest: int) -> int:
        """Of so many 8-byte words at an address those that are not right; complete on return (see ``count_wrong``)."""
        runtime.memsetAsync(self._counter.address, 0, 8, self.stream.handle)
        Launch(
            self.kernels["count_wrong"],
            4 * self.sms,
            self.stream.handle,
            *map(ctypes.c_uint64, (*words, numbers, piece_bytes // 8, chosen, rest, self._counter.address)),
        )()
        self.stream.synchronize()
        value = np.zeros(1, dtype=np.uint64)
        runtime.memcpy(value.ctypes.data, self._counter.address, 8, DEVICE_TO_HOST)
        return int(value[0])


class _Attributes(ctypes.Structure):
    """CUmemcpyAttributes of the driver API."""

    _fields_ = (("order", ctypes.c_int), ("source", Location), ("target", Location), ("flags", ctypes.c_uint))


def why_not(way: WayName) -> str | None:
    """Why a way cannot be had on this machine; ``None`` if it can."""
    if way in ("batch", "batch_queued") and _batch_call() is None:
        return f"the driver has no {_BATCH} (CUDA 12.8, driver 570)"
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

    def occupy(self) -> None:
        """Work for the stream before the time runs."""

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
            numbers = bench.numbers(case.place_on_device(self.places()), held)
            return bench.wrong(
                (bench.area.address, case.slots * case.piece_bytes // 8), numbers, case.piece_bytes, row, right
            )

    def places(self) -> NDArray[np.int64]:
        return self.case.places()

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
        # The driver takes another, slower way into an idle stream, which it is once the event is reached.
        self.bench.start.synchronize()
        check(self._call(*self._arguments))


class BatchQueued(Batch):
    """The same while the stream is at work."""

    def prepare(self) -> None:
        super().prepare()
        bench = self.bench
        self._words = bench.numbers(np.zeros(1, dtype=np.uint64), self._held)
        self._load = load(bench, 1, self._words, BUSY_ITEMS, bench.stream)

    def occupy(self) -> None:
        runtime.memsetAsync(self._words, 0, 8, self.bench.stream.handle)
        self._load()

    def issue(self) -> None:
        check(self._call(*self._arguments))


def load(bench: Bench, blocks: int, words: int, items: int, stream: CudaStream) -> Launch:
    """A load of so many items of work; of the two words at that address the first, 0, says which is next."""
    arguments = ctypes.c_uint64(words), ctypes.c_uint(items), ctypes.c_uint(ROUNDS), ctypes.c_uint64(words + 4)
    return Launch(bench.kernels["busy"], blocks, stream.handle, *arguments)


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


MOVERS: Mapping[WayName, type[Mover]] = dict(
    zip(MEASURED, (Contiguous, Loop, Batch, BatchQueued, Graph, Copy2D, Kernel, Cpu), strict=True)
)


def time_once(bench: Bench, mover: Mover) -> dict[str, float]:
    """Move all pieces: fields of an observation. Short moves count when they are made once more right away."""
    seconds = _time(bench, mover)
    return _time(bench, mover) if seconds["wall_seconds"] < SHORT_SECONDS else seconds


def _time(bench: Bench, mover: Mover) -> dict[str, float]:
    clock, stream = bench.clock, bench.stream
    mover.occupy()
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
    return {
        "wall_seconds": done - begun,
        "device_seconds": bench.lab.elapsed(bench.start, bench.end),
        "issue_seconds": issued - begun + done - arrived,
    }


class Compute:
    """A compute load of that many seconds on all multiprocessors, in a stream of its own."""

    def __init__(self, bench: Bench, seconds: float, stack: ExitStack) -> None:
        self.bench = bench
        self._stream = require_type(stack.enter_context(bench.lab.stream()), CudaStream)
        self._start, self._end, *self._moved = (stack.enter_context(bench.lab.event()) for _ in range(4))
        self._words = stack.enter_context(bench.lab.device_buffer(8))
        self._load = self._of(64 * bench.sms)
        warmed = 0.0
        while warmed < WARM_SECONDS:
            warmed += self._alone()
        self._load = self._of(max(round(64 * bench.sms * seconds / self._alone()), 1))

    def beside(self, mover: Mover) -> dict[str, float]:
        """The load alone, then with all pieces moved again and again until it ends: fields of an observation."""
        self._alone()
        alone = self._alone()
        begun = self.bench.clock()
        self._begin()
        end, turns = require_type(self._end, CudaEvent).handle, 0
        while runtime.eventQuery(end) != 0:  # one turn waits while the next is issued: the link is never idle
            mover.issue()
            self._moved[turns % 2].record(self.bench.stream)
            turns += 1
            if turns > 1:
                self._moved[turns % 2].synchronize()
        self.bench.stream.synchronize()
        together, move = self._took(), (self.bench.clock() - begun) / turns
        return {"alone_seconds": alone, "together_seconds": together, "wall_seconds": move}

    def _of(self, items: int) -> Launch:
        return load(self.bench, self.bench.sms, self._words.address, items, self._stream)

    def _alone(self) -> float:
        self._begin()
        self._stream.synchronize()
        return self._took()

    def _begin(self) -> None:
        runtime.memsetAsync(self._words.address, 0, 8, self._stream.handle)
        self._start.record(self._stream)
        self._load()
        self._end.record(self._stream)

    def _took(self) -> float:
        self._end.synchronize()
        return self.bench.lab.elapsed(self._start, self._end)
