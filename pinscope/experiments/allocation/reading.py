"""What buffers cost, and after how many copies a pinned one has paid for itself."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product
from typing import Annotated

from pinscope.analysis.cells import Label, Value, cells, every_combination, of_kind, ratio
from pinscope.analysis.read_rows import Row, counted, grouped
from pinscope.analysis.statistics import Summary, measured, summarize
from pinscope.analysis.texts import about, exceeds, known_within, on_lab, roughly
from pinscope.experiments.allocation.ways import BASE, WAYS
from pinscope.records.finding import Quantity, Table, quantity
from pinscope.records.run import ExperimentRun
from pinscope.units import format_bytes, format_seconds

GIB = 2**30
SMALLEST_PIECE = 2**20
"""Bytes of the smallest buffer whose pace is given per GiB: nobody takes a GiB in smaller ones."""


@dataclass(frozen=True)
class Cell:
    """All counted buffers of one way and size."""

    way: Annotated[str, Label("buffer")]
    bytes: Annotated[int, Label("size", "bytes")]
    both_seconds: Annotated[Summary, Value("get and give back", "seconds", "less")]
    get_seconds: Annotated[Summary, Value("get", "seconds", "less")]
    touch_seconds: Annotated[Summary | None, Value("of it touch", "seconds", "less")]
    register_seconds: Annotated[Summary | None, Value("of it register", "seconds", "less")]
    give_back_seconds: Annotated[Summary, Value("give back", "seconds", "less")]
    unregister_seconds: Annotated[Summary | None, Value("of it unregister", "seconds", "less")]
    page_faults: Annotated[int | None, Value("page faults", "count", make=min)]
    """While the buffer was got: the fewest of all rows; ``None`` where they were not counted."""

    @property
    def get_gib_seconds(self) -> Annotated[float | None, Value("per GiB, get", "seconds", "less")]:
        """At this pace; ``None`` of small buffers: nobody takes a GiB in such pieces."""
        return per_gib(self.get_seconds.median, self.bytes) if self.bytes >= SMALLEST_PIECE else None

    @property
    def give_back_gib_seconds(self) -> Annotated[float | None, Value("per GiB, give back", "seconds", "less")]:
        """Likewise."""
        return per_gib(self.give_back_seconds.median, self.bytes) if self.bytes >= SMALLEST_PIECE else None


@dataclass(frozen=True)
class BreakEven:
    """What a pinned buffer costs more than a pageable one, and what each copy gains.

    Attributes:
        way: how the pinned buffer is got.
        base: the pageable buffer that it replaces.
        extra_seconds: getting and giving back, beyond what the pageable buffer costs; for a registration, registering
            and unregistering.
        gain_seconds: pageable copy less pinned copy; not positive where pinning makes no copy faster.
    """

    way: Annotated[str, Label("buffer")]
    base: Annotated[str, Label("in place of")]
    bytes: Annotated[int, Label("size", "bytes")]
    direction: Annotated[str, Label("direction")]
    extra_seconds: Annotated[float, Value("extra cost", "seconds", "less")]
    gain_seconds: Annotated[float, Value("gain per copy", "seconds", "more")]

    @property
    def copies(self) -> Annotated[int | None, Value("copies", "count", "less")]:
        """After so many it has paid; 0 if it costs nothing extra, ``None`` if it does and copies gain nothing."""
        if self.extra_seconds <= 0:
            return 0
        return math.ceil(self.extra_seconds / self.gain_seconds) if self.gain_seconds > 0 else None

    @property
    def usual(self) -> bool:
        """True for the one comparison of each way that headline and charts show."""
        return self.base == WAYS[self.way].base


Cells = Mapping[tuple[str, int], Cell]
Copies = Mapping[tuple[str, str, int], Summary]


def buffer_cells(rows: Iterable[Row]) -> dict[tuple[str, int], Cell]:
    """(way, bytes) → its counted buffers, in the order of the rows."""
    buffers = [
        {**row, "both_seconds": row["get_seconds"] + row["give_back_seconds"]}
        for row in rows
        if row["kind"] == "buffer"
    ]
    return {(cell.way, cell.bytes): cell for cell in cells(Cell, buffers)}


def cells_of(rows: Iterable[Row]) -> list[Cell]:
    """Of a run's buffers."""
    return list(buffer_cells(rows).values())


