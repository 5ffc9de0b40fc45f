"""Which way to move pieces, from which size a loop does, what holds the CPU, and what the kernel costs compute."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from pinscope.analysis.conclusions import Costed, dearest_first, is_distinct, joined, together
from pinscope.analysis.rows import grouped
from pinscope.analysis.statistics import measured
from pinscope.experiments.scatter.arithmetic import (
    AS_GOOD,
    ENOUGH,
    GOOD_ENOUGH,
    WAY_TITLES,
    Beside,
    Cell,
    by_case,
    by_way,
    loop_suffices,
    winners,
)
from pinscope.experiments.scatter.code_to_paste import code
from pinscope.experiments.scatter.verdict import first_case
from pinscope.experiments.scatter.words import BY_WAY, TOWARDS, gb, pieces_words, sizes_words
from pinscope.records.finding import Finding, Quantity, costing, finding, good, note, quantity
from pinscope.units import format_bytes, format_seconds, format_share

EQUAL = f"Ways within {AS_GOOD - 1:.0%} of the fastest count as equally good; the simplest of them is named.".replace(
    "%", " %"
)
HARDLY = 0.02
"""Compute that takes longer by less than this is not worth a change."""
HELD_A_LOT = 0.5
"""Share of the time for which a way holds the program's thread that is worth a finding."""


def scatter_findings(found: Sequence[Cell], loads: Sequence[Beside]) -> tuple[Finding, ...]:
    """What is dearest to ignore first."""
    return dearest_first([*_ways(found), *_loop(found), *_held(found), *_compute(loads)])


def _ways(found: Sequence[Cell]) -> Iterator[Costed]:
    """One finding for each way that is advised anywhere, with its code."""
    advised = [(winners(group)[0], by_way(group)) for group in by_case(found).values() if len(by_way(group)) > 1]
    chosen = [(cell, ways) for cell, ways in advised if cell.way != "contiguous"]
    for way, cases in grouped(chosen, lambda one: one[0].way).items():
        gains = [
            (ways["loop"].wall.median / _seconds(cell, ways), cell, ways) for cell, ways in cases if "loop" in ways
        ]
        if way == "loop" or not gains:
            continue
        gain, cell, ways = max(gains, key=lambda one: one[0])
        loop = ways["loop"]
        if not is_distinct(gain, together(cell.wall, loop.wall)):
            continue
        yield (
            gain,
            finding(
                costing(gain),
                f"scatter-by-{way}",
                *map(_rate, (cell, loop)),
                *(
                    [quantity("One contiguous copy of as much", ways["contiguous"].rate, "bytes/second")]
                    if "contiguous" in ways
                    else []
                ),
                title=f"A loop of copies moves {pieces_words(cell)} {TOWARDS[cell.direction]} at {gb(loop.rate)} GB/s, "
                f"{BY_WAY[way]} at {gb(cell.rate)} GB/s",
                detail=f"{_where(cases, found)} {EQUAL}{_enough(cell)}",
                advice=f"{_ADVICE[way]}",
                code=code(cell),
            ),
        )


def _seconds(cell: Cell, ways: Mapping[str, Cell]) -> float:
    """That a way would take for as many pieces as the loop moved."""
    return cell.wall.median * ways["loop"].pieces / cell.pieces


_ADVICE: Mapping[str, str] = {
    "batch": "Move such pieces by one cudaMemcpyBatchAsync: paste the code. It takes no multiprocessor, but its "
    "call holds the thread.",
    "graph": "Capture the copies once and launch the graph: paste the code.",
    "copy_2d": "Move evenly spaced pieces by one cudaMemcpy2DAsync: paste the code. It takes no multiprocessor.",
    "kernel": "Let one kernel move such pieces over the mapping of the pinned memory: paste the code.",
    "cpu": "Let threads collect the pieces in a pinned buffer for one copy: paste the code.",
    "managed": "Prefetch the ranges of managed memory.",
}


def _where(cases: Sequence[tuple[Cell, Mapping[str, Cell]]], found: Sequence[Cell]) -> str:
    """For which sizes the way is the one to take, by direction and layout."""
    sizes = [cell.bytes for cell in found]
    words = [
        f"{layout} pieces of {sizes_words([cell.bytes for cell, _ in group], sizes)} {TOWARDS[direction]}"
        for (direction, layout), group in grouped(cases, lambda one: (one[0].direction, one[0].layout)).items()
    ]
    return f"This is the way for {joined(words)}."


def _enough(cell: Cell) -> str:
    """How much of the machine the way needs."""
    if cell.blocks:
        return (
            f" {cell.blocks} blocks of 512 threads are the fewest measured that reach {ENOUGH:.0%} of its best rate: "
            f"{cell.sms} multiprocessors."
        ).replace("%", " %")
    if cell.threads:
        return f" {cell.threads} threads are the fewest measured that reach {ENOUGH:.0%} of its best rate.".replace(
            "%", " %"
        )
    return ""


