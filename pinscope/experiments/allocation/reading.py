"""What the allocation experiment concludes: headline, tables and findings from the rows of a run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pinscope.analysis.precision import Repeated, precision_not_reached
from pinscope.analysis.rows import median
from pinscope.experiments.allocation.arithmetic import (
    BASE,
    HOST_TITLES,
    POOLS,
    REGISTERED,
    WAY_TITLES,
    BreakEven,
    BufferCell,
    Cells,
    Copies,
    break_evens,
    buffer_cells,
    copy_times,
    kept_by_driver,
    needed_faults,
    not_fresh,
    per_gib,
    without,
)
from pinscope.records.finding import Finding, Quantity, Reading, Table, finding, good, note, quantity, table, warning
from pinscope.records.run import ExperimentRun
from pinscope.units import exact_bytes, format_bytes, format_seconds

MANY_COPIES = 10
"""A buffer that pays only after more copies than this should be kept, not made anew."""
POOL_SAVES = 2.0
"""A pool is worth naming when a fresh buffer costs at least this many times as much."""
FASTER = 1.5
COPY_TITLES = {"4k": "pageable in 4 KiB pages", "thp": "pageable in huge pages", "pinned": "pinned"}
"""Place of a copy, as :func:`copy_times` has it → its name."""


def read_allocation(run: ExperimentRun, rows: Sequence[Mapping[str, Any]]) -> Reading:
    """Headline, tables and findings of an allocation run; empty parts where nothing was measured yet."""
    cells = buffer_cells(rows)
    reused = not_fresh(cells, run.environment.page_bytes)
    copies = copy_times(rows)
    kept = kept_by_driver(cells, run.environment.page_bytes)
    evens = break_evens(without(cells, [*reused, *kept]), copies)
    titles = way_titles(run)
    findings = (
        *_not_fresh(reused, run.environment.page_bytes, titles), *_kept(kept, titles), *_break_even(cells, evens),
        *_pool(cells, titles),
        *_cheaper(cells, titles), *precision_not_reached(run, _repeated(cells, copies, titles)),
    )  # fmt: skip
    return Reading(headline=_headline(cells, evens, titles), tables=_tables(cells, evens, titles), findings=findings)


def way_titles(run: ExperimentRun) -> Mapping[str, str]:
    """Way → what it is called on this run's lab."""
    return HOST_TITLES if run.lab == "host" else WAY_TITLES


def _repeated(cells: Cells, copies: Copies, titles: Mapping[str, str]) -> list[Repeated]:
    def settings(*more: str, size: int) -> tuple[str, ...]:
        return (*more, f"sizes={exact_bytes(size).replace(' ', '')}")

    buffers = [
        Repeated(f"{titles[way]}, {format_bytes(size)}", cell.both_seconds, settings(f"ways={way}", size=size))
        for (way, size), cell in cells.items()
    ]
    return buffers + [
        Repeated(f"a copy, {COPY_TITLES[memory]}, {direction}, {format_bytes(size)}", seconds,
                 settings(f"directions={direction}", size=size))
        for (memory, direction, size), seconds in copies.items()
    ]  # fmt: skip


def _largest(cells: Cells, way: str) -> int | None:
    return max((size for name, size in cells if name == way), default=None)


def _headline(cells: Cells, evens: Sequence[BreakEven], titles: Mapping[str, str]) -> tuple[Quantity, ...]:
    found: list[Quantity] = []
    for way in ("pinned", BASE):
        if size := _largest(cells, way):
            cell = cells[way, size]
            found.append(
                quantity(
                    f"{titles[way]}, each GiB of {format_bytes(size)}",
                    per_gib(cell.get_seconds.median, size),
                    "seconds",
                    spread=cell.get_seconds.spread,
                )
            )
    for even in evens:
        if even.usual and even.way in ("pinned", "registered_4k") and even.bytes == _largest(cells, even.way):
            name = f"Pays after, {titles[even.way]}, {even.direction}, {format_bytes(even.bytes)}"
            found.append(_copies_quantity(name, even))
    size = _largest(cells, "pinned")
    for way in POOLS:
        if size and (way, size) in cells:
            saved = cells["pinned", size].both_seconds.median - cells[way, size].both_seconds.median
            found.append(quantity(f"Saved, {titles[way]}, {format_bytes(size)}", saved, "seconds"))
    return tuple(found)


