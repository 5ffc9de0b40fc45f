"""How long a way takes, and what it costs a compute load that runs beside it."""

from __future__ import annotations

import ctypes
from contextlib import ExitStack
from dataclasses import dataclass

from cupy.cuda import runtime

from pinscope.experiments.scatter.cuda_bench import Bench
from pinscope.experiments.scatter.cuda_kernels import ROUNDS, Launch
from pinscope.experiments.scatter.cuda_ways import Mover
from pinscope.lab.cuda_handles import CudaEvent, CudaStream
from pinscope.lab.protocol import own

WARM_SECONDS = 0.3
"""Compute this long before a load's length is chosen: an idle GPU needs it to reach its clock."""
SHORT_SECONDS = 1e-3
"""Moves shorter than this are made twice, and the second counts: by then neither caches nor GPU are idle."""


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
        return Launch(
            bench.kernels["busy"],
            bench.sms,
            self._stream.handle,
            ctypes.c_uint64(words),
            ctypes.c_uint(items),
            ctypes.c_uint(ROUNDS),
            ctypes.c_uint64(words + 4),
        )

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