def _loop(found: Sequence[Cell]) -> Iterator[Costed]:
    """From which size on a loop of copies is good enough."""
    lines = []
    for direction, layout in dict.fromkeys((cell.direction, cell.layout) for cell in found):
        own = [cell for cell in found if (cell.direction, cell.layout) == (direction, layout)]
        if {"loop", "contiguous"} <= set(by_way(own)):
            lines.append((direction, layout, loop_suffices(own, direction, layout)))
    if not lines:
        return
    most = max(cell.bytes for cell in found)
    from_sizes = {least for _, _, least in lines}
    title = (
        f"A loop of copies is good enough from {format_bytes(min(filter(None, from_sizes)))} a piece on"
        if len(from_sizes) == 1 and None not in from_sizes
        else "A loop of copies is good enough from "
        + joined(
            [f"{format_bytes(least)} a piece on ({layout}, {direction})" for direction, layout, least in lines if least]
        )
        if any(from_sizes)
        else f"A loop of copies is not good enough at any measured size, up to {format_bytes(most)} a piece"
    )
    loops = [ways["loop"] for group in by_case(found).values() if "loop" in (ways := by_way(group))]
    yield (
        1.0,
        note(
            "scatter-loop-suffices",
            *(_rate(cell) for cell in loops if (cell.direction, cell.layout) == (loops[0].direction, loops[0].layout)),
            title=title,
            detail=f"Good enough: at least {GOOD_ENOUGH:.0%} of one contiguous copy.".replace("%", " %")
            + _bound(found),
            advice="Join pieces into ones of that size where the layout is yours to choose."
            if any(from_sizes)
            else "Use another way for pieces of these sizes.",
        ),
    )


def _rate(cell: Cell) -> Quantity:
    name = f"{pieces_words(cell)} {TOWARDS[cell.direction]}, {WAY_TITLES[cell.way]}"
    return measured(name, cell.wall, "bytes/second", cell.rate)


def _bound(found: Sequence[Cell]) -> str:
    """Whether the calls or the GPU set the pace of the loop of the smallest pieces: a graph makes no calls."""
    loops = [ways for group in by_case(found).values() if {"loop", "graph"} <= set(ways := by_way(group))]
    if not loops:
        return ""
    ways = min(loops, key=lambda one: one["loop"].bytes)
    loop, graph = ways["loop"], ways["graph"]
    words = (
        f" Of pieces of {format_bytes(loop.bytes)} the loop takes {format_seconds(loop.wall.median)}, a CUDA graph of "
        f"the same copies {format_seconds(graph.wall.median)}:"
    )
    if loop.wall.median <= AS_GOOD * graph.wall.median:
        return f"{words} it is no faster."
    return f"{words} the program that calls sets the pace."


def _held(found: Sequence[Cell]) -> Iterator[Costed]:
    """How long a loop of copies holds the program's thread, and the other ways beside it."""
    ways = by_way(first_case(found))
    loop = ways.get("loop")
    if loop is None or loop.held < HELD_A_LOT:
        return
    others = [cell for way, cell in ways.items() if way not in ("loop", "contiguous", "managed")]
    yield (
        1.0,
        note(
            "scatter-cpu-held",
            *(quantity(f"Thread held, {WAY_TITLES[cell.way]}", cell.held, "share") for cell in (loop, *others)),
            title=f"A loop of copies holds the program's thread for {format_share(loop.held)} of the time, "
            f"{format_seconds(loop.issue.median)} for {pieces_words(loop)}",
            detail=(
                "Others: "
                + joined(
                    [
                        f"{WAY_TITLES[cell.way]} {format_share(cell.held)} ({format_seconds(cell.issue.median)})"
                        for cell in sorted(others, key=lambda cell: -cell.issue.median)
                    ]
                )
                + ". "
            )
            * bool(others)
            + "Held: calls that have not returned, and copying of the program's own.",
            advice="Where the thread has other work, issue such copies from a thread of their own, or take a way that "
            "holds it less.",
        ),
    )


def _compute(loads: Sequence[Beside]) -> Iterator[Costed]:
    """What a kernel beside it costs a compute load, with few and many blocks, and the batch for comparison."""
    if not loads:
        return
    ordered = sorted(loads, key=lambda one: (one.way == "kernel", longer(one)))
    worst, least = ordered[-1], min((one for one in ordered if one.way == ordered[-1].way), key=longer)
    title = f"Compute beside {_mover(worst)} {TOWARDS[worst.direction]} takes {format_share(longer(worst))} longer"
    if least is not worst:
        title += f", beside {_mover(least)} {TOWARDS[least.direction]} {format_share(longer(least))}"
    evidence = (
        quantity(f"Compute takes longer, beside {_mover(one)} {TOWARDS[one.direction]}", longer(one), "share")
        for one in loads
    )
    ends = [one for group in grouped(loads, lambda one: (one.direction, one.way)).values() for one in _ends(group)]
    detail = (
        "The load keeps the arithmetic units of all multiprocessors busy and leaves room for another kernel's blocks. "
        f"How much longer it takes, and what is moved of pieces of {format_bytes(worst.bytes)} meanwhile: "
        + joined(
            [
                f"{_mover(one)} {TOWARDS[one.direction]} {format_share(longer(one))} and {gb(one.rate)} GB/s"
                for one in ends
            ]
        )
        + "."
    )
    if longer(worst) < HARDLY:
        yield 1.0, good("scatter-compute", *evidence, title=title, detail=detail)
        return
    yield (
        1.0 + longer(worst),
        finding(
            costing(1.0 + longer(worst)),
            "scatter-compute",
            *evidence,
            title=title,
            detail=detail,
            advice="Fewer blocks slow compute less and move less: see both rates. A batch call takes no "
            "multiprocessor.",
        ),
    )


def _ends(group: Sequence[Beside]) -> Sequence[Beside]:
    """With the fewest and the most blocks; those between are in the table."""
    return group if len(group) < 3 else (group[0], group[-1])


def longer(one: Beside) -> float:
    """Share by which the load took longer; not less than nothing, which noise makes it."""
    return max(one.slower.median, 0.0)


def _mover(one: Beside) -> str:
    return f"a kernel of {one.blocks} blocks" if one.way == "kernel" else BY_WAY[one.way]
