"""What an overlap run concludes: its passes, arithmetic, verdict, headline and table."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from operator import attrgetter
from typing import Annotated

from pinscope.analysis.cells import Label, Value, cells, every_combination, first, key, median
from pinscope.analysis.columns import Columns
from pinscope.analysis.read_rows import Row, Rows, grouped
from pinscope.analysis.statistics import Summary, compared, exceeds
from pinscope.analysis.texts import Wrong, about, possible_share
from pinscope.experiments.overlap.ways import BALANCES, EVERYTHING, WAYS, Balance, Recipe
from pinscope.records.run import MOST_OFF, ExperimentRun, Quantity, Table, quantity
from pinscope.units import format_seconds, format_share

_WAYS = {"h2d": "to GPU", "d2h": "from GPU"}
GOOD_OVERLAP = 0.9
"""Share of what is possible from which the recipe is said to work."""
SLOWER_COPIES = 1.1
"""Copies that take at least this many times as long as pinned ones are named as the reason, not what they hide."""
OWN_KNOWN = 0.1
"""Of the shorter side: an overlap that may be off by more is not known."""


@dataclass(frozen=True)
class Cell:
    """All counted passes of one recipe, direction and balance."""

    direction: Annotated[str, Label("direction")]
    balance: Annotated[Balance, Label("balance")]
    recipe: Annotated[Recipe, Label("recipe", words=attrgetter("label"))]
    device_seconds: Annotated[Summary, Value("total", "seconds", "less")]
    issue_seconds: Annotated[Summary, Value("issue time", "seconds", "less")]
    stall_seconds: Annotated[Summary, Value("compute stall", "seconds", "less")]
    copy_alone_seconds: Annotated[Summary, Value("copies alone", "seconds")]
    pinned_copy_seconds: Annotated[float, Value("pinned copies alone", "seconds", make=median)]
    compute_alone_seconds: Annotated[float, Value("kernels alone", "seconds", make=first)]
    bytes: Annotated[int, Value("chunk", "bytes", make=first)]
    chunks: Annotated[int, Value("chunks", "count", make=first)]
    corrupted_chunks: Annotated[int, Value("corrupted", "count", "less", make=sum)]

    @property
    def seconds(self) -> float:
        """Median of a pass."""
        return self.device_seconds.median

    @property
    def checked_chunks(self) -> Annotated[int, Value("checked", "count")]:
        """Over all counted passes."""
        return self.chunks * self.device_seconds.count

    @property
    def overlap(self) -> float:
        """Share of the shorter side that the pipeline hides, measured against pinned copies and kernels one after the
        other: comparable between recipes, and below 0 where a recipe is slower than that."""
        return overlap_share(self.pinned_copy_seconds, self.compute_alone_seconds, self.seconds)

    @property
    def own_overlap(self) -> float:
        """Overlap against this recipe's own copies: what ran beside what. Copies from pageable memory may have
        kernels beside them and still take several times as long."""
        return overlap_share(self.copy_alone_seconds.median, self.compute_alone_seconds, self.seconds)

    @property
    def overlap_off(self) -> float:
        """How far its overlaps may be off: they are differences of times, so as much of the shorter side as those."""
        alone = self.copy_alone_seconds
        off = math.hypot(self.device_seconds.uncertainty * self.seconds, alone.uncertainty * alone.median)
        return off / min(alone.median, self.compute_alone_seconds)

    @property
    def overlap_spread(self) -> float | None:
        """What stands after its ±; ``None`` of few repeats, and where that is more than half of the overlap."""
        share, few = self.possible_overlap_share, self.device_seconds.few or self.copy_alone_seconds.few
        return self.overlap_off / share if not few and self.overlap_off <= MOST_OFF * share else None

    @property
    def knows_overlap(self) -> bool:
        """Whether its passes are steady enough to tell; of few repeats that is not known."""
        return self.overlap_off <= MOST_OFF or math.isinf(self.overlap_off)

    @property
    def knows_own_overlap(self) -> bool:
        """Whether it is known what ran beside what. Slow copies have fast and slow states: measured once, before the
        passes, they tell nothing of those."""
        alone = self.copy_alone_seconds
        in_turn = alone.lower_quartile < alone.upper_quartile or self.copy_slowdown < SLOWER_COPIES
        return in_turn and self.overlap_off <= OWN_KNOWN

    @property
    def possible_overlap_share(self) -> Annotated[float, Value("overlap", "share", "more")]:
        """The overlap without noise."""
        return possible_share(self.overlap)

    @property
    def ideal_share(self) -> Annotated[float, Value("at best", "share")]:
        """The most that is possible: one copy or kernel at an end has nothing to hide behind."""
        return 1 - 1 / self.chunks

    @property
    def possible_own_overlap_share(self) -> Annotated[float | None, Value("own overlap", "share", "more")]:
        """The own overlap without noise; ``None`` where it is not known."""
        return possible_share(self.own_overlap) if self.knows_own_overlap else None

    @property
    def serial_ratio(self) -> Annotated[float, Value("total ÷ pinned one after the other", "ratio", "less")]:
        """The time over that of pinned copies and the kernels one after the other."""
        return self.seconds / (self.pinned_copy_seconds + self.compute_alone_seconds)

    @property
    def bytes_per_second(self) -> Annotated[float, Value("rate", "bytes/second", "more")]:
        """Bytes of the pipeline over its median time."""
        return self.bytes * self.chunks / self.seconds

    @property
    def own_serial(self) -> float:
        """The time over that of this recipe's own copies and the kernels one after the other: below 1 they overlap."""
        return self.seconds / (self.copy_alone_seconds.median + self.compute_alone_seconds)

    @property
    def copy_slowdown(self) -> float:
        """How many times as long the recipe's own copies take as pinned ones, with nothing beside them."""
        return self.copy_alone_seconds.median / self.pinned_copy_seconds

    @property
    def least_seconds(self) -> float:
        """The least that a pass can take with pinned copies as they are alone: all but one chunk is hidden."""
        copies, kernels = self.pinned_copy_seconds, self.compute_alone_seconds
        return copies + kernels - self.ideal_share * min(copies, kernels)

    @property
    def overlaps(self) -> bool:
        """Whether the recipe hides about as much as can be hidden."""
        return self.overlap >= GOOD_OVERLAP * self.ideal_share

    @property
    def case(self) -> str:
        """Direction, and balance where it is not the usual one."""
        return self.direction if self.balance == "balanced" else f"{self.direction} {self.balance.replace('_', '-')}"

    @property
    def case_words(self) -> str:
        """The case as a headline says it."""
        return self.case.replace(self.direction, _WAYS[self.direction])


