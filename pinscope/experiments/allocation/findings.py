"""What the allocation experiment found out, each finding with what it costs to ignore it."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from pinscope.analysis.conclusions import Costed, exceeds, joined, times
from pinscope.analysis.precision import Repeated, precision_not_reached
from pinscope.analysis.statistics import measured
from pinscope.experiments.allocation.arithmetic import (
    BASE,
    DRIVER,
    POOLS,
    REGISTERED,
    BreakEven,
    BufferCell,
    Cells,
    Copies,
    kept_by_driver,
    largest,
    needed_faults,
    not_fresh,
)
from pinscope.records.finding import costing, finding, note, quantity
from pinscope.records.run import ExperimentRun
from pinscope.units import exact_bytes, format_bytes, format_seconds

MANY_COPIES = 10
"""A buffer that pays only after more copies than this should be kept, not made anew."""
POOL_SAVES = 2.0
"""A pool is worth naming when a fresh buffer costs at least this many times as much."""
FASTER = 1.5
COPY_TITLES = {"4k": "pageable in 4 KiB pages", "thp": "pageable in huge pages", "pinned": "pinned"}
"""Place of a copy, as :func:`copy_times` has it → its name."""
Titles = Mapping[str, str]
"""Way → what it is called on the run's lab."""


def allocation_findings(
    run: ExperimentRun, cells: Cells, copies: Copies, evens: Sequence[BreakEven], titles: Titles
) -> tuple[Costed, ...]:
    """All findings about buffers and copies, each with what it costs to ignore it."""
    return (
        *_not_fresh(run, cells, titles),
        *_kept(run, cells, titles),
        *_break_even(run, cells, evens),
        *_pool(cells, titles),
        *_cheaper(run, cells, titles),
        *((1.0, late) for late in precision_not_reached(run, _repeated(cells, copies, titles))),
    )


def copies_words(count: int) -> str:
    """``1 copy``, ``7 copies``."""
    return f"{count:,} {'copy' if count == 1 else 'copies'}"


def dearest(evens: Sequence[BreakEven], size: int | None) -> BreakEven | None:
    """The direction in which a fresh pinned buffer of this size pays last."""
    mine = [even for even in evens if even.way == "pinned" and even.bytes == size and even.usual]
    return max(mine, key=lambda even: (even.copies is None, even.copies or 0), default=None)


def _not_fresh(run: ExperimentRun, cells: Cells, titles: Titles) -> Iterator[Costed]:
    """Memory that was there before says nothing of what fresh memory costs."""
    page_bytes = run.environment.page_bytes
    reused = not_fresh(cells, page_bytes)
    if not reused:
        return
    worst = max(reused, key=lambda cell: cell.bytes)
    needed = needed_faults(worst.way, worst.bytes, page_bytes)
    yield (
        1.0,
        note(
            "not-fresh",
            quantity("Page faults, the fewest of a row", worst.page_faults, "count"),
            quantity("Pages", needed, "count"),
            quantity("Combinations affected", len(reused), "count"),
            title=f"{len(reused)} of {len(cells)} buffers were not fresh memory: {worst.page_faults:,} page faults for "
            f"{needed:,} pages ({titles[worst.way]}, {format_bytes(worst.bytes)})",
            detail="The largest of them is named. They are left out of all comparisons.",
            advice="Do not quote these rows. See the settings in /sys/kernel/mm/transparent_hugepage: pages larger "
            "than PinScope assumes take fewer faults.",
        ),
    )


def _kept(run: ExperimentRun, cells: Cells, titles: Titles) -> Iterator[Costed]:
    """Small buffers that the driver did not allocate anew."""
    kept = kept_by_driver(cells, run.environment.page_bytes)
    if not kept:
        return
    most = max(kept, key=lambda cell: cell.bytes)
    took = format_seconds(most.both_seconds.median)
    yield (
        1.0,
        note(
            "kept-by-driver",
            quantity(f"Get and free, {format_bytes(most.bytes)}", most.both_seconds.median, "seconds"),
            quantity("Page faults", most.page_faults, "count"),
            quantity("Sizes affected", len(kept), "count"),
            title=f"{titles[most.way]} of up to {format_bytes(most.bytes)} takes only {took}, because the driver "
            "reuses memory that it had already pinned",
            detail=f"Getting {format_bytes(most.bytes)} took {most.page_faults:,} page faults, so nothing was "
            "allocated. These buffers are not compared with fresh memory.",
            advice=f"Reuse small pinned buffers where a loop would get one each time: that costs {took} here.",
        ),
    )


