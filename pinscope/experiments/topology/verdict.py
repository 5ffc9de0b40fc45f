"""What a run over all GPUs answers, in one sentence."""

from __future__ import annotations

from collections.abc import Sequence

from pinscope.analysis.conclusions import part_of
from pinscope.experiments.topology.arithmetic import (
    ONE_WAY,
    Cell,
    Opened,
    Tables,
    alone,
    at_once,
    compared,
    devices,
    is_slowed,
    pairs,
    share,
    shared_uplinks,
)
from pinscope.experiments.topology.words import ALL_TOWARDS, TOWARDS, gpus_words, groups_words, not_slower_words
from pinscope.units import format_bandwidth, format_bytes


def topology_verdict(found: Sequence[Cell], tables: Sequence[Tables], opened: Sequence[Opened]) -> str | None:
    """Who shares an uplink, or that none does; of one GPU what it reaches; ``None`` where too little was measured."""
    if any(cell.wrong for cell in found) or any(one.wrong for one in opened):
        return "Data arrived wrong on a GPU: do not trust any figure of this run."
    if not found:
        return _tables(tables)
    return _shared(found) or _together(found) or _single(found)


def worst_direction(found: Sequence[Cell]) -> tuple[str, float] | None:
    """The direction in which all GPUs at once reach the least of their rates alone, and that share."""
    known = [(share(found, cell), way) for way in ONE_WAY if (cell := at_once(found, way))]
    shares = [(part, way) for part, way in known if part is not None]
    part, way = min(shares, key=lambda one: one[0], default=(None, ""))
    return None if part is None else (way, part)


def _shared(found: Sequence[Cell]) -> str | None:
    """Of the direction in which a pair reaches least: the groups that share an uplink, or the pair."""
    shares = [
        (part, way, pair, part_of(part, *compared(found, cell)))
        for way in ONE_WAY
        for pair, (cell, part) in pairs(found, way).items()
        if is_slowed(found, cell, part)
    ]
    if not shares:
        return None
    _, way, pair, part = min(shares, key=lambda one: one[0])
    groups = shared_uplinks(found, way)
    if not groups:
        return (
            f"{gpus_words(pair)} slow each other down: together they copy {ALL_TOWARDS[way]} at {part} "
            "of the sum of their rates alone; a shared uplink leaves about half."
        )
    shown = groups_words(groups) if len(groups) <= 3 else f"{len(groups)} groups of GPUs share an uplink each"
    return f"{shown}: a pair copies {ALL_TOWARDS[way]} at {part} of the sum of its rates alone."


def _together(found: Sequence[Cell]) -> str | None:
    worst = worst_direction(found)
    cell = at_once(found, worst[0]) if worst else None
    if worst is None or cell is None:
        return None
    way, part = worst
    rate = f"{format_bandwidth(cell.total.median)} {ALL_TOWARDS[way]}, {part_of(part, *compared(found, cell))}"
    but = ", but all together" if is_slowed(found, cell, part) else ": they"
    return f"{not_slower_words(cell.gpus)}{but} copy at {rate} of the sum of their rates alone{_both_ways(found)}."


def _both_ways(found: Sequence[Cell]) -> str:
    """What all reach that copy both ways at once, where it is less than alone."""
    cell = at_once(found, "bidirectional")
    part = share(found, cell) if cell else None
    if cell is None or part is None or not is_slowed(found, cell, part):
        return ""
    return f"; both ways at once {part_of(part, *compared(found, cell))}"


def _single(found: Sequence[Cell]) -> str | None:
    gpu = devices(found)[0]
    rates = [
        f"{format_bandwidth(single[gpu].total.median)} {TOWARDS[way]}"
        for way in ONE_WAY
        if gpu in (single := alone(found, way))
    ]
    if not rates:
        return None
    why = "one GPU" if len(devices(found)) == 1 else "no two GPUs together"
    return f"GPU {gpu} copies alone at {' and '.join(rates)}; shared uplinks were not measured ({why})."


def _tables(tables: Sequence[Tables]) -> str | None:
    known = [one for one in tables if one.table_bytes is not None and one.table_bytes >= 0]
    if not known:
        return None
    most = max(known, key=lambda one: one.table_bytes or 0)
    gpus = len({one.device for one in known})
    many = most.processes > 1
    who = f"{most.processes} processes that register the same" if many else "A process that registers"
    return (
        f"{who} {format_bytes(most.bytes)} take{'' if many else 's'} {format_bytes(most.table_bytes)} for page tables "
        f"on {'the GPU' if gpus == 1 else f'each of {gpus} GPUs'}."
    )
