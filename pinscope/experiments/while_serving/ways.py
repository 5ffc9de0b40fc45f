"""The ways to pin beside a program that serves, and the calls that it makes meanwhile."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Literal

from pinscope.analysis.cells import LineStyle, Way, way
from pinscope.analysis.pinning_strategy import default_strategy
from pinscope.lab.backing import OwnMemory, why_not_backing
from pinscope.lab.pinned_array import AUTO, pinned_empty
from pinscope.lab.pinning import Pinner, PinningCalls, touch_all
from pinscope.records.registration import STRATEGIES, Strategy

WayName = Literal["touch", "host_alloc", "register", "chunks", "auto"]
"""A key of :data:`WAYS`."""
WAYS: Mapping[str, Way] = {
    "touch": way("only touching", help="a control, threads touch memory and nothing is pinned"),
    "host_alloc": way("one cudaHostAlloc", style=LineStyle("pinned", "diamond", size=12), help="one cudaHostAlloc"),
    "register": way("one registration", help="threads touch all memory, then one call registers it"),
    "chunks": way("chunks", help="each chunk is registered as soon as it is touched"),
    "auto": way('chunk="auto"', style=LineStyle("copy", "star", size=15), help='pinned_empty(chunk="auto")'),
}
CALLS: Mapping[str, Way] = {
    "launch": way("kernel launch", style=LineStyle("issue")),
    "copy": way("asynchronous copy", style=LineStyle("copy", "triangle-down")),
    "query": way("event record and query", style=LineStyle("compute", "square")),
    "synchronize": way("stream synchronize", style=LineStyle("stall", "diamond")),
}
"""Calls of a round, by the part of an observation's field that names them."""


@dataclass(frozen=True)
class Taken:
    """Memory that one way has taken."""

    address: int
    chunk: int | None
    pinned: bool | None


@dataclass(frozen=True)
class Apparatus:
    """Takes memory in each way.

    Attributes:
        longest_wait: seconds that a call of the program that serves may take.
    """

    size: int
    longest_wait: float
    threads: int
    calls: PinningCalls
    is_pinned: Callable[[int], bool]

    def taken(self, way: WayName, chunk: int | None) -> AbstractContextManager[Taken]:
        """The memory; given back when it closes. Any thread may enter and close it."""
        if way == "touch":
            return self._touched()
        if way == "auto":
            return self._by_pinned_empty()
        strategy = STRATEGIES["host_alloc"] if way == "host_alloc" else self._registering(chunked=chunk is not None)
        return self._pinned(Pinner(strategy, self.calls, chunk, self.threads))

    def _registering(self, chunked: bool) -> Strategy:
        """As ``pinned_empty`` does where no strategy is named."""
        return default_strategy(chunked, huge_pages=why_not_backing("thp") is None)

    @contextmanager
    def _touched(self) -> Iterator[Taken]:
        backing = self._registering(chunked=False).backing
        with OwnMemory(self.size, backing) as memory:
            touch_all(memory.address, self.size, self.threads)
            yield Taken(memory.address, None, None)

    @contextmanager
    def _pinned(self, pinner: Pinner) -> Iterator[Taken]:
        with pinner.pinned(self.size) as held:
            yield Taken(held.pieces[0][0], pinner.chunk, self._ends_pinned(held.pieces[0][0]))

    @contextmanager
    def _by_pinned_empty(self) -> Iterator[Taken]:
        array = pinned_empty(
            self.size, chunk=AUTO, longest_wait=self.longest_wait, threads=self.threads, calls=self.calls
        )
        with array:
            yield Taken(array.ctypes.data, array.chunk, self._ends_pinned(array.ctypes.data))
        del array  # its memory goes back here, in the thread that is timed

    def _ends_pinned(self, address: int) -> bool:
        return self.is_pinned(address) and self.is_pinned(address + self.size - 1)
