"""Strategies to pin a lot of host memory: what stands under it, who touches it, and in which pieces it is pinned.

The time goes into faulting and zeroing pages, not into pinning them: several threads touch huge pages many times
faster than the driver does it page by page. Pinning in pieces lets other processes on the GPU in between; the price
is that no copy may cross from one piece into the next (CUDA answers cudaErrorInvalidValue).
"""

from __future__ import annotations

import ctypes
import os
import time
from array import array
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from pinscope.lab.backing import HUGE_PAGE, PAGE, OwnMemory
from pinscope.lab.harness import Clock
from pinscope.records.registration import Strategy

TOUCH_BYTES = 64 * 2**20
"""What one thread touches at a time: whole huge pages, and enough of them that handing out work costs nothing."""

OnRelease = Callable[[Callable[[int], None], int], object]
Touch = Callable[[int, int], None]
"""Uses every page of so many bytes at an address."""


class PinningCalls(Protocol):
    """The calls that pin memory for one GPU; any thread may make them."""

    @property
    def can_register(self) -> bool:
        """False where only memory that the driver allocates can be pinned."""
        ...

    def allocate(self, nbytes: int) -> int:
        """Address of new pinned memory."""
        ...

    def free(self, address: int) -> None: ...
    def register(self, address: int, nbytes: int) -> None:
        """Pin memory where it is."""
        ...

    def unregister(self, address: int) -> None: ...
    def synchronize(self) -> None:
        """Wait until the GPU has done all that was queued on it."""
        ...


@dataclass
class Pinned:
    """Pinned memory, and how long getting it took (seconds).

    Attributes:
        pieces: (address, bytes) of each part that was pinned by one call.
        touch_seconds: until every page was touched; ``None`` where pinning does it, or both go on at once.
        pin_seconds: until all was pinned after that.
    """

    pieces: list[tuple[int, int]] = field(default_factory=list)
    touch_seconds: float | None = None
    pin_seconds: float = 0.0


def default_threads(spare: int = 0) -> int:
    """Processors that this process may use, but for some to spare; 16 at most: from there on memory sets the pace."""
    return min(max(len(os.sched_getaffinity(0)) - spare, 1), 16)


@dataclass(frozen=True)
class Pinner:
    """Pins memory by one strategy.

    Attributes:
        strategy: how.
        calls: what pins.
        chunk: length of a piece where the strategy makes several.
        threads: how many touch (and register, where several do).
        clock: seconds.
    """

    strategy: Strategy
    calls: PinningCalls
    chunk: int | None
    threads: int
    clock: Clock = time.perf_counter

    @contextmanager
    def pinned(self, nbytes: int) -> Iterator[Pinned]:
        """Pinned memory; unpinned and given back when it closes, also if pinning breaks off half way.

        Raises:
            NotEnoughMemory: it cannot be had.
            MeasurementFailed: the driver refuses it for another reason.
        """
        held = Pinned()
        with ExitStack() as stack:
            begun = self.clock()
            if self.strategy.backing is None:
                for _, length in self._pieces(nbytes):
                    address = self.calls.allocate(length)
                    stack.callback(self.calls.free, address)
                    held.pieces.append((address, length))
            else:
                mapping = stack.enter_context(OwnMemory(nbytes, self.strategy.backing))
                held.touch_seconds = self.register(mapping.address, nbytes, held.pieces, stack.callback)
            held.pin_seconds = self.clock() - begun - (held.touch_seconds or 0.0)
            yield held

    def register(self, address: int, nbytes: int, pieces: list[tuple[int, int]], on_release: OnRelease) -> float | None:
        """Touch and pin memory that is there.

        Args:
            address: where it begins.
            nbytes: its length.
            pieces: takes (address, bytes) of what each call pinned.
            on_release: takes what undoes a registration, as soon as it has happened.

        Returns:
            Seconds until every page was touched; ``None`` where that is no step of its own.
        """

        def register(piece: tuple[int, int]) -> None:
            at, length = piece
            self.calls.register(address + at, length)
            on_release(self.calls.unregister, address + at)
            pieces.append((address + at, length))

        wanted = self._pieces(nbytes)
        with ThreadPoolExecutor(self.threads) as pool:
            begun = self.clock()
            touching = Touching(pool, address, nbytes if self.strategy.touched else 0)
            if self.strategy.registering == "pipeline":
                for at, length in wanted:
                    touching.finish(at + length)
                    register((at, length))
                return None
            touching.finish(nbytes)
            touched = self.clock() - begun
            if self.strategy.registering == "threads":
                futures = [pool.submit(register, piece) for piece in wanted]
                wait(futures)  # all, before what one of them raised is raised
                for future in futures:
                    future.result()
                pieces.sort()
            else:
                for piece in wanted:
                    register(piece)
        return touched if self.strategy.touched else None

    def _pieces(self, nbytes: int) -> list[tuple[int, int]]:
        """(offset, length) of what one call pins."""
        step = self.chunk if self.strategy.chunked and self.chunk else nbytes
        return [(at, min(step, nbytes - at)) for at in range(0, nbytes, step)]


class Touching:
    """Threads that write to every page of a stretch of memory, from its beginning on.

    Args:
        pool: the threads.
        address: where the memory begins.
        nbytes: its length.
        touch: what they do with a part.
    """

    def __init__(self, pool: ThreadPoolExecutor, address: int, nbytes: int, touch: Touch | None = None) -> None:
        self._parts = deque(
            (at, pool.submit(touch or touch_pages, address + at, min(TOUCH_BYTES, nbytes - at)))
            for at in range(0, nbytes, TOUCH_BYTES)
        )

    def finish(self, nbytes: int) -> None:
        """Wait until so many bytes from the beginning on are touched; raises what a thread raised."""
        while self._parts and self._parts[0][0] < nbytes:
            self._parts.popleft()[1].result()