def _copies_quantity(name: str, even: BreakEven) -> Quantity:
    reason = None if even.copies is not None else "at this size copies from pinned memory are not faster"
    return quantity(f"{name} (copies)", even.copies, "count", reason=reason)


def _tables(cells: Cells, evens: Sequence[BreakEven], titles: Mapping[str, str]) -> tuple[Table, ...]:
    every = table(
        "Getting and giving back",
        {
            "buffer": "text", "size": "bytes", "get": "seconds", "of it touch": "seconds",
            "of it register": "seconds", "give back": "seconds", "of it unregister": "seconds",
            "per GiB, get": "seconds", "per GiB, give back": "seconds", "spread": "share", "page faults": "count",
            "repeats": "count",
        },
        [
            (
                titles[cell.way], cell.bytes, cell.get_seconds.median,
                median(cell.touch_seconds),
                median(cell.register_seconds),
                cell.give_back_seconds.median,
                median(cell.unregister_seconds),
                per_gib(cell.get_seconds.median, cell.bytes), per_gib(cell.give_back_seconds.median, cell.bytes),
                cell.both_seconds.spread, cell.page_faults, cell.both_seconds.count,
            )
            for cell in cells.values()
        ],
        note="Medians; of page faults the fewest. n/a: no step of its own there, or not counted. A pool's buffers were "
        "got before; only reuse is timed.",
    )  # fmt: skip
    paid = table(
        "After how many copies a pinned buffer has paid for itself",
        {
            "buffer": "text", "in place of": "text", "size": "bytes", "direction": "text", "extra cost": "seconds",
            "gain per copy": "seconds", "copies": "count",
        },
        [
            (titles[e.way], titles[e.base], e.bytes, e.direction, e.extra_seconds, e.gain_seconds, e.copies)
            for e in evens
        ],
        note="Extra cost: getting and giving back, less those of the pageable memory that it is in place of; for "
        "registered memory, registering and unregistering alone, as the memory is there anyway. 0 copies: it costs "
        "nothing extra. n/a: copies from pinned memory are not faster at this size.",
    )  # fmt: skip
    return tuple(table for table in (every, paid) if table.rows)


def _not_fresh(reused: Sequence[BufferCell], page_bytes: int, titles: Mapping[str, str]) -> Iterator[Finding]:
    """Memory that was there before says nothing of what fresh memory costs."""
    if not reused:
        return
    worst = max(reused, key=lambda cell: cell.bytes)
    needed = needed_faults(worst.way, worst.bytes, page_bytes)
    yield warning(
        "not-fresh",
        quantity("Page faults, the fewest of a row", worst.page_faults, "count"),
        quantity("Pages", needed, "count"),
        quantity("Combinations affected", len(reused), "count"),
        title=f"{worst.page_faults:,} page faults for {needed:,} pages: memory that is called fresh was not",
        detail=f"The largest case: {titles[worst.way]}, {format_bytes(worst.bytes)}. Such buffers are left out of "
        "what is compared with them.",
        advice="Do not quote these rows. See the settings in /sys/kernel/mm/transparent_hugepage: pages larger "
        "than PinScope assumes take fewer faults.",
    )


def _kept(kept: Sequence[BufferCell], titles: Mapping[str, str]) -> Iterator[Finding]:
    """Small buffers that the driver did not allocate anew."""
    if not kept:
        return
    largest = max(kept, key=lambda cell: cell.bytes)
    yield note(
        "kept-by-driver",
        quantity("Page faults", largest.page_faults, "count"),
        quantity("Sizes affected", len(kept), "count"),
        title=f"{format_seconds(largest.both_seconds.median)}: up to {format_bytes(largest.bytes)}, "
        f"{titles[largest.way]} gave memory that the driver had kept",
        detail=f"Getting and giving back {format_bytes(largest.bytes)} took {largest.page_faults:,} page faults: "
        "nothing was allocated. These buffers are not compared with fresh memory.",
        advice="Nothing to do: while another small pinned buffer is in use, one more costs this little.",
    )


