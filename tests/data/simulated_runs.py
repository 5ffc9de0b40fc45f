"""Runs of ``bandwidth`` on one host, simulated with what six runs of an H100 differed by (DESIGN: "± means").

Medians of whole runs differ by a standard deviation of 0.1 to 0.7 % (pinned; 1.6 % at 64 MiB to the GPU), 2 to 5 %
(pageable from 64 KiB on) and 10 to 15 % (pageable 4 KiB); neighbouring repeats hang together by 0.26 and 0.45.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from random import Random

from pinscope.analysis.comparison import Measured, Side
from pinscope.analysis.statistics import DRIFT, PAGEABLE_DRIFT, SHORT_DRIFT, summarize
from pinscope.experiments.bandwidth.reading import Cell
from pinscope.records.run import Run
from tests.unit.store.runs import new_run

SIZES = [4096 * 4**power for power in range(10)]
KINDS = ("pageable", "pinned", "registered", "write_combined", "mapped")
TICK = 32e-9
Slower = Callable[[str, int], float]
"""Memory and size → how many times as long a copy takes."""


def as_it_is(memory: str, size: int) -> float:
    del memory, size
    return 1.0


class Host:
    """A host, and runs on it: each of its 150 cells differs from run to run by its own standard deviation."""

    def __init__(self, seed: int) -> None:
        self._random = random = Random(seed)
        self.cells = [
            (memory, way, size, self._deviation(memory, way, size, random))
            for memory in KINDS
            for way in ("h2d", "d2h", "bidirectional")
            for size in SIZES
        ]

    @staticmethod
    def _deviation(memory: str, way: str, size: int, random: Random) -> float:
        if memory == "pageable":
            return random.uniform(0.10, 0.15) if size == SIZES[0] else random.uniform(0.02, 0.05)
        return 0.016 if (way, size) == ("h2d", 2**26) else random.uniform(0.001, 0.007)

    def run(self, slower: Slower = as_it_is, run: Run | None = None) -> Measured:
        """One more run."""
        cells = []
        for memory, way, size, deviation in self.cells:
            is_pageable = memory == "pageable"
            level = (2e-6 + size / (12e9 if is_pageable else 55e9)) * slower(memory, size)
            level *= math.exp(deviation * self._random.gauss(0, 1))
            times = summarize(
                self._repeats(level, *((0.45, 0.05) if is_pageable else (0.26, 0.004))),
                PAGEABLE_DRIFT if is_pageable else DRIFT,
                SHORT_DRIFT,
            )
            pages = "4k" if is_pageable else None
            cells.append(Cell(memory, pages, None, way, "engine", size, 0, 1, times, 1, times, times, times, 0))
        return Measured(run or new_run(status="done"), cells)

    def _repeats(self, level: float, correlation: float, noise: float) -> list[float]:
        state, repeats = self._random.gauss(0, 1), []
        for _ in range(15):
            state = correlation * state + math.sqrt(1 - correlation**2) * self._random.gauss(0, 1)
            repeats.append(round(level * math.exp(noise * state) / TICK) * TICK)
        return repeats

    def side(self, name: str, runs: int, slower: Slower = as_it_is) -> Side:
        """So many runs."""
        return Side(name, [self.run(slower) for _ in range(runs)])
