"""Bandwidth arithmetic: cells of equal labels, the latency–bandwidth line, where pinning pays."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from pinscope.analysis.conclusions import exceeds, is_distinct, together
from pinscope.analysis.rows import Row, Rows, counted, grouped, summary
from pinscope.analysis.statistics import Summary, summarize

PAYS = 1.1
"""Pinning is said to pay from the size on at which pinned copies are at least this many times faster."""
PUBLISHED_BYTES = 16 * 2**20
PUBLISHED = {
    ("pageable", "h2d"): 10.203332e9,
    ("pageable", "d2h"): 11.236589e9,
    ("pinned", "h2d"): 11.884305e9,
    ("pinned", "d2h"): 11.935439e9,
}
"""Bytes/second of the table that started PinScope: GeForce RTX 2080 Ti, Core i9-9900K (Lei Mao, "Page-Locked Host
Memory for Data Transfer"). It is by Mark Harris's program, which copies 4·1024² floats, 16 MiB, and writes "Transfer
size (MB): 16"."""
PUBLISHED_STATE = ("4k", "cold")
"""The pageable memory of the published table's program: by malloc, which on Linux has small pages unless huge ones are
always used, and copied once after three more arrays of 16 MiB were written; the processor's caches hold 16 MiB."""
COMPARED = (PUBLISHED_STATE, ("thp", "cold"), ("4k", "warm"), ("thp", "warm"))
"""States of pageable memory in the order in which pinned memory is compared with them; the first that was measured."""


@dataclass(frozen=True, order=True)
class Line:
    """Labels that one curve over the size shares.

    Attributes:
        devices: how many GPUs copied at the same time.
        device: the GPU that these copies belong to.
        backing: what stands under the memory; empty where the run does not say.
        cache: ``cold`` or ``warm``; empty where content came from the device, or the run does not say.
    """

    memory: str
    direction: str
    copier: str
    devices: int
    device: int
    backing: str = ""
    cache: str = ""

    @property
    def state(self) -> str:
        """The memory and its state in words: ``pageable, 4k, cold``."""
        parts = (self.memory.replace("_", "-"), self.backing if self.memory == "pageable" else "", self.cache)
        return ", ".join(filter(None, parts))


@dataclass(frozen=True)
class Cell:
    """All repeats of one combination of labels.

    Attributes:
        line: what it shares with its neighbours.
        bytes: moved in each direction by one copy.
        one_copy: from an idle stream, seconds.
        one_more: each of many in a row, seconds. Runs of 0.1.0 have one copy only, with the call in it: that one.
        copies: how many in a row; 1: one copy is both.
        wall_seconds, issue_seconds: of one copy, seconds.
        h2d_seconds, d2h_seconds: each direction's own part of one copy; ``None`` where nothing went that way.
        wrong_words: words that did not arrive, over all repeats.
    """

    line: Line
    bytes: int
    one_copy: Summary
    one_more: Summary
    copies: int
    wall_seconds: Summary
    issue_seconds: Summary
    h2d_seconds: Summary | None
    d2h_seconds: Summary | None
    wrong_words: int

    @property
    def moved_bytes(self) -> int:
        """Bytes moved in all directions together."""
        return self.bytes * (2 if self.line.direction == "bidirectional" else 1)

    @property
    def bytes_per_second(self) -> float:
        """Median rate of one more copy, both directions together."""
        return self.moved_bytes / self.one_more.median

    @property
    def quartile_rates(self) -> tuple[float, float]:
        """Rates at the upper and the lower quartile of time: (slow, fast), bytes/second."""
        return (self.moved_bytes / self.one_more.upper_quartile, self.moved_bytes / self.one_more.lower_quartile)


@dataclass(frozen=True)
class LatencyFit:
    """The line t = α + n/β through what one more copy takes, along one curve.

    Attributes:
        alpha_seconds: time of one more empty copy.
        beta_bytes_per_second: rate of an endless copy.
        half_size_bytes: size at which a copy reaches half of β (n½ = α·β; Hockney & Jesshope,
            Parallel Computers 2, 1.3.3).
        r_squared: share of the logarithmic variance explained; below 0.98 the curve is no such line.
    """

    alpha_seconds: float
    beta_bytes_per_second: float
    half_size_bytes: float
    r_squared: float


def cells(rows: Rows) -> list[Cell]:
    """Counted repeats of a run's rows, grouped by labels, in the order of line and size."""
    groups = grouped(counted(rows), lambda row: (_line(row), row["bytes"]))
    return [_cell(line, size, groups[line, size]) for line, size in sorted(groups)]


def _line(row: Row) -> Line:
    names = ("memory", "direction", "copier", "devices", "device")
    backing, cache = row.get("backing") or "", row.get("cache") or ""
    return Line(**{name: row[name] for name in names}, backing=backing, cache=cache)


def _cell(line: Line, size: int, rows: Rows) -> Cell:
    one_copy = summarize([row["device_seconds"] for row in rows])
    return Cell(
        line=line,
        bytes=size,
        one_copy=one_copy,
        one_more=summary(rows, "one_more_seconds") or one_copy,
        copies=rows[0].get("one_more_copies") or 1,
        wall_seconds=summarize([row["wall_seconds"] for row in rows]),
        issue_seconds=summarize([row["issue_seconds"] for row in rows]),
        h2d_seconds=summary(rows, "h2d_seconds"),
        d2h_seconds=summary(rows, "d2h_seconds"),
        wrong_words=sum(row["wrong_words"] for row in rows),
    )


def by_line(all_cells: Iterable[Cell]) -> dict[Line, list[Cell]]:
    """Cells of each curve, ascending in size."""
    return grouped(sorted(all_cells, key=lambda cell: (cell.line, cell.bytes)), lambda cell: cell.line)


def fit_latency(curve: Sequence[Cell]) -> LatencyFit | None:
    """Least squares of relative error through a curve's medians; ``None`` below three sizes or for a falling line.

    Weighting by 1/t makes a microsecond copy count as much as a second-long one.
    """
    if len(curve) < 3:
        return None
    sizes = np.array([cell.moved_bytes for cell in curve], dtype=float)
    times = np.array([cell.one_more.median for cell in curve])
    design = np.stack([1 / times, sizes / times], axis=1)
    (alpha, inverse_beta), *_ = np.linalg.lstsq(design, np.ones_like(times), rcond=None)
    if alpha <= 0 or inverse_beta <= 0:
        return None
    logs = np.log(times)
    residual = logs - np.log(alpha + sizes * inverse_beta)
    variance = float(np.sum((logs - logs.mean()) ** 2))
    r_squared = 1 - float(np.sum(residual**2)) / variance if variance else 0.0
    return LatencyFit(float(alpha), float(1 / inverse_beta), float(alpha / inverse_beta), r_squared)


def speedups(fast: Sequence[Cell], slow: Sequence[Cell]) -> list[tuple[int, float]]:
    """(bytes, rate of ``fast`` ÷ rate of ``slow``) for the sizes that both curves have."""
    rates = {cell.bytes: cell.bytes_per_second for cell in slow}
    return [(cell.bytes, cell.bytes_per_second / rates[cell.bytes]) for cell in fast if cell.bytes in rates]


def pays_from(ratios: Sequence[tuple[int, float]]) -> int | None:
    """Smallest size from which on every larger one is at least ``PAYS`` times faster; ``None`` if none."""
    start = None
    for size, ratio in sorted(ratios):
        if ratio < PAYS:
            start = None
        elif start is None:
            start = size
    return start


Curves = Mapping[Line, Sequence[Cell]]


def curve_of(
    curves: Curves, memory: str, direction: str, copier: str = "engine", cache: str | None = None
) -> Sequence[Cell]:
    """The curve of a single GPU with these labels; empty if it was not measured.

    Of several states of the memory it is the one that is compared, or that with this ``cache``.
    """
    found = [
        line
        for line in curves
        if (line.memory, line.direction, line.copier, line.devices) == (memory, direction, copier, 1)
        and cache in (None, line.cache)
    ]
    chosen = min(found, key=_rank, default=None)
    return curves[chosen] if chosen else ()


def _rank(line: Line) -> int:
    state = (line.backing, line.cache)
    return COMPARED.index(state) if state in COMPARED else -1 if not line.cache else len(COMPARED)


def compared(curves: Curves) -> dict[Line, Sequence[Cell]]:
    """Of each kind of memory, direction and copier the curve that is compared."""
    return {line: curve for line, curve in curves.items() if curve is curve_of(curves, *_labels(line))}


def _labels(line: Line) -> tuple[str, str, str]:
    return line.memory, line.direction, line.copier


def nearest_published(curve: Sequence[Cell]) -> Cell | None:
    """The cell whose size is nearest to the published 16 MiB, within a factor of two."""
    near = [cell for cell in curve if PUBLISHED_BYTES / 2 <= cell.bytes <= PUBLISHED_BYTES * 2]
    return min(near, key=lambda cell: abs(cell.bytes - PUBLISHED_BYTES), default=None)


@dataclass(frozen=True)
class Gain:
    """Pinned copies against pageable ones, at the largest size that both have.

    Attributes:
        pinned, pageable: what is compared.
        uncertainty: how far the ratio may be off, relative to it.
        smallest: the smallest size that both have.
        start: the size from which on pinned copies are faster; ``None`` where they are not.
    """

    pinned: Cell
    pageable: Cell
    ratio: float
    uncertainty: float
    smallest: int
    start: int | None

    @property
    def bytes(self) -> int:
        """The size at which they are compared."""
        return self.pinned.bytes

    @property
    def is_distinct(self) -> bool:
        """Whether the ratio is farther from 1 than it may be off."""
        return is_distinct(self.ratio, self.uncertainty)


def gain(curves: Curves, direction: str) -> Gain | None:
    """Pinned copies by the engine against pageable ones; ``None`` where no size was measured of both."""
    pinned, pageable = curve_of(curves, "pinned", direction), curve_of(curves, "pageable", direction)
    slower = {cell.bytes: cell for cell in pageable}
    pairs = [(cell, slower[cell.bytes]) for cell in pinned if cell.bytes in slower]
    if not pairs:
        return None
    # A size at which the two are not told apart is none from which pinned copies are faster.
    ratios = [
        fast.bytes_per_second / slow.bytes_per_second if exceeds(slow.one_more, fast.one_more) else 1.0
        for fast, slow in pairs
    ]
    start = pays_from([(fast.bytes, ratio) for (fast, _), ratio in zip(pairs, ratios, strict=True)])
    fast, slow = pairs[-1]
    ratio = fast.bytes_per_second / slow.bytes_per_second
    return Gain(fast, slow, ratio, together(fast.one_more, slow.one_more), pairs[0][0].bytes, start)
