"""What the bandwidth experiment concludes: headline, tables and findings from the rows of a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pinscope.analysis.bandwidth import PAYS, Cell, Line, by_line, cells, fit_latency, pays_from, speedups
from pinscope.analysis.precision import Repeated, precision_not_reached
from pinscope.records.finding import Finding, Quantity, Reading, Table
from pinscope.records.run import Run
from pinscope.units import exact_bytes, format_bandwidth, format_bytes, format_share

SLOW_LINK = 0.85
"""Pinned copies below this share of the link's payload limit are worth a look."""
SHARED_UPLINK = 0.9
"""GPUs that copy at once below this share of what they reach alone share something on the way."""
LARGE = 2**24
"""Bytes from which a copy's time is mostly data, not latency: its rate may be held against the link's."""

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
PUBLISHED_STATE = ("4k", "cold")
"""The state of that program's pageable memory: by malloc, which on Linux has small pages unless huge ones are always
used, and copied once after three more arrays of 16 MiB were written, where the processor's caches hold 16 MiB."""
COMPARED = (PUBLISHED_STATE, ("thp", "cold"), ("4k", "warm"), ("thp", "warm"))
"""States of pageable memory in the order in which pinned memory is compared with them; the first that was measured."""

Curves = Mapping[Line, Sequence[Cell]]


def read_bandwidth(run: Run, rows: Sequence[Mapping[str, Any]]) -> Reading:
    """Headline, tables and findings of a bandwidth run; empty parts where nothing was measured yet."""
    curves = by_line(cells(rows))
    alone = {line: curve for line, curve in curves.items() if line.devices == 1 and line.device == run.device}
    return Reading(
        headline=_headline(run, alone),
        tables=_tables(run, alone, curves),
        findings=(
            *_arrival(curves),
            *_pageable(run, alone),
            *_states(alone),
            *_link(run, alone),
            *_uplink(curves),
            *precision_not_reached(run, _repeated(curves)),
        ),
    )


def curve_of(
    curves: Curves, memory: str, direction: str, copier: str = "engine", cache: str | None = None
) -> Sequence[Cell]:
    """The curve of a single GPU with these labels; empty if it was not measured.

    Of several states of the memory it is the one that is compared, or that with this ``cache``.
    """
    found = [
        line
        for line in curves
        if (line.memory, line.direction, line.copier, line.devices) == (memory, direction, copier, 1)
        and cache in (None, line.cache)
    ]
    chosen = min(found, key=_rank, default=None)
    return curves[chosen] if chosen else ()


def _rank(line: Line) -> int:
    state = (line.backing, line.cache)
    return COMPARED.index(state) if state in COMPARED else -1 if not line.cache else len(COMPARED)


def compared(curves: Curves) -> dict[Line, Sequence[Cell]]:
    """Of each kind of memory, direction and copier the curve that is compared."""
    return {line: curve for line, curve in curves.items() if curve is curve_of(curves, *_labels(line))}


def _labels(line: Line) -> tuple[str, str, str]:
    return line.memory, line.direction, line.copier


def link_limit(run: Run) -> float | None:
    """Payload limit of the GPU's link in one direction, bytes/second; ``None`` without a GPU or where unknown."""
    device = run.environment.device(run.device) if run.lab == "cuda" else None
    return device.link.limit_bytes_per_second if device and device.link else None


def _headline(run: Run, curves: Curves) -> tuple[Quantity, ...]:
    found: list[Quantity] = []
    for direction in ("h2d", "d2h"):
        pinned, pageable = curve_of(curves, "pinned", direction), curve_of(curves, "pageable", direction)
        if pinned:
            best = pinned[-1]
            found.append(
                Quantity(
                    name=f"Pinned {direction}, {format_bytes(best.bytes)}",
                    value=best.bytes_per_second,
                    unit="bytes/second",
                    spread=best.one_more.spread,
                )
            )
            found += _smallest(pinned[0])
        if ratios := speedups(pinned, pageable):
            against = pageable[0].line.state
            found.append(Quantity(name=f"Pinned ÷ {against}, {direction}", value=ratios[-1][1], unit="ratio"))
            start = pays_from(ratios)
            reason = None if start else f"at no measured size are pinned copies {PAYS} times faster throughout"
            found.append(Quantity(name=f"Pinning pays from, {direction}", value=start, unit="bytes", reason=reason))
    limit = link_limit(run)
    pinned = curve_of(curves, "pinned", "h2d")
    if limit and pinned:
        share = pinned[-1].bytes_per_second / limit
        found.append(Quantity(name="Share of the link's limit, h2d", value=share, unit="share"))
    return tuple(found)


def _smallest(cell: Cell) -> list[Quantity]:
    """The smallest copy both ways: what it takes alone, and what one more takes."""
    if cell.copies == 1:
        return []
    what = f"{cell.line.direction}, {format_bytes(cell.bytes)}"
    return [
        Quantity(name=f"One copy, {what}", value=cell.one_copy.median, unit="seconds", spread=cell.one_copy.spread),
        Quantity(
            name=f"One more copy, {what}", value=cell.one_more.median, unit="seconds", spread=cell.one_more.spread
        ),
    ]


