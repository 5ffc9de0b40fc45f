"""What the access experiment concludes: headline, tables and findings from the rows of a run."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from pinscope.analysis.precision import Repeated, precision_not_reached
from pinscope.analysis.statistics import measured
from pinscope.experiments.access.arithmetic import (
    AS_GOOD,
    PATTERN_TITLES,
    WAY_TITLES,
    Cell,
    Stretch,
    cells,
    copies_of_what_is_used,
    over_spacing,
    over_uses,
    stretches,
    verdict,
    winners,
)
from pinscope.experiments.access.verdict import access_verdict
from pinscope.records.finding import Finding, Quantity, Reading, Table, note, quantity, table, warning, wrong_data
from pinscope.records.run import ExperimentRun
from pinscope.units import format_bytes, format_seconds, format_share

SLOW_MANAGED = 2.0
"""On-demand migration that takes this many times a copy is worth a warning."""
WRITES = ("stream_write", "scatter_write")
"""Patterns whose data goes back; where a part is written, the rest must come back as it was."""
_CLOSE = f"within {AS_GOOD - 1:.0%}".replace("%", " %")


def read_access(run: ExperimentRun, rows: Sequence[Mapping[str, Any]]) -> Reading:
    """Headline, tables and findings; empty parts where nothing was measured yet."""
    found = cells(rows)
    if not found:
        return Reading(headline=(), tables=(), findings=())
    patterns = list(dict.fromkeys(cell.pattern for cell in found))
    findings = [*_wrong(found)]
    for pattern in patterns:
        findings += [*_uses(found, pattern), *_sparse(found, pattern)]
    findings += [*_on_demand(found), *precision_not_reached(run, _repeated(found))]
    return Reading(
        verdict=access_verdict(found), headline=_headline(found, patterns), tables=(_winners(found), _all(found)),
        findings=tuple(findings),
    )  # fmt: skip


def _headline(found: Sequence[Cell], patterns: Sequence[str]) -> tuple[Quantity, ...]:
    """Ways beside a copy, then the best way and its rate, of data that is used whole and once."""
    quantities = []
    for way, pattern in _BESIDE_A_COPY:
        alike = {cell.way: cell for cell in _alike(found, pattern, 1, 1)}
        if way in alike and "copy" in alike:
            ratio = alike[way].wall_seconds.median / alike["copy"].wall_seconds.median
            name = f"Time of {WAY_TITLES[way]} ÷ explicit copy, one {PATTERN_TITLES[pattern]}"
            quantities.append(quantity(name, ratio, "ratio"))
    for pattern in patterns:
        alike_cells = _alike(found, pattern, 1, 1)
        if alike_cells:
            best, name = winners(alike_cells)[0], PATTERN_TITLES[pattern]
            rate, spread = best.useful_bytes_per_second, best.wall_seconds.spread
            quantities += [
                quantity(f"Fastest for one {name}", _best(alike_cells), "text"),
                quantity(f"Useful rate of the fastest, one {name}", rate, "bytes/second", spread=spread),
            ]
    return tuple(quantities)


_BESIDE_A_COPY = (("mapped", "random_read"), ("managed", "stream_read"), ("mapped", "stream_read"))
"""Ways and patterns of the first figures."""


def _alike(found: Sequence[Cell], pattern: str, spacing: int, uses: int) -> list[Cell]:
    return [cell for cell in found if (cell.pattern, cell.spacing, cell.uses) == (pattern, spacing, uses)]


def _combinations(found: Sequence[Cell]) -> list[tuple[str, int, int]]:
    return list(dict.fromkeys((cell.pattern, cell.spacing, cell.uses) for cell in found))


def _repeated(found: Sequence[Cell]) -> list[Repeated]:
    return [
        Repeated(
            f"{WAY_TITLES[cell.way]}, {PATTERN_TITLES[cell.pattern]}, {format_share(1 / cell.spacing)} of the data, "
            f"{_times(cell.uses)}", cell.wall_seconds,
            (f"ways={cell.way}", f"patterns={cell.pattern}", f"spacings={cell.spacing}", f"uses={cell.uses}"),
        )
        for cell in found
    ]  # fmt: skip


def _winners(found: Sequence[Cell]) -> Table:
    rows = []
    for pattern, spacing, uses in _combinations(found):
        alike = _alike(found, pattern, spacing, uses)
        best = winners(alike)
        slowest = max(alike, key=lambda cell: cell.wall_seconds.median)
        rows.append(
            (
                PATTERN_TITLES[pattern], 1 / spacing, uses, _best(alike),
                best[0].wall_seconds.median, WAY_TITLES[slowest.way],
                slowest.wall_seconds.median / best[0].wall_seconds.median,
            )
        )  # fmt: skip
    return table(
        "Which way wins",
        {
            "pattern": "text", "share used": "share", "uses": "count", "best way": "text", "it takes": "seconds",
            "slowest way": "text", "it takes × the best": "ratio",
        },
        rows,
        note=f"Ways {_CLOSE} of the best are as good and named with it. Times run from data on the host until the "
        "result can be used.",
    )  # fmt: skip


def _best(alike: Sequence[Cell]) -> str:
    return " or ".join(WAY_TITLES[cell.way] for cell in winners(alike))


def _all(found: Sequence[Cell]) -> Table:
    return table(
        "Every combination",
        {
            "pattern": "text", "share used": "share", "uses": "count", "way": "text", "time": "seconds",
            "spread": "share", "of it on the GPU": "seconds", "useful rate": "bytes/second", "repeats": "count",
        },
        [
            (
                PATTERN_TITLES[cell.pattern], 1 / cell.spacing, cell.uses, WAY_TITLES[cell.way],
                cell.wall_seconds.median, cell.wall_seconds.spread, cell.device_seconds.median,
                cell.useful_bytes_per_second, cell.wall_seconds.count,
            )
            for cell in found
        ],
        note="Medians. Useful rate: bytes that kernels used, over the time.",
    )  # fmt: skip


def _wrong(found: Sequence[Cell]) -> Iterator[Finding]:
    wrong = [cell for cell in found if cell.wrong]
    if not wrong:
        return
    first = wrong[0]
    yield wrong_data(
        "access-wrong",
        quantity("Wrong repeats", sum(cell.wrong for cell in wrong), "count"),
        title="Data was read or written wrong",
        detail=f"The first case: {WAY_TITLES[first.way]}, {PATTERN_TITLES[first.pattern]}.",
    )


def _uses(found: Sequence[Cell], pattern: str) -> Iterator[Finding]:
    """How zero-copy access does beside a copy over the number of uses, for data that is used whole."""
    curves = over_uses(found, pattern, 1)
    mapped, copy = curves.get("mapped", []), curves.get("copy", [])
    course = stretches(mapped, copy, "uses")
    if not course or len(mapped) < 2:
        return
    size, last = format_bytes(mapped[0].bytes), mapped[-1]
    how = {each.verdict: each for each in course}
    if "slower" not in how:
        advice = "Let the kernel reach the pinned buffer itself; that takes no memory of the GPU."
    elif len(how) == 1:
        advice = "Copy the data before the kernel uses it."
    else:
        advice = (
            f"Copy data that kernels use {how['slower'].points[0]} times or more; below that let them reach it on the "
            "host, which takes no memory of the GPU."
        )
    yield note(
        f"access-uses-{pattern}",
        *(_quantity(cell, _times(cell.uses)) for cell in (mapped[0], copy[0], mapped[-1], copy[-1])),
        title=f"{PATTERN_TITLES[pattern].capitalize()} of all data: zero-copy is "
        + _course(course, "an explicit copy", _over_uses),
        detail=f"Zero-copy takes {_ratio(mapped[0], copy[0])} times as long as the copy for "
        f"{_times(mapped[0].uses)} and {_ratio(last, copy[-1])} times for {_times(last.uses)} of {size}. Ways "
        f"{_CLOSE} of each other count as equally good.",
        advice=advice,
    )


def _times(uses: int) -> str:
    return f"{uses} use{'' if uses == 1 else 's'}"


def _ratio(one: Cell, other: Cell) -> str:
    return f"{one.wall_seconds.median / other.wall_seconds.median:.2f}"


def _quantity(cell: Cell, where: str) -> Quantity:
    return measured(f"{WAY_TITLES[cell.way]}, {where}", cell.wall_seconds, "seconds")


def _course(course: Sequence[Stretch], other: str, where: Callable[[Stretch, bool, bool], str]) -> str:
    """``as good as OTHER for 1 use, slower from 2 uses on``."""
    words = {"faster": f"faster than {other}", "as good": f"as good as {other}", "slower": f"slower than {other}"}
    parts = []
    for number, each in enumerate(course):
        how = each.verdict if number else words[each.verdict]
        parts.append(f"{how} {where(each, number == 0, number == len(course) - 1)}")
    return ", ".join(parts)


def _over_uses(each: Stretch, first: bool, last: bool) -> str:
    if len(each.points) > 1 and last and not first:
        return f"from {_times(each.points[0])} on"
    if len(each.points) > 1:
        return f"for {each.points[0]} to {_times(each.points[-1])}"
    return f"for {_times(each.points[0])}"


def _over_shares(each: Stretch, first: bool, last: bool) -> str:
    del first, last
    most, least = format_share(1 / each.points[0]), format_share(1 / each.points[-1])
    return f"at {most}" if len(each.points) == 1 else f"from {most} to {least}"


def _sparse(found: Sequence[Cell], pattern: str) -> Iterator[Finding]:
    """How zero-copy access does beside a copy of what is used, over the share of the data, for the fewest uses."""
    uses = min(cell.uses for cell in found)
    curves = over_spacing(found, pattern, uses)
    mapped, copy = curves.get("mapped", []), copies_of_what_is_used(curves)
    course = stretches(mapped, copy, "spacing")
    if len(mapped) < 2 or not course:
        return
    name, last, theirs = PATTERN_TITLES[pattern].capitalize(), mapped[-1], copy[-1]
    whole = curves["copy"][-1]
    in_part = theirs.way == "copy_part"
    where = f"1 in {last.spacing} used"
    ways = " (there and back, to keep the rest)" if pattern in WRITES else ""
    measured = (last, theirs, whole) if in_part else (last, theirs)
    size = format_bytes(last.bytes)
    yield note(
        f"access-sparse-{pattern}",
        *(_quantity(cell, where) for cell in measured),
        title=f"{name} of a part, {_times(uses)}: zero-copy is "
        + _course(course, "a 2D copy of that part" if in_part else "copying all", _over_shares),
        detail=f"With {where}, zero-copy takes {format_seconds(last.wall_seconds.median)}, "
        + (f"the 2D copy {format_seconds(theirs.wall_seconds.median)} and " if in_part else "")
        + f"copying all {size}{ways} {format_seconds(whole.wall_seconds.median)}. Only these shares were measured: "
        + ", ".join(format_share(1 / cell.spacing) for cell in mapped)
        + ".",
        advice=_for_parts(course, in_part),
    )


def _for_parts(course: Sequence[Stretch], in_part: bool) -> str:
    """What to do where kernels use a part of the data."""
    faster = [each.points for each in course if each.verdict == "faster"]
    if faster:
        share = format_share(1 / min(points[0] for points in faster))
        return f"Map the buffer where kernels use {share} of it or less."
    slower = any(each.verdict == "slower" and each.points[-1] > 1 for each in course)
    if in_part:
        return "Copy the part alone (cudaMemcpy2DAsync)" + ("." if slower else ", or let the kernel reach it.")
    return "Copy all of it before the kernel uses it."


def _on_demand(found: Sequence[Cell]) -> Iterator[Finding]:
    """How much on-demand migration costs beyond a copy, and whether prefetching mends it."""
    alike = {cell.way: cell for cell in _alike(found, "stream_read", 1, 1)}
    managed, copy, prefetched = alike.get("managed"), alike.get("copy"), alike.get("prefetched")
    if managed is None or copy is None:
        return
    times = managed.wall_seconds.median / copy.wall_seconds.median
    if times < SLOW_MANAGED:
        return
    whole_and_once = [
        managed_cell.wall_seconds.median / copy_cell.wall_seconds.median
        for pattern in dict.fromkeys(cell.pattern for cell in found)
        if (ways := {cell.way: cell for cell in _alike(found, pattern, 1, 1)})
        and (managed_cell := ways.get("managed")) and (copy_cell := ways.get("copy"))
    ]  # fmt: skip
    mended = f" Prefetched, that read is {_beside(prefetched, copy)}." if prefetched else ""
    yield warning(
        "managed-on-demand",
        *(_quantity(cell, _times(1)) for cell in (managed, copy, prefetched) if cell),
        title=f"Managed memory that migrates on demand takes {times:.1f} times as long as a copy, streaming read "
        "of all data",
        detail=f"{format_bytes(managed.bytes)}, 1 use; over all patterns {min(whole_and_once):.1f} to "
        f"{max(whole_and_once):.1f} times.{mended}",
        advice="Where all of it is read, call cudaMemPrefetchAsync before the kernel, or copy from pinned memory."
        + _prefetched_writes(found),
    )


def _prefetched_writes(found: Sequence[Cell]) -> str:
    """What prefetching does to data that is written whole and once, where that is slower than a copy."""
    alike = {cell.way: cell for cell in _alike(found, "stream_write", 1, 1)}
    prefetched, copy = alike.get("prefetched"), alike.get("copy")
    if not prefetched or not copy or verdict(prefetched, copy) != "slower":
        return ""
    return f" Where all of it is written, copy: prefetched it took {_ratio(prefetched, copy)} times as long."


def _beside(one: Cell, copy: Cell) -> str:
    """``as good as a copy (1.09 times as long)``."""
    how = verdict(one, copy)
    return f"{how} {'as' if how == 'as good' else 'than'} a copy ({_ratio(one, copy)} times as long)"
