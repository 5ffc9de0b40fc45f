"""What the overlap experiment concludes: verdict, headline and table from the rows of a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pinscope.analysis.conclusions import about, known_within, on_lab, possible_share, roughly
from pinscope.experiments.overlap.arithmetic import (
    PassCell,
    balanced,
    corrupted_shares,
    full_recipe,
    lacks,
    passes,
    unordered,
)
from pinscope.experiments.overlap.findings import EVERYTHING, WITHOUT, overlap_findings, overlaps
from pinscope.records.finding import Quantity, Reading, Table, quantity, table
from pinscope.records.run import ExperimentRun
from pinscope.units import format_seconds, format_share

_LONGER = {"copy_bound": " (copies longer)", "compute_bound": " (kernels longer)"}
"""What stands behind a figure of passes in which one side is longer."""


def read_overlap(run: ExperimentRun, rows: Sequence[Mapping[str, Any]]) -> Reading:
    """Verdict, headline, table and findings of an overlap run; empty parts where nothing was measured yet."""
    cells = passes(rows)
    return Reading(
        verdict=_verdict(run, cells),
        headline=_headline(cells),
        tables=(_table(cells),) if cells else (),
        findings=overlap_findings(run, cells),
    )


def _verdict(run: ExperimentRun, cells: Sequence[PassCell]) -> str | None:
    """What the full recipe hides, in a direction where it fails or h2d, and the dearest ingredient to leave out."""
    if any(cell.corrupted_chunks and cell.recipe.ordered for cell in cells):
        return "Chunks arrived wrong although events or one stream kept the order: do not trust these figures."
    full = full_recipe(balanced(cells))
    if not full:
        return None
    shown = next((cell for cell in full if not overlaps(cell)), full[0])
    dearest = _dearest(cells, shown.direction) if run.lab == "cuda" else ""
    return on_lab(run.lab, f"{EVERYTHING} {_brings(shown) if overlaps(shown) else _hides(shown)}{dearest}.")


def _brings(cell: PassCell) -> str:
    """``bring h2d copies and kernels from 39.8 ms one after the other to 20.7 ms``."""
    serial = format_seconds(cell.copy_alone_seconds + cell.compute_alone_seconds)
    took = format_seconds(cell.device_seconds.median)
    return f"bring {cell.direction} copies and kernels from {serial} one after the other to {took}"


def _hides(cell: PassCell) -> str:
    if cell.overlap <= 0:
        return f"do not make {cell.direction} copies and kernels overlap"
    return f"hide only {_share(cell)} of {cell.direction} copies or kernels, whichever are shorter"


def _share(cell: PassCell) -> str:
    # The overlap is a difference of times: it is off by as much of the shorter side as the whole is off.
    shorter = min(cell.copy_alone_seconds, cell.compute_alone_seconds)
    off = known_within(cell.device_seconds) * cell.device_seconds.median / shorter
    return f"about {cell.overlap:.0%}".replace("%", " %") if about(off) else format_share(cell.overlap)


def _dearest(cells: Sequence[PassCell], direction: str) -> str:
    """``; pageable memory takes 141 ms``."""
    found = [lack for lack in lacks(cells) if lack.cell.direction == direction]
    if not found:
        return ""
    worst = max(found, key=lambda lack: lack.ratio)
    if worst.ratio < 1 or not worst.is_distinct:
        return ""
    return f"; {WITHOUT[worst.missing]} takes {roughly(worst.cell.device_seconds.median, worst.uncertainty)}"


def _headline(cells: Sequence[PassCell]) -> tuple[Quantity, ...]:
    """Of h2d, then of d2h: what is hidden, what each missing ingredient costs; then stalls and wrong chunks."""
    found: list[Quantity] = []
    stalls: list[Quantity] = []
    full = full_recipe(balanced(cells))
    for cell in full:
        longer = _LONGER.get(cell.balance, "")
        name = f"Overlap of copies and kernels, {cell.direction}{longer}"
        found.append(quantity(name, possible_share(cell.overlap), "share"))
        mine = [lack for lack in lacks(cells) if lack.full is cell]
        for lack in sorted(mine, key=lambda lack: -lack.ratio):
            name = f"Times as long with {WITHOUT[lack.missing]}, {cell.direction}{longer}"
            found.append(quantity(name, lack.ratio, "ratio"))
        name = f"Compute idle between kernels, {cell.direction}{longer}"
        stalls.append(quantity(name, cell.stall_seconds.median, "seconds"))
    for (memory, direction), loose in unordered(cells).items():
        if memory == "pinned":
            for balance, share in corrupted_shares(balanced(loose)).items():
                longer = _LONGER.get(balance.replace("-", "_"), "")
                stalls.append(quantity(f"Wrong chunks without events, {direction}{longer}", share, "share"))
    return (*found, *stalls)


def _table(cells: Sequence[PassCell]) -> Table:
    return table(
        "Every combination",
        {
            "direction": "text",
            "balance": "text",
            "recipe": "text",
            "overlap": "share",
            "at best": "share",
            "own overlap": "share",
            "total ÷ pinned one after the other": "ratio",
            "rate": "bytes/second",
            "total": "seconds",
            "spread": "share",
            "copies alone": "seconds",
            "kernels alone": "seconds",
            "compute stall": "seconds",
            "issue time": "seconds",
            "corrupted": "count",
            "checked": "count",
        },
        [
            (
                cell.direction,
                cell.balance,
                cell.recipe.label,
                possible_share(cell.overlap),
                cell.ideal,
                possible_share(cell.own_overlap),
                cell.serial,
                cell.bytes_per_second,
                cell.device_seconds.median,
                cell.device_seconds.spread,
                cell.copy_alone_seconds,
                cell.compute_alone_seconds,
                cell.stall_seconds.median,
                cell.issue_seconds.median,
                cell.corrupted_chunks,
                cell.checked_chunks,
            )
            for cell in cells
        ],
        note="The full recipe is pinned memory, a separate copy stream, double buffering and events. Overlap is the "
        "share of the shorter side, copies or kernels, that the pipeline hides. Where noise makes it more than all or "
        "less than nothing it stands as 100 % or 0 %, and 0 % also where a recipe takes longer than pinned copies and "
        "kernels one after the other: the total ÷ that time says how many times as long. Own overlap "
        "compares with the recipe's own copies alone. At best is what a correct order allows with this many chunks: "
        "1 - 1 ÷ chunks; as copies and kernels alone are measured too, an overlap may lie slightly above it. What "
        "is not ordered may hide more, with wrong data. Corrupted and checked count chunks over all repeats. On "
        "one stream events change nothing.",
    )