@dataclass(frozen=True)
class Span:
    """One kernel or copy of the pass that was kept as a timeline. Seconds since the pass began."""

    recipe: Recipe
    direction: str
    balance: Balance
    lane: str
    chunk: int
    start_seconds: float
    end_seconds: float


def overlap_share(copy_alone: float, compute_alone: float, both: float) -> float:
    """(copy + compute − both) ÷ min(copy, compute): 1 when the shorter side is hidden entirely, 0 when none is.

    Negative where the two together take longer than one after the other.
    """
    return (copy_alone + compute_alone - both) / min(copy_alone, compute_alone)


def _recipe(row: Row) -> Recipe:
    return Recipe(row["memory"], row["separate_stream"], row["depth"], row["events"])


def spans(rows: Iterable[Row]) -> list[Span]:
    """The timelines that a run kept."""
    names = ("direction", "balance", "lane", "chunk", "start_seconds", "end_seconds")
    return [Span(_recipe(row), *(row[name] for name in names)) for row in rows if row["kind"] == "span"]


@dataclass(frozen=True)
class Lack:
    """A recipe that lacks one ingredient, beside the full one of the same direction and balance."""

    missing: str
    cell: Cell
    full: Cell

    @property
    def ratio(self) -> float:
        """How many times as long it takes without."""
        return self.cell.seconds / self.full.seconds

    @property
    def takes_longer(self) -> bool:
        """Whether it does, by more than both may be off."""
        return exceeds(self.cell.device_seconds, self.full.device_seconds)


@dataclass(frozen=True)
class Passes:
    """What a run measured: its cells, and what verdict, findings and charts ask of them."""

    run: ExperimentRun
    rows: Rows

    @cached_property
    def cells(self) -> list[Cell]:
        """All of them: h2d first, the balances in their order, the full recipe before those that lack something."""
        labels = ("memory", "separate_stream", "depth", "events")
        passes = Columns.of(self.rows).where("kind", "pass").labelled("recipe", labels, Recipe)

        def place(cell: Cell) -> tuple[object, ...]:
            missing = [list(WAYS).index(name) for name in cell.recipe.missing]
            return cell.direction != "h2d", list(BALANCES).index(cell.balance), len(missing), missing, cell.recipe.depth

        return sorted(cells(Cell, passes), key=place)

    @property
    def wrong(self) -> Wrong:
        """Chunks that arrived wrong although events or one stream kept the order."""
        ordered = (cell for cell in self.cells if cell.recipe.ordered)
        cases = [(f"{cell.recipe.label}, {cell.case}", cell.corrupted_chunks) for cell in ordered]
        return Wrong("ordered-copy-corrupted", "Chunks arrived wrong although their order was kept", "chunks", cases)

    @cached_property
    def full(self) -> list[Cell]:
        """Of one balance those that lack no ingredient, with two buffers."""
        return [cell for cell in of_one_balance(self.cells) if not cell.recipe.missing and cell.recipe.is_simple]

    @cached_property
    def lacks(self) -> list[Lack]:
        """Of one balance those that lack one ingredient but events, which cost no time."""
        full = {cell.direction: cell for cell in self.full}
        return [
            Lack(cell.recipe.missing[0], cell, full[cell.direction])
            for cell in of_one_balance(self.cells)
            if cell.recipe.missing and cell.recipe.is_simple and cell.recipe.events and cell.direction in full
        ]

    def dearest(self, full: Cell) -> list[Lack]:
        """What is missing beside this cell, the dearest first."""
        return sorted((lack for lack in self.lacks if lack.full is full), key=lambda lack: -lack.ratio)

    @cached_property
    def unordered(self) -> dict[tuple[str, str], list[Cell]]:
        """(Memory, direction) → its cells whose two streams nothing kept in order."""
        unordered = [cell for cell in self.cells if not cell.recipe.ordered]
        return grouped(unordered, lambda cell: (cell.recipe.memory, cell.direction))


