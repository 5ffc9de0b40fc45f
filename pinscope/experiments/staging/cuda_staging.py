"""The calls that staging is made of, through CUDA's runtime, and CuPy's own way."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Self

import cupy
from cupy.cuda import runtime

from pinscope.experiments.staging.ways import SLOTS, Bench, Marks, Steps
from pinscope.lab.cuda_handles import DevicePart
from pinscope.lab.cuda_memory import DEVICE_TO_HOST, HOST_TO_DEVICE, CudaCalls
from pinscope.lab.pattern import Pattern, words_at

_DEFAULT_STREAM = 0
"""Of CUDA, and CuPy's by default."""
_BLOCKING_SYNC, _DISABLE_TIMING = 1, 2
"""cudaEventBlockingSync: a thread that waits sleeps. Without it, it asks again and again."""


@dataclass
class CudaLane:
    """A stream, and a mark for each of some buffers that says whether the copies from or to it are done."""

    stream: int
    events: list[int]

    def copy(self, target: int, source: int, nbytes: int) -> None:
        """cudaMemcpyAsync to the GPU."""
        runtime.memcpyAsync(target, source, nbytes, HOST_TO_DEVICE, self.stream)

    def copy_back(self, target: int, source: int, nbytes: int) -> None:
        """cudaMemcpyAsync from the GPU."""
        runtime.memcpyAsync(target, source, nbytes, DEVICE_TO_HOST, self.stream)

    def mark(self, slot: int = 0) -> None:
        """Everything queued so far has to be done before a wait for this mark returns."""
        runtime.eventRecord(self.events[slot], self.stream)

    def wait(self, slot: int = 0) -> None:
        """Until the mark is reached; at once if none was set."""
        runtime.eventSynchronize(self.events[slot])


class CudaEngine:
    """What CUDA is asked for on the GPU that the calling thread uses now, from any thread that :meth:`prepare` was
    called in. To be entered."""

    def __init__(self) -> None:
        self._calls = CudaCalls.here()
        self.allocate, self.free = self._calls.allocate, self._calls.free
        self.register, self.unregister = self._calls.register, self._calls.unregister

    def __enter__(self) -> Self:
        self._copied = int(runtime.eventCreateWithFlags(_DISABLE_TIMING | _BLOCKING_SYNC))
        return self

    def __exit__(self, *exception: object) -> None:
        runtime.eventDestroy(self._copied)

    def prepare(self) -> None:
        """Choose the GPU for the calling thread."""
        runtime.setDevice(self._calls.ordinal)

    @contextmanager
    def lane(self, spinning: bool = False, slots: int = SLOTS) -> Iterator[CudaLane]:
        """With so many marks, for which a thread sleeps, or spins."""
        with ExitStack() as stack:
            queue = cupy.cuda.Stream(non_blocking=True)  # destroyed with its last reference
            stack.callback(queue.synchronize)
            events = []
            for _ in range(slots):
                events.append(int(runtime.eventCreateWithFlags(_DISABLE_TIMING | (0 if spinning else _BLOCKING_SYNC))))
                stack.callback(runtime.eventDestroy, events[-1])
            yield CudaLane(int(queue.ptr), events)

    def copy_now(self, target: int, source: int, nbytes: int) -> None:
        """cudaMemcpy to the GPU. Of pageable memory it returns when all is staged, perhaps not yet on the GPU."""
        runtime.memcpy(target, source, nbytes, HOST_TO_DEVICE)

    def copy_back_now(self, target: int, source: int, nbytes: int) -> None:
        """cudaMemcpy from the GPU: complete on return."""
        runtime.memcpy(target, source, nbytes, DEVICE_TO_HOST)

    def wait_for_copies(self) -> None:
        """Sleep until what CUDA's default stream was given is done: :meth:`copy_now` uses that."""
        runtime.eventRecord(self._copied, _DEFAULT_STREAM)
        runtime.eventSynchronize(self._copied)


def cupy_asarray(bench: Bench, threads: int, held: ExitStack, keeps_pool: bool = True) -> Steps:
    """``cupy.asarray(array)``: CuPy copies to pinned memory of its pool, and from there to the GPU."""
    results: list[Any] = []
    held.callback(_give_back)
    held.callback(results.clear)

    def ready(pattern: Pattern) -> None:
        results.clear()
        if not keeps_pool:
            cupy.get_default_pinned_memory_pool().free_all_blocks()
        bench.lab.fill(bench.source, pattern)

    def run(uses: int) -> Marks:
        begun = bench.clock()
        words = words_at(bench.source.address, bench.nbytes)
        for _ in range(uses):
            results.clear()
            results.append(cupy.asarray(words))
        bench.engine.wait_for_copies()
        return Marks(begun, bench.clock())

    def wrong_words(pattern: Pattern) -> int:
        return bench.lab.wrong_words(DevicePart(results[0].data.ptr, bench.nbytes), pattern)

    return bench.steps(run, ready, wrong_words)


cupy_asarray_first = partial(cupy_asarray, keeps_pool=False)
"""``cupy.asarray`` with CuPy's pool of pinned memory empty."""


def _give_back() -> None:
    cupy.get_default_memory_pool().free_all_blocks()
    cupy.get_default_pinned_memory_pool().free_all_blocks()