def touch_all(address: int, nbytes: int, threads: int, touch: Touch | None = None) -> None:
    """Touch all of a stretch of memory with several threads."""
    with ThreadPoolExecutor(threads) as pool:
        Touching(pool, address, nbytes, touch).finish(nbytes)


def touch_pages(address: int, nbytes: int) -> None:
    """Write one byte of every page, so that each is backed by memory. Other threads run meanwhile."""
    memory = np.ctypeslib.as_array((ctypes.c_uint8 * nbytes).from_address(address))
    memory[::PAGE] = 0


def read_pages(address: int, nbytes: int) -> None:
    """Read one byte of every page, so that this process maps what another has touched. Other threads run meanwhile."""
    np.ctypeslib.as_array((ctypes.c_uint8 * nbytes).from_address(address))[::PAGE].max()


LEAST_BYTES = HUGE_PAGE
"""Shortest piece."""
MOST_PARTS = 8
"""A piece is at most this part of all: longer ones leave too much to pin when the last page has been touched."""
SHARE = 0.25
"""Part of the limit that a call may take when its length is tried: at times another call waits for three in a row."""
TOO_LONG = 0.5
"""Share of the limit from which on a piece was too long."""
IN_A_ROW = 2
"""So many pieces that were too long halve those after them. A single one may have waited for something else, which
shorter pieces would not help."""
TRIES = 3
"""So often a length is tried before it counts as too long, for the same reason."""
PAUSE_SECONDS = 2e-4
"""Between two calls: a call that waited for the first then goes before the second."""
SPARE_PROCESSORS = 3
"""On which nothing touches: one for the thread that pins, one for the one that serves, one for the system."""


@dataclass
class Pieces:
    """The pieces in which memory was pinned.

    Attributes:
        chunk: bytes to whose multiples, from the beginning, a copy must keep; ``None`` where any copy may be made.
        longest_call: seconds of the longest call that pinned one, or tried its length; ``None`` where none was timed.
    """

    chunk: int | None = None
    longest_call: float | None = None


@dataclass
class GentlePinner:
    """Pins memory once, so that no call of it holds the driver longer than a limit.

    Attributes:
        calls: what pins.
        longest_wait: the limit, seconds.
        threads: how many touch.
        clock: seconds.
        sleep: waits so many seconds.
        longest_call: seconds, so far.
    """

    calls: PinningCalls
    longest_wait: float
    threads: int
    clock: Clock = time.perf_counter
    sleep: Callable[[float], None] = time.sleep
    longest_call: float = 0.0

    def register(self, address: int, nbytes: int, on_release: OnRelease) -> Pieces:
        """Touch and pin memory that is there. Where the limit is not kept, ``longest_call`` is above it.

        Args:
            address: where it begins.
            nbytes: its length.
            on_release: takes what undoes it, before anything is pinned.

        Returns:
            How it was pinned. Each piece is as long as the chunk, a power of two, or longer by a power of two, and
            begins at a multiple of its length; the last may be shorter.
        """
        pieces = array("Q")  # thousands of callbacks would have Python search for garbage: that stops all for 25 ms
        on_release(lambda _: self._unregister(pieces), address)
        with ThreadPoolExecutor(self.threads) as pool:
            touching = Touching(pool, address, nbytes)
            length, at, late = self._suitable_length(address, nbytes, touching), 0, 0
            while at < nbytes:
                piece = min(length, nbytes - at)
                touching.finish(at + piece)
                held = self._timed(self.calls.register, address + at, piece)
                pieces.append(address + at)
                at += piece
                late = late + 1 if held > TOO_LONG * self.longest_wait else 0
                if late == IN_A_ROW and length > LEAST_BYTES:
                    length, late = length // 2, 0
        return Pieces(length, self.longest_call)

    def _suitable_length(self, address: int, nbytes: int, touching: Touching) -> int:
        """The longest piece, of powers of two, that is pinned and unpinned within the share of the limit."""
        length, share = LEAST_BYTES, SHARE * self.longest_wait
        while True:
            held = self._held(address, min(length, nbytes), touching)
            if held > share and length > LEAST_BYTES:
                return length // 2
            if 2 * length * MOST_PARTS > nbytes or 2 * held > share:
                return length
            length *= 2

    def _held(self, address: int, nbytes: int, touching: Touching) -> float:
        """Seconds for which pinning or unpinning so much holds the driver: of several tries the least."""
        touching.finish(nbytes)
        least = float("inf")
        for _ in range(TRIES):
            held = self._timed(self.calls.register, address, nbytes)
            least = min(least, max(held, self._timed(self.calls.unregister, address)))
            if 2 * least <= SHARE * self.longest_wait:
                break
        return least

    def _timed(self, call: Callable[..., object], *arguments: int) -> float:
        """Seconds of the call; after it others go first."""
        begun = self.clock()
        call(*arguments)
        held = self.clock() - begun
        self.longest_call = max(self.longest_call, held)
        self.sleep(PAUSE_SECONDS)
        return held

    def _unregister(self, pieces: array[int]) -> None:
        """Unpin all, also where one fails; the last failure is raised."""
        failure: Exception | None = None
        while pieces:
            try:
                self.calls.unregister(pieces.pop())
            except Exception as error:  # noqa: BLE001 - whatever it is, the others are unpinned
                failure = error
            self.sleep(PAUSE_SECONDS)
        if failure is not None:
            raise failure