def _break_even(cells: Cells, evens: Sequence[BreakEven]) -> Iterator[Finding]:
    """For the largest size: is a fresh pinned buffer worth making for a few copies?"""
    largest = _largest(cells, "pinned")
    mine = [even for even in evens if even.way == "pinned" and even.bytes == largest and even.usual]
    if not mine:
        return
    worst = max(mine, key=lambda even: (even.copies is None, even.copies or 0))
    size = format_bytes(worst.bytes)
    evidence = (
        *(_copies_quantity(f"Pays after, {even.direction}", even) for even in mine),
        quantity("Extra cost of the pinned buffer", worst.extra_seconds, "seconds"),
        quantity(f"Gain per copy, {worst.direction}", worst.gain_seconds, "seconds"),
    )
    if worst.copies is None:
        yield note(
            "pinning-never-pays",
            *evidence,
            title=f"A pinned buffer of {size} never pays for itself, {worst.direction}",
            detail="Copies from pinned memory are not faster than from pageable memory here, at this size.",
            advice="Keep such copies pageable, unless they must run beside other work.",
        )
        return
    if worst.copies == 0:
        yield good(
            "pinning-costs-nothing",
            *evidence,
            title=f"A fresh pinned buffer of {size} costs no more than fresh touched memory in 4 KiB pages",
            detail=f"That is to get it and to give it back.{_elsewhere(evens, worst)}",
        )
        return
    late = worst.copies > MANY_COPIES
    yield finding(
        "warning" if late else "good",
        "pays-late" if late else "pays-soon",
        *evidence,
        title=f"A fresh pinned buffer of {size} has paid for itself after {worst.copies:,} "
        f"{_copy_word(worst.copies)}, "
        f"{worst.direction}",
        detail=f"It costs {format_seconds(worst.extra_seconds)} more to get and give back than fresh touched "
        f"memory in 4 KiB pages, and each copy gains {format_seconds(worst.gain_seconds)}." + _elsewhere(evens, worst),
        advice="Make pinned buffers once and keep them, or take them from a pool; for memory that is there "
        "already, compare with registering it (the table)."
        if late
        else "A buffer of this size may be pinned for a few copies; one that is kept costs nothing again.",
    )


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
    return "never pays" if even.copies is None else f"has paid after {even.copies:,} {_copy_word(even.copies)}"


def _copy_word(count: int) -> str:
    return "copy" if count == 1 else "copies"


def _pool(cells: Cells, titles: Mapping[str, str]) -> Iterator[Finding]:
    size = _largest(cells, "pinned")
    reused = [cells[way, size] for way in POOLS if size and (way, size) in cells]
    if not size or not reused:
        return
    fresh, best = cells["pinned", size], min(reused, key=lambda cell: cell.both_seconds.median)
    ratio = fresh.both_seconds.median / best.both_seconds.median
    if ratio < POOL_SAVES:
        return
    yield note(
        "pool-saves",
        quantity("Fresh", fresh.both_seconds.median, "seconds"),
        quantity("Reused", best.both_seconds.median, "seconds"),
        title=f"Reusing a pinned buffer of {format_bytes(size)} saves "
        f"{format_seconds(fresh.both_seconds.median - best.both_seconds.median)} each time",
        detail=f"A fresh one takes {format_seconds(fresh.both_seconds.median)} to get and give back; "
        f"{titles[best.way]}: {format_seconds(best.both_seconds.median)}. The pool keeps the memory pinned "
        "meanwhile.",
        advice="Take pinned buffers from a pool (cupy.get_default_pinned_memory_pool, PyTorch's caching host "
        "allocator, or a list of your own), and empty it when the host needs the memory.",
    )


def _cheaper(cells: Cells, titles: Mapping[str, str]) -> Iterator[Finding]:
    """Is there a fresh way to pinned memory that is clearly faster than the usual one?"""
    size = _largest(cells, "pinned")
    others = [
        cell for (way, nbytes), cell in cells.items() if nbytes == size and way in ("write_combined", *REGISTERED)
    ]
    if not size or not others:
        return
    usual, best = cells["pinned", size], min(others, key=lambda cell: cell.both_seconds.median)
    gain = usual.both_seconds.median / best.both_seconds.median
    if gain < FASTER:
        return
    yield note(
        "faster-way",
        quantity(titles["pinned"], usual.both_seconds.median, "seconds"),
        quantity(titles[best.way], best.both_seconds.median, "seconds"),
        title=f"{format_bytes(size)}: {titles['pinned']} takes {gain:.1f} times as long as {titles[best.way]}",
        detail=f"{format_seconds(usual.both_seconds.median)} instead of {format_seconds(best.both_seconds.median)} "
        "to get and give back, with one thread.",
        advice="pinscope.pinned_empty touches with several threads; the experiment pinning_strategy measures which "
        "way is the fastest here.",
    )
