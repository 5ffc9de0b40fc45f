"""How long a way takes, and what it costs a compute load that runs beside it."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass

from cupy.cuda import runtime

from pinscope.experiments.scatter.cuda_ways import Bench, Mover
from pinscope.lab.cuda_handles import CudaEvent
from pinscope.lab.protocol import Load, own


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
    """Move all pieces once."""
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
    """A compute load on all multiprocessors, in a stream of its own."""

    def __init__(self, bench: Bench, seconds: float, stack: ExitStack) -> None:
        self.bench = bench
        self._stream = stack.enter_context(bench.lab.stream())
        self._start, self._end, *self._moved = (stack.enter_context(bench.lab.event()) for _ in range(4))
        self._load: Load = bench.lab.calibrate(seconds)

    def beside(self, mover: Mover) -> Beside:
        """The load alone, then with all pieces moved again and again until it ends."""
        self._begin()
        self._stream.synchronize()
        alone = self._took()
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

    def _begin(self) -> None:
        self._start.record(self._stream)
        self.bench.lab.compute(self._stream, self._load)
        self._end.record(self._stream)

    def _is_done(self) -> bool:
        return bool(runtime.eventQuery(own(self._end, CudaEvent).handle) == 0)

    def _took(self) -> float:
        self._end.synchronize()
        return self.bench.lab.elapsed(self._start, self._end)
