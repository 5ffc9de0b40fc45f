"""What the allocation experiment concludes: verdict, headline and tables from the rows of a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pinscope.analysis.conclusions import about, dearest_first, known_within, on_lab, roughly
from pinscope.analysis.rows import median
from pinscope.analysis.statistics import measured
from pinscope.experiments.allocation.arithmetic import (
    BASE,
    HOST_TITLES,
    POOLS,
    REGISTERED,
    WAY_TITLES,
    BreakEven,
    Cells,
    break_evens,
    buffer_cells,
    copy_times,
    kept_by_driver,
    largest,
    not_fresh,
    per_gib,
    without,
)
from pinscope.experiments.allocation.findings import allocation_findings, copies_words, dearest
from pinscope.experiments.allocation.reading_pool import pool_findings, pool_headline, pool_table, pool_uses
from pinscope.records.finding import Quantity, Reading, Table, quantity, table
from pinscope.records.run import ExperimentRun
from pinscope.units import format_bytes, format_seconds

SMALLEST_PIECE = 2**20
"""Bytes of the smallest buffer whose pace is given per GiB: nobody takes a GiB in smaller ones."""


def read_allocation(run: ExperimentRun, rows: Sequence[Mapping[str, Any]]) -> Reading:
    """Verdict, headline, tables and findings of an allocation run; empty parts where nothing was measured yet."""
    cells = buffer_cells(rows)
    reused, kept = not_fresh(cells, run.environment.page_bytes), kept_by_driver(cells, run.environment.page_bytes)
    copies = copy_times(rows)
    evens = break_evens(without(cells, [*reused, *kept]), copies)
    titles, fresh, uses = way_titles(run), without(cells, reused), pool_uses(rows)
    return Reading(
        verdict=_verdict(run, fresh, evens, titles),
        headline=(*_headline(fresh, evens, titles), *pool_headline(uses)),
        tables=(*_tables(cells, evens, titles), *pool_table(uses)),
        findings=dearest_first((*allocation_findings(run, cells, copies, evens, titles), *pool_findings(uses))),
    )


def way_titles(run: ExperimentRun) -> Mapping[str, str]:
    """Way → what it is called on this run's lab."""
    return HOST_TITLES if run.lab == "host" else WAY_TITLES


def _verdict(run: ExperimentRun, cells: Cells, evens: Sequence[BreakEven], titles: Mapping[str, str]) -> str | None:
    """What the largest pinned buffer takes, beside a pageable one, after how many copies it has paid, and a pool."""
    way = _shown_way(cells)
    size = largest(cells, way) if way else None
    if way is None or size is None:
        return None
    both = cells[way, size].both_seconds
    named = "" if way == "pinned" else f" ({titles[way]})"
    took = f"{about(known_within(both))}{format_seconds(both.median)}"
    words = f"Getting and freeing {format_bytes(size)} of pinned memory{named} takes {took}"
    if way == "pinned" and (BASE, size) in cells:
        words += f" (pageable memory, written once: {format_seconds(cells[BASE, size].both_seconds.median)})"
    if way == "pinned" and (even := dearest(evens, size)):
        words += _paid(even)
    pools = [cells[pool, size].both_seconds for pool in POOLS if (pool, size) in cells]
    if pools and run.lab == "cuda":
        best = min(pools, key=lambda pool: pool.median)
        words += f"; from a pool it takes {roughly(best.median, known_within(best))}"
    return on_lab(run.lab, f"{words}.")


def _shown_way(cells: Cells) -> str | None:
    """cudaHostAlloc, else the first other way to pinned memory that was measured."""
    return next((way for way in ("pinned", *REGISTERED, "write_combined") if largest(cells, way)), None)


def _paid(even: BreakEven) -> str:
    if even.copies is None:
        return "; no number of copies makes up for it: they are no faster"
    if not even.copies:
        return "; it costs nothing extra"
    return f"; {copies_words(even.copies)} {'makes' if even.copies == 1 else 'make'} up for the difference"


