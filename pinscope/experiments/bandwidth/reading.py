"""What the bandwidth experiment concludes: headline, tables and findings from the rows of a run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pinscope.analysis.link_findings import link_below_best
from pinscope.analysis.link_model import link_limit, packet_words
from pinscope.analysis.precision import Repeated, precision_not_reached
from pinscope.analysis.rules.link import SHARED_UPLINK, SLOW_LINK
from pinscope.analysis.statistics import measured
from pinscope.experiments.bandwidth.arithmetic import (
    PAYS,
    PUBLISHED,
    Cell,
    Curves,
    by_line,
    cells,
    curve_of,
    fit_latency,
    nearest_published,
    pays_from,
    speedups,
)
from pinscope.records.environment import Link
from pinscope.records.finding import (
    Finding,
    Quantity,
    Reading,
    Table,
    finding,
    good,
    note,
    quantity,
    table,
    warning,
    wrong_data,
)
from pinscope.records.run import ExperimentRun
from pinscope.units import exact_bytes, format_bandwidth, format_bytes, format_share

LARGE = 2**24
"""Bytes from which a copy's time is mostly data, not latency: its rate may be held against the link's."""
AS_FAST = 0.98
"""Share of the copy engines' rate from which a kernel copies as fast."""
_WAYS = {"h2d": "h2d", "d2h": "d2h", "bidirectional": "both ways at once"}


def read_bandwidth(run: ExperimentRun, rows: Sequence[Mapping[str, Any]]) -> Reading:
    """Headline, tables and findings of a bandwidth run; empty parts where nothing was measured yet."""
    curves = by_line(cells(rows))
    alone = {line: curve for line, curve in curves.items() if line.devices == 1 and line.device == run.device}
    return Reading(
        headline=_headline(run, alone),
        tables=_tables(run, alone, curves),
        findings=_findings(run, alone, curves),
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
    measured = table(
        "Every combination",
        {
            "memory": "text", "direction": "text", "copier": "text", "size": "bytes", "rate": "bytes/second",
            "spread": "share", "one more copy": "seconds", "copies": "count", "one copy": "seconds",
            "wall time": "seconds", "issue time": "seconds", "repeats": "count", "GPU": "count",
            "GPUs at once": "count",
        },
        [
            (
                cell.line.state, cell.line.direction, cell.line.copier, cell.bytes, cell.bytes_per_second,
                cell.one_more.spread, cell.one_more.median, cell.copies, cell.one_copy.median,
                cell.wall_seconds.median, cell.issue_seconds.median, cell.one_more.count, cell.line.device,
                cell.line.devices,
            )
            for curve in curves.values()
            for cell in curve
        ],
        note="Medians. One copy starts from an idle stream; one more copy is each of so many in a row, and rate and "
        "spread (half the interquartile range) are its own. Rates of bidirectional copies count both directions.",
    )  # fmt: skip
    fits = table(
        "Latency and bandwidth: t = α + bytes ÷ β",
        {
            "memory": "text", "direction": "text", "copier": "text", "α": "seconds", "β": "bytes/second",
            "half-performance size": "bytes", "R²": "count",
        },
        [
            (
                line.state, line.direction, line.copier,
                fit.alpha_seconds, fit.beta_bytes_per_second, fit.half_size_bytes, fit.r_squared,
            )
            for line, curve in alone.items()
            if (fit := fit_latency(curve))
        ],
        note="Through what one more copy takes. At the half-performance size α·β it reaches half of β. An R² well "
        "below 1 says that the curve is not one straight line, as for pageable memory, whose path changes with the "
        "size.",
    )  # fmt: skip
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
            "memory": "text", "direction": "text", "RTX 2080 Ti": "bytes/second", "this run": "bytes/second",
            "size here": "bytes",
        },
        rows,
        note="Lei Mao, Page-Locked Host Memory for Data Transfer: PCIe Gen3 x16, by Mark Harris's program, whose "
        f"pageable memory has small pages and is in no cache (4k, cold). {_pinned_over_pageable(rows)}".rstrip(),
    )  # fmt: skip


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


