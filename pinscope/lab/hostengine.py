"""Engines, streams and events of the host model.

An engine is a thread with a queue of operations, like a hardware queue of a GPU: it takes them strictly in the
order in which they were issued, and one that must wait for another engine holds up those behind it. Python's
ThreadPoolExecutor would do the same, but take ten times as long for each (44 µs instead of 4, one copy behind another).
"""

from __future__ import annotations

import ctypes
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from itertools import cycle
from queue import SimpleQueue
from typing import Self

from pinscope.errors import MeasurementFailed
from pinscope.lab.backing import OwnMemory, lock
from pinscope.lab.protocol import Stream, never_ends, require_type
from pinscope.records.run import HostMemory

Work = Callable[[float], None]
"""What an operation does; called with the time at which the device was ready for it."""

_LIBC = ctypes.CDLL(None)
_PR_SET_TIMERSLACK = 29
_LATE_SECONDS = 35e-6
"""By how much a thread without timer slack wakes late."""


def wait_until(deadline: float, clock: Callable[[], float] = time.perf_counter) -> None:
    """Return at ``deadline``, give or take some ten microseconds, without keeping a processor busy.

    A sleep ends late by about :data:`_LATE_SECONDS`, so it is asked to end that much earlier. Polling instead would
    be more exact but take the interpreter from the copy engines.
    """
    left = deadline - clock() - _LATE_SECONDS
    if left > 0:
        time.sleep(left)


class Fault:
    """The first error of any engine. Sticky, like a CUDA error: later work is skipped, every wait reports it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._first: tuple[str, BaseException] | None = None

    def __bool__(self) -> bool:
        return self._first is not None

    def keep(self, engine: str, error: BaseException) -> None:
        """Remember the error if it is the first."""
        with self._lock:
            self._first = self._first or (engine, error)

    def check(self) -> None:
        """Raise :class:`MeasurementFailed` if there was an error."""
        if self._first is not None:
            engine, error = self._first
            raise MeasurementFailed(
                f"the host model's {engine} engine broke off: {type(error).__name__}: {error}"
            ) from error


class Operation:
    """One piece of work in an engine's queue.

    Attributes:
        issued: clock time at which it was queued.
        finished: clock time at which it was over; infinite until then.
    """

    __slots__ = ("_after", "_over", "_work", "finished", "issued")

    def __init__(self, work: Work, after: tuple[Operation, ...], issued: float) -> None:
        self._work = work
        self._after = after
        self._over = threading.Lock()
        self._over.acquire()
        self.issued = issued
        self.finished = math.inf

    def wait(self) -> float:
        """Hold the calling thread until the operation is over; returns when that was."""
        with self._over:
            return self.finished

    def run(self, engine: str, free_since: float, fault: Fault) -> float:
        """Wait for what comes before, work, and return the finish time. Called by the engine's thread."""
        ready = max([self.issued, free_since, *(earlier.wait() for earlier in self._after)])
        self._after = ()  # else every operation would keep all earlier ones alive
        try:
            if not fault:
                self._work(ready)
        except BaseException as error:  # noqa: BLE001 - reported by the next wait, in the thread of the user
            fault.keep(engine, error)
        self.finished = time.perf_counter()
        self._over.release()
        return self.finished


class Gate(Operation):
    """An operation that no engine carries out: it is over once it is opened. It holds what must wait for it."""

    def __init__(self, issued: float) -> None:
        super().__init__(lambda _ready: None, (), issued)

    def open(self, at: float) -> None:
        """Let go what waits; once."""
        self.finished = at
        self._over.release()


class Engine:
    """A thread that carries out operations in the order of their issue.

    Args:
        name: as it stands in messages.
        fault: where errors are kept.
    """

    def __init__(self, name: str, fault: Fault) -> None:
        self.name = name
        self._fault = fault
        self._queue: SimpleQueue[Operation | None] = SimpleQueue()
        self._last: Operation | None = None
        # A daemon only so that a lab nobody closed cannot keep the interpreter from ending; stop() joins it.
        self._thread = threading.Thread(target=self._serve, name=f"host model: {name}", daemon=True)

    def __enter__(self) -> Engine:
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._queue.put(None)
        self._thread.join()

    def submit(self, work: Work, after: Iterable[Operation] = ()) -> Operation:
        """Queue ``work`` behind everything issued to this engine so far; it also waits for ``after``."""
        operation = Operation(work, tuple(after), time.perf_counter())
        self._last = operation
        self._queue.put(operation)
        return operation

    def drain(self) -> None:
        """Hold the calling thread until everything issued so far is over."""
        if self._last is not None:
            self._last.wait()

    def _serve(self) -> None:
        _LIBC.prctl(_PR_SET_TIMERSLACK, 1, 0, 0, 0)  # sleeps of this thread end within µs of what was asked
        finished = time.perf_counter()
        while (operation := self._queue.get()) is not None:
            finished = operation.run(self.name, finished, self._fault)


class HostStream:
    """An ordered sequence of operations, whichever engines carry them out."""

    def __init__(self, fault: Fault) -> None:
        self._fault = fault
        self._frontier: tuple[Operation, ...] = ()
        self.held = False
        """Whether what is queued has to wait for the end of a hold."""

    @property
    def frontier(self) -> tuple[Operation, ...]:
        """The unfinished operations that later work of this stream must wait for."""
        self._frontier = tuple(operation for operation in self._frontier if operation.finished == math.inf)
        return self._frontier

    def submit(self, engine: Engine, work: Work) -> Operation:
        """Queue ``work`` on ``engine``, after everything in this stream."""
        operation = engine.submit(work, self.frontier)
        self._frontier = (operation,)
        return operation

    def wait_for(self, operations: Iterable[Operation]) -> None:
        """Later work of this stream waits for these as well."""
        self._frontier = (*self.frontier, *operations)

    def synchronize(self) -> None:
        """Hold the calling thread until everything queued so far is done.

        Raises:
            MeasurementFailed: the stream is held, which the same thread would have to end; or an engine broke off.
        """
        if self.held:
            raise never_ends("waiting for what is queued")
        for operation in self.frontier:
            operation.wait()
        self._fault.check()