def _headline(cells: Cells, evens: Sequence[BreakEven], titles: Mapping[str, str]) -> tuple[Quantity, ...]:
    """What the largest pinned buffer takes, when it has paid, and a pool's; then what it is compared with."""
    found: list[Quantity] = []
    more: list[Quantity] = []
    way = _shown_way(cells)
    for shown, title in ((way, titles.get(way or "", "")), (BASE, f"Pageable ({titles[BASE]})")):
        if shown and (size := largest(cells, shown)):
            name = f"{_capital(title)}, get and free, {format_bytes(size)}"
            (found if shown == way else more).append(measured(name, cells[shown, size].both_seconds, "seconds"))
    if not found:  # nothing pinned
        return ()
    for way in ("pinned", "registered_4k"):
        mine = [even for even in evens if even.usual and even.way == way and even.bytes == largest(cells, way)]
        for even in sorted(mine, key=lambda even: even.direction != "h2d"):
            title = "a pinned buffer" if way == "pinned" else titles[way]
            name = f"Copies that repay {title}, {even.direction}, {format_bytes(even.bytes)}"
            (found if len(found) == 1 else more).append(_copies_quantity(name, even))
    size = largest(cells, "pinned")
    for way in POOLS:
        if size and (way, size) in cells:
            name = f"{_capital(titles[way])}, get and free, {format_bytes(size)}"
            found.append(measured(name, cells[way, size].both_seconds, "seconds"))
    return (*found, *more)


def _capital(words: str) -> str:
    """A title at the beginning of a name; that of a function stays as it is written."""
    return words if words.startswith("cuda") else words[:1].upper() + words[1:]


def _copies_quantity(name: str, even: BreakEven) -> Quantity:
    return quantity(name, even.copies, "count", reason="at this size copies from pinned memory are not faster")


def _pace(seconds: float, nbytes: int) -> float | None:
    """Seconds per GiB, where anybody would take a GiB in such pieces."""
    return per_gib(seconds, nbytes) if nbytes >= SMALLEST_PIECE else None


def _tables(cells: Cells, evens: Sequence[BreakEven], titles: Mapping[str, str]) -> tuple[Table, ...]:
    every = table(
        "Getting and giving back",
        {
            "buffer": "text",
            "size": "bytes",
            "get": "seconds",
            "of it touch": "seconds",
            "of it register": "seconds",
            "give back": "seconds",
            "of it unregister": "seconds",
            "per GiB, get": "seconds",
            "per GiB, give back": "seconds",
            "spread": "share",
            "page faults": "count",
            "repeats": "count",
        },
        [
            (
                titles[cell.way],
                cell.bytes,
                cell.get_seconds.median,
                median(cell.touch_seconds),
                median(cell.register_seconds),
                cell.give_back_seconds.median,
                median(cell.unregister_seconds),
                _pace(cell.get_seconds.median, cell.bytes),
                _pace(cell.give_back_seconds.median, cell.bytes),
                cell.both_seconds.spread,
                cell.page_faults,
                cell.both_seconds.count,
            )
            for cell in cells.values()
        ],
        note="Medians; of page faults the fewest. n/a: the way has no such step, the kernel does not count it, or the "
        "buffer is too small for a figure per GiB. A pool had its buffers before: only reuse is timed.",
    )
    paid = table(
        "After how many copies a pinned buffer has paid for itself",
        {
            "buffer": "text",
            "in place of": "text",
            "size": "bytes",
            "direction": "text",
            "extra cost": "seconds",
            "gain per copy": "seconds",
            "copies": "count",
        },
        [
            (titles[e.way], titles[e.base], e.bytes, e.direction, e.extra_seconds, e.gain_seconds, e.copies)
            for e in evens
        ],
        note="Extra cost: the time to get the buffer and give it back, less that of the pageable memory that it stands "
        "in place of; for registered memory only registering and unregistering, as the memory is there anyway. 0 "
        "copies: there is no extra cost. n/a: copies from pinned memory are not faster at this size.",
    )
    return tuple(table for table in (every, paid) if table.rows)