def _findings(run: ExperimentRun, alone: Curves, curves: Curves) -> tuple[Finding, ...]:
    """All findings of a run: ``alone`` are the curves of its own GPU, ``curves`` those of all."""
    return (
        *_arrival(curves), *_pageable(run, alone), *_states(alone), *_by_kernel(run, alone),
        *_link(run, alone), *_uplink(curves), *precision_not_reached(run, _repeated(curves)),
    )  # fmt: skip


def _arrival(curves: Curves) -> Iterator[Finding]:
    all_cells = [cell for curve in curves.values() for cell in curve]
    wrong = [cell for cell in all_cells if cell.wrong_words]
    if not wrong:
        return
    worst = max(wrong, key=lambda cell: cell.wrong_words)
    yield wrong_data(
        "content-wrong",
        quantity("Wrong 8-byte words", worst.wrong_words, "count"),
        title=f"{len(wrong)} of {len(all_cells)} combinations delivered wrong data",
        detail=f"The worst: {worst.line.state} {worst.line.direction}, {format_bytes(worst.bytes)} by "
        f"{worst.line.copier}.",
    )


def _pageable(run: ExperimentRun, curves: Curves) -> Iterator[Finding]:
    for direction in ("h2d", "d2h"):
        pinned, pageable = curve_of(curves, "pinned", direction), curve_of(curves, "pageable", direction)
        ratios = speedups(pinned, pageable)
        start = pays_from(ratios)
        if start is None:
            continue
        size, ratio = ratios[-1]
        first = ratios[0][0]
        where, worth = f"at every size measured (from {format_bytes(first)} on)", ""
        if start > first:
            where, worth = f"from {format_bytes(start)} on", f" of {format_bytes(start)} and more"
        held = next(cell for cell in pageable if cell.bytes == size)
        freed = next(cell for cell in pinned if cell.bytes == size)
        yield finding(
            "warning" if run.lab == "cuda" else "note",
            "pageable-slower",
            quantity("Pinned", freed.bytes_per_second, "bytes/second"),
            quantity("Pageable", held.bytes_per_second, "bytes/second"),
            quantity("Issue time, pinned", freed.issue_seconds.median, "seconds"),
            quantity("Issue time, pageable", held.issue_seconds.median, "seconds"),
            title=f"Pageable {direction} copies take {ratio:.1f} times as long as pinned ones at {format_bytes(size)}",
            detail=f"{_against(pageable)}Pinned copies are faster {where}; the call that starts a pageable copy "
            "also keeps the CPU while the data is staged.",
            advice=f"Pin buffers of {direction} copies{worth} once, and reuse them; the experiment allocation "
            "measures what pinning itself takes, and after how many copies that has paid."
            if run.lab == "cuda"
            else "This is the mechanism, on this machine's memory. Measure on a GPU host before you decide.",
        )


def _against(pageable: Sequence[Cell]) -> str:
    line = pageable[0].line
    if not line.cache:
        return ""
    pages = {"4k": "small pages", "thp": "huge pages"}.get(line.backing, line.backing)
    caches = "none of it in the processor's caches" if line.cache == "cold" else "just written by the processor"
    return f"Compared is memory with {pages}, {caches}. "


def _states(curves: Curves) -> Iterator[Finding]:
    """How far the rate of pageable copies depends on pages and caches, at the size where it does most."""
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
        yield note(
            "pageable-state",
            *(quantity(cell.line.state, cell.bytes_per_second, "bytes/second") for cell in worst),
            title=f"Pageable {direction} copies of {format_bytes(slow.bytes)} take up to {_range(worst):.1f} times "
            "as long, by the memory's pages and the processor's caches",
            detail=f"{format_bandwidth(slow.bytes_per_second)} ({slow.line.state}) against "
            f"{format_bandwidth(fast.bytes_per_second)} ({fast.line.state}): the widest difference of all sizes "
            f"from {format_bytes(LARGE)} on.",
            advice="When you compare pageable copies, take the same pages (4k or thp) and the same caches (warm: "
            "just written; cold: not touched for long).",
        )


