"""What the bandwidth experiment concludes: verdict, headline and tables from the rows of a run."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from pinscope.analysis.conclusions import ROUGH, about, on_lab
from pinscope.analysis.link_model import link_limit
from pinscope.analysis.statistics import measured
from pinscope.experiments.bandwidth.arithmetic import (
    PAYS,
    PUBLISHED,
    Cell,
    Curves,
    Gain,
    Line,
    by_line,
    cells,
    curve_of,
    fit_latency,
    gain,
    nearest_published,
)
from pinscope.experiments.bandwidth.findings import LARGE, bandwidth_findings
from pinscope.records.finding import Quantity, Reading, Table, quantity, table
from pinscope.records.run import ExperimentRun, LabKind
from pinscope.units import format_bandwidth, format_bytes, format_share

_PAGES = {"4k": "4 KiB pages", "thp": "huge pages"}
_CACHES = {"cold": "cold CPU caches", "warm": "warm CPU caches"}
_TO_AND_FROM = {"h2d": "to the GPU", "d2h": "from the GPU", "bidirectional": "both ways at once"}


def read_bandwidth(run: ExperimentRun, rows: Sequence[Mapping[str, Any]]) -> Reading:
    """Verdict, headline, tables and findings of a bandwidth run; empty parts where nothing was measured yet."""
    curves = by_line(cells(rows))
    alone = {line: curve for line, curve in curves.items() if line.devices == 1 and line.device == run.device}
    return Reading(
        verdict=_wrong(curves) or _verdict(run, alone),
        headline=_headline(run, alone),
        tables=_tables(run, alone, curves),
        findings=bandwidth_findings(run, alone, curves),
    )


def _wrong(curves: Curves) -> str | None:
    every = [cell for curve in curves.values() for cell in curve]
    wrong = sum(1 for cell in every if cell.wrong_words)
    return f"{wrong} of {len(every)} combinations delivered wrong data: do not trust these figures." if wrong else None


def _verdict(run: ExperimentRun, curves: Curves) -> str | None:
    """The first direction in which pinned memory can be compared; else what was measured of one kind of memory."""
    for direction in ("h2d", "d2h", "bidirectional"):
        if found := gain(curves, direction):
            return on_lab(run.lab, f"{_copies('Pinned', direction, run.lab)} {_compared(found)}.")
    return _one_kind(run, curves)


def _copies(kind: str, direction: str, lab: LabKind) -> str:
    if lab == "cuda" or direction == "bidirectional":
        return f"{kind} copies {_TO_AND_FROM[direction]}"
    return f"{kind} {direction} copies"


def _compared(found: Gain) -> str:
    """``are 6.5 times as fast as pageable ones: 55.0 against 8.46 GB/s at 1 GiB, and faster from 4 KiB on``."""
    rates = f"{_number(found.pinned)} against {_number(found.pageable)} GB/s at {format_bytes(found.bytes)}"
    if not found.is_distinct and found.uncertainty > ROUGH:
        return f"vary too much to tell whether they are faster than pageable ones: {rates}"
    if found.start is None:
        slower = found.ratio * PAYS < 1
        return f"are {'slower than' if slower else 'hardly faster than'} pageable ones: {rates}"
    words = f"are {about(found.uncertainty)}{found.ratio:.1f} times as fast as pageable ones: {rates}"
    if found.start >= found.bytes:
        return words
    if found.start == found.smallest:
        return f"{words}, and faster at every size from {format_bytes(found.start)}"
    return f"{words}, and faster from {format_bytes(found.start)} on"


def _number(cell: Cell) -> str:
    return format_bandwidth(cell.bytes_per_second).removesuffix(" GB/s")


def _largest_of_one_kind(curves: Curves) -> list[Cell]:
    """The largest copies of one kind of memory in two directions at most: of pinned memory where there is any."""
    pinned_first = sorted(curves, key=lambda line: (line.memory != "pinned", line.copier != "engine"))
    if not pinned_first:
        return []
    kind = pinned_first[0]
    same = [line for line in curves if (line.memory, line.copier) == (kind.memory, kind.copier)]
    best = {line.direction: curves[line][-1] for line in reversed(same)}
    shown = [best[way] for way in _TO_AND_FROM if way in best][:2]
    return [cell for cell in shown if cell.bytes == max(each.bytes for each in shown)]


def _one_kind(run: ExperimentRun, curves: Curves) -> str | None:
    """What one kind of memory reaches, where no two kinds can be compared."""
    shown = _largest_of_one_kind(curves)
    if not shown:
        return None
    kind, size = shown[0].line, shown[0].bytes
    rates = " and ".join(
        f"{format_bandwidth(cell.bytes_per_second)} "
        f"{_TO_AND_FROM[cell.line.direction] if run.lab == 'cuda' else cell.line.direction}"
        for cell in shown
    )
    by, name = " by a kernel" if kind.copier == "kernel" else "", _memory(kind)
    share = _link_share(run, curves) if kind.memory == "pinned" and kind.copier == "engine" else None
    of_link = f", {format_share(share)} of what the link can carry" if share is not None and share <= 1 else ""
    return on_lab(run.lab, f"{name} copies of {format_bytes(size)}{by} run at {rates}{of_link}.")


def _link_share(run: ExperimentRun, curves: Curves, direction: str = "h2d") -> float | None:
    """The best rate of large pinned copies over what the link can carry; above 1 where the limit is too low."""
    limit = link_limit(run)
    large = [cell.bytes_per_second for cell in curve_of(curves, "pinned", direction) if cell.bytes >= LARGE]
    return max(large) / limit if limit and large else None


def _headline(run: ExperimentRun, curves: Curves) -> tuple[Quantity, ...]:
    """Rate, gain and share of the link to the device; then the same from it; then where it begins and small copies."""
    rates: dict[str, list[Quantity]] = {"h2d": [], "d2h": []}
    starts: list[Quantity] = []
    small: list[Quantity] = []
    for direction, found in rates.items():
        if pinned := curve_of(curves, "pinned", direction):
            best = pinned[-1]
            name = f"Pinned {direction}, {format_bytes(best.bytes)}"
            found.append(measured(name, best.one_more, "bytes/second", best.bytes_per_second))
            small += _smallest(pinned[0])
        if faster := gain(curves, direction):
            found.append(_faster(direction, faster))
            starts.append(_start(direction, faster))
        share = _link_share(run, curves, direction)
        if share is not None:
            reason = "the copies were faster than the limit that PinScope assumes for the link"
            name = f"Share of the link's limit, best pinned {direction}"
            found.append(quantity(name, share if share <= 1 else None, "share", reason=reason))
    return (*rates["h2d"], *rates["d2h"], *starts, *small) or tuple(map(_rate, _largest_of_one_kind(curves)))


def _memory(line: Line) -> str:
    return line.memory.replace("_", "-").capitalize()


def _rate(cell: Cell) -> Quantity:
    """Rate of copies of a memory that no other one was compared with."""
    by = ", by a kernel" if cell.line.copier == "kernel" else ""
    name = f"{_memory(cell.line)} {cell.line.direction}{by}, {format_bytes(cell.bytes)}"
    return measured(name, cell.one_more, "bytes/second", cell.bytes_per_second)


def _faster(direction: str, found: Gain) -> Quantity:
    wild = 1 < found.uncertainty < math.inf
    few = [count for cell in (found.pinned, found.pageable) if (count := cell.one_more.few)]
    spread = found.uncertainty if ROUGH < found.uncertainty <= 1 and not few else None
    line = found.pageable.line
    state = ", ".join(filter(None, (_PAGES.get(line.backing), _CACHES.get(line.cache))))
    over = f"pageable ({state})" if state else "pageable"
    name = f"Speed-up over {over}, {direction}, {format_bytes(found.bytes)}"
    reason = "the copies vary too much to tell"
    repeats = min(few, default=None)
    return quantity(name, None if wild else found.ratio, "ratio", spread=spread, repeats=repeats, reason=reason)


def _start(direction: str, found: Gain) -> Quantity:
    start = found.start if found.is_distinct else None
    smallest = " (smallest measured)" if start == found.smallest else ""
    reason = f"from no measured size on are pinned copies {PAYS} times as fast"
    if found.ratio >= PAYS and not found.is_distinct:
        reason = "the largest copies vary too much to tell which are faster"
    return quantity(f"Size from which pinned is faster, {direction}{smallest}", start, "bytes", reason=reason)


def _smallest(cell: Cell) -> list[Quantity]:
    """The smallest copy both ways: what it takes alone, and what each of many takes that are queued together."""
    if cell.copies == 1:
        return []
    what = f"{cell.line.direction}, {format_bytes(cell.bytes)}"
    return [
        measured(f"One copy alone, {what}", cell.one_copy, "seconds"),
        measured(f"Each of {cell.copies} copies in a row, {what}", cell.one_more, "seconds"),
    ]


def _tables(run: ExperimentRun, alone: Curves, curves: Curves) -> tuple[Table, ...]:
    measured = table(
        "Every combination",
        {
            "memory": "text",
            "direction": "text",
            "copier": "text",
            "size": "bytes",
            "rate": "bytes/second",
            "spread": "share",
            "one more copy": "seconds",
            "copies": "count",
            "one copy": "seconds",
            "wall time": "seconds",
            "issue time": "seconds",
            "repeats": "count",
            "GPU": "count",
            "GPUs at once": "count",
        },
        [
            (
                cell.line.state,
                cell.line.direction,
                cell.line.copier,
                cell.bytes,
                cell.bytes_per_second,
                cell.one_more.spread,
                cell.one_more.median,
                cell.copies,
                cell.one_copy.median,
                cell.wall_seconds.median,
                cell.issue_seconds.median,
                cell.one_more.count,
                cell.line.device,
                cell.line.devices,
            )
            for curve in curves.values()
            for cell in curve
        ],
        note="Medians. One copy starts from an idle stream; one more copy is each of so many in a row, and rate and "
        "spread (half the interquartile range) are its own. Rates of bidirectional copies count both directions.",
    )
    fits = table(
        "Latency and bandwidth: t = α + bytes ÷ β",
        {
            "memory": "text",
            "direction": "text",
            "copier": "text",
            "α": "seconds",
            "β": "bytes/second",
            "half-performance size": "bytes",
            "R²": "count",
        },
        [
            (
                line.state,
                line.direction,
                line.copier,
                fit.alpha_seconds,
                fit.beta_bytes_per_second,
                fit.half_size_bytes,
                fit.r_squared,
            )
            for line, curve in alone.items()
            if (fit := fit_latency(curve))
        ],
        note="Through what one more copy takes. At the half-performance size α·β it reaches half of β. An R² well "
        "below 1 says that the curve is not one straight line, as for pageable memory, whose path changes with the "
        "size.",
    )
    # The host model is never set beside a GPU's figures.
    published = (_published(alone),) if run.lab == "cuda" else ()
    return tuple(table for table in (measured, fits, *published) if table.rows)


def _published(curves: Curves) -> Table:
    rows: list[tuple[str, str, float, float, int]] = []
    for (memory, direction), rate in PUBLISHED.items():
        if cell := nearest_published(curve_of(curves, memory, direction)):
            rows.append((cell.line.state, direction, rate, cell.bytes_per_second, cell.bytes))
    return table(
        "Beside a published table (RTX 2080 Ti, 16 MiB)",
        {
            "memory": "text",
            "direction": "text",
            "RTX 2080 Ti": "bytes/second",
            "this run": "bytes/second",
            "size here": "bytes",
        },
        rows,
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