def needed_faults(way: str, nbytes: int, page_bytes: int) -> int | None:
    """Page faults that memory of this way takes at least if it is fresh; ``None`` where that is not known.

    Each small page is one fault. A huge page is one, and as large as what one entry of the second page-table level
    covers: as many pages as 8-byte entries fit into a page. Where there is no huge page, its small ones are more.
    """
    pages = {"4k": page_bytes, "thp": page_bytes * page_bytes // 8}
    page = pages.get(WAYS[way].backing or "") if way in WAYS else None
    return -(-nbytes // page) if page else None


def not_fresh(cells: Cells, page_bytes: int) -> list[Cell]:
    """Buffers that are called fresh, some of whose pages were there before: fewer faults than pages."""
    return [
        cell
        for (way, size), cell in cells.items()
        if cell.page_faults is not None and cell.page_faults < (needed_faults(way, size, page_bytes) or 0)
    ]


def kept_by_driver(cells: Cells, page_bytes: int) -> list[Cell]:
    """cudaHostAlloc buffers that come from memory that the driver had kept: fewer faults than pages.

    It gives small buffers parts of a larger block, which it keeps while any of them is in use (measured on an H200:
    up to 1 MiB of a block of 2 MiB). Named only where the faults of the largest buffer show that the driver takes a
    fault for each page at all.
    """
    pinned = sorted((cell for cell in cells.values() if cell.way == "pinned"), key=lambda cell: cell.bytes)
    kept = [cell for cell in pinned if cell.page_faults is not None and cell.page_faults < -(-cell.bytes // page_bytes)]
    return kept if pinned and pinned[-1] not in kept else []


def largest(cells: Cells, way: str | None) -> int | None:
    """The largest buffer of a way; ``None`` where none was measured."""
    return max((size for name, size in cells if name == way), default=None)


def copy_times(rows: Iterable[Row]) -> dict[tuple[str, str, int], Summary]:
    """(pages under pageable memory or ``pinned``, direction, bytes) → seconds of a complete copy."""
    copies = [row for row in counted(rows) if row["kind"] == "copy"]
    groups = grouped(copies, lambda row: (_place(row), row["direction"], row["bytes"]))
    return {key: summarize([row["wall_seconds"] for row in group]) for key, group in groups.items()}


def _place(row: Row) -> str:
    """Runs of version 0.1.0 do not say what stood under pageable memory: it was malloc's, in small pages."""
    return "pinned" if row["memory"] == "pinned" else row.get("backing") or "4k"


def break_evens(cells: Cells, copies: Copies) -> list[BreakEven]:
    """One for each pinned way, what it replaces, size and direction of which everything needed was measured.

    A fresh or a reused pinned buffer replaces a fresh touched pageable one. A registration is of memory that is there
    and touched anyway: what it costs is registering and unregistering.

    Args:
        cells: buffers; only fresh ones among those that are called fresh.
        copies: as :func:`copy_times` gives them.
    """
    evens = []
    for cell, base, direction in product(cells.values(), of_kind(WAYS, "fresh"), ("h2d", "d2h")):
        extra = _extra(cells, cell, base)
        slow = copies.get((WAYS[base].backing or "", direction, cell.bytes))
        fast = copies.get(("pinned", direction, cell.bytes))
        if extra is not None and slow and fast:
            evens.append(BreakEven(cell.way, base, cell.bytes, direction, extra, slow.median - fast.median))
    return evens


def _extra(cells: Cells, cell: Cell, base: str) -> float | None:
    way = WAYS[cell.way]
    if "registered" in way.kinds:
        if way.base != base or cell.register_seconds is None or cell.unregister_seconds is None:
            return None
        return cell.register_seconds.median + cell.unregister_seconds.median
    pageable = cells.get((base, cell.bytes))
    if pageable is None or (cell.way != "pinned" and "pool" not in way.kinds):  # copies of the others were not timed
        return None
    return cell.both_seconds.median - pageable.both_seconds.median


def per_gib(seconds: float, nbytes: int) -> float:
    """Seconds for 2**30 bytes at this pace."""
    return seconds * GIB / nbytes


@dataclass(frozen=True)
class Pair:
    """The largest fresh pinned buffer, and the cheapest of other ways to one of its size."""

    fresh: Cell
    best: Cell

    @property
    def ratio(self) -> float:
        """How many times as long the fresh one takes."""
        return ratio(self.fresh.both_seconds, self.best.both_seconds)

    @property
    def is_clear(self) -> bool:
        """Whether it takes longer by more than both may be off."""
        return exceeds(self.fresh.both_seconds, self.best.both_seconds)


@dataclass(frozen=True)
class Buffers:
    """All that a run measured."""

    run: ExperimentRun
    rows: Sequence[Row]

    @cached_property
    def titles(self) -> Mapping[str, str]:
        """Way → what it is called on this run's lab."""
        return {name: way.title_on(self.run.lab) for name, way in WAYS.items()}

    @cached_property
    def cells(self) -> Cells:
        """All buffers."""
        return buffer_cells(self.rows)

    @cached_property
    def reused(self) -> list[Cell]:
        """See :func:`not_fresh`."""
        return not_fresh(self.cells, self.run.environment.page_bytes)

    @cached_property
    def kept(self) -> list[Cell]:
        """See :func:`kept_by_driver`."""
        return kept_by_driver(self.cells, self.run.environment.page_bytes)

    @cached_property
    def fresh(self) -> Cells:
        """Without those whose memory was there before."""
        return {key: cell for key, cell in self.cells.items() if cell not in self.reused}

    @cached_property
    def evens(self) -> list[BreakEven]:
        """When pinned buffers have paid, of those that were allocated anew."""
        compared = {key: cell for key, cell in self.fresh.items() if cell not in self.kept}
        return break_evens(compared, copy_times(self.rows))

    @property
    def shown_way(self) -> str | None:
        """cudaHostAlloc, else the first other way to pinned memory that was measured."""
        ways = ("pinned", *of_kind(WAYS, "registered"), "write_combined")
        return next((way for way in ways if largest(self.fresh, way)), None)

    def usual_evens(self) -> list[BreakEven]:
        """Of the largest fresh pinned buffer, by direction, h2d first."""
        size = largest(self.fresh, "pinned")
        evens = [even for even in self.evens if even.usual and even.way == "pinned" and even.bytes == size]
        return sorted(evens, key=lambda even: even.direction != "h2d")

    def dearest(self) -> BreakEven | None:
        """The direction in which that buffer pays last."""
        return max(self.usual_evens(), key=lambda even: (even.copies is None, even.copies or 0), default=None)

    def beside_fresh(self, ways: Collection[str]) -> Pair | None:
        """That buffer and the cheapest of its size in these ways."""
        size = largest(self.cells, "pinned")
        others = [cell for (way, nbytes), cell in self.cells.items() if size and nbytes == size and way in ways]
        if not size or not others:
            return None
        return Pair(self.cells["pinned", size], min(others, key=lambda cell: cell.both_seconds.median))


of = Buffers
"""All that a run measured, as verdict, headline, tables, findings and charts ask for it."""


def copies_words(count: int) -> str:
    """``1 copy``, ``7 copies``."""
    return f"{count:,} {'copy' if count == 1 else 'copies'}"


def verdict(buffers: Buffers) -> str | None:
    """What the largest pinned buffer takes, beside a pageable one, after how many copies it has paid, and a pool."""
    cells, lab, way = buffers.fresh, buffers.run.lab, buffers.shown_way
    size = largest(cells, way)
    if way is None or size is None:
        return None
    both = cells[way, size].both_seconds
    named = "" if way == "pinned" else f" ({buffers.titles[way]})"
    took = f"{about(known_within(both))}{format_seconds(both.median)}"
    words = f"Getting and freeing {format_bytes(size)} of pinned memory{named} takes {took}"
    if way == "pinned" and (BASE, size) in cells:
        words += (
            f" (pageable memory in 4 KiB pages, written once: {format_seconds(cells[BASE, size].both_seconds.median)})"
        )
    if way == "pinned" and (even := buffers.dearest()):
        words += _paid(even)
    pools = [cells[pool, size].both_seconds for pool in of_kind(WAYS, "pool") if (pool, size) in cells]
    if pools and lab == "cuda":
        best = min(pools, key=lambda pool: pool.median)
        words += f"; from a pool it takes {roughly(best.median, known_within(best))}"
    return on_lab(lab, f"{words}.")


def _paid(even: BreakEven) -> str:
    if even.copies is None:
        return "; no number of copies makes up for it: they are no faster"
    if not even.copies:
        return "; it costs nothing extra"
    return f"; {copies_words(even.copies)} {'makes' if even.copies == 1 else 'make'} up for the difference"


def headline(buffers: Buffers) -> tuple[Quantity, ...]:
    """What the largest pinned buffer takes, and one from a pool, a pageable one, and when it has paid."""
    cells, size = buffers.fresh, largest(buffers.fresh, "pinned")
    shown = [(buffers.shown_way, buffers.titles.get(buffers.shown_way or "", ""), largest(cells, buffers.shown_way))]
    if shown[0][0]:
        shown += [(pool, buffers.titles[pool], size) for pool in of_kind(WAYS, "pool")[:1]]
        shown += [(BASE, f"Pageable ({buffers.titles[BASE]})", largest(cells, BASE))]
    return (
        *(
            measured(
                f"{_capital(title)}, get and free, {format_bytes(nbytes)}",
                cells[way, nbytes].both_seconds,
                "seconds",
                key=f"{way}.time",
            )
            for way, title, nbytes in shown
            if way and nbytes and (way, nbytes) in cells
        ),
        *(
            quantity(
                f"Copies that repay a pinned buffer, {even.direction}, {format_bytes(even.bytes)}",
                even.copies,
                "count",
                reason="at this size copies from pinned memory are not faster",
                key=f"{even.way}.{even.direction}.copies",
            )
            for even in buffers.usual_evens()
        ),
    )


def _capital(words: str) -> str:
    """A title at the beginning of a name; that of a function stays as it is written."""
    return words if words.startswith("cuda") else words[:1].upper() + words[1:]


def tables(buffers: Buffers) -> tuple[Table, ...]:
    """What each buffer takes, and when it has paid; those that have rows."""
    titles = buffers.titles
    made = (
        (
            "Getting and giving back",
            [replace(cell, way=titles[cell.way]) for cell in buffers.cells.values()],
            "Medians; of page faults the fewest. n/a: the way has no such step, the kernel does not count it, or the "
            "buffer is too small for a figure per GiB. A pool had its buffers before: only reuse is timed.",
        ),
        (
            "After how many copies a pinned buffer has paid for itself",
            [replace(even, way=titles[even.way], base=titles[even.base]) for even in buffers.evens],
            "Extra cost: the time to get the buffer and give it back, less that of the pageable memory that it stands "
            "in place of; for registered memory only registering and unregistering, as the memory is there anyway. 0 "
            "copies: there is no extra cost. n/a: copies from pinned memory are not faster at this size.",
        ),
    )
    return tuple(
        every_combination(cells, note).model_copy(update={"title": title}) for title, cells, note in made if cells
    )