def _break_even(run: ExperimentRun, cells: Cells, evens: Sequence[BreakEven]) -> Iterator[Costed]:
    """For the largest size: is a fresh pinned buffer worth making for a few copies?"""
    worst = dearest(evens, largest(cells, "pinned"))
    if worst is None or worst.copies == 0:
        return
    mine = [even for even in evens if (even.way, even.bytes) == (worst.way, worst.bytes) and even.usual]
    mine.sort(key=lambda even: even.direction != "h2d")
    size = format_bytes(worst.bytes)
    pinned, pageable = (cells[way, worst.bytes].both_seconds for way in ("pinned", BASE))
    evidence = (
        *(
            quantity(f"Pays after so many copies, {even.direction}", even.copies, "count", reason="copies gain nothing")
            for even in mine
        ),
        measured("Pinned buffer, get and free", pinned, "seconds"),
        measured("Pageable buffer, get, touch and free", pageable, "seconds"),
        *(quantity(f"Gain per copy, {even.direction}", even.gain_seconds, "seconds") for even in mine),
    )
    if worst.copies is None:
        yield (
            pinned.median / pageable.median,
            note(
                "pinning-never-pays",
                *evidence,
                title=f"A fresh pinned buffer of {size} never pays for itself, {worst.direction}",
                detail=f"{_takes_more(pinned.median, worst)}, and copies from it are not faster.",
                advice="Keep such copies pageable, unless they must run beside other work.",
            ),
        )
        return
    late = worst.copies > MANY_COPIES
    cost = pinned.median / pageable.median
    yield (
        cost,
        finding(
            costing(cost) if late else "good",
            "pays-late" if late else "pays-soon",
            *evidence,
            title=f"In place of a fresh pageable buffer, a fresh pinned one of {size} pays after {_after(mine)}",
            detail=f"{_takes_more(pinned.median, worst)}; each {worst.direction} copy is "
            f"{format_seconds(worst.gain_seconds)} faster than a pageable one.{_elsewhere(evens, worst)}",
            advice="Make pinned buffers once and keep them, or take them from a pool; for memory that is there "
            "already, compare with registering it (the table)."
            if late
            else "Where a fresh buffer is made anyway and the data is made in it, make it pinned. While it is kept, "
            "the host cannot use its memory otherwise. For data that is there already, see the experiment staging.",
        ),
    )


def _takes_more(took: float, even: BreakEven) -> str:
    return (
        f"Getting and freeing it takes {format_seconds(took)}, {format_seconds(even.extra_seconds)} more than fresh "
        "touched memory in 4 KiB pages"
    )


def _after(evens: Sequence[BreakEven]) -> str:
    """``1 copy (h2d and d2h)``, ``2 copies (h2d) and 7 copies (d2h)``."""
    counts = {even.copies: [other.direction for other in evens if other.copies == even.copies] for even in evens}
    return joined([f"{copies_words(count or 0)} ({joined(ways)})" for count, ways in counts.items()])


def _elsewhere(evens: Sequence[BreakEven], shown: BreakEven) -> str:
    """A sentence on the same in place of memory in huge pages, and on the smallest buffer."""
    same = [even for even in evens if (even.way, even.direction) == (shown.way, shown.direction)]
    huge = [even for even in same if even.base == "fresh_thp" and even.bytes == shown.bytes]
    least = min((even for even in same if even.usual), key=lambda even: even.bytes)
    clauses = [f"In place of fresh memory in huge pages it {_takes(even)}" for even in huge]
    if least.bytes < shown.bytes:
        clauses.append(f"{'a' if clauses else 'A'} buffer of {format_bytes(least.bytes)} {_takes(least)}")
    return f" {'; '.join(clauses)}." if clauses else ""


def _takes(even: BreakEven) -> str:
    if even.copies == 0:
        return "costs nothing extra"
    return "never pays" if even.copies is None else f"has paid after {copies_words(even.copies)}"


