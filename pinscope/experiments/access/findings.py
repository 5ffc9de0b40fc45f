"""Which way to use host data: three findings over all patterns, what is dearest to ignore first."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from pinscope.analysis.conclusions import Costed, dearest_first, joined
from pinscope.analysis.rows import grouped
from pinscope.analysis.statistics import measured
from pinscope.experiments.access.arithmetic import (
    AS_GOOD,
    PATTERN_TITLES,
    WAY_TITLES,
    Cell,
    Stretch,
    copies_of_what_is_used,
    over_spacing,
    over_uses,
    stretches,
    verdict,
)
from pinscope.records.finding import Finding, Quantity, note, quantity
from pinscope.units import format_bytes, format_seconds, format_share

SLOW_MANAGED = 2.0
"""On-demand migration that takes this many times a copy is worth a finding."""
WRITES = ("stream_write", "scatter_write")
"""Patterns whose data goes back; where a part is written, the rest must come back as it was."""
_EQUAL = f"Ways within {AS_GOOD - 1:.0%} of each other count as equally good.".replace("%", " %")


def way_findings(found: Sequence[Cell]) -> tuple[Finding, ...]:
    """All of them are notes: each is of one way that a program chose."""
    return dearest_first([*_whole(found), *_parts(found), *_on_demand(found)])


def uses_words(uses: int) -> str:
    """``1 use``, ``2 uses``."""
    return f"{uses} use{'' if uses == 1 else 's'}"


@dataclass(frozen=True)
class _Course:
    """How zero-copy does beside a copy, over the number of uses or over the share, in one pattern.

    Attributes:
        pattern: which.
        mapped, copy: cells of the two ways.
        course: neighbouring points at which zero-copy does equally.
    """

    pattern: str
    mapped: Sequence[Cell]
    copy: Sequence[Cell]
    course: tuple[Stretch, ...]

    @property
    def title(self) -> str:
        """The pattern for people."""
        return PATTERN_TITLES[self.pattern]

    def points(self, how: str) -> list[int]:
        """Where zero-copy does so, ascending."""
        return sorted(point for each in self.course if each.verdict == how for point in each.points)

    def ends_with(self, how: str) -> Stretch | None:
        """The last stretch, if zero-copy does so there."""
        return self.course[-1] if self.course[-1].verdict == how else None


def _patterns(found: Sequence[Cell]) -> list[str]:
    return list(dict.fromkeys(cell.pattern for cell in found))


def _times(one: Cell, other: Cell) -> float:
    return one.wall_seconds.median / other.wall_seconds.median


def _ratio(times: float) -> str:
    return f"{times:.{1 if times >= 10 else 2}f}"


def _whole(found: Sequence[Cell]) -> Iterator[Costed]:
    """Zero-copy beside a copy of data that is used whole, over the number of uses."""
    courses = []
    for pattern in _patterns(found):
        curves = over_uses(found, pattern, 1)
        mapped, copy = curves.get("mapped", []), curves.get("copy", [])
        if len(mapped) > 1 and (course := stretches(mapped, copy, "uses")):
            courses.append(_Course(pattern, mapped, copy, tuple(course)))
    if not courses:
        return
    pairs = [pair for one in courses for pair in _pairs(one, "uses")]
    worst = max(pairs, key=lambda pair: _times(*pair))
    most, size = _times(*worst), format_bytes(worst[0].bytes)
    yield (
        most,
        note(
            "access-uses",
            *(_ratio_quantity(pair, uses_words(pair[0].uses)) for one in courses for pair in _ends(one, "uses")),
            title=f"Data that kernels use whole: zero-copy takes up to {_ratio(most)} times as long as an explicit "
            f"copy ({PATTERN_TITLES[worst[0].pattern]}, {uses_words(worst[0].uses)})"
            if verdict(*worst) == "slower"
            else f"Data that kernels use whole: zero-copy takes at most {_ratio(most)} times as long as an explicit "
            "copy",
            detail=f"Beside an explicit copy of {size}, zero-copy is {_by_course(courses, _over_uses)}. {_EQUAL}",
            advice=" ".join(_for_uses(*group) for group in _alike(courses, _uses_from)),
        ),
    )


def _parts(found: Sequence[Cell]) -> Iterator[Costed]:
    """Zero-copy beside a copy of what is used, over the share of the data, for the fewest uses."""
    uses = min(cell.uses for cell in found)
    courses = []
    for pattern in _patterns(found):
        curves = over_spacing(found, pattern, uses)
        mapped, copy = curves.get("mapped", []), copies_of_what_is_used(curves)
        course = stretches(mapped, copy, "spacing")
        if len(mapped) > 1 and course:
            courses.append(_Course(pattern, mapped, copy, tuple(course)))
    if not courses:
        return
    shares = {one.title: last.points[0] for one in courses if (last := one.ends_with("faster"))}
    gained = max(1 / _times(*pair) for one in courses for pair in _pairs(one, "spacing"))
    yield (
        gained,
        note(
            "access-sparse",
            *(_time_quantity(cell) for one in courses for cell in (one.mapped[-1], one.copy[-1])),
            title=f"Data that kernels use in part: {_gain_words(shares)}",
            detail=f"Beside a copy, for {uses_words(uses)}, zero-copy is {_by_course(courses, _over_shares)}. "
            f"{_part_examples(courses)} {_EQUAL}",
            advice=_for_parts(courses, shares),
        ),
    )


def _pairs(one: _Course, by: str) -> list[tuple[Cell, Cell]]:
    """Zero-copy and the copy at each point that both have."""
    copies = {getattr(cell, by): cell for cell in one.copy}
    return [(cell, copies[getattr(cell, by)]) for cell in one.mapped if getattr(cell, by) in copies]


def _ends(one: _Course, by: str) -> list[tuple[Cell, Cell]]:
    pairs = _pairs(one, by)
    return pairs[:1] if len(pairs) == 1 else [pairs[0], pairs[-1]]


def _ratio_quantity(pair: tuple[Cell, Cell], where: str) -> Quantity:
    return quantity(
        f"Time of zero-copy ÷ explicit copy, {PATTERN_TITLES[pair[0].pattern]}, {where}", _times(*pair), "ratio"
    )


def _time_quantity(cell: Cell) -> Quantity:
    name = f"{PATTERN_TITLES[cell.pattern].capitalize()} of {format_share(1 / cell.spacing)}, {WAY_TITLES[cell.way]}"
    return measured(name, cell.wall_seconds, "seconds")


def _alike(courses: Sequence[_Course], key: Callable[[_Course], object]) -> list[tuple[str, _Course]]:
    """Patterns that do alike, named together, with the first of them."""
    return [(joined([one.title for one in group]), group[0]) for group in grouped(courses, key).values()]


def _by_course(courses: Sequence[_Course], where: Callable[[Stretch, bool, bool], str]) -> str:
    """``as good for 1 use, slower from 2 uses on (streaming read and streaming write); slower …``."""

    def words(one: _Course) -> str:
        last = len(one.course) - 1
        return ", ".join(
            f"{each.verdict} {where(each, number == 0, number == last)}" for number, each in enumerate(one.course)
        )

    return "; ".join(f"{words(one)} ({names})" for names, one in _alike(courses, words))


def _over_uses(each: Stretch, first: bool, last: bool) -> str:
    if len(each.points) > 1 and last and not first:
        return f"from {uses_words(each.points[0])} on"
    if len(each.points) > 1:
        return f"for {each.points[0]} to {uses_words(each.points[-1])}"
    return f"for {uses_words(each.points[0])}"


def _over_shares(each: Stretch, first: bool, last: bool) -> str:
    del first, last
    most, least = format_share(1 / each.points[0]), format_share(1 / each.points[-1])
    return f"at {most}" if len(each.points) == 1 else f"from {most} to {least}"


def _uses_from(one: _Course) -> tuple[int | None, bool]:
    """From which number of uses on a copy is better, to the last one; and whether zero-copy was ever no worse."""
    last = one.ends_with("slower")
    return (last.points[0] if last else None, len(one.course) > 1)


def _for_uses(names: str, one: _Course) -> str:
    """What to do with data that is used whole."""
    begins, changes = _uses_from(one)
    if begins is None:
        where = "" if not one.points("slower") else f" for {uses_words(one.course[-1].points[-1])}"
        return f"For {names}, let kernels reach the data on the host{where}: it takes no memory of the GPU."
    if not changes:
        return f"For {names}, copy the data."
    return (
        f"For {names}, copy data that kernels use {begins} times or more; used less often, zero-copy takes no memory "
        "of the GPU and is about as fast."
        if not [point for point in one.points("slower") if point < begins]
        else f"For {names}, copy data that kernels use {begins} times or more."
    )


def _gain_words(shares: Mapping[str, int]) -> str:
    """From which share on down zero-copy is faster, in the pattern of the least and of the largest."""
    if not shares:
        return "zero-copy is not clearly faster than a copy at any share that was measured"
    least, most = max(shares, key=lambda title: shares[title]), min(shares, key=lambda title: shares[title])
    at_least, at_most = (format_share(1 / shares[title]) for title in (least, most))
    if at_least == at_most:
        return f"zero-copy is faster than a copy up to a share of {at_least} ({joined(list(shares))})"
    return f"zero-copy is faster than a copy up to a share of {at_least} ({least}) or {at_most} ({most})"


def _part_examples(courses: Sequence[_Course]) -> str:
    """What each of the ways takes at the smallest share, in the first pattern."""
    one = courses[0]
    last, theirs = one.mapped[-1], one.copy[-1]
    way = "a 2D copy of that part" if theirs.way == "copy_part" else "copying all"
    back = " there and back, to keep the rest," if theirs.way == "copy" and one.pattern in WRITES else ""
    return (
        f"A {one.title} of {format_share(1 / last.spacing)} of {format_bytes(last.bytes)} takes "
        f"{format_seconds(last.wall_seconds.median)} by zero-copy and {format_seconds(theirs.wall_seconds.median)} by "
        f"{way}{back.rstrip(',')}."
    )


def _for_parts(courses: Sequence[_Course], shares: Mapping[str, int]) -> str:
    """What to do where kernels use a part of the data."""
    mapped = "; ".join(
        f"{format_share(1 / spacing)} or less for {joined(titles)}"
        for spacing, titles in sorted(grouped(shares, lambda title: shares[title]).items())
    )
    in_part = any(one.copy[-1].way == "copy_part" for one in courses)
    copy = "copy the part alone where kernels use whole blocks (cudaMemcpy2DAsync), else all" if in_part else "copy all"
    if not mapped:
        return f"{copy[0].upper()}{copy[1:]} of the data."
    return f"Map the buffer where kernels use little of it: {mapped}. Where they use more, {copy} of the data."


def _on_demand(found: Sequence[Cell]) -> Iterator[Costed]:
    """How much on-demand migration costs beyond a copy, and whether prefetching mends it."""
    ways = {pattern: _used_once(found, pattern) for pattern in _patterns(found)}
    read = ways.get("stream_read", {})
    managed, copy, prefetched = (read.get(way) for way in ("managed", "copy", "prefetched"))
    if managed is None or copy is None or _times(managed, copy) < SLOW_MANAGED:
        return
    all_times = [_times(way["managed"], way["copy"]) for way in ways.values() if {"managed", "copy"} <= set(way)]
    mended = f" Prefetched, that read is {_beside(prefetched, copy)}." if prefetched else ""
    over_all = (
        f"Over all patterns it takes {_ratio(min(all_times))} to {_ratio(max(all_times))} times as long."
        if len(all_times) > 1
        else "Other patterns were not measured."
    )
    yield (
        max(all_times),
        note(
            "managed-on-demand",
            *(
                measured(f"One streaming read, {WAY_TITLES[cell.way]}", cell.wall_seconds, "seconds")
                for cell in (managed, copy, prefetched)
                if cell
            ),
            title=f"Managed memory that migrates on demand takes {_ratio(_times(managed, copy))} times as long as an "
            f"explicit copy for one streaming read of {format_bytes(managed.bytes)}",
            detail=f"{format_seconds(managed.wall_seconds.median)} against {format_seconds(copy.wall_seconds.median)}. "
            f"{over_all}{mended}",
            advice="Call cudaMemPrefetchAsync before kernels read managed memory, never more than the GPU has free, or "
            "copy from pinned memory." + _prefetched_writes(ways.get("stream_write", {})),
        ),
    )


def _used_once(found: Sequence[Cell], pattern: str) -> dict[str, Cell]:
    """Way → its cell of data that is used whole and once."""
    return {cell.way: cell for cell in found if (cell.pattern, cell.spacing, cell.uses) == (pattern, 1, 1)}


def _prefetched_writes(write: Mapping[str, Cell]) -> str:
    """What prefetching does to data that is written whole and once, where that is slower than a copy."""
    prefetched, copy = write.get("prefetched"), write.get("copy")
    if not prefetched or not copy or verdict(prefetched, copy) != "slower":
        return ""
    return (
        " Use an explicit copy for data that kernels write whole: prefetched managed memory took "
        f"{_ratio(_times(prefetched, copy))} times as long."
    )


def _beside(one: Cell, copy: Cell) -> str:
    """``as good as a copy (1.09 times as long)``."""
    how = verdict(one, copy)
    return f"{how} {'as' if how == 'as good' else 'than'} a copy ({_ratio(_times(one, copy))} times as long)"
