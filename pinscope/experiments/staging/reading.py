"""What a staging run concludes: headline, tables and findings from its rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pinscope.analysis.statistics import measured
from pinscope.experiments.staging.arithmetic import (
    AS_GOOD,
    PREPARED,
    WAY_TITLES,
    Cell,
    First,
    by_way,
    cells,
    firsts,
    numbers_of_uses,
    pipelines,
    sizes,
    slower,
    uses_until_paid,
    usual_size,
    winners,
)
from pinscope.experiments.staging.findings import staging_findings
from pinscope.experiments.staging.verdict import staging_verdict
from pinscope.records.finding import Quantity, Reading, Table, quantity, table
from pinscope.records.run import ExperimentRun
from pinscope.units import format_bytes


def read_staging(run: ExperimentRun, rows: Sequence[Mapping[str, Any]]) -> Reading:
    """Headline, tables and findings; empty parts where nothing was measured yet."""
    found = cells(rows)
    if not found:
        return Reading(headline=(), tables=(), findings=())
    tables = (_winners(found), _all(found), _halves(found), _first(firsts(rows), found))
    return Reading(
        verdict=staging_verdict(found),
        headline=_headline(found),
        tables=tuple(each for each in tables if each.rows),
        findings=staging_findings(run, found),
    )


_BESIDE = (("pin_then_copy", "plain"), ("torch_pin_then_to_first", "torch_to"), ("torch_pin_then_to", "torch_to"))
"""Ways whose time is set beside another's in the headline."""


def _headline(found: Sequence[Cell]) -> tuple[Quantity, ...]:
    """Of the usual size, used once: the claims that people repeat, then the fastest way."""
    size = usual_size(found)
    ways, best, words = by_way(found, size), winners(found, size), format_bytes(size)
    quantities = []
    for way, other in _BESIDE:
        if way in ways and other in ways:
            name = f"Time of {WAY_TITLES[way]} ÷ {WAY_TITLES[other]}, {words} once"
            quantities.append(quantity(name, slower(ways[way], ways[other]), "ratio"))
    if best and "plain" in ways:
        quantities.insert(
            1, quantity(f"Time of the fastest way ÷ plain copy, {words} once", slower(best[0], ways["plain"]), "ratio")
        )
    if {"plain", "in_place"} <= ways.keys() and ways["plain"].cpu_seconds:
        for way, name in (("plain", "a plain"), ("in_place", "a pinned")):
            taken = ways[way].copy_cpu_seconds
            quantities.insert(2, quantity(f"Processor time of {name} copy, {words}", taken, "seconds"))
    if best:
        quantities += [
            quantity(f"Fastest way, {words} once", " or ".join(cell.title for cell in best), "text"),
            measured(f"Its rate, {words} once", best[0].wall_seconds, "bytes/second", best[0].bytes_per_second),
        ]
    return tuple(quantities)


def _winners(found: Sequence[Cell]) -> Table:
    rows: list[tuple[Any, ...]] = []
    for size in sizes(found):
        for uses in numbers_of_uses([cell for cell in found if cell.bytes == size]):
            best = winners(found, size, uses)
            plain, made = by_way(found, size, uses).get("plain"), by_way(found, size, uses).get("in_place")
            if best:
                rows.append(
                    (
                        size,
                        uses,
                        " or ".join(cell.title for cell in best),
                        best[0].wall_seconds.median,
                        best[0].bytes_per_second,
                        slower(plain, best[0]) if plain else None,
                        made.wall_seconds.median if made else None,
                    )
                )
    return table(
        "Which way is fastest",
        {
            "size": "bytes",
            "uses": "count",
            "fastest from pageable memory": "text",
            "it takes": "seconds",
            "rate": "bytes/second",
            "plain copies take × that": "ratio",
            "made in pinned memory": "seconds",
        },
        rows,
        note=f"Ways within {AS_GOOD - 1:.0%} of the fastest are as good and named with it, the one that takes least "
        "processor time first. Libraries with no pinned memory left over are in the next table.".replace("%", " %"),
    )


def _all(found: Sequence[Cell]) -> Table:
    plain = {cell.bytes: cell for cell in found if cell.way == "plain" and cell.uses == 1}
    return table(
        "Every combination",
        {
            "size": "bytes",
            "uses": "count",
            "way": "text",
            "time": "seconds",
            "spread": "share",
            "rate": "bytes/second",
            "before the first copy": "seconds",
            "after the last": "seconds",
            "processor time of a copy": "seconds",
            "of it, the caller": "seconds",
            "pays from uses": "count",
            "repeats": "count",
        },
        [
            (
                cell.bytes,
                cell.uses,
                cell.title,
                cell.wall_seconds.median,
                cell.wall_seconds.spread,
                cell.bytes_per_second,
                cell.prepare_seconds,
                cell.finish_seconds,
                cell.copy_cpu_seconds,
                cell.thread_cpu_seconds / cell.uses,
                _paid(cell, plain.get(cell.bytes)),
                cell.wall_seconds.count,
            )
            for cell in found
        ],
        note="Medians; processor time is a mean, of all threads of the process. Pays from uses: so many copies of the "
        "same data are faster than plain ones.",
    )


def _paid(cell: Cell, plain: Cell | None) -> int | None:
    return uses_until_paid(cell, plain) if plain and cell.uses == 1 and cell.way in PREPARED else None


def _halves(found: Sequence[Cell]) -> Table:
    return table(
        "Two buffers in turn, and each half alone",
        {
            "size": "bytes",
            "threads": "count",
            "filling alone": "bytes/second",
            "copying alone": "bytes/second",
            "in turn": "bytes/second",
            "time ÷ the slower half's": "ratio",
        },
        [
            (
                one.whole.bytes,
                one.whole.threads,
                one.filling.bytes_per_second,
                one.copying.bytes_per_second,
                one.whole.bytes_per_second,
                one.beyond_bound,
            )
            for one in pipelines(found)
        ],
        note="Each half was timed apart, so the two in turn may take less than the slower of them.",
    )


def _first(first: Sequence[First], found: Sequence[Cell]) -> Table:
    later = {(cell.way, cell.bytes, cell.threads): cell.wall_seconds.median for cell in found if cell.uses == 1}
    return table(
        "The first time of each way",
        {
            "size": "bytes",
            "way": "text",
            "threads": "count",
            "set-up": "seconds",
            "first use": "seconds",
            "later uses": "seconds",
        },
        [
            (
                one.bytes,
                WAY_TITLES[one.way],
                one.threads,
                one.setup_seconds,
                one.wall_seconds,
                later.get((one.way, one.bytes, one.threads)),
            )
            for one in first
        ],
        note="Set-up: what is kept from one time to the next, such as a pinned buffer and threads. At the first size a "
        "library also loads what it needs.",
    )
