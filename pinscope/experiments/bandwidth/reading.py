"""What the bandwidth experiment concludes: headline, tables and findings from the rows of a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pinscope.analysis.link_model import link_limit
from pinscope.analysis.statistics import measured
from pinscope.experiments.bandwidth.arithmetic import PAYS, Cell, by_line, cells, fit_latency, pays_from, speedups
from pinscope.experiments.bandwidth.curves import Curves, curve_of
from pinscope.experiments.bandwidth.findings import bandwidth_findings
from pinscope.records.finding import Quantity, Reading, Table, quantity
from pinscope.records.run import ExperimentRun
from pinscope.units import format_bytes

PUBLISHED_BYTES = 16 * 2**20
PUBLISHED = {
    ("pageable", "h2d"): 10.203332e9,
    ("pageable", "d2h"): 11.236589e9,
    ("pinned", "h2d"): 11.884305e9,
    ("pinned", "d2h"): 11.935439e9,
}
"""Bytes/second of the table that started PinScope: GeForce RTX 2080 Ti, Core i9-9900K (Lei Mao, "Page-Locked Host
Memory for Data Transfer"). It is by Mark Harris's program, which copies 4·1024² floats, 16 MiB, and writes "Transfer
size (MB): 16"."""


def read_bandwidth(run: ExperimentRun, rows: Sequence[Mapping[str, Any]]) -> Reading:
    """Headline, tables and findings of a bandwidth run; empty parts where nothing was measured yet."""
    curves = by_line(cells(rows))
    alone = {line: curve for line, curve in curves.items() if line.devices == 1 and line.device == run.device}
    return Reading(
        headline=_headline(run, alone),
        tables=_tables(run, alone, curves),
        findings=bandwidth_findings(run, alone, curves),
    )


def _headline(run: ExperimentRun, curves: Curves) -> tuple[Quantity, ...]:
    found: list[Quantity] = []
    for direction in ("h2d", "d2h"):
        pinned, pageable = curve_of(curves, "pinned", direction), curve_of(curves, "pageable", direction)
        if pinned:
            best = pinned[-1]
            found.append(
                quantity(
                    f"Pinned {direction}, {format_bytes(best.bytes)}",
                    best.bytes_per_second,
                    "bytes/second",
                    spread=best.one_more.spread,
                )
            )
            found += _smallest(pinned[0])
        if ratios := speedups(pinned, pageable):
            against = pageable[0].line.state
            size, ratio = ratios[-1]
            name = f"Pinned ÷ {against}, {direction}, {format_bytes(size)}"
            found.append(quantity(name, ratio, "ratio"))
            start = pays_from(ratios)
            smallest = ", the smallest size" if start == ratios[0][0] else ""
            reason = None if start else f"from no measured size on are pinned copies {PAYS} times as fast"
            name = f"Pinned copies faster from, {direction}{smallest}"
            found.append(quantity(name, start, "bytes", reason=reason))
    limit = link_limit(run)
    pinned = curve_of(curves, "pinned", "h2d")
    if limit and pinned:
        share = pinned[-1].bytes_per_second / limit
        found.append(quantity("Share of the link's limit, h2d", share, "share"))
    return tuple(found)


def _smallest(cell: Cell) -> list[Quantity]:
    """The smallest copy both ways: what it takes alone, and what one more takes."""
    if cell.copies == 1:
        return []
    what = f"{cell.line.direction}, {format_bytes(cell.bytes)}"
    return [
        measured(f"One copy, {what}", cell.one_copy, "seconds"),
        measured(f"One more copy, {what}", cell.one_more, "seconds"),
    ]


def _tables(run: ExperimentRun, alone: Curves, curves: Curves) -> tuple[Table, ...]:
    measured = Table(
        title="Every combination",
        columns=(
            "memory", "direction", "copier", "size", "rate", "spread", "one more copy", "copies",
            "one copy", "wall time", "issue time", "repeats", "GPU", "GPUs at once",
        ),
        units=(
            "text", "text", "text", "bytes", "bytes/second", "share", "seconds", "count",
            "seconds", "seconds", "seconds", "count", "count", "count",
        ),
        rows=tuple(
            (
                cell.line.state, cell.line.direction, cell.line.copier, cell.bytes, cell.bytes_per_second,
                cell.one_more.spread, cell.one_more.median, cell.copies, cell.one_copy.median,
                cell.wall_seconds.median, cell.issue_seconds.median, cell.one_more.count, cell.line.device,
                cell.line.devices,
            )
            for curve in curves.values()
            for cell in curve
        ),
        note="Medians. One copy starts from an idle stream; one more copy is each of so many in a row, and rate and "
        "spread (half the interquartile range) are its own. Rates of bidirectional copies count both directions.",
    )  # fmt: skip
    fits = Table(
        title="Latency and bandwidth: t = α + bytes ÷ β",
        columns=("memory", "direction", "copier", "α", "β", "half-performance size", "R²"),
        units=("text", "text", "text", "seconds", "bytes/second", "bytes", "count"),
        rows=tuple(
            (
                line.state, line.direction, line.copier,
                fit.alpha_seconds, fit.beta_bytes_per_second, fit.half_size_bytes, fit.r_squared,
            )
            for line, curve in alone.items()
            if (fit := fit_latency(curve))
        ),
        note="Through what one more copy takes. At the half-performance size α·β it reaches half of β. An R² well "
        "below 1 says that the curve is not one straight line, as for pageable memory, whose path changes with the "
        "size.",
    )  # fmt: skip
    # The host model is never set beside a GPU's figures.
    published = (_published(alone),) if run.lab == "cuda" else ()
    return tuple(table for table in (measured, fits, *published) if table.rows)


def nearest_published(curve: Sequence[Cell]) -> Cell | None:
    """The cell whose size is nearest to the published 16 MiB, within a factor of two."""
    near = [cell for cell in curve if PUBLISHED_BYTES / 2 <= cell.bytes <= PUBLISHED_BYTES * 2]
    return min(near, key=lambda cell: abs(cell.bytes - PUBLISHED_BYTES), default=None)


def _published(curves: Curves) -> Table:
    rows: list[tuple[str, str, float, float, int]] = []
    for (memory, direction), rate in PUBLISHED.items():
        if cell := nearest_published(curve_of(curves, memory, direction)):
            rows.append((cell.line.state, direction, rate, cell.bytes_per_second, cell.bytes))
    return Table(
        title="Beside a published table (RTX 2080 Ti, 16 MiB)",
        columns=("memory", "direction", "RTX 2080 Ti", "this run", "size here"),
        units=("text", "text", "bytes/second", "bytes/second", "bytes"),
        rows=tuple(rows),
        note="Lei Mao, Page-Locked Host Memory for Data Transfer: PCIe Gen3 x16, by Mark Harris's program, whose "
        f"pageable memory has small pages and is in no cache (4k, cold). {_pinned_over_pageable(rows)}".rstrip(),
    )


def _pinned_over_pageable(rows: Sequence[tuple[str, str, float, float, int]]) -> str:
    """The published gain and this run's in each direction that has both kinds of memory."""
    here = {(state.split(",")[0], direction): rate for state, direction, _, rate, _ in rows}
    parts = [
        f"{PUBLISHED['pinned', way] / PUBLISHED['pageable', way]:.2f} times there and "
        f"{here['pinned', way] / here['pageable', way]:.2f} times here, {way}"
        for way in ("h2d", "d2h")
        if ("pinned", way) in here and ("pageable", way) in here
    ]
    return f"Pinned over pageable: {'; '.join(parts)}." if parts else ""