@dataclass(frozen=True)
class _Pair:
    """The largest fresh pinned buffer, and the cheapest of other ways to one of its size."""

    fresh: BufferCell
    best: BufferCell

    @property
    def ratio(self) -> float:
        return self.fresh.both_seconds.median / self.best.both_seconds.median

    @property
    def clear(self) -> bool:
        return exceeds(self.fresh.both_seconds, self.best.both_seconds)


def _beside_fresh(cells: Cells, ways: Collection[str]) -> _Pair | None:
    size = largest(cells, "pinned")
    others = [cell for (way, nbytes), cell in cells.items() if size and nbytes == size and way in ways]
    if not size or not others:
        return None
    return _Pair(cells["pinned", size], min(others, key=lambda cell: cell.both_seconds.median))


def _pool(cells: Cells, titles: Titles) -> Iterator[Costed]:
    pair = _beside_fresh(cells, POOLS)
    if pair is None or pair.ratio < POOL_SAVES or not pair.clear:
        return
    fresh, best, size = pair.fresh, pair.best, pair.fresh.bytes
    saved = format_seconds(fresh.both_seconds.median - best.both_seconds.median)
    yield (
        pair.ratio,
        note(
            "pool-saves",
            measured("Fresh", fresh.both_seconds, "seconds"),
            measured("Reused", best.both_seconds, "seconds"),
            title=f"Reusing a pinned buffer of {format_bytes(size)} saves {saved} each time",
            detail=f"A fresh one takes {format_seconds(fresh.both_seconds.median)} to get and free; "
            f"{titles[best.way]}: {format_seconds(best.both_seconds.median)}. The pool keeps the memory pinned "
            "meanwhile.",
            advice="Take pinned buffers from a pool (cupy.get_default_pinned_memory_pool, PyTorch's caching host "
            "allocator, or a list of your own), give each back once its last copy is done, and empty the pool when "
            "the host needs the memory.",
        ),
    )


def _cheaper(run: ExperimentRun, cells: Cells, titles: Titles) -> Iterator[Costed]:
    """Is there a fresh way to pinned memory that is clearly faster than the usual one?"""
    pair = _beside_fresh(cells, ("write_combined", *REGISTERED, *DRIVER))
    if pair is None or pair.ratio < FASTER or not pair.clear:
        return
    usual, best, gain, size = pair.fresh, pair.best, pair.ratio, pair.fresh.bytes
    slow, fast = (format_seconds(cell.both_seconds.median) for cell in (usual, best))
    yield (
        gain,
        finding(
            costing(gain) if run.lab == "cuda" else "note",
            "faster-way",
            measured(titles["pinned"], usual.both_seconds, "seconds"),
            measured(titles[best.way], best.both_seconds, "seconds"),
            title=f"{titles['pinned']} of {format_bytes(size)} takes {slow}, "
            f"{times(gain, usual.both_seconds, best.both_seconds)} as long as {titles[best.way]} ({fast})",
            detail="Both times are those of getting and freeing the buffer, with one thread.",
            advice=_faster_advice(best),
        ),
    )


def _faster_advice(best: BufferCell) -> str:
    if best.way in DRIVER:
        return (
            "It is driver memory, which none of the kernel's accounts contains, and needs the driver API "
            "(cuda.bindings). Compare it with pinscope.pinned_empty, which touches with several threads: see the "
            "experiment pinning_strategy."
        )
    return (
        "pinscope.pinned_empty touches with several threads; the experiment pinning_strategy measures which way is the "
        "fastest here."
    )


def _repeated(cells: Cells, copies: Copies, titles: Titles) -> list[Repeated]:
    def settings(*more: str, size: int) -> tuple[str, ...]:
        return (*more, f"sizes={exact_bytes(size).replace(' ', '')}")

    most = largest(cells, "pinned")
    buffers = [
        Repeated(
            f"{titles[way]}, {format_bytes(size)}",
            cell.both_seconds,
            settings(f"ways={way}", size=size),
            headline=size == most and way in ("pinned", BASE, *POOLS),
        )
        for (way, size), cell in cells.items()
    ]
    return buffers + [
        Repeated(
            f"a copy, {COPY_TITLES[memory]}, {direction}, {format_bytes(size)}",
            seconds,
            settings(f"directions={direction}", size=size),
            headline=size == most and memory != "thp",
        )
        for (memory, direction, size), seconds in copies.items()
    ]
