"""What the overlap experiment found out, each finding with what it costs to ignore it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from pinscope.analysis.conclusions import Costed, dearest_first, joined, part_words, possible_share, times
from pinscope.analysis.precision import Repeated, precision_not_reached
from pinscope.analysis.rows import grouped
from pinscope.experiments.overlap.arithmetic import (
    Lack,
    PassCell,
    balanced,
    corrupted_shares,
    full_recipe,
    lacks,
    unordered,
)
from pinscope.records.finding import Finding, Quantity, costing, finding, good, note, quantity, wrong_data
from pinscope.records.run import ExperimentRun, LabKind
from pinscope.units import format_seconds, format_share

GOOD_OVERLAP = 0.9
"""Share of what is possible from which the recipe is said to work."""
EVERYTHING = "Pinned memory, a copy stream, two buffers and events"
"""The full recipe, as it begins a sentence."""
WITHOUT: Mapping[str, str] = {
    "pinned memory": "pageable memory",
    "separate copy stream": "one stream for both",
    "double buffering": "a single device buffer",
}
"""Missing ingredient → what stands in its place."""
IN_THE_WAY: Mapping[LabKind, str] = {
    "cuda": "Something beside the recipe is in the way: another program on the GPU or the bus, or host memory that is "
    "too slow for both.",
    "host": "The host model needs a free processor for each engine; other work on this machine is in the way.",
}
SLOWER_COPIES = 1.1
"""Copies that take at least this many times as long as pinned ones are named as the reason, not what they hide."""
LONGER = 1.05
"""From so many times as long as one after the other a pipeline is said to take longer, or from as much less to hide
something; between, it does neither."""
ADVICE = {
    "pinned memory": "Allocate the host buffers with cudaHostAlloc (cupyx.empty_pinned, torch pin_memory=True).",
    "separate copy stream": "Issue the copies on a stream of their own, created with the non-blocking flag.",
    "double buffering": "Use at least two device buffers in turn, so that one is copied while the other is used.",
    "events": "Record an event after each copy and each kernel and let the other stream wait for it "
    "(cudaStreamWaitEvent).",
}


def overlap_findings(run: ExperimentRun, cells: Sequence[PassCell]) -> tuple[Finding, ...]:
    """All findings of a run."""
    found = (
        *_ordered_corrupted(cells),
        *_recipe(run, cells),
        *_ingredients(run, cells),
        *_without_events(cells),
        *((1.0, late) for late in precision_not_reached(run, _repeated(cells))),
    )
    return dearest_first(found)


def overlaps(cell: PassCell) -> bool:
    """Whether the recipe hides about as much as can be hidden."""
    return cell.overlap >= GOOD_OVERLAP * cell.ideal


def _ordered_corrupted(cells: Sequence[PassCell]) -> Iterator[Costed]:
    wrong = [cell for cell in cells if cell.corrupted_chunks and cell.recipe.ordered]
    if wrong:
        yield (
            1.0,
            wrong_data(
                "ordered-copy-corrupted",
                quantity("Corrupted chunks", sum(cell.corrupted_chunks for cell in wrong), "count"),
                title="Chunks arrived wrong although events or one stream kept the order",
                detail=f"{len(wrong)} combinations are affected; the first: {wrong[0].recipe.label}, "
                f"{wrong[0].direction}.",
            ),
        )


def _without_events(cells: Sequence[PassCell]) -> Iterator[Costed]:
    """What became of the data where the run left the events out on purpose: the control of the experiment."""
    cases = {
        f"{memory} memory, {direction}": (corrupted_shares(loose), sum(cell.checked_chunks for cell in loose))
        for (memory, direction), loose in unordered(cells).items()
    }
    wrong = {case: found for case, found in cases.items() if any(found[0].values())}
    intact = {case: found for case, found in cases.items() if case not in wrong}
    if wrong:
        yield 1.0, _corrupted(wrong)
    if intact:
        yield 1.0, _intact(intact)


_Cases = Mapping[str, tuple[Mapping[str, float], int]]
"""Memory and direction → share of corrupted chunks by balance, and how many chunks were checked."""


def _corrupted(cases: _Cases) -> Finding:
    shares = [share for found, _ in cases.values() for share in found.values()]
    least, most = format_share(min(shares)), format_share(max(shares))
    return note(
        "unsafe-without-events",
        *(
            quantity(f"Wrong chunks, {case}, {balance}", share, "share")
            for case, (found, _) in cases.items()
            for balance, share in found.items()
        ),
        quantity("Checked chunks", sum(checked for _, checked in cases.values()), "count"),
        title="Events are required: in passes without them, made on purpose, "
        f"{least if least == most else f'{least} to {most}'} of the chunks held wrong data",
        detail="; ".join(f"{case}: {_by_balance(found)}" for case, (found, _) in cases.items()).capitalize()
        + ". Nothing is wrong with this machine: two streams that are not ordered read buffers before they are filled, "
        "or fill them while they are read.",
        advice=ADVICE["events"],
    )


def _by_balance(shares: Mapping[str, float]) -> str:
    return ", ".join(f"{format_share(share)} {balance}" for balance, share in shares.items())


def _intact(cases: _Cases) -> Finding:
    checked = sum(count for _, count in cases.values())
    return note(
        "unordered-yet-intact",
        quantity("Checked chunks", checked, "count"),
        title=f"Events left out on purpose, and none of {checked:,} chunks held wrong data: {joined(list(cases))}",
        detail="Nothing kept the order; copies and kernels happened to end in time. With other lengths of them "
        "data can be corrupted.",
        advice=ADVICE["events"],
    )


def _recipe(run: ExperimentRun, cells: Sequence[PassCell]) -> Iterator[Costed]:
    """One finding on the directions in which the full recipe works, one on those in which it does not."""
    full = full_recipe(balanced(cells))
    for works in (True, False):
        mine = [cell for cell in full if overlaps(cell) == works]
        if not mine:
            continue
        listed = joined([f"{_hidden(cell)} ({_case(cell)})" for cell in mine])
        title = f"{EVERYTHING} hide {'' if works else 'only '}{listed} of copies or kernels, whichever are shorter"
        evidence = [each for cell in mine for each in _recipe_evidence(cell)]
        if works:
            yield (
                1.0,
                good(
                    "recipe-overlaps",
                    *evidence,
                    title=title,
                    detail="Copies and kernels run side by side.",
                    advice="Build a pipeline with all of them.",
                ),
            )
            continue
        cost = max(cell.device_seconds.median / cell.least_seconds for cell in mine)
        yield (
            cost,
            finding(
                costing(cost) if run.lab == "cuda" else "note",
                "recipe-does-not-overlap",
                *evidence,
                title=title.replace("only none", "nothing"),
                detail=IN_THE_WAY[run.lab],
                advice="Run it again with the machine idle, and look at the spans of the copies in the timeline.",
            ),
        )


def _case(cell: PassCell) -> str:
    """Direction, and balance where it is not the usual one."""
    return cell.direction if cell.balance == "balanced" else f"{cell.direction} {cell.balance.replace('_', '-')}"


def _recipe_evidence(cell: PassCell) -> tuple[Quantity, ...]:
    return (
        quantity(f"Overlap, {_case(cell)}", possible_share(cell.overlap), "share"),
        quantity(f"Possible with this many chunks, {_case(cell)}", cell.ideal, "share"),
        quantity(f"Compute idle between kernels, {_case(cell)}", cell.stall_seconds.median, "seconds"),
    )


def _hidden(cell: PassCell) -> str:
    """What of the shorter side runs beside the longer one."""
    return part_words(cell.own_overlap)


def _ingredients(run: ExperimentRun, cells: Sequence[PassCell]) -> Iterator[Costed]:
    """One finding for each missing ingredient that costs overlap, in one direction or both."""
    dear = [lack for lack in lacks(cells) if _costs_something(lack)]
    for missing, found in grouped(dear, lambda lack: lack.missing).items():
        worst = max(lack.ratio for lack in found)
        what = WITHOUT[missing]
        yield (
            worst,
            finding(
                costing(worst) if run.lab == "cuda" else "note",
                "ingredient-missing",
                *(each for lack in found for each in _lack_evidence(lack)),
                title=f"{what.capitalize()} makes the pipeline take {joined([_as_long(lack) for lack in found])}"
                " as long",
                detail=_whys(found),
                advice=ADVICE[missing],
            ),
        )


def _as_long(lack: Lack) -> str:
    """``6.8 times (h2d: 141 ms, not 20.7 ms)``."""
    words = times(lack.ratio, lack.cell.device_seconds, lack.full.device_seconds)
    took, instead = (format_seconds(cell.device_seconds.median) for cell in (lack.cell, lack.full))
    return f"{words} ({_case(lack.cell)}: {took}, not {instead})".replace(") (", "; ")


def _lack_evidence(lack: Lack) -> Iterator[Quantity]:
    cell, way = lack.cell, _case(lack.cell)
    yield quantity(f"Time ÷ that with everything, {way}", lack.ratio, "ratio")
    if cell.recipe.memory != "pinned":
        yield quantity(f"Its copies alone ÷ pinned ones alone, {way}", cell.copy_slowdown, "ratio")
    yield quantity(f"Time ÷ that of its own copies and kernels one after the other, {way}", cell.own_serial, "ratio")
    yield quantity(f"Compute idle between kernels, {way}", cell.stall_seconds.median, "seconds")
    yield quantity(f"The calls that start the copies, {way}", cell.issue_seconds.median, "seconds")


def _whys(found: Sequence[Lack]) -> str:
    """Why it takes longer, once for the directions in which it is the same."""
    same = grouped(found, lambda lack: _why(lack.cell))
    return " ".join(f"{joined([_case(lack.cell) for lack in some])}: {why}." for why, some in same.items())


def _why(cell: PassCell) -> str:
    """Slow copies, else what still ran side by side."""
    slower = cell.copy_slowdown
    if slower >= SLOWER_COPIES:  # times of slow copies vary too much to tell what of the kernels they hide
        idle, whole = format_seconds(cell.stall_seconds.median), format_seconds(cell.device_seconds.median)
        return f"the copies alone take {slower:.1f} times as long as pinned ones, and compute is idle {idle} of {whole}"
    if cell.own_overlap >= LONGER - 1:
        return f"{_hidden(cell)} of the shorter of copies and kernels is hidden"
    if cell.own_serial < LONGER:
        return "copies and kernels do not overlap"
    more = format_share(cell.own_serial - 1)
    return f"nothing overlaps: the pipeline takes {more} longer than the same copies and kernels one after the other"


def _costs_something(lack: Lack) -> bool:
    """Whether the recipe without one ingredient is worse; where the full one hides nothing, its time must tell."""
    if not lack.is_distinct:
        return False
    if lack.full.overlap > 0:
        return lack.cell.overlap < GOOD_OVERLAP * lack.full.overlap
    return lack.ratio > 1 / GOOD_OVERLAP


def _repeated(cells: Sequence[PassCell]) -> list[Repeated]:
    full = full_recipe(balanced(cells))
    shown = {id(cell) for cell in full} | {id(lack.cell) for lack in lacks(cells)}
    return [
        Repeated(
            f"{cell.direction} {cell.balance.replace('_', '-')}, {cell.recipe.label}",
            cell.device_seconds,
            (f"directions={cell.direction}", f"balance={cell.balance}"),
            headline=id(cell) in shown,
        )
        for cell in cells
    ]