def _by_kernel(run: ExperimentRun, curves: Curves) -> Iterator[Finding]:
    """How copies by a kernel compare with those by the copy engines, at the largest size that both have."""
    found = []
    for direction in ("h2d", "d2h", "bidirectional"):
        kernels = {
            cell.bytes: cell
            for line, curve in curves.items()
            if line.copier == "kernel" and line.direction == direction and not line.cache
            for cell in curve
            if cell.bytes >= LARGE
        }
        memory = next(iter(kernels.values())).line.memory if kernels else ""
        engines = {cell.bytes: cell for cell in curve_of(curves, memory, direction)}
        if both := kernels.keys() & engines.keys():
            found.append((kernels[max(both)], engines[max(both)]))
    if run.lab != "cuda" or not found:
        return
    shares = [kernel.bytes_per_second / engine.bytes_per_second for kernel, engine in found]
    ways = [_WAYS[kernel.line.direction] for kernel, _ in found]
    slower = min(shares) < AS_FAST
    listed = ", ".join(f"{format_share(share)} {way}" for share, way in zip(shares, ways, strict=True))
    yield note(
        "by-kernel",
        *(
            quantity(f"By {cell.line.copier}, {way}", cell.bytes_per_second, "bytes/second")
            for pair, way in zip(found, ways, strict=True)
            for cell in pair
        ),
        title=f"Copies by a kernel reach {listed} of the copy engines' rate",
        detail=f"The memory is {found[0][0].line.memory.replace('_', '-')}, one copy "
        f"{format_bytes(found[0][0].bytes)}; both ways counts the two directions together.",
        advice="Copy large blocks with cudaMemcpyAsync; a kernel of one's own pays where it gathers or computes "
        "as well (the experiment access)."
        if slower
        else "Either will do for large blocks.",
    )


def _range(cells_of_a_size: Sequence[Cell]) -> float:
    rates = [cell.bytes_per_second for cell in cells_of_a_size]
    return max(rates) / min(rates)


def _link(run: ExperimentRun, curves: Curves) -> Iterator[Finding]:
    link, limit = (run.gpu.link if run.gpu else None), link_limit(run)
    if link is None or limit is None:
        return
    # The generation of an idle link drops to save power; after a run at full speed the rate itself tells.
    narrow = link_below_best(run.device, link, busy=False)
    if narrow is not None:
        yield narrow
    for direction in ("h2d", "d2h"):
        if curve := curve_of(curves, "pinned", direction):
            best = max(curve, key=lambda cell: cell.bytes_per_second)
            share = best.bytes_per_second / limit
            if best.bytes >= LARGE:
                yield _link_share(direction, best, share, link, limit)


def _link_share(direction: str, best: Cell, share: float, link: Link, limit: float) -> Finding:
    carries = f"PCIe generation {link.generation_max} × {link.width_max}" if link.kind == "pcie" else "The link"
    counted = f"{carries} carries at most {format_bandwidth(limit)} one way{packet_words(link)}."
    evidence = (
        quantity("Best pinned rate", best.bytes_per_second, "bytes/second"),
        quantity("Link limit", limit, "bytes/second"),
    )
    if share >= SLOW_LINK:
        return good(
            "link-as-expected",
            *evidence,
            title=f"Pinned {direction} copies reach {format_share(share)} of what the link can carry",
            detail=counted,
        )
    return warning(
        "link-slow",
        *evidence,
        title=f"Pinned {direction} copies reach only {format_share(share)} of what the link can carry",
        detail=f"{format_bandwidth(best.bytes_per_second)}. {counted}",
        advice="Check the link's generation under load (pinscope doctor while a copy runs), that the process runs on "
        "the GPU's NUMA node (numactl --cpunodebind), and that no other program copies at the same time.",
    )


def _uplink(curves: Curves) -> Iterator[Finding]:
    together = [cell for line, curve in curves.items() if line.devices > 1 for cell in curve]
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
        yield finding(
            "warning" if shared else "good",
            "shared-uplink" if shared else "own-uplinks",
            quantity("Together", total, "bytes/second"),
            quantity("Sum of each alone", total / share, "bytes/second"),
            title=f"{len(members)} GPUs at once reach {format_share(share)} of their rates alone, {direction}",
            detail="They share an uplink, a NUMA link or host memory bandwidth."
            if shared
            else "Each GPU has its own way to host memory.",
            advice="Spread transfers over time, or over GPUs on different switches (nvidia-smi topo -m)."
            if shared
            else "Nothing to do.",
        )


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