def _tables(run: Run, alone: Curves, curves: Curves) -> tuple[Table, ...]:
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
    rows = []
    for (memory, direction), rate in PUBLISHED.items():
        if cell := nearest_published(curve_of(curves, memory, direction)):
            rows.append((cell.line.state, direction, rate, cell.bytes_per_second, cell.bytes))
    return Table(
        title="Beside a published table (RTX 2080 Ti, 16 MiB)",
        columns=("memory", "direction", "RTX 2080 Ti", "this run", "size here"),
        units=("text", "text", "bytes/second", "bytes/second", "bytes"),
        rows=tuple(rows),
        note="Lei Mao, Page-Locked Host Memory for Data Transfer: PCIe Gen3 x16, by Mark Harris's program, whose "
        "pageable memory has small pages and is in no cache (4k, cold). There a fast CPU hid most of what pinning "
        "saves; on a faster link the same staging copy is the bottleneck.",
    )


def _arrival(curves: Curves) -> list[Finding]:
    all_cells = [cell for curve in curves.values() for cell in curve]
    wrong = [cell for cell in all_cells if cell.wrong_words]
    if not wrong:
        return []
    worst = max(wrong, key=lambda cell: cell.wrong_words)
    return [
        Finding(
            rule="content-wrong",
            severity="critical",
            title=f"{len(wrong)} of {len(all_cells)} combinations delivered wrong data",
            detail=f"The worst: {worst.line.state} {worst.line.direction}, {format_bytes(worst.bytes)} by "
            f"{worst.line.copier}.",
            evidence=(Quantity(name="Wrong 8-byte words", value=worst.wrong_words, unit="count"),),
            advice="Do not trust this machine's copies. Run it again; if it repeats, check ECC counters "
            "(nvidia-smi -q -d ECC), the kernel log and the link's replay counter.",
        )
    ]


def _pageable(run: Run, curves: Curves) -> list[Finding]:
    found = []
    for direction in ("h2d", "d2h"):
        pinned, pageable = curve_of(curves, "pinned", direction), curve_of(curves, "pageable", direction)
        ratios = speedups(pinned, pageable)
        start = pays_from(ratios)
        if start is None:
            continue
        size, ratio = ratios[-1]
        held = next(cell for cell in pageable if cell.bytes == size)
        freed = next(cell for cell in pinned if cell.bytes == size)
        found.append(
            Finding(
                rule="pageable-slower",
                severity="warning" if run.lab == "cuda" else "note",
                title=f"Pageable {direction} copies are {ratio:.1f} times slower at {format_bytes(size)}",
                detail=f"{_against(pageable)}Pinning pays from {format_bytes(start)} on; the call that starts a "
                "pageable copy also keeps the CPU while the data is staged.",
                evidence=(
                    Quantity(name="Pinned", value=freed.bytes_per_second, unit="bytes/second"),
                    Quantity(name="Pageable", value=held.bytes_per_second, unit="bytes/second"),
                    Quantity(name="Issue time, pinned", value=freed.issue_seconds.median, unit="seconds"),
                    Quantity(name="Issue time, pageable", value=held.issue_seconds.median, unit="seconds"),
                ),
                advice=f"Pin buffers of {direction} copies of {format_bytes(start)} and more, once, and reuse them."
                if run.lab == "cuda"
                else "This is the mechanism, on this machine's memory. Measure on a GPU host before you decide.",
            )
        )
    return found


def _against(pageable: Sequence[Cell]) -> str:
    line = pageable[0].line
    if not line.cache:
        return ""
    pages = {"4k": "small pages", "thp": "huge pages"}.get(line.backing, line.backing)
    caches = "none of it in the processor's caches" if line.cache == "cold" else "just written by the processor"
    return f"Compared is memory with {pages}, {caches}. "


def _states(curves: Curves) -> list[Finding]:
    """How far the rate of pageable copies depends on pages and caches, at the size where it does most."""
    found = []
    for direction in ("h2d", "d2h"):
        lines = [
            curve
            for line, curve in curves.items()
            if (line.memory, line.direction, line.copier) == ("pageable", direction, "engine") and line.cache
        ]
        sizes = {cell.bytes for curve in lines for cell in curve if cell.bytes >= LARGE}
        groups = [[cell for curve in lines for cell in curve if cell.bytes == size] for size in sorted(sizes)]
        groups = [group for group in groups if len(group) > 1]
        if not groups:
            continue
        worst = max(groups, key=_range)
        slow, fast = (choose(worst, key=lambda cell: cell.bytes_per_second) for choose in (min, max))
        if _range(worst) < PAYS:
            continue
        found.append(
            Finding(
                rule="pageable-state",
                severity="note",
                title=f"{_range(worst):.1f} times between states of pageable memory, {direction}, "
                f"{format_bytes(slow.bytes)}",
                detail=f"{format_bandwidth(slow.bytes_per_second)} ({slow.line.state}) to "
                f"{format_bandwidth(fast.bytes_per_second)} ({fast.line.state}).",
                evidence=tuple(
                    Quantity(name=cell.line.state, value=cell.bytes_per_second, unit="bytes/second") for cell in worst
                ),
                advice="Compare programs only with equal pages under their memory and equal use of it before the copy.",
            )
        )
    return found


