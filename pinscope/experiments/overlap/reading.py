"""What the overlap experiment concludes: headline, tables and findings from the rows of a run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pinscope.analysis.precision import Repeated, precision_not_reached
from pinscope.analysis.rows import grouped
from pinscope.experiments.overlap.arithmetic import FULL_DEPTH, PassCell, Recipe, passes
from pinscope.records.finding import (
    Finding,
    Quantity,
    Reading,
    Table,
    finding,
    note,
    quantity,
    table,
    warning,
    wrong_data,
)
from pinscope.records.run import ExperimentRun, LabKind
from pinscope.units import format_seconds, format_share

GOOD_OVERLAP = 0.9
"""Share of what is possible from which the recipe is said to work."""
IN_THE_WAY: Mapping[LabKind, str] = {
    "cuda": "Something beside the recipe is in the way: another program on the GPU or the bus, or host memory that is "
    "too slow for both.",
    "host": "The host model needs a free processor for each engine; other work on this machine is in the way.",
}
SLOWER_COPIES = 1.1
"""Copies that take at least this many times as long as pinned ones are named as the reason, before what they hide."""
ADVICE = {
    "pinned memory": "Allocate the host buffers with cudaHostAlloc (cupyx.empty_pinned, torch pin_memory=True).",
    "separate copy stream": "Issue the copies on a stream of their own, created with the non-blocking flag.",
    "double buffering": "Use at least two device buffers in turn, so that one is copied while the other is used.",
    "events": "Record an event after each copy and each kernel and let the other stream wait for it "
    "(cudaStreamWaitEvent).",
}


def read_overlap(run: ExperimentRun, rows: Sequence[Mapping[str, Any]]) -> Reading:
    """Headline, table and findings of an overlap run; empty parts where nothing was measured yet."""
    cells = passes(rows)
    return Reading(
        headline=_headline(cells),
        tables=(_table(cells),) if cells else (),
        findings=(
            *_corruption(cells),
            *_recipe(run, cells),
            *_ingredients(cells),
            *precision_not_reached(run, _repeated(cells)),
        ),
    )


def _full(cells: Sequence[PassCell]) -> list[PassCell]:
    return [cell for cell in cells if not cell.recipe.missing and cell.recipe.depth == FULL_DEPTH]


def _balanced(cells: Sequence[PassCell]) -> list[PassCell]:
    """The balanced cells, or all where none is: overlap matters most where neither side is longer."""
    return [cell for cell in cells if cell.balance == "balanced"] or list(cells)


def _headline(cells: Sequence[PassCell]) -> tuple[Quantity, ...]:
    found: list[Quantity] = []
    for cell in _full(_balanced(cells)):
        words = f"full recipe, {cell.direction} {cell.balance}"
        found.append(quantity(f"Overlap, {words}", cell.overlap, "share"))
        found.append(quantity(f"Compute stall, {words}", cell.stall_seconds.median, "seconds"))
    for (memory, direction), unordered in _unordered(cells).items():
        if memory == "pinned":
            for balance, share in _corrupted_shares(_balanced(unordered)).items():
                name = f"Chunks corrupted without events, {direction} {balance}"
                found.append(quantity(name, share, "share"))
    return tuple(found)


def _table(cells: Sequence[PassCell]) -> Table:
    return table(
        "Every combination",
        {
            "direction": "text", "balance": "text", "recipe": "text", "overlap": "share", "at best": "share",
            "own overlap": "share", "rate": "bytes/second", "total": "seconds", "spread": "share",
            "copies alone": "seconds", "kernels alone": "seconds", "compute stall": "seconds",
            "issue time": "seconds", "corrupted": "count", "checked": "count",
        },
        [
            (
                cell.direction, cell.balance, cell.recipe.label, cell.overlap, cell.ideal, cell.own_overlap,
                cell.bytes_per_second,
                cell.device_seconds.median, cell.device_seconds.spread, cell.copy_alone_seconds,
                cell.compute_alone_seconds, cell.stall_seconds.median, cell.issue_seconds.median,
                cell.corrupted_chunks, cell.checked_chunks,
            )
            for cell in cells
        ],
        note="Overlap 100 % hides the shorter side entirely; below 0 the pipeline is slower than pinned copies and "
        "kernels one after the other. Own overlap compares with the recipe's own copies alone; above "
        "100 % they went faster in the pipeline than alone. At best is what a correct order allows with this many "
        "chunks: 1 - 1 ÷ chunks; as copies and kernels alone are measured too, an overlap may lie slightly above it. "
        "What is not ordered may hide more, with wrong data. Corrupted and checked count chunks over all repeats. On "
        "one stream events change nothing.",
    )  # fmt: skip


def _corruption(cells: Sequence[PassCell]) -> Iterator[Finding]:
    ordered = [cell for cell in cells if cell.corrupted_chunks and _is_ordered(cell.recipe)]
    if ordered:
        yield wrong_data(
            "ordered-copy-corrupted",
            quantity("Corrupted chunks", sum(c.corrupted_chunks for c in ordered), "count"),
            title="Chunks arrived wrong although events or one stream kept the order",
            detail=f"{len(ordered)} combinations are affected; the first: {ordered[0].recipe.label}, "
            f"{ordered[0].direction}.",
        )
    for (memory, direction), unordered in _unordered(cells).items():
        yield _without_events(f"{memory} memory, {direction}", unordered)


def _unordered(cells: Sequence[PassCell]) -> dict[tuple[str, str], list[PassCell]]:
    """(Memory, direction) → its cells whose two streams nothing kept in order; pinned memory first."""
    pinned_first = sorted(cells, key=lambda cell: (cell.recipe.memory != "pinned", cell.direction))
    unordered = [cell for cell in pinned_first if not _is_ordered(cell.recipe)]
    return grouped(unordered, lambda cell: (cell.recipe.memory, cell.direction))


def _corrupted_shares(cells: Sequence[PassCell]) -> dict[str, float]:
    """Balance → share of the chunks that were corrupted, over all its recipes."""
    return {
        balance.replace("_", "-"): sum(cell.corrupted_chunks for cell in group)
        / sum(cell.checked_chunks for cell in group)
        for balance, group in grouped(cells, lambda cell: cell.balance).items()
    }


def _without_events(case: str, cells: Sequence[PassCell]) -> Finding:
    """What became of the data of one memory and direction whose two streams nothing ordered."""
    shares, checked = _corrupted_shares(cells), sum(cell.checked_chunks for cell in cells)
    evidence = (
        *(quantity(f"Corrupted, {balance}", share, "share") for balance, share in shares.items()),
        quantity("Checked chunks", checked, "count"),
    )
    if not any(shares.values()):
        return note(
            "unordered-yet-intact",
            *evidence,
            title=f"0 of {checked:,} chunks were corrupted without events: {case}",
            detail="Nothing kept the order; copies and kernels happened to end in time. With other lengths of them "
            "data can be corrupted.",
            advice=ADVICE["events"],
        )
    least, most = format_share(min(shares.values())), format_share(max(shares.values()))
    return warning(
        "unsafe-without-events",
        *evidence,
        title=f"{least if least == most else f'{least} to {most}'} of the chunks were corrupted without events: {case}",
        detail=", ".join(f"{balance} {format_share(share)}" for balance, share in shares.items()).capitalize()
        + ". Two streams that are not ordered read buffers before they are filled, or fill them while they are read.",
        advice=ADVICE["events"],
    )


def _is_ordered(recipe: Recipe) -> bool:
    return recipe.events or not recipe.separate_stream


def _recipe(run: ExperimentRun, cells: Sequence[PassCell]) -> Iterator[Finding]:
    for cell in _full(_balanced(cells)):
        good = cell.overlap >= GOOD_OVERLAP * cell.ideal
        evidence = (
            quantity("Overlap", cell.overlap, "share"),
            quantity("Possible with this many chunks", cell.ideal, "share"),
            quantity("Compute stall", cell.stall_seconds.median, "seconds"),
        )
        yield finding(
            "good" if good else "warning",
            "recipe-overlaps" if good else "recipe-does-not-overlap",
            *evidence,
            title=f"The full recipe hides {_hidden(cell)} of the shorter side, {cell.direction} "
            f"{cell.balance.replace('_', '-')}",
            detail="Copies and kernels run side by side." if good else IN_THE_WAY[run.lab],
            advice="Nothing to do."
            if good
            else "Run it again with the machine idle, and look at the spans of the copies in the timeline.",
        )


def _ingredients(cells: Sequence[PassCell]) -> Iterator[Finding]:
    """One finding a direction and missing ingredient that costs overlap, beside the full recipe."""
    full = {(cell.direction, cell.balance): cell for cell in _full(cells)}
    for cell in _balanced(cells):
        best = full.get((cell.direction, cell.balance))
        if best is None or len(cell.recipe.missing) != 1 or cell.recipe.depth > FULL_DEPTH:
            continue
        (missing,) = cell.recipe.missing
        if missing == "events" or not _costs_something(cell, best):
            continue
        yield note(
            "ingredient-missing",
            quantity("Time against the full recipe", _times(cell, best), "ratio"),
            quantity("Copies alone against pinned ones", cell.copy_slowdown, "ratio"),
            quantity("Hidden beside its own copies", cell.own_overlap, "share"),
            quantity("Hidden, full recipe", best.own_overlap, "share"),
            title=_cost(missing, cell, best),
            detail=f"The pipeline takes {format_seconds(cell.device_seconds.median)} instead of "
            f"{format_seconds(best.device_seconds.median)}, compute stands idle for "
            f"{format_seconds(cell.stall_seconds.median)} instead of {format_seconds(best.stall_seconds.median)}, "
            f"and the copy calls keep the CPU for {format_seconds(cell.issue_seconds.median)} instead of "
            f"{format_seconds(best.issue_seconds.median)}.",
            advice=ADVICE[missing],
        )


def _hidden(cell: PassCell) -> str:
    """What runs beside what. Of the full recipe, whose copies are pinned, this is the overlap."""
    if cell.own_overlap >= 1:
        return "all"
    return format_share(cell.own_overlap) if cell.own_overlap > 0 else "nothing"


def _costs_something(cell: PassCell, best: PassCell) -> bool:
    """Whether the recipe without one ingredient is worse; where the full one hides nothing, its time must tell."""
    if best.overlap > 0:
        return cell.overlap < GOOD_OVERLAP * best.overlap
    return cell.device_seconds.median > best.device_seconds.median / GOOD_OVERLAP


def _times(cell: PassCell, best: PassCell) -> float:
    return cell.device_seconds.median / best.device_seconds.median


def _cost(missing: str, cell: PassCell, best: PassCell) -> str:
    """What the missing ingredient costs, and why, in one line."""
    what = f"a {missing}" if missing.endswith("stream") else missing
    hidden = f"{_hidden(cell)} of the shorter side is hidden"
    if cell.copy_slowdown >= SLOWER_COPIES:
        hidden = f"its copies take {cell.copy_slowdown:.1f} times as long, and beside them {hidden}"
    return f"Without {what} the pipeline takes {_times(cell, best):.1f} times as long, {cell.direction}: {hidden}"


def _repeated(cells: Sequence[PassCell]) -> list[Repeated]:
    return [
        Repeated(
            f"{cell.direction} {cell.balance.replace('_', '-')}, {cell.recipe.label}", cell.device_seconds,
            (f"directions={cell.direction}", f"balance={cell.balance}"),
        )
        for cell in cells
    ]  # fmt: skip
