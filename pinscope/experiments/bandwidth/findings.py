"""What the bandwidth experiment found out, each finding with what it costs to ignore it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pinscope.analysis.conclusions import (
    Costed,
    dearest_first,
    exceeds,
    is_distinct,
    joined,
    known_within,
    part_of,
    part_words,
    times,
    together,
)
from pinscope.analysis.link_findings import link_below_best
from pinscope.analysis.link_model import link_limit, packet_words, payload_now
from pinscope.analysis.precision import Repeated, precision_not_reached
from pinscope.analysis.rules.link import SHARED_UPLINK, SLOW_LINK
from pinscope.analysis.statistics import measured
from pinscope.experiments.bandwidth.arithmetic import PAYS, Cell, Curves, Gain, curve_of, gain
from pinscope.records.environment import Link
from pinscope.records.finding import Finding, Quantity, costing, finding, good, note, quantity, wrong_data
from pinscope.records.run import ExperimentRun
from pinscope.units import exact_bytes, format_bandwidth, format_bytes, format_seconds, format_share

LARGE = 2**24
"""Bytes from which a copy's time is mostly data, not latency: its rate may be held against the link's."""
AS_FAST = 0.98
"""Share of the copy engines' rate from which a kernel copies as fast."""
_WAYS = {"h2d": "h2d", "d2h": "d2h", "bidirectional": "both ways at once"}


def bandwidth_findings(run: ExperimentRun, alone: Curves, curves: Curves) -> tuple[Finding, ...]:
    """All findings of a run: ``alone`` are the curves of its own GPU, ``curves`` those of all."""
    found = (
        *_arrival(curves),
        *_pageable(run, alone),
        *_link(run, alone),
        *_uplink(curves),
        *_states(alone),
        *_by_kernel(run, alone),
        *((1.0, late) for late in precision_not_reached(run, _repeated(run, curves))),
    )
    return dearest_first(found)


def _arrival(curves: Curves) -> Iterator[Costed]:
    all_cells = [cell for curve in curves.values() for cell in curve]
    wrong = [cell for cell in all_cells if cell.wrong_words]
    if not wrong:
        return
    worst = max(wrong, key=lambda cell: cell.wrong_words)
    yield (
        1.0,
        wrong_data(
            "content-wrong",
            quantity("Wrong 8-byte words", worst.wrong_words, "count"),
            title=f"{len(wrong)} of {len(all_cells)} combinations delivered wrong data",
            detail=f"The worst: {worst.line.state} {worst.line.direction}, {format_bytes(worst.bytes)} by "
            f"{worst.line.copier}.",
        ),
    )


def _pageable(run: ExperimentRun, curves: Curves) -> Iterator[Costed]:
    """One finding for both directions; a ratio that noise may have made is none."""
    gains = {way: found for way in ("h2d", "d2h") if (found := gain(curves, way)) and found.start and found.is_distinct}
    if not gains:
        return
    worst = max(found.ratio for found in gains.values())
    cuda = run.lab == "cuda"
    yield (
        worst,
        finding(
            costing(worst) if cuda else "note",
            "pageable-slower",
            *(each for way, found in gains.items() for each in _gain_evidence(way, found)),
            title=f"Pageable copies take {_as_long(gains)} as long as pinned ones",
            detail=_gain_detail(gains),
            advice=f"Pin buffers of {_worth(gains)} once, and reuse them once their last copy is done. The experiment "
            "allocation measures what pinning costs, and how many copies repay it."
            if cuda
            else "This is the mechanism, on this machine's memory. Measure on a GPU host before you decide.",
        ),
    )


def _gain_evidence(way: str, found: Gain) -> Iterator[Quantity]:
    for name, cell in (("Pinned", found.pinned), ("Pageable", found.pageable)):
        yield measured(f"{name}, {way}", cell.one_more, "bytes/second", cell.bytes_per_second)
    for name, cell in (("pinned", found.pinned), ("pageable", found.pageable)):
        yield quantity(f"The call that starts the copy, {name}, {way}", cell.issue_seconds.median, "seconds")


def _as_long(gains: dict[str, Gain]) -> str:
    return joined(
        [
            f"{times(found.ratio, found.pinned.one_more, found.pageable.one_more)} ({way}, {format_bytes(found.bytes)})"
            for way, found in gains.items()
        ]
    ).replace(") (", "; ")


def _gain_detail(gains: dict[str, Gain]) -> str:
    rates = joined(
        [
            f"{format_bandwidth(found.pageable.bytes_per_second)} instead of "
            f"{format_bandwidth(found.pinned.bytes_per_second)} {way}"
            for way, found in gains.items()
        ]
    )
    calls = joined(
        [
            f"{format_seconds(found.pageable.issue_seconds.median)} instead of "
            f"{format_seconds(found.pinned.issue_seconds.median)} {way}"
            for way, found in gains.items()
        ]
    )
    starts = {_start(found) for found in gains.values()}
    where = starts.pop() if len(starts) == 1 else joined([f"{_start(found)} {way}" for way, found in gains.items()])
    return (
        f"{_against(next(iter(gains.values())).pageable)}Pageable copies run at {rates}. Pinned copies are faster "
        f"{where}. The call that starts a pageable copy returns after {calls}."
    )


