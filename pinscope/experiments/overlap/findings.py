"""What the overlap experiment found out. The texts stand first; the functions below give them their numbers."""

from __future__ import annotations

from collections.abc import Iterator

from pinscope.analysis.read_rows import grouped
from pinscope.analysis.statistics import compared, is_distinct, measured
from pinscope.analysis.texts import ROUGH, Costed, Text, joined, part_words, saying, times
from pinscope.experiments.overlap.reading import GOOD_OVERLAP, SLOWER_COPIES, Cell, Lack, Passes, corrupted_shares
from pinscope.experiments.overlap.ways import EVERYTHING, WAYS
from pinscope.records.run import Quantity, costing, quantity
from pinscope.units import format_seconds, format_share

HIDES = 0.05
"""Share of the shorter side from which a pipeline is said to hide something."""
TEXTS = {
    "ingredient-missing": Text(
        f"without it, less than {GOOD_OVERLAP:.0%} of what the full recipe hides is hidden",
        "{what} makes the {balance} pipeline take {longer} as long",
        "It takes {instead:and}. {whys}.",
        "{advice}",
    ),
    "recipe-overlaps": Text(
        f"the full recipe hides at least {GOOD_OVERLAP:.0%} of what can be hidden",
        EVERYTHING + " hide {hidden} of copies or kernels, whichever are shorter",
        "Copies and kernels run side by side.",
        "Build a pipeline with all of them.",
        "good",
    ),
    "recipe-does-not-overlap": Text(
        f"the full recipe hides less than {GOOD_OVERLAP:.0%} of what can be hidden",
        EVERYTHING + " hide {hidden} of copies or kernels, whichever are shorter",
        "{reason}",
        "Run it again with the machine idle, and look at the spans of the copies in the timeline.",
    ),
    "unsafe-without-events": Text(
        "events were left out on purpose, and chunks held wrong data",
        "Without events copies and kernels race: up to {worst:share} of the chunks were wrong where they were left out",
        "{cases}: by chance of the race, so another run may have other shares. Nothing is wrong with this machine: "
        "two streams that nothing orders read buffers before they are filled, or fill them while they are read.",
        WAYS["events"].help,
    ),
}
say = saying(TEXTS)
IN_THE_WAY = {
    "cuda": "Something beside the recipe is in the way: another program on the GPU or the bus, or host memory that is "
    "too slow for both.",
    "host": "The host model needs a free processor for each engine; other work on this machine is in the way.",
}


def _without_events(passes: Passes) -> Iterator[Costed]:
    """What became of the data where the run left the events out on purpose: the control of the experiment."""
    shares = {f"{memory} memory, {way}": corrupted_shares(cells) for (memory, way), cells in passes.unordered.items()}
    parts = [(case, balance, share) for case, known in shares.items() for balance, share in known.items()]
    worst = max((share for _, _, share in parts), default=0.0)
    if not worst:
        return
    checked = sum(cell.checked_chunks for cells in passes.unordered.values() for cell in cells)
    words = {
        case: ", ".join(f"{format_share(share)} {balance}" for balance, share in known.items())
        for case, known in shares.items()
    }
    yield say(
        "unsafe-without-events",
        *(quantity(f"Wrong chunks, {case}, {balance}", share, "share") for case, balance, share in parts),
        quantity("Checked chunks", checked, "count"),
        worst=worst,
        cases="; ".join(f"{case}: {known}" for case, known in words.items()).capitalize(),
    )


def _recipe(passes: Passes) -> Iterator[Costed]:
    """One finding on the directions in which the full recipe works, one on those in which it does not."""
    known = [cell for cell in passes.full if cell.knows_overlap]
    for works, full in grouped(known, lambda cell: cell.overlaps).items():
        hidden = joined([f"{part_words(cell.overlap)}{_precision(cell)} ({cell.case})" for cell in full])
        cost = 1.0 if works else max(cell.seconds / cell.least_seconds for cell in full)
        yield say(
            "recipe-overlaps" if works else "recipe-does-not-overlap",
            *(
                figure
                for cell, words in ((cell, cell.case_words) for cell in full)
                for figure in (
                    quantity(f"Overlap, {words}", cell.possible_overlap_share, "share", spread=cell.overlap_spread),
                    quantity(f"Possible with this many chunks, {words}", cell.ideal_share, "share"),
                    quantity(f"Compute idle between kernels, {words}", cell.stall_seconds.median, "seconds"),
                )
            ),
            cost=cost,
            severity="good" if works else costing(cost) if passes.run.lab == "cuda" else "note",
            hidden=hidden.replace(") (", "; ") if works else f"only {hidden}".replace("only none", "nothing"),
            reason=IN_THE_WAY[passes.run.lab],
        )


