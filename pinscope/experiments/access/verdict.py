"""What an access run answers, in one sentence."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pinscope.analysis.rows import grouped
from pinscope.experiments.access.arithmetic import (
    PATTERN_TITLES,
    Cell,
    copies_of_what_is_used,
    over_spacing,
    verdict,
    winners,
)
from pinscope.units import format_bytes, format_seconds, format_share

_WAYS: Mapping[str, str] = {
    "copy": "an explicit copy",
    "copy_part": "a 2D copy of the part",
    "mapped": "zero-copy",
    "managed": "managed memory that migrates on demand",
    "prefetched": "prefetched managed memory",
}
Pair = tuple[Cell, Cell]
"""Zero-copy, and the copy that a program would make in its place."""


def access_verdict(found: Sequence[Cell]) -> str | None:
    """Whether to copy the data or to let kernels reach it; ``None`` where nothing can be compared."""
    if any(cell.wrong for cell in found):
        return "Data was read or written wrong: do not trust any figure of this run."
    pairs = zero_copy_pairs(found)
    whole = [pair for pair in pairs if pair[0].spacing == 1]
    if not whole:
        return _between(pairs, "the part of the data that kernels use") if pairs else _other_ways(found)
    how = {verdict(*pair) for pair in whole}
    if {"faster", "slower"} <= how:
        return _between(whole, "data that kernels use whole")
    if "slower" in how:
        return (
            f"Copy data used again or at random: zero-copy takes {_from_to(whole)}"
            + _mapped_parts([pair for pair in pairs if pair[0].spacing > 1])
            + "."
        )
    most = max(times_as_long(pair) for pair in whole)
    return (
        f"Let kernels reach the data on the host: zero-copy takes at most {_words(most)} as long as an explicit "
        "copy, and no GPU memory."
    )


def zero_copy_pairs(found: Sequence[Cell]) -> list[Pair]:
    """Zero-copy beside the copy in its place, for each pattern, share and number of uses that has both."""
    pairs = []
    for pattern, uses in dict.fromkeys((cell.pattern, cell.uses) for cell in found):
        curves = over_spacing(found, pattern, uses)
        copies = {cell.spacing: cell for cell in copies_of_what_is_used(curves)}
        pairs += [(cell, copies[cell.spacing]) for cell in curves.get("mapped", ()) if cell.spacing in copies]
    return pairs


def times_as_long(pair: Pair) -> float:
    """The first's time over the second's."""
    one, other = pair
    return one.wall_seconds.median / other.wall_seconds.median


def _words(times: float) -> str:
    return f"{times:.{1 if times >= 10 else 2}f} times"


def _mapped_parts(parts: Sequence[Pair]) -> str:
    """The share from which on down zero-copy is faster whatever the pattern."""
    won: int | None = None
    for spacing in sorted({mapped.spacing for mapped, _ in parts}, reverse=True):
        if any(verdict(*pair) != "faster" for pair in parts if pair[0].spacing == spacing):
            break
        won = spacing
    if won is None:
        return ""
    less = " or less" if any(mapped.spacing > won for mapped, _ in parts) else ""
    return f"; at {format_share(1 / won)}{less} it is faster"


def _from_to(pairs: Sequence[Pair]) -> str:
    """``1.07 (1 streaming read) to 64.8 times (8 random reads) as long``."""
    ranked = sorted(pairs, key=times_as_long)
    least, most = (_words(times_as_long(pair)) for pair in (ranked[0], ranked[-1]))
    best = "" if least == most else f"{least.removesuffix(' times')} ({_use(ranked[0][0])}) to "
    return f"{best}{most} ({_use(ranked[-1][0])}) as long"


def _between(pairs: Sequence[Pair], what: str) -> str:
    ranked = sorted(pairs, key=times_as_long)
    least, most = ranked[0], ranked[-1]
    if len(pairs) == 1:
        return f"Zero-copy takes {_words(times_as_long(least))} as long as a copy for {_use(least[0])}."
    return (
        f"For {what}, zero-copy takes {_words(times_as_long(least))} as long as a copy for {_use(least[0])}, "
        f"{_words(times_as_long(most))} for {_use(most[0])}."
    )


def _use(cell: Cell) -> str:
    share = "" if cell.spacing == 1 else f" of {format_share(1 / cell.spacing)}"
    return f"{cell.uses} {PATTERN_TITLES[cell.pattern]}{'' if cell.uses == 1 else 's'}{share}"


def _other_ways(found: Sequence[Cell]) -> str | None:
    """The widest difference between two ways, where zero-copy and a copy were not both measured."""
    alike = grouped(found, lambda cell: (cell.pattern, cell.spacing, cell.uses)).values()
    several = [group for group in alike if len(group) > 1]
    if not several:
        return None

    def ends(group: Sequence[Cell]) -> Pair:
        return max(group, key=lambda cell: cell.wall_seconds.median), winners(group)[0]

    slowest, best = max((ends(group) for group in several), key=times_as_long)
    way = _WAYS[slowest.way]
    return (
        f"{way[0].upper()}{way[1:]} takes {_words(times_as_long((slowest, best)))} as long as {_WAYS[best.way]} "
        f"for {_use(slowest)} of {format_bytes(slowest.bytes)}: {format_seconds(slowest.wall_seconds.median)} against "
        f"{format_seconds(best.wall_seconds.median)}."
    )
