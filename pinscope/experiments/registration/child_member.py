"""One of several processes that share host memory: a program that :mod:`pinscope.lab.child_processes` starts.

It opens a lab of its own (on a GPU: a context of its own), then carries out orders.
"""

from __future__ import annotations

import sys
import time
from contextlib import ExitStack

from pinscope.lab.backing import touch
from pinscope.lab.first_use import use_each_part_once
from pinscope.lab.opening import open_lab
from pinscope.lab.orders import Reply, obey
from pinscope.lab.pattern import WORD_BYTES, Pattern
from pinscope.lab.protocol import DeviceBuffer, HostBuffer
from pinscope.probes.memory import page_table_bytes


class Member:
    """What one process holds and can do: each public method is an order.

    Args:
        rank: its number, from 0.
        place, seed: where it opens its lab, with which content.
        descriptor: of the memory that all share.
        nbytes: how long that is.
    """

    def __init__(self, rank: int, place: str, seed: int, descriptor: int, nbytes: int) -> None:
        self._rank, self._descriptor, self._nbytes = rank, descriptor, nbytes
        self._lab = open_lab(place, seed)
        self._held = ExitStack()
        self._targets: dict[int, DeviceBuffer] = {}
        self._source: HostBuffer | None = None

    def start(self) -> Reply:
        """Open the lab, and use each part of it once."""
        use_each_part_once(self._held.enter_context(self._lab))
        return {"kernel_tables": page_table_bytes().value}

    def export(self, nbytes: int) -> Reply:
        """Take device memory that others can reach."""
        buffer, handle = self._held.enter_context(self._lab.exported_buffer(nbytes))
        self._targets[self._rank] = buffer
        return {"handle": handle, "kernel_tables": page_table_bytes().value}

    def reach(self, handles: dict[str, str], nbytes: int) -> Reply:
        """Open the device memory of others, by rank."""
        for rank, handle in handles.items():
            self._targets[int(rank)] = self._held.enter_context(self._lab.imported_buffer(handle, nbytes))
        return {"kernel_tables": page_table_bytes().value}

    def register(self, first: bool, portable: bool = False) -> Reply:
        """Map the shared memory and pin it, for all contexts or not; the first process touches it before."""
        memory = self._held.enter_context(self._lab.ordinary_memory(self._nbytes, descriptor=self._descriptor))
        begun = time.monotonic()
        if first:
            touch(memory)
        touched = time.monotonic()
        self._source = self._held.enter_context(self._lab.register(memory, portable))
        return self._pinned(touched, touched - begun if first else None)

    def own(self) -> Reply:
        """Allocate pinned memory that nobody else maps."""
        begun = time.monotonic()
        self._source = self._held.enter_context(self._lab.host_buffer(self._nbytes, "pinned"))
        return self._pinned(begun, None)

    def _pinned(self, begun: float, touch_seconds: float | None) -> Reply:
        pinning = {"touch_seconds": touch_seconds, "pin_seconds": time.monotonic() - begun}
        return pinning | {"kernel_tables": page_table_bytes().value, "nodes": self._lab.host_nodes.take()}

    def fill(self, offset: int, key: int) -> Reply:
        """Lay the pattern over the host memory."""
        self._lab.fill(self._host(), Pattern(offset, key))
        return {}

    def clear(self) -> Reply:
        """Make the own device memory differ from whatever comes."""
        self._lab.fill(self._targets[self._rank], self._lab.fresh_pattern())
        return {}

    def copy(self, starts: dict[str, int]) -> Reply:
        """Copy all of the host memory through each target, window by window from its start; all at once."""
        source = self._host()
        with ExitStack() as stack:
            jobs = [
                (self._targets[int(rank)], start, stack.enter_context(self._lab.stream()))
                for rank, start in starts.items()
            ]
            window = jobs[0][0].nbytes
            count = self._nbytes // window
            begun = time.monotonic()
            for number in range(count):
                for target, start, stream in jobs:
                    part = source.part((start + number) % count * window, window)
                    self._lab.copy_to_device(target, part, stream)
            for _, _, stream in jobs:
                stream.synchronize()
            ended = time.monotonic()
        return {"begun": begun, "ended": ended, "copied": count * window}

    def check(self, start: int, offset: int, key: int) -> Reply:
        """Compare the own device memory with the window that was copied there last."""
        target = self._targets[self._rank]
        count = self._nbytes // target.nbytes
        last = (start + count - 1) % count * target.nbytes
        wrong = self._lab.wrong_words(target, Pattern(offset + last // WORD_BYTES, key))
        return {"wrong": wrong, "checked": target.nbytes // WORD_BYTES}

    def end(self) -> Reply:
        """Give everything back."""
        self._held.close()
        return {}

    def _host(self) -> HostBuffer:
        if self._source is None:
            raise ValueError("nothing is pinned yet")
        return self._source


if __name__ == "__main__":
    sys.exit(obey(Member))