def _range(cells_of_a_size: Sequence[Cell]) -> float:
    rates = [cell.bytes_per_second for cell in cells_of_a_size]
    return max(rates) / min(rates)


def _link(run: Run, curves: Curves) -> list[Finding]:
    device = run.environment.device(run.device) if run.lab == "cuda" else None
    link, limit = (device.link if device else None), link_limit(run)
    if link is None or limit is None:
        return []
    found = []
    # The generation of an idle link drops to save power; after a run at full speed the rate itself tells.
    if link.width_now and link.width_max and link.width_now < link.width_max:
        found.append(
            Finding(
                rule="link-below-best",
                severity="warning",
                title=f"The link runs at x{link.width_now} of x{link.width_max}",
                detail="A narrower link carries proportionally less, whatever memory is used.",
                evidence=(
                    Quantity(name="Width now", value=link.width_now, unit="count"),
                    Quantity(name="Width at best", value=link.width_max, unit="count"),
                ),
                advice="Reseat the card or riser, check the slot's wiring and the BIOS bifurcation setting.",
            )
        )
    for direction in ("h2d", "d2h"):
        if curve := curve_of(curves, "pinned", direction):
            best = max(curve, key=lambda cell: cell.bytes_per_second)
            share = best.bytes_per_second / limit
            if best.bytes >= LARGE:
                found.append(_link_share(direction, best, share, limit))
    return found


def _link_share(direction: str, best: Cell, share: float, limit: float) -> Finding:
    evidence = (
        Quantity(name="Best pinned rate", value=best.bytes_per_second, unit="bytes/second"),
        Quantity(name="Link limit", value=limit, unit="bytes/second"),
    )
    if share >= SLOW_LINK:
        return Finding(
            rule="link-as-expected",
            severity="good",
            title=f"Pinned {direction} copies reach {format_share(share)} of what the link can carry",
            detail="The copy engine and the link work as they should.",
            evidence=evidence,
            advice="Nothing to do.",
        )
    return Finding(
        rule="link-slow",
        severity="warning",
        title=f"Pinned {direction} copies reach only {format_share(share)} of what the link can carry",
        detail=f"{format_bandwidth(best.bytes_per_second)} of {format_bandwidth(limit)}.",
        evidence=evidence,
        advice="Check the link's generation under load (pinscope doctor while a copy runs), that the process runs on "
        "the GPU's NUMA node (numactl --cpunodebind), and that no other program copies at the same time.",
    )


def _uplink(curves: Curves) -> list[Finding]:
    together = [cell for line, curve in curves.items() if line.devices > 1 for cell in curve]
    found = []
    for direction in sorted({cell.line.direction for cell in together}):
        members = [cell for cell in together if cell.line.direction == direction]
        alone = {
            line.device: cell.bytes_per_second
            for line, curve in curves.items()
            if (line.devices, line.memory, line.copier, line.direction) == (1, "pinned", "engine", direction)
            for cell in curve
            if cell.bytes == members[0].bytes
        }
        if not alone or any(cell.line.device not in alone for cell in members):
            continue
        total = sum(cell.bytes_per_second for cell in members)
        share = total / sum(alone[cell.line.device] for cell in members)
        shared = share < SHARED_UPLINK
        found.append(
            Finding(
                rule="shared-uplink" if shared else "own-uplinks",
                severity="warning" if shared else "good",
                title=f"{len(members)} GPUs at once reach {format_share(share)} of their rates alone, {direction}",
                detail="They share an uplink, a NUMA link or host memory bandwidth."
                if shared
                else "Each GPU has its own way to host memory.",
                evidence=(
                    Quantity(name="Together", value=total, unit="bytes/second"),
                    Quantity(name="Sum of each alone", value=total / share, unit="bytes/second"),
                ),
                advice="Spread transfers over time, or over GPUs on different switches (nvidia-smi topo -m)."
                if shared
                else "Nothing to do.",
            )
        )
    return found


def _repeated(curves: Curves) -> list[Repeated]:
    return [
        Repeated(
            f"{line.state} {line.direction}, {format_bytes(cell.bytes)} by {line.copier}"
            + (f", {line.devices} GPUs at once" if line.devices > 1 else ""),
            cell.one_more,
            (f"memory={line.memory}", f"directions={line.direction}", f"copiers={line.copier}",
             f"sizes={exact_bytes(cell.bytes).replace(' ', '')}"),
        )
        for line, curve in curves.items()
        for cell in curve
    ]  # fmt: skip
