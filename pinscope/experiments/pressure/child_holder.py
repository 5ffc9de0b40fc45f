"""The process in the group that pins: a program that :mod:`pinscope.lab.child_processes` starts."""

from __future__ import annotations

import sys
from contextlib import ExitStack

from pinscope.experiments.pressure.ways import WAYS, WayName
from pinscope.lab.backing import touch
from pinscope.lab.child_processes import Reply, serve_requests
from pinscope.lab.harness import open_lab
from pinscope.lab.protocol import Lab


class Holder:
    """What it can do: each public method is an order.

    Args:
        place, seed: where it opens its lab.
    """

    def __init__(self, place: str, seed: int) -> None:
        self._lab = open_lab(place, seed)
        self._open, self._held = ExitStack(), ExitStack()

    def start(self) -> Reply:
        """Open the lab, and pin once: what a driver takes at the first use is no pinned memory."""
        lab = self._open.enter_context(self._lab)
        ways = [way for way in WAYS if lab.why_not(way) is None]
        with ExitStack() as stack:
            for way in ways:
                _pin(lab, stack, way, 2**21)
        return {"ways": ways}

    def pin(self, nbytes: int, way: WayName = "registered") -> Reply:
        """Pin so much more."""
        _pin(self._lab, self._held, way, nbytes)
        return {}

    def release(self) -> Reply:
        """Give all of it back."""
        self._held.close()
        return {}


def _pin(lab: Lab, held: ExitStack, way: WayName, nbytes: int) -> None:
    if way != "registered":
        held.enter_context(lab.host_buffer(nbytes, way))
        return
    memory = held.enter_context(lab.ordinary_memory(nbytes))
    touch(memory)  # before it is pinned: a limit is met here, where the kernel can still look for memory
    held.enter_context(lab.register(memory))


if __name__ == "__main__":
    sys.exit(serve_requests(Holder))
