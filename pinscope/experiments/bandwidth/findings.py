"""What the bandwidth experiment found out. The texts stand first; the functions below give them their numbers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import combinations
from operator import attrgetter

from pinscope.analysis.models import SLOT_SETTINGS, link_below_best, link_evidence, packet_words, payload_now
from pinscope.analysis.read_rows import Rows, grouped
from pinscope.analysis.rules import BELOW_LIKE, SLOW_LINK
from pinscope.analysis.statistics import are_known, exceeds, is_distinct, measured
from pinscope.analysis.texts import Costed, Text, joined, part_words, saying, times
from pinscope.experiments.bandwidth.reading import LARGE, PAYS, Cell, Copies, Gain
from pinscope.records.run import ExperimentRun, Finding, Quantity, quantity
from pinscope.units import format_bandwidth, format_bytes, format_seconds

_FACTORS = {
    "backing": ("Pages", "pages (4k: small ones, thp: huge ones)"),
    "cache": ("CPU caches", "caches (warm: just written by the CPU; cold: not)"),
}
"""What the state of pageable memory is made of."""
RATE = attrgetter("bytes_per_second")
TEXTS = {
    "pageable-slower": Text(
        "the largest pageable copies take longer than pinned ones, by more than both may be off",
        "Pageable copies[ ({conditions})] take {longer} as long as pinned ones",
        "Pageable copies run at {rates:and}; the call that starts one returns after {calls:and}. "
        "Pinned copies are faster {where:and}.",
        "Pin these buffers once and reuse them; the experiment allocation measures after how many copies that pays.",
    ),
    "pageable-state": Text(
        f"pages or caches change the rate of large pageable copies {PAYS} times, and by more than both may be off",
        "{factors:and} change how fast large pageable copies are: {ranges}",
        "{states}. Of all sizes from {large:bytes} on these differ most.",
        "When you compare pageable copies, take the same {same:and}.",
    ),
    "link-slow": Text(
        f"the best large pinned copies reach less than {SLOW_LINK:.0%} of what the link can carry",
        "Pinned copies reach only {shares} of what the link can carry",
        "{link} carries at most {limit:rate} one way{packets}. From {enough:share} on they are as fast as they should "
        "be.",
        "Check the link's generation under load (pinscope doctor while a copy runs), that the process runs on the "
        "GPU's NUMA node (numactl --cpunodebind), and that no other program copies at the same time.",
    ),
    "below-its-like": Text(
        f"large pinned copies reach less than {BELOW_LIKE:.0%} of the rate of another GPU of the same model",
        "GPU {device} copies at {own:rate} ({way}, pinned), {name} at {like:rate}",
        "It reaches {reached:share} of what a GPU of its model reaches. Its slot, the link's generation and lanes, and "
        "the NUMA node of the memory decide that.",
        SLOT_SETTINGS,
    ),
}
TEXTS["pageable-slower/model"] = replace(
    TEXTS["pageable-slower"],
    advice="This is the mechanism, on this machine's memory. Measure on a GPU host before you decide.",
)
say = saying(TEXTS)


def slower_than_same_model(
    run: ExperimentRun, rows: Rows, other: ExperimentRun, other_rows: Rows, name: str
) -> Finding | None:
    """The direction in which the GPU falls farthest behind another of its model; ``None`` if it does not.

    Args:
        run, rows: a bandwidth run of the GPU.
        other, other_rows: one of the other GPU.
        name: of the other GPU, as a sentence names it.
    """
    own, best = _largest_pinned(Copies(run, rows)), _largest_pinned(Copies(other, other_rows))
    behind = {way: cell.bytes_per_second / best[way].bytes_per_second for way, cell in own.items() if way in best}
    way = min(behind, key=behind.__getitem__, default="")
    if not way or not _is_below(behind[way], BELOW_LIKE, own[way], best[way]):
        return None
    link = run.gpu.link if run.gpu else None
    _, finding = say(
        "below-its-like",
        own[way].rate(f"Pinned {way}"),
        best[way].rate(f"Pinned {way}, {name}"),
        *(link_evidence(link) if link else ()),
        cost=1 / behind[way],
        severity="by cost",
        device=run.device,
        way=way,
        name=name,
        own=own[way].bytes_per_second,
        like=best[way].bytes_per_second,
        reached=behind[way],
    )
    return finding


def _is_below(share: float, limit: float, *cells: Cell) -> bool:
    """Whether a share of rates lies below its limit, and that is no chance."""
    return share < limit and is_distinct(share / limit, *(cell.one_more_seconds for cell in cells))


def _largest_pinned(copies: Copies) -> dict[str, Cell]:
    """Direction → the largest pinned copies, where the data decides their time."""
    largest = {way: curve[-1] for way in ("h2d", "d2h") if (curve := copies.engine("pinned", way))}
    return {way: cell for way, cell in largest.items() if cell.bytes >= LARGE}


def _listed(parts: Mapping[str, str]) -> str:
    """What is said of each direction: ``2.0 times (± 6 %; h2d) and 3.0 times (d2h)``."""
    return joined([f"{words} ({way})" for way, words in parts.items()]).replace(") (", "; ")


def _pageable(copies: Copies) -> Iterator[Costed]:
    """One finding for both directions; a ratio that noise may have made is none."""
    gains = {
        way: gain
        for way, gain in copies.gains.items()
        if way in ("h2d", "d2h") and gain.start and are_known(*gain.seconds)
    }
    if not gains:
        return
    worst = max(gain.ratio for gain in gains.values())
    cuda = copies.run.lab == "cuda"
    starts = grouped(gains, lambda way: gains[way].where)
    where = {way: f"{way}, {format_bytes(gain.bytes)}" for way, gain in gains.items()}
    sides = {way: (gain.pinned, gain.pageable) for way, gain in gains.items()}
    calls = {way: [_call(cell) for cell in both] for way, both in sides.items()}
    rates = {way: [format_bandwidth(cell.bytes_per_second) for cell in both] for way, both in sides.items()}
    longer = {way: times(gains[way].ratio, *(cell.one_more_seconds for cell in both)) for way, both in sides.items()}
    yield say(
        "pageable-slower" if cuda else "pageable-slower/model",
        *(figure for way, gain in gains.items() for figure in _gain_evidence(way, gain)),
        cost=worst,
        severity="by cost" if cuda else "note",
        longer=_listed(longer),
        conditions=next(iter(gains.values())).pageable.conditions,
        rates=[f"{slow} instead of {fast} ({where[way]})" for way, (fast, slow) in rates.items()],
        calls=[f"{slow} instead of {fast} ({way})" for way, (fast, slow) in calls.items()],
        where=[f"{start} ({joined(ways)})" for start, ways in starts.items()],
    )


def _call(cell: Cell) -> str:
    """How long the call that starts a copy takes; at most, where it varies too much to tell."""
    calls = cell.issue_seconds
    if calls.is_known or calls.interval is None:
        return format_seconds(calls.median)
    return f"at most {format_seconds(calls.interval[1])}"


def _gain_evidence(way: str, gain: Gain) -> Iterator[Quantity]:
    sides = {"pinned": gain.pinned, "pageable": gain.pageable}
    for name, cell in sides.items():
        yield cell.rate(f"{name.capitalize()}, {way}")
    for name, cell in sides.items():
        yield measured(f"The call that starts the copy, {name}, {way}", cell.issue_seconds, "seconds")
    smallest = " (smallest measured)" if gain.everywhere else ""
    yield quantity(f"Size from which pinned is faster, {way}{smallest}", gain.start, "bytes")


def _states(copies: Copies) -> Iterator[Costed]:
    """How far the rate of pageable copies depends on pages and caches, at the size where it does most."""
    widest = {way: group for way in ("h2d", "d2h") if (group := _widest(copies, way))}
    if widest:
        ends = {way: _ends(group) for way, group in widest.items()}
        rates = {way: [format_bandwidth(cell.bytes_per_second) for cell in both] for way, both in ends.items()}
        states = {way: [f"{cell.backing}, {cell.cache}" for cell in both] for way, both in ends.items()}
        sizes = {way: format_bytes(group[0].bytes) for way, group in widest.items()}
        factors = [words for name, words in _FACTORS.items() if any(_decides(name, group) for group in widest.values())]
        yield say(
            "pageable-state",
            *(cell.rate(f"{cell.state}, {way}, {sizes[way]}") for way in widest for cell in widest[way]),
            cost=max(map(_range, widest.values())),
            factors=[title for title, _ in factors],
            same=[words for _, words in factors],
            ranges=_listed(
                {
                    f"{way}, {sizes[way]}": f"{slow.removesuffix(' GB/s')} to {fast}"
                    for way, (slow, fast) in rates.items()
                }
            ),
            states="; ".join(
                f"{way}, {sizes[way]}: slowest with {slow}, fastest with {fast}" for way, (slow, fast) in states.items()
            ),
            large=LARGE,
        )


def _widest(copies: Copies, way: str) -> list[Cell] | None:
    """The states of pageable memory at the size at which their rates differ most; ``None`` where they hardly do."""
    states = [
        cell
        for curve in copies.alone
        for cell in curve
        if (cell.memory, cell.direction, cell.copier) == ("pageable", way, "engine") and cell.cache
    ]
    groups = grouped([cell for cell in states if cell.bytes >= LARGE], lambda cell: cell.bytes)
    widest = max((groups[size] for size in sorted(groups)), key=_range, default=[])
    return widest if any(_decides(factor, widest) for factor in _FACTORS) else None


def _ends(states: Sequence[Cell]) -> tuple[Cell, Cell]:
    """The slowest and the fastest of states that are alike in what decides nothing."""
    alike = [name for name in _FACTORS if not _decides(name, states)]
    widest = max(grouped(states, lambda cell: tuple(getattr(cell, name) for name in alike)).values(), key=_range)
    return min(widest, key=RATE), max(widest, key=RATE)


def _decides(factor: str, states: Sequence[Cell]) -> bool:
    """Whether states that differ in this factor only are apart by more than they may be off, always the same way."""
    other = next(name for name in _FACTORS if name != factor)
    ordered = sorted(states, key=lambda cell: str(getattr(cell, factor)))
    pairs = [both for both in combinations(ordered, 2) if getattr(both[0], other) == getattr(both[1], other)]
    seconds = [(first.one_more_seconds, second.one_more_seconds) for first, second in pairs]
    told_apart = all(exceeds(*pair) for pair in seconds) or all(exceeds(*pair[::-1]) for pair in seconds)
    return bool(pairs) and _range(states) >= PAYS and told_apart


def _range(alike: Sequence[Cell]) -> float:
    rates = [cell.bytes_per_second for cell in alike]
    return max(rates) / min(rates)


def _link(copies: Copies) -> Iterator[Costed]:
    run, limit = copies.run, copies.limit
    link = run.gpu.link if run.gpu else None
    if link is None or limit is None:
        return
    # The generation of an idle link drops to save power; after a run at full speed the rate itself tells.
    narrow = link_below_best(run.device, link, busy=False)
    if narrow is not None:
        yield limit / (payload_now(link) or limit), narrow
    shares = {way: cell.bytes_per_second / limit for way, cell in copies.best_pinned.items()}
    slow = {way: share for way, share in shares.items() if _is_below(share, SLOW_LINK, copies.best_pinned[way])}
    if slow:
        pcie = f"PCIe generation {link.generation_max} with {link.width_max} lanes"
        yield say(
            "link-slow",
            *(copies.best_pinned[way].rate(f"Best pinned rate, {way}") for way in slow),
            quantity("Link limit", limit, "bytes/second"),
            cost=1 / min(slow.values()),
            severity="by cost",
            shares=_listed({way: part_words(share) for way, share in slow.items()}),
            link=pcie if link.kind == "pcie" else "The link",
            limit=limit,
            packets=packet_words(link),
            enough=SLOW_LINK,
        )


RULES = (_pageable, _link, _states)