def _start(found: Gain) -> str:
    if found.smallest == found.bytes:
        return f"at {format_bytes(found.bytes)}, the only size measured"
    if found.start == found.smallest:
        return f"at every size measured (from {format_bytes(found.start)} on)"
    return f"from {format_bytes(found.start)} on"


def _worth(gains: dict[str, Gain]) -> str:
    """Which copies' buffers are worth pinning."""
    floors = [
        f"{way} copies" + ("" if found.start == found.smallest else f" of {format_bytes(found.start)} and more")
        for way, found in gains.items()
    ]
    return joined(floors)


def _against(pageable: Cell) -> str:
    line = pageable.line
    if not line.cache:
        return ""
    pages = {"4k": "small pages (4k)", "thp": "huge pages (thp)"}.get(line.backing, line.backing)
    caches = "none of it is in the CPU's caches" if line.cache == "cold" else "the CPU has just written it"
    return f"The pageable memory has {pages}, and {caches}. "


def _states(curves: Curves) -> Iterator[Costed]:
    """How far the rate of pageable copies depends on pages and caches, at the size where it does most."""
    widest = {way: found for way in ("h2d", "d2h") if (found := _widest(curves, way))}
    if not widest:
        return
    slow, fast = ({way: pick(each, key=_rate) for way, each in widest.items()} for pick in (min, max))
    yield (
        max(map(_range, widest.values())),
        note(
            "pageable-state",
            *(
                quantity(f"{cell.line.state}, {way}, {format_bytes(cell.bytes)}", _rate(cell), "bytes/second")
                for way, group in widest.items()
                for cell in group
            ),
            title="Pageable copies depend on the memory's pages and the CPU's caches: "
            + joined([_from_to(way, slow[way], fast[way]) for way in widest]),
            detail=" ".join(
                f"{way}: slowest with {_state(slow[way])}, fastest with {_state(fast[way])}." for way in widest
            )
            + f" Of all sizes from {format_bytes(LARGE)} on these differ most.",
            advice="When you compare pageable copies, take the same pages (4k: small ones, thp: huge ones) and the "
            "same caches (warm: just written by the CPU; cold: not).",
        ),
    )


def _widest(curves: Curves, direction: str) -> list[Cell] | None:
    """The states of pageable memory at the size at which their rates differ most; ``None`` where they hardly do."""
    lines = [
        curve
        for line, curve in curves.items()
        if (line.memory, line.direction, line.copier) == ("pageable", direction, "engine") and line.cache
    ]
    sizes = {cell.bytes for curve in lines for cell in curve if cell.bytes >= LARGE}
    groups = [[cell for curve in lines for cell in curve if cell.bytes == size] for size in sorted(sizes)]
    widest = max((group for group in groups if len(group) > 1), key=_range, default=None)
    if not widest or _range(widest) < PAYS:
        return None
    slowest, fastest = (pick(widest, key=_rate).one_more for pick in (min, max))
    return widest if exceeds(slowest, fastest) else None


def _from_to(way: str, slow: Cell, fast: Cell) -> str:
    least = format_bandwidth(_rate(slow)).removesuffix(" GB/s")
    return f"{least} to {format_bandwidth(_rate(fast))} ({way}, {format_bytes(slow.bytes)})"


def _state(cell: Cell) -> str:
    return f"{cell.line.backing}, {cell.line.cache}"


def _rate(cell: Cell) -> float:
    return cell.bytes_per_second


def _range(cells_of_a_size: Sequence[Cell]) -> float:
    rates = [cell.bytes_per_second for cell in cells_of_a_size]
    return max(rates) / min(rates)


def _by_kernel(run: ExperimentRun, curves: Curves) -> Iterator[Costed]:
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
    slower = any(
        share < AS_FAST and exceeds(kernel.one_more, engine.one_more)
        for share, (kernel, engine) in zip(shares, found, strict=True)
    )
    listed = joined(
        [
            f"{part_of(share, *(cell.one_more for cell in pair))} ({way})"
            for share, way, pair in zip(shares, ways, found, strict=True)
        ]
    ).replace(") (", "; ")
    yield (
        1 / min(shares),
        note(
            "by-kernel",
            *(
                quantity(f"By {cell.line.copier}, {way}", cell.bytes_per_second, "bytes/second")
                for pair, way in zip(found, ways, strict=True)
                for cell in pair
            ),
            title=f"Copies by a kernel reach {listed} of the copy engines' rate",
            detail=f"The memory is {found[0][0].line.memory.replace('_', '-')}, one copy "
            f"{format_bytes(found[0][0].bytes)}. The rate of both ways at once is that of the two directions together.",
            advice="Copy large blocks with cudaMemcpyAsync. A kernel of your own pays where it gathers or computes as "
            "well (the experiment access)."
            if slower
            else "Either will do for large blocks.",
        ),
    )


