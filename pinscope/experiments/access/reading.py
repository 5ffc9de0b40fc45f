"""What the access experiment concludes: headline, tables and findings from the rows of a run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pinscope.analysis.precision import Repeated, precision_not_reached
from pinscope.analysis.statistics import measured
from pinscope.experiments.access.arithmetic import (
    AS_GOOD,
    PATTERN_TITLES,
    WAY_TITLES,
    Cell,
    cells,
    one_more_use,
    over_uses,
    winners,
)
from pinscope.experiments.access.findings import uses_words, way_findings
from pinscope.experiments.access.verdict import access_verdict
from pinscope.records.finding import Finding, Quantity, Reading, Table, quantity, table, wrong_data
from pinscope.records.run import ExperimentRun
from pinscope.units import format_share

_CLOSE = f"within {AS_GOOD - 1:.0%}".replace("%", " %")


def read_access(run: ExperimentRun, rows: Sequence[Mapping[str, Any]]) -> Reading:
    """Headline, tables and findings; empty parts where nothing was measured yet."""
    found = cells(rows)
    if not found:
        return Reading(headline=(), tables=(), findings=())
    patterns = list(dict.fromkeys(cell.pattern for cell in found))
    tables = (_winners(found), _more_uses(found, patterns), _all(found))
    return Reading(
        verdict=access_verdict(found),
        headline=_headline(found, patterns),
        tables=tuple(table for table in tables if table.rows),
        findings=(*_wrong(found), *way_findings(found), *precision_not_reached(run, _repeated(found))),
    )


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
            rate, words = best.useful_bytes_per_second, f"Useful rate of the fastest, one {name}"
            quantities += [
                quantity(f"Fastest for one {name}", _best(alike_cells), "text"),
                measured(words, best.wall_seconds, "bytes/second", rate),
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
            f"{uses_words(cell.uses)}",
            cell.wall_seconds,
            (f"ways={cell.way}", f"patterns={cell.pattern}", f"spacings={cell.spacing}", f"uses={cell.uses}"),
        )
        for cell in found
    ]


def _winners(found: Sequence[Cell]) -> Table:
    rows = []
    for pattern, spacing, uses in _combinations(found):
        alike = _alike(found, pattern, spacing, uses)
        best = winners(alike)
        slowest = max(alike, key=lambda cell: cell.wall_seconds.median)
        rows.append(
            (
                PATTERN_TITLES[pattern],
                1 / spacing,
                uses,
                _best(alike),
                best[0].wall_seconds.median,
                WAY_TITLES[slowest.way],
                slowest.wall_seconds.median / best[0].wall_seconds.median,
            )
        )
    return table(
        "Which way wins",
        {
            "pattern": "text",
            "share used": "share",
            "uses": "count",
            "best way": "text",
            "it takes": "seconds",
            "slowest way": "text",
            "it takes × the best": "ratio",
        },
        rows,
        note=f"Ways {_CLOSE} of the best are as good and named with it. Times run from data on the host until the "
        "result can be used.",
    )


def _more_uses(found: Sequence[Cell], patterns: Sequence[str]) -> Table:
    """GPU memory beside host memory: what a kernel takes once the data is where it shall be."""
    rows = []
    for pattern in patterns:
        curves = over_uses(found, pattern, 1)
        copied, mapped = (one_more_use(curves.get(way, ())) for way in ("copy", "mapped"))
        if copied is not None and mapped is not None:
            rows.append((PATTERN_TITLES[pattern], copied, mapped, mapped / copied))
    return table(
        "What one more use takes",
        {
            "pattern": "text",
            "copied to GPU memory": "seconds",
            "zero-copy (mapped)": "seconds",
            "zero-copy ÷ GPU memory": "ratio",
        },
        rows,
        note="Of data that is used whole: the time of the most uses less that of the fewest, divided by the uses "
        "between. The copy itself is in neither.",
    )


def _best(alike: Sequence[Cell]) -> str:
    return " or ".join(WAY_TITLES[cell.way] for cell in winners(alike))


def _all(found: Sequence[Cell]) -> Table:
    return table(
        "Every combination",
        {
            "pattern": "text",
            "share used": "share",
            "uses": "count",
            "way": "text",
            "time": "seconds",
            "spread": "share",
            "of it on the GPU": "seconds",
            "useful rate": "bytes/second",
            "repeats": "count",
        },
        [
            (
                PATTERN_TITLES[cell.pattern],
                1 / cell.spacing,
                cell.uses,
                WAY_TITLES[cell.way],
                cell.wall_seconds.median,
                cell.wall_seconds.spread,
                cell.device_seconds.median,
                cell.useful_bytes_per_second,
                cell.wall_seconds.count,
            )
            for cell in found
        ],
        note="Medians. Useful rate: bytes that kernels used, over the time.",
    )


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
