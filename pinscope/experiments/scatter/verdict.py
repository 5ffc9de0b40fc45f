"""What a run of many small copies answers, in one sentence."""

from __future__ import annotations

from collections.abc import Sequence

from pinscope.experiments.scatter.arithmetic import Cell, by_case, by_way, loop_suffices, ranked, winners
from pinscope.experiments.scatter.words import BY_WAY, TOWARDS, gb, pieces_words
from pinscope.units import format_bytes


def scatter_verdict(found: Sequence[Cell]) -> str | None:
    """Of the smallest pieces the best way beside a loop; ``None`` where no two ways were measured."""
    if any(cell.wrong for cell in found):
        return "Pieces arrived wrong: do not trust any figure of this run."
    first = first_case(found)
    order = ranked(first)
    if len(order) < 2:
        return None
    best = winners(first)[0]
    other = by_way(first).get("loop", order[-1])
    what, where = pieces_words(best), TOWARDS[best.direction]
    if best.way == other.way:
        return f"{what} move {where} at {gb(best.rate)} GB/s by {BY_WAY[best.way]}: no way is clearly faster."
    return (
        f"{what} move {where} at {gb(best.rate)} GB/s by {BY_WAY[best.way]}, {gb(other.rate)} by {BY_WAY[other.way]}"
        f"{_good_enough(found, best)}."
    )


def first_case(found: Sequence[Cell]) -> list[Cell]:
    """The smallest pieces of the first direction and layout."""
    direction, layout = found[0].direction, found[0].layout
    least = min(cell.bytes for cell in found if (cell.direction, cell.layout) == (direction, layout))
    return by_case(found)[direction, layout, least]


def _good_enough(found: Sequence[Cell], best: Cell) -> str:
    """From which size on a loop does, where several sizes tell."""
    if "loop" not in by_way(found) or "contiguous" not in by_way(found) or len({cell.bytes for cell in found}) < 2:
        return ""
    least = loop_suffices(found, best.direction, best.layout)
    most = max(cell.bytes for cell in found)
    return (
        f"; a loop is good enough from {format_bytes(least)} a piece on"
        if least
        else f"; a loop is not good enough even for {format_bytes(most)} a piece"
    )
