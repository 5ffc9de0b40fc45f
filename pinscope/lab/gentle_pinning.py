"""Pinning in pieces so short that no call holds the driver longer than a limit; their length is measured as it goes.

While a call registers memory the driver lets no other call on the GPU proceed, in this process or in another. How long
that takes for a piece depends on the host, on the pages and on what else goes on, so no table of lengths would hold:
pieces of the memory itself are registered and unregistered, each twice as long as the last, until the next would take
more than a share of the limit. All of it is then pinned in pieces of that length, while threads still touch what comes
next. A piece that takes nearly all of the limit after all halves the ones after it.
"""

from __future__ import annotations

import os
import threading
import time
from array import array
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from pinscope.errors import NotPossible
from pinscope.lab.backing import HUGE_PAGE
from pinscope.lab.harness import Clock
from pinscope.lab.pinning import OnRelease, PinningCalls, Touching
from pinscope.units import format_bytes, format_seconds

LEAST_BYTES = HUGE_PAGE
"""Shortest piece."""
MOST_PARTS = 8
"""A piece is at most this part of all: longer ones leave too much to pin when the last page has been touched."""
SHARE = 0.4
"""Of the limit, what a call may take where it is measured: at times it takes twice as long."""
TOO_LONG = 0.75
"""Share of the limit from which on a piece was too long."""
TRIES = 3
"""Of a length, before it counts as too long: a single call may wait for a processor."""
PAUSE_SECONDS = 1e-4
"""Between two calls: who waited for the first goes before the second."""
OVERLAP = True
"""Pin while threads still touch, or after that."""
TOUCH_PRIORITY = "normal"
"""Of the threads that touch: normal, nice (10), idle (SCHED_IDLE)."""
SPARE = 0
"""Processors that no touching thread takes."""
IN_A_ROW = 2
"""So many pieces in a row that were too long halve the ones after them."""


@dataclass(frozen=True)
class GentlePinner:
    """Pins memory so that no call of it holds the driver longer than a limit.

    Attributes:
        calls: what pins.
        longest_wait: the limit, seconds.
        threads: how many touch.
        clock: seconds.
        sleep: waits so many seconds.
    """

    calls: PinningCalls
    longest_wait: float
    threads: int
    clock: Clock = time.perf_counter
    sleep: Callable[[float], None] = time.sleep

    def register(self, address: int, nbytes: int, on_release: OnRelease) -> int:
        """Touch and pin memory that is there.

        Args:
            address: where it begins.
            nbytes: its length.
            on_release: takes what undoes a registration, as soon as it has happened.

        Returns:
            Bytes of a piece: a power of two, to whose multiples a copy must keep. Each piece is that long or longer by
            a power of two, and begins at a multiple of its length; the last may be shorter.

        Raises:
            NotPossible: even the shortest piece takes longer than the limit.
        """
        pinned = array("Q")
        on_release(lambda _: self._unregister(pinned), address)
        late = 0
        with ThreadPoolExecutor(max(self.threads - SPARE, 1), initializer=_step_back) as pool:
            touching = Touching(pool, address, nbytes)
            if not OVERLAP:
                touching.finish(nbytes)
            length, at = self._suitable_length(address, nbytes, touching), 0
            while at < nbytes:
                piece = min(length, nbytes - at)
                touching.finish(at + piece)
                held = self._timed(self.calls.register, address + at, piece)
                pinned.append(address + at)
                at += piece
                late = late + 1 if held > TOO_LONG * self.longest_wait else 0
                if late == IN_A_ROW and length > LEAST_BYTES:
                    length, late = length // 2, 0
                self.sleep(PAUSE_SECONDS)
        return length

    def _suitable_length(self, address: int, nbytes: int, touching: Touching) -> int:
        """The longest piece, of powers of two, that is pinned and unpinned within the share of the limit."""
        length = LEAST_BYTES
        while True:
            held = self._held(address, min(length, nbytes), touching)
            if length == LEAST_BYTES and held > self.longest_wait:
                raise NotPossible(
                    f"pinning {format_bytes(min(length, nbytes))} holds the driver for {format_seconds(held)} here, "
                    f"longer than longest_wait ({format_seconds(self.longest_wait)}); allow more, or pin before "
                    "others work"
                )
            if held > SHARE * self.longest_wait and length > LEAST_BYTES:
                return length // 2
            if 2 * length * MOST_PARTS > nbytes or 2 * held > SHARE * self.longest_wait:
                return length
            length *= 2

    def _held(self, address: int, nbytes: int, touching: Touching) -> float:
        """Seconds for which pinning or unpinning so much holds the driver: of several tries the least."""
        touching.finish(nbytes)
        least = float("inf")
        for _ in range(TRIES):
            held = self._timed(self.calls.register, address, nbytes)
            self.sleep(PAUSE_SECONDS)
            held = max(held, self._timed(self.calls.unregister, address))
            self.sleep(PAUSE_SECONDS)
            least = min(least, held)
            if 2 * least <= SHARE * self.longest_wait:
                break
        return least

    def _timed(self, call: Callable[..., object], *arguments: int) -> float:
        begun = self.clock()
        call(*arguments)
        return self.clock() - begun

    def _unregister(self, pinned: array[int]) -> None:
        while pinned:
            self.calls.unregister(pinned.pop())
            self.sleep(PAUSE_SECONDS)


def _step_back() -> None:
    """The calling thread lets others go first."""
    if TOUCH_PRIORITY == "nice":
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 10)
    elif TOUCH_PRIORITY == "idle":
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
