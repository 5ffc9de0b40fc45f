"""What buffers cost, and after how many copies a pinned one has paid for itself."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product
from typing import Annotated

from pinscope.analysis.cells import Label, Value, Way, cells, every_combination, of_kind
from pinscope.analysis.columns import Column, Columns
from pinscope.analysis.read_rows import Row, counted, grouped
from pinscope.analysis.statistics import DRIFT, PAGEABLE_DRIFT, Summary, exceeds, measured, ratio, summarize
from pinscope.analysis.texts import roughly
from pinscope.experiments.allocation.ways import BASE, WAYS
from pinscope.records.run import MOST_OFF, VARIES, ExperimentRun, Quantity, Table, quantity
from pinscope.units import format_about, format_bytes, format_count


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


@dataclass(frozen=True)
class BreakEven:
    """What a pinned buffer costs more than a pageable one, and what each copy gains.

    Attributes:
        extra_seconds: getting and giving back, beyond what the pageable buffer costs; for a registration, registering
            and unregistering.
        off_seconds: how far that may be off.
        gain_seconds: pageable copy less pinned copy; ``None`` where ± does not tell them apart.
    """

    way: Annotated[str, Label("buffer")]
    base: Annotated[str, Label("in place of")]
    bytes: Annotated[int, Label("size", "bytes")]
    direction: Annotated[str, Label("direction")]
    extra_seconds: Annotated[float, Value("extra cost", "seconds", "less")]
    gain_seconds: Annotated[float | None, Value("gain per copy", "seconds", "more")]
    off_seconds: float

    @property
    def is_known(self) -> bool:
        """Whether it can be told when it has paid; of a tie in costs only if a copy gains more than they may be off."""
        gain = self.gain_seconds or 0.0
        return abs(self.extra_seconds) > self.off_seconds or self.extra_seconds + self.off_seconds <= gain

    @property
    def copies(self) -> Annotated[int | None, Value("copies", "count", "less")]:
        """After so many it has paid; 0 if it costs nothing extra, ``None`` if it does and copies gain nothing, or if it
        is not known."""
        if not self.is_known:
            return None
        if self.extra_seconds <= 0:
            return 0
        gain = self.gain_seconds or 0.0
        return math.ceil(self.extra_seconds / gain) if gain > 0 else None


def needed_faults(way: str, nbytes: int, page_bytes: int) -> int | None:
    """Page faults that memory of this way takes at least if it is fresh; ``None`` where that is not known.

    Each small page is one fault. A huge page is one, and as large as what one entry of the second page-table level
    covers: as many pages as 8-byte entries fit into a page. Where there is no huge page, its small ones are more.
    """
    pages = {"4k": page_bytes, "thp": page_bytes * page_bytes // 8}
    page = pages.get(WAYS[way].backing or "") if way in WAYS else None
    return -(-nbytes // page) if page else None


@dataclass(frozen=True)
class Buffers:
    """All that a run measured."""

    run: ExperimentRun
    rows: Sequence[Row]

    @cached_property
    def ways(self) -> Mapping[str, Way]:
        """With the titles that they have on this run's lab."""
        return {name: replace(way, title=way.title_on(self.run.lab)) for name, way in WAYS.items()}

    @cached_property
    def cells(self) -> list[Cell]:
        """All buffers, in the order measured."""
        buffers = Columns.of(self.rows).where("kind", "buffer")
        both = buffers.column("get_seconds").values + buffers.column("give_back_seconds").values
        return cells(Cell, buffers.having("both_seconds", Column.of(both.tolist())))

    @cached_property
    def reused(self) -> list[Cell]:
        """Buffers that are called fresh, some of whose pages were there before: fewer faults than pages."""
        page = self.run.environment.page_bytes
        counted = [cell for cell in self.cells if cell.page_faults is not None]
        return [cell for cell in counted if (cell.page_faults or 0) < (needed_faults(cell.way, cell.bytes, page) or 0)]

    @cached_property
    def kept(self) -> list[Cell]:
        """cudaHostAlloc buffers that come from memory that the driver had kept: fewer faults than pages.

        It gives small buffers parts of a larger block, which it keeps while any of them is in use (measured on an H200:
        up to 1 MiB of a block of 2 MiB). Named only where the faults of the largest buffer show that the driver takes a
        fault for each page at all.
        """
        page = self.run.environment.page_bytes
        pinned = sorted((cell for cell in self.cells if cell.way == "pinned"), key=lambda cell: cell.bytes)
        kept = [cell for cell in pinned if cell.page_faults is not None and cell.page_faults < -(-cell.bytes // page)]
        return kept if pinned and pinned[-1] not in kept else []

    @cached_property
    def fresh(self) -> Mapping[tuple[str, int], Cell]:
        """(way, bytes) → buffers, without those whose memory was there before."""
        return {(cell.way, cell.bytes): cell for cell in self.cells if cell not in self.reused}

    @cached_property
    def copies(self) -> Mapping[tuple[str, str, int], Summary]:
        """(pages under pageable memory or ``pinned``, direction, bytes) → seconds of a complete copy."""
        copies = [row for row in counted(self.rows) if row["kind"] == "copy"]
        groups = grouped(copies, lambda row: (_place(row), row["direction"], row["bytes"]))
        drifts = {"pinned": DRIFT}
        return {
            key: summarize([row["wall_seconds"] for row in group], drifts.get(key[0], PAGEABLE_DRIFT))
            for key, group in groups.items()
        }

    @cached_property
    def evens(self) -> list[BreakEven]:
        """One for each pinned way, what it replaces, size and direction of which everything needed was measured.

        A fresh or a reused pinned buffer replaces a fresh touched pageable one. A registration is of memory that is
        there and touched anyway: what it costs is registering and unregistering.
        """
        evens = []
        compared = [cell for cell in self.fresh.values() if cell not in self.kept]
        for cell, base, direction in product(compared, of_kind(WAYS, "fresh"), ("h2d", "d2h")):
            costs = self._costs(cell, base)
            slow = self.copies.get((WAYS[base].backing or "", direction, cell.bytes))
            fast = self.copies.get(("pinned", direction, cell.bytes))
            if costs and slow and fast:
                tie = not exceeds(slow, fast) and not exceeds(fast, slow)
                gain = None if tie else slow.median - fast.median
                extra, off = costs
                evens.append(BreakEven(cell.way, base, cell.bytes, direction, extra, gain, off))
        return evens

    def _costs(self, cell: Cell, base: str) -> tuple[float, float] | None:
        """Extra seconds, and how far they may be off."""
        way = WAYS[cell.way]
        if "registered" in way.kinds:
            if way.base != base or cell.register_seconds is None or cell.unregister_seconds is None:
                return None
            steps = cell.register_seconds, cell.unregister_seconds
            return sum(step.median for step in steps), _off(steps)
        pageable = self.fresh.get((base, cell.bytes))
        if pageable is None or (cell.way != "pinned" and "pool" not in way.kinds):  # others' copies were not timed
            return None
        times = (cell.both_seconds, pageable.both_seconds)
        if sum(time.median * time.uncertainty for time in times) > MOST_OFF * max(time.median for time in times):
            return None  # it varies too much to tell
        return times[0].median - times[1].median, _off(times)

    def largest(self, way: str) -> Cell | None:
        """The largest fresh buffer of a way; ``None`` where none was measured."""
        return max((cell for cell in self.fresh.values() if cell.way == way), key=lambda cell: cell.bytes, default=None)

    @cached_property
    def pinned(self) -> Cell | None:
        """The largest of cudaHostAlloc, else of the first other way to pinned memory that was measured."""
        ways = ("pinned", *of_kind(WAYS, "registered"), "write_combined")
        return next((cell for way in ways if (cell := self.largest(way))), None)

    def usual_evens(self) -> list[BreakEven]:
        """Of the largest fresh pinned buffer, in place of the usual pageable one; by direction, h2d first."""
        size = max((size for way, size in self.fresh if way == "pinned"), default=None)
        compared = ("pinned", WAYS["pinned"].base, size)
        evens = [even for even in self.evens if (even.way, even.base, even.bytes) == compared]
        return sorted(evens, key=lambda even: even.direction != "h2d")

    def dearest(self) -> BreakEven | None:
        """The direction, of those that are known, in which that buffer pays last."""
        known = [even for even in self.usual_evens() if even.is_known]
        return max(known, key=lambda even: (even.copies is None, even.copies or 0), default=None)

    def cheaper(self, ways: Collection[str], times: float) -> tuple[Cell, Cell] | None:
        """That buffer and the cheapest of its size in these ways, if that takes so many times less for sure."""
        fresh = self.largest("pinned")
        others = [cell for cell in self.fresh.values() if fresh and cell.bytes == fresh.bytes and cell.way in ways]
        if not fresh or not others:
            return None
        best = min(others, key=lambda cell: cell.both_seconds.median)
        pair = (fresh.both_seconds, best.both_seconds)
        return (fresh, best) if exceeds(*pair) and ratio(*pair) >= times else None


of = Buffers
"""All that a run measured, as verdict, headline, tables, findings and charts ask for it."""


def _off(times: Sequence[Summary]) -> float:
    """Seconds by which the sum or difference of two medians may be off."""
    return math.hypot(*(time.median * time.uncertainty for time in times))


def _place(row: Row) -> str:
    """Runs of version 0.1.0 do not say what stood under pageable memory: it was malloc's, in small pages."""
    return "pinned" if row["memory"] == "pinned" else row.get("backing") or "4k"


def verdict(buffers: Buffers) -> str | None:
    """What the largest pinned buffer takes beside one from a pool, else after how many copies it has paid."""
    pinned = buffers.pinned
    if pinned is None:
        return None
    both, size, fresh = pinned.both_seconds, format_bytes(pinned.bytes), buffers.fresh
    takes = f"takes {roughly(both.median, both.uncertainty)}"
    pools = [fresh[pool, pinned.bytes].both_seconds for pool in of_kind(WAYS, "pool") if (pool, pinned.bytes) in fresh]
    best = min(pools, key=lambda pool: pool.median, default=None)
    if best and buffers.run.lab == "cuda" and exceeds(both, best):
        return f"Reuse pinned buffers: getting and freeing {size} {takes}, from a pool {pool_words(best)}."
    named = "" if pinned.way == "pinned" else f" ({buffers.ways[pinned.way].title})"
    even = buffers.dearest()
    return f"Getting and freeing {size} of pinned memory{named} {takes}{_paid(even) if even else ''}."


def pool_words(pool: Summary) -> str:
    """``about 1 µs``; ``at most 2 µs`` where the repeats vary too much to tell."""
    if MOST_OFF < pool.uncertainty < math.inf:
        return f"at most {format_about(pool.median * (1 + pool.uncertainty), 1).removeprefix('about ')}"
    return roughly(pool.median, pool.uncertainty)


def _paid(even: BreakEven) -> str:
    if even.copies is None:
        return ", but copies are not measurably faster than pageable ones"
    return f", which {format_count(even.copies, 'copy')} repay" if even.copies else ", no more than pageable memory"


def headline(buffers: Buffers) -> Iterator[Quantity]:
    """What the largest pinned buffer takes, and one from a pool, a pageable one, and when it has paid."""
    pinned, why = buffers.pinned, "at this size copies from pinned memory are not faster"
    if pinned is None:
        return
    reused = buffers.fresh.get(("pool", pinned.bytes)) if pinned.way == "pinned" else None
    for cell in filter(None, (pinned, reused, buffers.largest(BASE))):
        title = buffers.ways[cell.way].title
        title = f"Pageable ({title})" if cell.way == BASE else title
        title = title if title.startswith("cuda") else title[:1].upper() + title[1:]
        name = f"{title}, get and free, {format_bytes(cell.bytes)}"
        yield measured(name, cell.both_seconds, "seconds", key=f"{cell.way}.time")
    for even in buffers.usual_evens():
        name = f"Copies that repay a pinned buffer, {even.direction}, {format_bytes(even.bytes)}"
        reason = why if even.is_known else VARIES
        yield quantity(name, even.copies, "count", reason=reason, key=f"{even.way}.{even.direction}.copies")


def tables(buffers: Buffers) -> Iterator[Table]:
    """What each buffer takes, and when it has paid; those that have rows."""
    ways = buffers.ways
    yield every_combination(
        [replace(cell, way=ways[cell.way].title) for cell in buffers.cells],
        "Medians; of page faults the fewest. n/a: the way has no such step, or the kernel does not count it. A "
        "pool had its buffers before: only reuse is timed.",
        "Getting and giving back",
    )
    yield every_combination(
        [replace(even, way=ways[even.way].title, base=ways[even.base].title) for even in buffers.evens],
        "Extra cost: the time to get the buffer and give it back, less that of the pageable memory that it stands "
        "in place of; for registered memory only registering and unregistering, as the memory is there anyway. 0 "
        "copies: there is no extra cost. n/a: copies from pinned memory are not measurably "
        "faster at this size, or the extra cost varies too much to tell.",
        "After how many copies a pinned buffer has paid for itself",
    )
