"""Ways to move many pieces: rates, the best of each way, which of them are as good as the best."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from pinscope.analysis.rows import Row, Rows, counted, grouped, labels, summary
from pinscope.analysis.statistics import Summary, summarize

WAY_TITLES: Mapping[str, str] = {
    "contiguous": "one contiguous copy",
    "loop": "loop of copies",
    "batch": "batch call",
    "graph": "CUDA graph",
    "copy_2d": "2D copy",
    "kernel": "kernel",
    "cpu": "CPU threads, one copy",
    "managed": "managed, prefetched",
}
SIMPLEST = ("copy_2d", "loop", "batch", "graph", "kernel", "cpu", "managed")
"""Of ways that are as good, the first of these is advised: no multiprocessor, no thread, little code."""
AS_GOOD = 1.1
"""Ways whose rates differ by this factor at most are as good as each other."""
ENOUGH = 0.95
"""Of the best rate: what the fewest blocks, or threads, must reach."""
GOOD_ENOUGH = 0.9
"""Of the contiguous copy's rate: what a loop must reach to be good enough."""
_LABELS = ("direction", "layout", "bytes", "pieces", "way", "blocks", "threads", "sms")


@dataclass(frozen=True)
class Cell:
    """All repeats of one way with one number of blocks or threads.

    Attributes:
        direction, layout, bytes, pieces, way, blocks, threads, sms: as the observations have them.
        wall, device, issue: seconds, medians with spread.
        call: seconds of one call of a loop that nothing makes wait; ``None`` of other ways.
        wrong: words that were not right; ``None`` where nothing was compared.
    """

    direction: str
    layout: str
    bytes: int
    pieces: int
    way: str
    blocks: int | None
    threads: int | None
    sms: int | None
    wall: Summary
    device: Summary
    issue: Summary
    call: Summary | None
    wrong: int | None

    @property
    def rate(self) -> float:
        """Bytes/second, from the first call until all pieces are in place."""
        return self.bytes * self.pieces / self.wall.median

    @property
    def held(self) -> float:
        """Share of the time for which calls and own copying hold the program's thread."""
        return min(self.issue.median / self.wall.median, 1.0)

    @property
    def case(self) -> tuple[str, str, int]:
        """Direction, layout and size of a piece."""
        return self.direction, self.layout, self.bytes

    def of(self, direction: str, layout: str, nbytes: int) -> bool:
        """Whether it is of that case."""
        return self.case == (direction, layout, nbytes)


def cells(rows: Iterable[Row]) -> list[Cell]:
    """Counted repeats, grouped; in the order measured."""
    moves = grouped((row for row in rows if row["kind"] == "move"), labels(*_LABELS))
    return [_cell(group) for group in moves.values() if counted(group)]


def _cell(rows: Rows) -> Cell:
    kept = counted(rows)
    compared = [row["wrong_words"] for row in rows if row["wrong_words"] is not None]
    return Cell(
        **{name: rows[0][name] for name in _LABELS},
        wall=summarize([row["wall_seconds"] for row in kept]),
        device=summarize([row["device_seconds"] for row in kept]),
        issue=summarize([row["issue_seconds"] for row in kept]),
        call=summary(kept, "call_seconds"),
        wrong=sum(compared) if compared else None,
    )


def by_case(found: Iterable[Cell]) -> dict[tuple[str, str, int], list[Cell]]:
    """Direction, layout and size → its cells."""
    return grouped(found, lambda cell: cell.case)


def by_way(found: Sequence[Cell]) -> dict[str, Cell]:
    """Of one case: way → its cell; of several blocks or threads the fewest that nearly reach the best."""
    return {way: fewest(group) for way, group in grouped(found, lambda cell: cell.way).items()}


def fewest(found: Sequence[Cell]) -> Cell:
    """Of one way: the cell with the fewest blocks or threads that reaches 95 % of its best rate."""
    best = max(cell.rate for cell in found)
    good = [cell for cell in found if cell.rate >= ENOUGH * best]
    return min(good, key=lambda cell: cell.blocks or cell.threads or 0)


def enough_blocks(found: Sequence[Cell]) -> int | None:
    """Of one case: the fewest blocks with which the kernel reaches 95 % of its best rate."""
    kernel = by_way(found).get("kernel")
    return kernel.blocks if kernel else None


def ranked(found: Sequence[Cell]) -> list[Cell]:
    """Of one case: the cell of each way that can move scattered pieces, the fastest first."""
    ways = [cell for way, cell in by_way(found).items() if way != "contiguous"]
    return sorted(ways, key=lambda cell: -cell.rate)


def winners(found: Sequence[Cell]) -> list[Cell]:
    """The fastest of them and those that are as good, the simplest first."""
    order = ranked(found)
    good = [cell for cell in order if round(order[0].rate / cell.rate, 2) <= AS_GOOD]
    return sorted(good, key=lambda cell: SIMPLEST.index(cell.way))


def loop_suffices(found: Sequence[Cell], direction: str, layout: str) -> int | None:
    """Least measured size from which on a loop reaches 90 % of a contiguous copy; ``None`` if it never does."""
    least = None
    for (way, where, size), group in sorted(by_case(found).items(), reverse=True):
        if (way, where) != (direction, layout):
            continue
        ways = by_way(group)
        if "loop" not in ways or "contiguous" not in ways:
            continue
        if ways["loop"].rate < GOOD_ENOUGH * ways["contiguous"].rate:
            break
        least = size
    return least


@dataclass(frozen=True)
class Beside:
    """A compute load beside one way.

    Attributes:
        direction, layout, bytes, pieces, way, blocks, sms: of what was moved meanwhile.
        slower: how much longer the load took than alone, relative.
        move: seconds in which all pieces were moved once.
        repeats: how many.
    """

    direction: str
    layout: str
    bytes: int
    pieces: int
    way: str
    blocks: int | None
    sms: int | None
    slower: Summary
    move: Summary

    @property
    def rate(self) -> float:
        """Bytes/second while the load ran."""
        return self.bytes * self.pieces / self.move.median


_BESIDE_LABELS = ("direction", "layout", "bytes", "pieces", "way", "blocks", "sms")


def beside(rows: Iterable[Row]) -> list[Beside]:
    """Counted repeats of the compute load, grouped; in the order measured."""
    loads = grouped((row for row in counted(rows) if row["kind"] == "compute"), labels(*_BESIDE_LABELS))
    return [
        Beside(
            **{name: group[0][name] for name in _BESIDE_LABELS},
            slower=summarize([row["together_seconds"] / row["alone_seconds"] - 1 for row in group]),
            move=summarize([row["wall_seconds"] for row in group]),
        )
        for group in loads.values()
    ]