def _precision(cell: Cell) -> str:
    spread = cell.overlap_spread
    return f" (± {spread:.0%})".replace("%", " %") if spread and spread > ROUGH else ""


def _ingredients(passes: Passes) -> Iterator[Costed]:
    """One finding for each missing ingredient that costs overlap, in one direction or both."""
    dear = [lack for lack in passes.lacks if _costs_something(lack)]
    for missing, lacks in grouped(dear, lambda lack: lack.missing).items():
        cost = max(lack.ratio for lack in lacks)
        longer = [
            f"{times(lack.ratio, lack.cell.device_seconds, lack.full.device_seconds)} ({lack.cell.case})"
            for lack in lacks
        ]
        yield say(
            "ingredient-missing",
            *(figure for lack in lacks for figure in _lack_evidence(lack)),
            cost=cost,
            severity="by cost" if passes.run.lab == "cuda" else "note",
            what=WAYS[missing].phrase.capitalize(),
            balance=lacks[0].cell.balance.replace("_", "-"),
            longer=joined(longer).replace(") (", "; "),
            instead=[
                f"{format_seconds(lack.cell.seconds)} instead of {format_seconds(lack.full.seconds)} ({lack.cell.case})"
                for lack in lacks
            ],
            whys="; ".join(
                f"{joined([lack.cell.case for lack in same])}: {why}"
                for why, same in grouped(lacks, lambda lack: _why(lack.cell)).items()
            ),
            advice=WAYS[missing].help,
        )


def _lack_evidence(lack: Lack) -> Iterator[Quantity]:
    cell, way, what = lack.cell, lack.cell.case_words, WAYS[lack.missing].phrase
    yield compared(f"Time with {what} against the full recipe, {way}", cell.device_seconds, lack.full.device_seconds)
    if cell.recipe.memory != "pinned":
        name = f"Its copies alone against pinned ones alone, {way}"
        yield measured(name, cell.copy_alone_seconds, "ratio", cell.copy_slowdown)
    if cell.knows_own_overlap:
        in_turn = f"Time against that of its own copies and kernels one after the other, {way}"
        yield quantity(in_turn, cell.own_serial, "ratio")
    yield quantity(f"Compute idle with {what}, {way}", cell.stall_seconds.median, "seconds")
    yield quantity(f"The calls that start the copies, {way}", cell.issue_seconds.median, "seconds")


def _why(cell: Cell) -> str:
    """Slow copies, else what still ran side by side."""
    slower, alone = cell.copy_slowdown, cell.copy_alone_seconds
    idle = f"compute is idle {format_seconds(cell.stall_seconds.median)} of {format_seconds(cell.seconds)}"
    if slower >= SLOWER_COPIES and is_distinct(slower, alone):
        # Of copies that have fast and slow states those alone may have had more slow ones than the whole.
        longer = (
            "as long as the whole" if alone.median >= cell.seconds else f"{times(slower, alone)} as long as pinned ones"
        )
        return f"the copies alone take {longer}, and {idle}"
    if not cell.knows_own_overlap:
        return idle
    if cell.own_overlap >= HIDES:
        return f"{part_words(cell.own_overlap)} of the shorter of copies and kernels is hidden"
    return "copies and kernels do not overlap"


def _costs_something(lack: Lack) -> bool:
    """Whether the recipe without one ingredient is worse; where the full one hides nothing, its time must tell."""
    hidden = lack.full.overlap
    less = lack.cell.overlap < GOOD_OVERLAP * hidden if hidden > 0 else lack.ratio > 1 / GOOD_OVERLAP
    return less and lack.takes_longer


RULES = (_recipe, _ingredients, _without_events)