def _link(run: ExperimentRun, curves: Curves) -> Iterator[Costed]:
    link, limit = (run.gpu.link if run.gpu else None), link_limit(run)
    if link is None or limit is None:
        return
    # The generation of an idle link drops to save power; after a run at full speed the rate itself tells.
    narrow = link_below_best(run.device, link, busy=False)
    if narrow is not None:
        yield limit / (payload_now(link) or limit), narrow
    best = {way: max(curve, key=_rate) for way in ("h2d", "d2h") if (curve := curve_of(curves, "pinned", way))}
    large = {way: cell for way, cell in best.items() if cell.bytes >= LARGE}
    if large:
        yield _link_share(large, link, limit)


def _link_share(best: dict[str, Cell], link: Link, limit: float) -> Costed:
    shares = {way: cell.bytes_per_second / limit for way, cell in best.items()}
    least = min(shares.values())
    evidence = (
        *(quantity(f"Best pinned rate, {way}", _rate(cell), "bytes/second") for way, cell in best.items()),
        quantity("Link limit", limit, "bytes/second"),
    )
    detail = f"{_carries(link)} carries at most {format_bandwidth(limit)} one way{packet_words(link)}."
    if max(shares.values()) > 1:
        detail += " A rate above that shows that the link's packets are larger, or that the clocks were off."
    listed = joined([f"{part_words(share)} ({way})" for way, share in shares.items()])
    if least >= SLOW_LINK:
        title = f"Pinned copies reach {listed} of what the link can carry"
        return 1.0, good("link-as-expected", *evidence, title=title, detail=detail)
    return 1 / least, finding(
        costing(1 / least),
        "link-slow",
        *evidence,
        title=f"Pinned copies reach only {listed} of what the link can carry",
        detail=f"{detail} From {format_share(SLOW_LINK)} on they are as fast as they should be.",
        advice="Check the link's generation under load (pinscope doctor while a copy runs), that the process runs on "
        "the GPU's NUMA node (numactl --cpunodebind), and that no other program copies at the same time.",
    )


def _carries(link: Link) -> str:
    return f"PCIe generation {link.generation_max} with {link.width_max} lanes" if link.kind == "pcie" else "The link"


def _uplink(curves: Curves) -> Iterator[Costed]:
    at_once = [cell for line, curve in curves.items() if line.devices > 1 for cell in curve]
    for direction in sorted({cell.line.direction for cell in at_once}):
        members = [cell for cell in at_once if cell.line.direction == direction]
        alone = {
            line.device: cell
            for line, curve in curves.items()
            if (line.devices, line.memory, line.copier, line.direction) == (1, "pinned", "engine", direction)
            for cell in curve
            if cell.bytes == members[0].bytes
        }
        if not alone or any(cell.line.device not in alone for cell in members):
            continue
        total = sum(cell.bytes_per_second for cell in members)
        share = total / sum(alone[cell.line.device].bytes_per_second for cell in members)
        groups = (members, [alone[cell.line.device] for cell in members])
        off = [max((cell.one_more for cell in group), key=known_within) for group in groups]
        shared = share < SHARED_UPLINK
        if shared and not is_distinct(share, together(*off)):
            continue
        yield (
            1 / share,
            finding(
                costing(1 / share) if shared else "good",
                "shared-uplink" if shared else "own-uplinks",
                quantity("Together", total, "bytes/second"),
                quantity("Sum of each alone", total / share, "bytes/second"),
                title=f"{len(members)} GPUs at once reach {part_of(share, *off)} of their rates alone, {direction}",
                detail="They share an uplink, a NUMA link or host memory bandwidth."
                if shared
                else "Each GPU has its own way to host memory.",
                advice="Spread transfers over time, or over GPUs that share no uplink ('pinscope run topology')."
                if shared
                else "Nothing to do.",
            ),
        )


def _repeated(run: ExperimentRun, curves: Curves) -> list[Repeated]:
    shown = _shown(run, curves)
    return [
        Repeated(
            f"{line.state} {line.direction}, {format_bytes(cell.bytes)} by {line.copier}"
            + (f", {line.devices} GPUs at once" if line.devices > 1 else ""),
            cell.one_more,
            (
                f"memory={line.memory}",
                f"directions={line.direction}",
                f"copiers={line.copier}",
                f"sizes={exact_bytes(cell.bytes).replace(' ', '')}",
            ),
            headline=id(cell) in shown,
        )
        for line, curve in curves.items()
        for cell in curve
    ]


def _shown(run: ExperimentRun, curves: Curves) -> set[int]:
    """The cells that a figure of the headline rests on."""
    alone = {line: curve for line, curve in curves.items() if line.device == run.device}
    shown: set[int] = set()
    for direction in ("h2d", "d2h"):
        if pinned := curve_of(alone, "pinned", direction):
            shown |= {id(pinned[-1]), id(pinned[0])}
        if found := gain(alone, direction):
            shown |= {id(found.pinned), id(found.pageable)}
    return shown
