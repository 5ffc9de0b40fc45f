"""A program that serves: the calls that it makes again and again, each timed, while a thread does other work."""

from __future__ import annotations

import gc
from array import array
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from pinscope.lab.harness import Clock

ROUND = "round"
"""All calls once, with what the loop itself takes."""
_Result = TypeVar("_Result")


@dataclass(frozen=True)
class Served:
    """What the loop saw while the work went on, in seconds.

    Attributes:
        rounds: how often all calls were made.
        longest: call, or ``round`` → the longest.
        typical: likewise, the median.
    """

    rounds: int
    longest: Mapping[str, float]
    typical: Mapping[str, float]


def serve_during(
    work: Callable[[], _Result], calls: Mapping[str, Callable[[], object]], clock: Clock
) -> tuple[_Result, float, Served]:
    """Do the work in a thread of its own and make the calls meanwhile, one round at least.

    Returns:
        What the work gave, the seconds that it took, and what the calls took.
    """

    def timed() -> tuple[_Result, float]:
        begun = clock()
        result = work()
        return result, clock() - begun

    stamps, chosen = array("d"), tuple(calls.values())
    with _nothing_collected(), ThreadPoolExecutor(1) as pool:
        going = pool.submit(timed)
        while True:
            stamps.append(clock())
            for call in chosen:
                call()
                stamps.append(clock())
            if going.done():
                break
        stamps.append(clock())
    return *going.result(), _served(stamps, tuple(calls))


@contextmanager
def _nothing_collected() -> Iterator[None]:
    """Python's search for circular garbage holds its lock for 25 ms in a process as large as this: not meanwhile."""
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def _served(stamps: array[float], names: tuple[str, ...]) -> Served:
    """Of each round its begin and the end of each call; then the end of all."""
    rounds = np.asarray(stamps[:-1]).reshape(-1, len(names) + 1)
    took = dict(zip(names, np.diff(rounds, axis=1).T, strict=True))
    took[ROUND] = np.diff(np.append(rounds[:, 0], stamps[-1]))
    return Served(
        len(rounds),
        {name: float(seconds.max()) for name, seconds in took.items()},
        {name: float(np.median(seconds)) for name, seconds in took.items()},
    )
