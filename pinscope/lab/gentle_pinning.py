"""Pinning in pieces so short that no call on the GPU waits longer than a limit; their length is measured as it goes.

While a call registers memory the driver lets no other call on the GPU proceed, in this process or in another. How long
that takes for a piece depends on the host and on the pages, so no table of lengths would hold: pieces of the memory
itself are registered and unregistered, each twice as long as the last, until the next would take more than a share of
the limit. All of it is then pinned in pieces of that length, while threads still touch what comes next.

Some processors stay free of touching. Where all of them touch, a thread that wakes up waits 4 to 9 ms for a processor,
also one that holds the driver or serves (measured on an H200 with 16 processors; a lower priority of the touching
threads did not help).
"""

from __future__ import annotations

import time
from array import array
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from pinscope.lab.backing import HUGE_PAGE
from pinscope.lab.harness import Clock
from pinscope.lab.pinning import OnRelease, PinningCalls, Touching

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
"""Of a length, before it counts as too long, for the same reason."""
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