class HostEvent:
    """A mark in a stream."""

    def __init__(self, fault: Fault) -> None:
        self._fault = fault
        self._recorded = math.inf
        self.operations: tuple[Operation, ...] = ()
        """What the mark stands behind; empty before it is first recorded."""

    def record(self, stream: Stream) -> None:
        """Place the mark behind everything queued in the stream so far."""
        self.operations = require_type(stream, HostStream).frontier
        self._recorded = time.perf_counter()

    def synchronize(self) -> None:
        """Hold the calling thread until the mark is reached.

        Raises:
            MeasurementFailed: an engine broke off.
        """
        for operation in self.operations:
            operation.wait()
        self._fault.check()

    def is_reached(self) -> bool:
        """Whether all that the mark stands behind is over.

        Raises:
            MeasurementFailed: an engine broke off.
        """
        self._fault.check()
        return all(operation.finished < math.inf for operation in self.operations)

    def reached(self) -> float:
        """When the mark was reached: at its recording, or when the last operation before it finished.

        Raises:
            MeasurementFailed: never recorded, not reached yet, or an engine broke off.
        """
        self._fault.check()
        reached = max([self._recorded, *(operation.finished for operation in self.operations)])
        if reached == math.inf:
            raise MeasurementFailed("an event was read that has not been reached; synchronize first")
        return reached


SLOT_BYTES = 512 * 1024
"""One slot of a staging ring. A copy up to this long (64 KiB and less in any case) is staged in one piece."""
SLOTS = 2
"""One slot is filled while the other is emptied."""


@dataclass(frozen=True)
class Area:
    """A stretch of a mapping; stands for device memory."""

    mapping: OwnMemory
    nbytes: int
    offset: int = 0

    @property
    def address(self) -> int:
        """Where it begins. Raises ValueError once the memory has been released."""
        return self.mapping.address + self.offset

    def part(self, offset: int, nbytes: int) -> Self:
        """A view of ``nbytes`` bytes from ``offset``, both multiples of 8."""
        return replace(self, offset=self.offset + offset, nbytes=nbytes)


@dataclass(frozen=True, kw_only=True)
class HostArea(Area):
    """Host memory of one kind."""

    memory: HostMemory


def move(target: int, source: int, nbytes: int, ready: float = 0.0) -> None:  # noqa: ARG001 - an engine's Work
    """Copy bytes between addresses; other threads run meanwhile."""
    ctypes.memmove(target, source, nbytes)


@dataclass
class _Slot:
    address: int
    user: Operation | None = None
    """The engine's operation that last used the slot."""

    def wait(self) -> None:
        """Until the engine is done with it."""
        if self.user is not None:
            self.user.wait()


class StagingRing:
    """A small locked ring through which an engine reaches pageable memory, as a GPU driver does it.

    The calling thread moves the bytes between the pageable buffer and the ring, the engine between the ring and
    device memory. A second caller waits until the first one's copy is staged.

    Args:
        engine: the copy engine that the ring serves.
    """

    nbytes = SLOTS * SLOT_BYTES

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._lock = threading.Lock()
        self._open = ExitStack()
        self._slots: list[_Slot] = []

    def __enter__(self) -> Self:
        """Lock the ring's memory. Raises NotEnoughMemory."""
        with ExitStack() as opening:
            memory = opening.enter_context(OwnMemory(self.nbytes))
            lock(memory.address, memory.nbytes)
            self._slots = [_Slot(memory.address + number * SLOT_BYTES) for number in range(SLOTS)]
            self._open = opening.pop_all()
        return self

    def __exit__(self, *exception: object) -> None:
        self._open.close()

    def to_device(self, target: int, source: int, nbytes: int, stream: HostStream) -> None:
        """Return when all is staged; the last piece may still be on its way to ``target``."""
        with self._lock:
            stream.synchronize()
            for slot, (offset, length) in zip(cycle(self._slots), _pieces(nbytes), strict=False):
                slot.wait()
                move(slot.address, source + offset, length)
                slot.user = stream.submit(self._engine, partial(move, target + offset, slot.address, length))

    def to_host(self, target: int, source: int, nbytes: int, stream: HostStream) -> None:
        """Return when all has arrived at ``target``."""
        with self._lock:
            staged: deque[tuple[Operation, int, int, int]] = deque()
            for slot, (offset, length) in zip(cycle(self._slots), _pieces(nbytes), strict=False):
                if len(staged) == SLOTS:
                    _take_out(*staged.popleft())
                slot.wait()
                slot.user = stream.submit(self._engine, partial(move, slot.address, source + offset, length))
                staged.append((slot.user, target + offset, slot.address, length))
            for piece in staged:
                _take_out(*piece)


def _pieces(nbytes: int) -> Iterator[tuple[int, int]]:
    """(offset, length) of the pieces that a copy is staged in."""
    for offset in range(0, nbytes, SLOT_BYTES):
        yield offset, min(SLOT_BYTES, nbytes - offset)


def _take_out(operation: Operation, target: int, slot: int, length: int) -> None:
    """Take one piece out of the ring once the engine has put it there."""
    operation.wait()
    move(target, slot, length)
