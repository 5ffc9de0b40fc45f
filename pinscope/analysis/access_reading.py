"""What the access experiment concludes: headline, tables and findings from the rows of a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pinscope.analysis.access import (
    PATTERN_TITLES,
    WAY_TITLES,
    Cell,
    cells,
    crossing,
    over_spacing,
    over_uses,
    winners,
)
from pinscope.analysis.precision import Repeated, precision_not_reached
from pinscope.records.finding import Finding, Quantity, Reading, Table
from pinscope.records.run import Run
from pinscope.units import format_bytes, format_seconds, format_share

SLOW_MANAGED = 2.0
"""On-demand migration that takes this many times a copy is worth a warning."""


def read_access(run: Run, rows: Sequence[Mapping[str, Any]]) -> Reading:
    """Headline, tables and findings; empty parts where nothing was measured yet."""
    found = cells(rows)
    if not found:
        return Reading(headline=(), tables=(), findings=())
    patterns = list(dict.fromkeys(cell.pattern for cell in found))
    findings = [*_wrong(found)]
    for pattern in patterns:
        findings += [*_uses(found, pattern), *_sparse(found, pattern)]
    findings += [*_on_demand(found), *precision_not_reached(run, _repeated(found))]
    return Reading(headline=_headline(found, patterns), tables=(_winners(found), _all(found)), findings=tuple(findings))


def _headline(found: Sequence[Cell], patterns: Sequence[str]) -> tuple[Quantity, ...]:
    """The best way for data that is used whole and once, and the rate that it reaches."""
    quantities = []
    for pattern in patterns:
        alike = _alike(found, pattern, 1, 1)
        if alike:
            best = winners(alike)[0]
            name = PATTERN_TITLES[pattern]
            quantities += [
                Quantity(name=f"Used once: {name}", value=WAY_TITLES[best.way], unit="text"),
                Quantity(
                    name=f"Its rate: {name}", value=best.useful_bytes_per_second, unit="bytes/second",
                    spread=best.wall_seconds.spread,
                ),
            ]  # fmt: skip
    return tuple(quantities)


def _alike(found: Sequence[Cell], pattern: str, spacing: int, uses: int) -> list[Cell]:
    return [cell for cell in found if (cell.pattern, cell.spacing, cell.uses) == (pattern, spacing, uses)]


def _combinations(found: Sequence[Cell]) -> list[tuple[str, int, int]]:
    return list(dict.fromkeys((cell.pattern, cell.spacing, cell.uses) for cell in found))


def _repeated(found: Sequence[Cell]) -> list[Repeated]:
    return [
        Repeated(
            f"{WAY_TITLES[cell.way]}, {PATTERN_TITLES[cell.pattern]}, {format_share(1 / cell.spacing)} used "
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
                PATTERN_TITLES[pattern], 1 / spacing, uses, " or ".join(WAY_TITLES[cell.way] for cell in best),
                best[0].wall_seconds.median, WAY_TITLES[slowest.way],
                slowest.wall_seconds.median / best[0].wall_seconds.median,
            )
        )  # fmt: skip
    return Table(
        title="Which way wins",
        columns=("pattern", "share used", "uses", "best way", "it takes", "slowest way", "it takes × the best"),
        units=("text", "share", "count", "text", "seconds", "text", "ratio"),
        rows=tuple(rows),
        note="Ways within a tenth of the best are named with it. Times run from data on the host until the result can "
        "be used.",
    )


def _all(found: Sequence[Cell]) -> Table:
    return Table(
        title="Every combination",
        columns=("pattern", "share used", "uses", "way", "time", "spread", "of it on the GPU", "useful rate",
                 "repeats"),
        units=("text", "share", "count", "text", "seconds", "share", "seconds", "bytes/second", "count"),
        rows=tuple(
            (
                PATTERN_TITLES[cell.pattern], 1 / cell.spacing, cell.uses, WAY_TITLES[cell.way],
                cell.wall_seconds.median, cell.wall_seconds.spread, cell.device_seconds.median,
                cell.useful_bytes_per_second, cell.wall_seconds.count,
            )
            for cell in found
        ),
        note="Medians. Useful rate: bytes that kernels used, over the time.",
    )  # fmt: skip


def _wrong(found: Sequence[Cell]) -> list[Finding]:
    wrong = [cell for cell in found if cell.wrong]
    if not wrong:
        return []
    first = wrong[0]
    return [
        Finding(
            rule="access-wrong", severity="critical", title="Data was read or written wrong",
            detail=f"The first case: {WAY_TITLES[first.way]}, {PATTERN_TITLES[first.pattern]}.",
            evidence=(Quantity(name="Wrong repeats", value=sum(cell.wrong for cell in wrong), unit="count"),),
            advice="Do not trust this machine's copies. Run it again; if it repeats, check ECC counters and the "
            "kernel log.",
        )
    ]  # fmt: skip


def _uses(found: Sequence[Cell], pattern: str) -> list[Finding]:
    """From how many uses on a copy beats zero-copy access, for data that is used whole."""
    curves = over_uses(found, pattern, 1)
    mapped, copy = curves.get("mapped", []), curves.get("copy", [])
    if not mapped or not copy or len(mapped) < 2:
        return []
    name, size = PATTERN_TITLES[pattern], format_bytes(mapped[0].bytes)
    evidence = tuple(
        Quantity(name=f"{WAY_TITLES[cell.way]}, {_times(cell.uses)}", value=cell.wall_seconds.median, unit="seconds",
                 spread=cell.wall_seconds.spread)
        for cell in (mapped[0], copy[0], mapped[-1], copy[-1])
    )  # fmt: skip
    at = crossing(mapped, copy, "uses")
    if at is not None:
        title = f"{name.capitalize()}: zero-copy wins up to {at:.1f} uses, then an explicit copy does"
        advice = f"Map the buffer where a kernel uses the data {int(at)} times or less; copy it where it uses it more."
    elif mapped[0].wall_seconds.median < copy[0].wall_seconds.median:
        title = f"{name.capitalize()}: zero-copy wins, also for {_times(mapped[-1].uses)}"
        advice = "Let the kernel reach the pinned buffer itself."
    else:
        title = f"{name.capitalize()}: an explicit copy wins from the first use on"
        advice = "Copy the data; zero-copy access gains nothing here."
    detail = f"{size} of data, all of it used by each kernel."
    return [Finding(rule=f"access-uses-{pattern}", severity="note", title=title, detail=detail, evidence=evidence,
                    advice=advice)]  # fmt: skip


def _times(uses: int) -> str:
    return f"{uses} use{'' if uses == 1 else 's'}"


def _sparse(found: Sequence[Cell], pattern: str) -> list[Finding]:
    """Below which share of the data zero-copy access beats copying all of it, for a single use."""
    curves = over_spacing(found, pattern, min(cell.uses for cell in found))
    mapped, copy = curves.get("mapped", []), curves.get("copy", [])
    if len(mapped) < 2 or not copy:
        return []
    at = crossing(copy, mapped, "spacing")
    if at is None:
        return []
    last, theirs = mapped[-1], copy[-1]
    gain = theirs.wall_seconds.median / last.wall_seconds.median
    return [
        Finding(
            rule=f"access-sparse-{pattern}", severity="note",
            title=f"{PATTERN_TITLES[pattern].capitalize()}: zero-copy wins where less than {format_share(1 / at)} is "
            "used",
            detail=f"At 1 in {last.spacing} it takes {format_seconds(last.wall_seconds.median)}, a copy of all "
            f"{format_bytes(last.bytes)} {format_seconds(theirs.wall_seconds.median)}: {gain:.1f} times as long.",
            evidence=(
                Quantity(name="Share at which they are equal", value=1 / at, unit="share"),
                Quantity(name=f"Gain at 1 in {last.spacing}", value=gain, unit="ratio"),
            ),
            advice="Map the buffer where kernels use a small part of it; gather the part on the CPU where it is known.",
        )
    ]  # fmt: skip


def _on_demand(found: Sequence[Cell]) -> list[Finding]:
    """How much on-demand migration costs beyond a copy, and whether prefetching mends it."""
    alike = {cell.way: cell for cell in _alike(found, "stream_read", 1, 1)}
    managed, copy, prefetched = alike.get("managed"), alike.get("copy"), alike.get("prefetched")
    if managed is None or copy is None:
        return []
    times = managed.wall_seconds.median / copy.wall_seconds.median
    if times < SLOW_MANAGED:
        return []
    evidence = [
        Quantity(name=WAY_TITLES[cell.way], value=cell.wall_seconds.median, unit="seconds",
                 spread=cell.wall_seconds.spread)
        for cell in (managed, copy, prefetched) if cell
    ]  # fmt: skip
    mended = (
        f" Prefetched it takes {prefetched.wall_seconds.median / copy.wall_seconds.median:.1f} times as long as a copy."
        if prefetched else ""
    )  # fmt: skip
    return [
        Finding(
            rule="managed-on-demand", severity="warning",
            title=f"Managed memory that migrates on demand takes {times:.1f} times as long as a copy",
            detail=f"{format_bytes(managed.bytes)}, read once in order.{mended}", evidence=tuple(evidence),
            advice="Call cudaMemPrefetchAsync before the kernel, or copy from pinned memory.",
        )
    ]  # fmt: skip
