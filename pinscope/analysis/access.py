"""Ways to use data that lies on the host: time over uses and over the share that is used, and where ways cross."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from pinscope.analysis.statistics import Summary, summarize

WAY_TITLES: Mapping[str, str] = {
    "copy": "explicit copy",
    "mapped": "zero-copy (mapped)",
    "managed": "managed, on demand",
    "prefetched": "managed, prefetched",
}
PATTERN_TITLES: Mapping[str, str] = {
    "stream_read": "streaming read",
    "stream_write": "streaming write",
    "random_read": "random read",
    "scatter_write": "scatter write",
}
_LABELS = ("way", "pattern", "bytes", "spacing", "uses", "touched_bytes")
CLEAR = 1.1
"""A way wins where the others take at least this many times as long; closer ones are equals."""


@dataclass(frozen=True)
class Cell:
    """All repeats of one combination.

    Attributes:
        way, pattern: how, and what.
        bytes: length of the data.
        spacing: one block or word of so many is used.
        uses: how often.
        touched_bytes: by one use.
        wall_seconds, device_seconds: medians with spread.
        wrong: repeats whose result was not right.
    """

    way: str
    pattern: str
    bytes: int
    spacing: int
    uses: int
    touched_bytes: int
    wall_seconds: Summary
    device_seconds: Summary
    wrong: int

    @property
    def useful_bytes_per_second(self) -> float:
        """What the kernel used, over the time until the result was there."""
        return self.touched_bytes * self.uses / self.wall_seconds.median


def cells(rows: Iterable[Mapping[str, Any]]) -> list[Cell]:
    """Counted repeats, grouped; in the order measured."""
    groups: dict[tuple[Any, ...], list[Mapping[str, Any]]] = {}
    for row in rows:
        if not row["warmup"]:
            groups.setdefault(tuple(row[name] for name in _LABELS), []).append(row)
    return [_cell(group) for group in groups.values()]


def _cell(rows: Sequence[Mapping[str, Any]]) -> Cell:
    return Cell(
        **{name: rows[0][name] for name in _LABELS},
        wall_seconds=summarize([row["wall_seconds"] for row in rows]),
        device_seconds=summarize([row["device_seconds"] for row in rows]),
        wrong=sum(not row["intact"] for row in rows),
    )


def over_uses(found: Sequence[Cell], pattern: str, spacing: int) -> dict[str, list[Cell]]:
    """Way → its cells over the number of uses, ascending."""
    return _curves([cell for cell in found if (cell.pattern, cell.spacing) == (pattern, spacing)], "uses")


def over_spacing(found: Sequence[Cell], pattern: str, uses: int) -> dict[str, list[Cell]]:
    """Way → its cells over the spacing, ascending."""
    return _curves([cell for cell in found if (cell.pattern, cell.uses) == (pattern, uses)], "spacing")


def _curves(found: Sequence[Cell], by: str) -> dict[str, list[Cell]]:
    curves: dict[str, list[Cell]] = {}
    for cell in sorted(found, key=lambda one: int(getattr(one, by))):
        curves.setdefault(cell.way, []).append(cell)
    return curves


def winners(found: Sequence[Cell]) -> list[Cell]:
    """Of cells that differ in the way only: the fastest, and those that are as good as that; fastest first."""
    ranked = sorted(found, key=lambda cell: cell.wall_seconds.median)
    return [cell for cell in ranked if cell.wall_seconds.median < CLEAR * ranked[0].wall_seconds.median]


def crossing(one: Sequence[Cell], other: Sequence[Cell], by: str) -> float | None:
    """Where the curve ``one`` falls behind ``other``: uses or spacing, between two measured points.

    Between the points both are taken as straight lines in logarithms (the ratio of times changes by a power).
    ``None`` if one of them leads everywhere.

    Args:
        one, other: cells of two ways, ascending in ``by``.
        by: ``uses`` or ``spacing``.
    """
    theirs = {getattr(cell, by): cell.wall_seconds.median for cell in other}
    points = [
        (float(getattr(cell, by)), math.log(cell.wall_seconds.median / theirs[getattr(cell, by)]))
        for cell in one
        if getattr(cell, by) in theirs
    ]
    for (x, lead), (next_x, next_lead) in pairwise(points):
        if lead <= 0 < next_lead:
            share = -lead / (next_lead - lead)
            return math.exp(math.log(x) + share * (math.log(next_x) - math.log(x)))
    return None
