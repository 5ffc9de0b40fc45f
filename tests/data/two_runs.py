"""Two runs of the same thing, simulated over and over: how often the second one's figure lies within the first one's ±.

``print(coverage_table())`` makes the table of a release.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from itertools import product

import numpy as np

from pinscope.analysis.statistics import Summary, compared, measured, summarize
from pinscope.lab.harness import Harness, Precision
from pinscope.records.run import Quantity

SHAPES: Mapping[str, Callable[[float], float]] = {
    "normal": lambda z: 1 + 0.05 * z,
    "lognormal": lambda z: math.exp(0.25 * z),
    "exponential": lambda z: 1 - 0.1 * math.log(0.5 * math.erfc(z / math.sqrt(2))),
    "heavy tails": lambda z: 1 + 0.01 * math.sinh(1.5 * z),
}
"""A standard normal deviate → a repeat."""
COUNTS = (8, 10, 15, 30, 60)
CORRELATIONS = (0.0, 0.25, 0.45)
Take = Callable[[Iterator[float]], Summary]
"""Makes a run of endless repeats. It has no drift: what whole runs differ by is not simulated."""


def repeats(random: np.random.Generator, shape: str, correlation: float) -> Iterator[float]:
    """Repeats without end; each hangs together with the one before it."""
    kept, fresh, state = correlation, math.sqrt(1 - correlation**2), float(random.standard_normal())
    while True:
        yield SHAPES[shape](state)
        state = kept * state + fresh * float(random.standard_normal())


def fixed(count: int) -> Take:
    """So many repeats."""
    return lambda values: summarize([next(values) for _ in range(count)], drift=0.0)


def until_known(precision: float) -> Take:
    """As the harness repeats."""

    def take(values: Iterator[float]) -> Summary:
        taken: list[float] = []
        for turn in Harness().turns(Precision(relative=precision, most=60, seconds=1e9, warmups=0), taken):
            turn.count(next(values))
        return summarize(taken, drift=0.0)

    return take


def time_of(one: Summary, other: Summary) -> Quantity:
    """A median."""
    del other
    return measured("", one, "seconds")


def rate_of(one: Summary, other: Summary) -> Quantity:
    """What is made from a median."""
    del other
    return measured("", one, "bytes/second", 1 / one.median)


def ratio_of(one: Summary, other: Summary) -> Quantity:
    """One median over another one."""
    return compared("", one, other)


def share_of(one: Summary, other: Summary) -> Quantity:
    """A rate of two together over both of them alone: the one that is known less counts."""
    return compared("", one, other, "share", one.median / (2 * other.median))


KINDS = (time_of, rate_of, ratio_of, share_of)
"""Every figure that is shown with a ±, made of a summary, or of two."""


def coverage(
    kind: Callable[[Summary, Summary], Quantity], take: Take, shape: str, correlation: float, pairs: int
) -> float:
    """The share of pairs of runs of which the second figure lies within the ± of the first.

    What is not shown, as it may be off by more than itself, promises nothing.
    """
    random, held = np.random.default_rng(33), 0
    for _ in range(pairs):
        first, second = (kind(*(take(repeats(random, shape, correlation)) for _ in range(2))) for _ in range(2))
        if first.spread is None or second.spread is None:
            held += 1
            continue
        value, again = float(first.value or 0), float(second.value or 0)
        held += abs(again - value) <= first.spread * abs(value) * (1 + 1e-12)
    return held / pairs


def coverage_table(pairs: int = 2000) -> str:
    """Per cent of each kind, the least over all shapes and correlations: by number of repeats, and until known."""
    takes = {f"{count} repeats": fixed(count) for count in COUNTS}
    takes |= {f"until ± {precision:.0%}": until_known(precision) for precision in (0.02, 0.1, 0.5)}
    lines = [f"| | {' | '.join(kind.__name__.removesuffix('_of') for kind in KINDS)} |", "| --- " * 5 + "|"]
    for name, take in takes.items():
        cases = list(product(SHAPES, CORRELATIONS))
        least = [min(coverage(kind, take, *case, pairs) for case in cases) for kind in KINDS]
        lines.append(f"| {name} | {' | '.join(f'{share:.1%}' for share in least)} |")
    return "\n".join(lines)