of = Passes
"""All that a run measured, as verdict, headline, tables, findings and charts ask for it."""


def of_one_balance(cells: Sequence[Cell]) -> list[Cell]:
    """The balanced ones; where none is, those of another balance: overlap matters most where neither side is longer."""
    first = next((balance for balance in BALANCES if any(cell.balance == balance for cell in cells)), None)
    return [cell for cell in cells if cell.balance == first]


def corrupted_shares(cells: Sequence[Cell]) -> dict[str, float]:
    """Balance in words → share of the chunks that were corrupted, over all its recipes."""

    def share(alike: Sequence[Cell]) -> float:
        return sum(cell.corrupted_chunks for cell in alike) / sum(cell.checked_chunks for cell in alike)

    groups = grouped(cells, lambda cell: cell.balance.replace("_", "-"))
    return {balance: share(alike) for balance, alike in groups.items()}


def verdict(passes: Passes) -> str | None:
    """What the full recipe hides: in a direction where it fails, else in the first where each ingredient tells."""
    if not passes.full:
        return None
    cell = next((cell for cell in passes.full if not cell.knows_overlap), None)
    if cell:
        return f"Measure again: passes {_WAYS[cell.direction]} vary too much to tell what runs side by side."
    shown = [cell for cell in passes.full if all(lack.takes_longer for lack in passes.dearest(cell))]
    cell = next((cell for cell in passes.full if not cell.overlaps), (*shown, *passes.full)[0])
    return f"{_brings(cell)}."


def _brings(cell: Cell) -> str:
    """What to use, and ``to GPU 20.7 ms, one after the other 39.8 ms``; else what little is hidden."""
    recipe, way = EVERYTHING[:1].lower() + EVERYTHING[1:], _WAYS[cell.direction]
    if cell.overlaps:
        serial = format_seconds(cell.copy_alone_seconds.median + cell.compute_alone_seconds)
        return f"Use {recipe}: {way} {format_seconds(cell.seconds)}, one after the other {serial}"
    if cell.overlap <= 0:
        return f"Copies {way} and kernels do not overlap here, even with {recipe}"
    rough = f"about {cell.overlap:.0%}".replace("%", " %")
    share = rough if about(cell.overlap_off) else format_share(cell.overlap)
    return f"{EVERYTHING} hide only {share} of copies {way} or kernels"


def headline(passes: Passes) -> Iterator[Quantity]:
    """Of h2d, then of d2h: what is hidden, and what the dearest missing ingredient costs; then wrong chunks."""
    for cell in passes.full:
        name = f"Overlap of copies and kernels, {cell.case_words}"
        share, spread = (cell.possible_overlap_share, cell.overlap_spread) if cell.knows_overlap else (None, None)
        reason = "its passes vary too much to tell"
        yield quantity(name, share, "share", reason=reason, spread=spread, key=key(cell, "overlap"))
        for lack in passes.dearest(cell)[:1]:
            name = f"Time with {WAYS[lack.missing].phrase} against the full recipe, {cell.case_words}"
            without = f"without_{lack.missing.replace(' ', '_')}"
            yield compared(name, lack.cell.device_seconds, lack.full.device_seconds, key=key(cell, without))
    for (memory, direction), unordered in passes.unordered.items():
        if memory == "pinned":
            cells_of_balance = of_one_balance(unordered)
            name = f"Wrong chunks without events, {cells_of_balance[0].case_words}"
            (share,) = corrupted_shares(cells_of_balance).values()
            yield quantity(name, share, "share", key=f"{direction}.{cells_of_balance[0].balance}.wrong")


def tables(passes: Passes) -> Iterator[Table]:
    """Every combination."""
    note = (
        "The full recipe is pinned memory, a separate copy stream, double buffering and events. Overlap is the "
        "share of the shorter side, copies or kernels, that the pipeline hides. Where noise makes it more than all or "
        "less than nothing it stands as 100 % or 0 %, and 0 % also where a recipe takes longer than pinned copies and "
        "kernels one after the other: the total ÷ that time says how many times as long. Own overlap "
        "compares with the recipe's own copies alone; n/a: these vary too much, or an older run measured them once, "
        "before the passes. At best is what a correct order allows with this many chunks: "
        "1 - 1 ÷ chunks; as copies and kernels alone are measured too, an overlap may lie slightly above it. What "
        "is not ordered may hide more, with wrong data. Corrupted and checked count chunks over all repeats. On "
        "one stream events change nothing."
    )
    yield every_combination(passes.cells, note)
