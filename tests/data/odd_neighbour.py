"""A stand-in for a neighbour that does to its first calls what its ``bus_id`` says, and makes no call of a driver."""

from __future__ import annotations

import sys
import time

from pinscope.experiments.pinning_strategy.cuda_neighbour import Neighbour, timed
from pinscope.lab.child_processes import Reply, serve_requests


class OddNeighbour(Neighbour):
    """``slow`` makes the first call of the kind ``info`` take 0.2 s; the others fail where they say."""

    def start(self) -> Reply:
        """As the neighbour's."""
        if self._bus_id == "fails at the start":
            sys.exit(1)
        pauses = [0.2] if (self._bus_id, self._kind) == ("slow", "info") else []
        self._wait = timed(lambda: time.sleep(pauses.pop() if pauses else 0.0))
        return {}

    def longest(self) -> Reply:
        """As the neighbour's."""
        if self._bus_id == "dies":
            sys.exit(0)
        if self._bus_id == "hangs":
            time.sleep(600)
        return super().longest()


if __name__ == "__main__":
    sys.exit(serve_requests(OddNeighbour))
