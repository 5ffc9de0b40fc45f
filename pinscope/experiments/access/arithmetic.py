"""Ways to use data that lies on the host: time over uses and over the share that is used, and which way is faster."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Literal

from pinscope.analysis.conclusions import exceeds
from pinscope.analysis.rows import Row, Rows, counted, grouped, labels
from pinscope.analysis.statistics import Summary, summarize

WAY_TITLES: Mapping[str, str] = {
    "copy": "explicit copy",
    "copy_part": "2D copy of the part",
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
AS_GOOD = 1.1
"""Ways whose times differ by this factor at most, to two decimals as it is shown, are as good as each other: in tables,
charts and findings."""
Verdict = Literal["faster", "as good", "slower"]


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


def cells(rows: Iterable[Row]) -> list[Cell]:
    """Counted repeats, grouped; in the order measured."""
    return [_cell(group) for group in grouped(counted(rows), labels(*_LABELS)).values()]


def _cell(rows: Rows) -> Cell:
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
    return grouped(sorted(found, key=lambda cell: int(getattr(cell, by))), lambda cell: cell.way)


def one_more_use(course: Sequence[Cell]) -> float | None:
    """Seconds that each use after the fewest takes, from a way's cells over the number of uses.

    ``None`` where only one number of uses was measured, or where what more uses take is lost in the noise.
    """
    if len(course) < 2:
        return None
    first, last = course[0], course[-1]
    more = last.wall_seconds.median - first.wall_seconds.median
    return more / (last.uses - first.uses) if more > 0 else None


def verdict(one: Cell, other: Cell) -> Verdict:
    """How ``one`` does beside ``other``; as good also where the difference is less than both may be off."""
    mine, theirs = one.wall_seconds, other.wall_seconds
    if round(mine.median / theirs.median, 2) > AS_GOOD and exceeds(mine, theirs):
        return "slower"
    return "faster" if round(theirs.median / mine.median, 2) > AS_GOOD and exceeds(theirs, mine) else "as good"


def winners(found: Sequence[Cell]) -> list[Cell]:
    """Of cells that differ in the way only: the fastest, and those that are as good as that; fastest first."""
    ranked = sorted(found, key=lambda cell: cell.wall_seconds.median)
    return [cell for cell in ranked if verdict(cell, ranked[0]) == "as good"]


@dataclass(frozen=True)
class Stretch:
    """Neighbouring measured points at which one way does equally beside another.

    Attributes:
        verdict: how it does there.
        points: numbers of uses, or spacings, ascending.
    """

    verdict: Verdict
    points: tuple[int, ...]


def stretches(one: Sequence[Cell], other: Sequence[Cell], by: Literal["uses", "spacing"]) -> list[Stretch]:
    """How the curve ``one`` does beside ``other`` at the points that both have. Between points nothing is known."""
    theirs = {getattr(cell, by): cell for cell in other}
    verdicts = [
        (getattr(cell, by), verdict(cell, theirs[getattr(cell, by)])) for cell in one if getattr(cell, by) in theirs
    ]
    return [
        Stretch(how, tuple(point for point, _ in points)) for how, points in groupby(verdicts, key=lambda pair: pair[1])
    ]


def copies_of_what_is_used(curves: Mapping[str, Sequence[Cell]]) -> list[Cell]:
    """The copy that a program would make at each spacing: of the part alone where a copy call takes it, else of all."""
    parts = {cell.spacing: cell for cell in curves.get("copy_part", ())}
    return [parts.get(cell.spacing, cell) for cell in curves.get("copy", ())]
