"""Arithmetic of buffers: what each costs, and after how many copies a pinned one has paid for itself."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product

from pinscope.analysis.rows import Row, Rows, counted, grouped, summary
from pinscope.analysis.statistics import Summary, summarize

GIB = 2**30
WAY_TITLES: Mapping[str, str] = {
    "malloc": "malloc",
    "malloc_touch": "malloc + touch, may reuse",
    "fresh_4k": "fresh, touched, 4 KiB pages",
    "fresh_thp": "fresh, touched, huge pages",
    "pinned": "cudaHostAlloc",
    "write_combined": "cudaHostAlloc, write-combined",
    "registered_4k": "touch + register, 4 KiB pages",
    "registered_thp": "touch + register, huge pages",
    "registered_hugetlb": "touch + register, hugetlb pages",
    "pool": "reused, from a pool",
    "cupy_pool": "reused, from CuPy's pool",
    "registered_portable": "touch + register, portable",
    "registered_shm_open": "touch + register, POSIX segment",
    "registered_hugetlb_1g": "touch + register, hugetlb pages of 1 GiB",
    "created": "cuMemCreate",
    "host_pool": "CUDA's host pool",
    "host_pool_kept": "reused, from CUDA's host pool",
}
HOST_TITLES: Mapping[str, str] = {
    **WAY_TITLES,
    "pinned": "map + mlock",
    "registered_4k": "touch + mlock, 4 KiB pages",
    "registered_thp": "touch + mlock, huge pages",
    "registered_hugetlb": "touch + mlock, hugetlb pages",
    "registered_shm_open": "touch + mlock, POSIX segment",
    "registered_hugetlb_1g": "touch + mlock, hugetlb pages of 1 GiB",
}
"""The same on the host model, where pinning is mlock."""
POOLS = ("pool", "cupy_pool")
BASES: Mapping[str, str] = {"fresh_4k": "4k", "fresh_thp": "thp"}
"""Pageable buffers that a fresh pinned one is compared with → the pages under them. The first is the usual one."""
BASE = "fresh_4k"
REGISTERED: Mapping[str, str] = {
    "registered_4k": "fresh_4k",
    "registered_thp": "fresh_thp",
    "registered_hugetlb": "fresh_thp",
    "registered_portable": "fresh_4k",
    "registered_shm_open": "fresh_4k",
    "registered_hugetlb_1g": "fresh_thp",
}
"""A registration → the pageable memory that it is of, or the nearest that is copied from without it."""
DRIVER = ("created", "host_pool")
"""Fresh memory of the driver's own calls, from which no copies were timed."""
SMALL_PAGES = ("fresh_4k", "registered_4k", "registered_portable")
HUGE_PAGES = ("fresh_thp", "registered_thp")


@dataclass(frozen=True)
class BufferCell:
    """All counted buffers of one way and size. Medians with spread, seconds."""

    way: str
    bytes: int
    get_seconds: Summary
    touch_seconds: Summary | None
    register_seconds: Summary | None
    unregister_seconds: Summary | None
    give_back_seconds: Summary
    both_seconds: Summary
    """Getting and giving back together."""
    page_faults: int | None
    """While the buffer was got: the fewest of all rows; ``None`` where they were not counted."""


@dataclass(frozen=True)
class BreakEven:
    """What a pinned buffer costs more than a pageable one, and what each copy gains.

    Attributes:
        way: how the pinned buffer is got.
        base: the pageable buffer that it replaces.
        extra_seconds: getting and giving back, beyond what the pageable buffer costs; for a registration, registering
            and unregistering.
        gain_seconds: pageable copy less pinned copy; not positive where pinning makes no copy faster.
        copies: after so many copies it has paid; 0 if it costs nothing extra, ``None`` if it does and copies gain
            nothing.
    """

    way: str
    base: str
    bytes: int
    direction: str
    extra_seconds: float
    gain_seconds: float
    copies: int | None

    @property
    def usual(self) -> bool:
        """True for the one comparison of each way that headline and charts show."""
        return self.base == REGISTERED.get(self.way, BASE)


Cells = Mapping[tuple[str, int], BufferCell]
Copies = Mapping[tuple[str, str, int], Summary]


def buffer_cells(rows: Iterable[Row]) -> dict[tuple[str, int], BufferCell]:
    """(way, bytes) → its counted buffers, in the order of the rows."""
    buffers = [row for row in counted(rows) if row["kind"] == "buffer"]
    return {key: _cell(key, group) for key, group in grouped(buffers, lambda row: (row["way"], row["bytes"])).items()}


def _cell(key: tuple[str, int], rows: Rows) -> BufferCell:
    faults = [row["page_faults"] for row in rows if row.get("page_faults") is not None]
    return BufferCell(
        *key,
        get_seconds=summarize([row["get_seconds"] for row in rows]),
        touch_seconds=summary(rows, "touch_seconds"),
        register_seconds=summary(rows, "register_seconds"),
        unregister_seconds=summary(rows, "unregister_seconds"),
        give_back_seconds=summarize([row["give_back_seconds"] for row in rows]),
        both_seconds=summarize([row["get_seconds"] + row["give_back_seconds"] for row in rows]),
        page_faults=min(faults, default=None),
    )


def needed_faults(way: str, nbytes: int, page_bytes: int) -> int | None:
    """Page faults that memory of this way takes at least if it is fresh; ``None`` where that is not known.

    Each small page is one fault. A huge page is one, and as large as what one entry of the second page-table level
    covers: as many pages as 8-byte entries fit into a page. Where there is no huge page, its small ones are more.
    """
    if way in SMALL_PAGES:
        return -(-nbytes // page_bytes)
    if way in HUGE_PAGES:
        return -(-nbytes // (page_bytes * page_bytes // 8))
    return None


def not_fresh(cells: Cells, page_bytes: int) -> list[BufferCell]:
    """Buffers that are called fresh, some of whose pages were there before: fewer faults than pages."""
    return [
        cell
        for (way, size), cell in cells.items()
        if cell.page_faults is not None
        and (needed := needed_faults(way, size, page_bytes)) is not None
        and cell.page_faults < needed
    ]


def kept_by_driver(cells: Cells, page_bytes: int) -> list[BufferCell]:
    """cudaHostAlloc buffers that come from memory that the driver had kept: fewer faults than pages.

    It gives small buffers parts of a larger block, which it keeps while any of them is in use (measured on an H200:
    up to 1 MiB of a block of 2 MiB). Named only where the faults of the largest buffer show that the driver takes a
    fault for each page at all.
    """
    mine = sorted((cell for cell in cells.values() if cell.way == "pinned"), key=lambda cell: cell.bytes)

    def fresh(cell: BufferCell) -> bool:
        return cell.page_faults is None or cell.page_faults >= -(-cell.bytes // page_bytes)

    return [cell for cell in mine if not fresh(cell)] if mine and fresh(mine[-1]) else []


def largest(cells: Cells, way: str) -> int | None:
    """The largest buffer of a way; ``None`` where none was measured."""
    return max((size for name, size in cells if name == way), default=None)


def without(cells: Cells, left_out: Sequence[BufferCell]) -> Cells:
    """The other buffers."""
    return {key: cell for key, cell in cells.items() if cell not in left_out}


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
    found = []
    for ((way, size), cell), base, direction in product(cells.items(), BASES, ("h2d", "d2h")):
        extra = _extra(cells, cell, base)
        slow, fast = copies.get((BASES[base], direction, size)), copies.get(("pinned", direction, size))
        if extra is not None and slow and fast:
            gain = slow.median - fast.median
            copies_needed = 0 if extra <= 0 else math.ceil(extra / gain) if gain > 0 else None
            found.append(BreakEven(way, base, size, direction, extra, gain, copies_needed))
    return found


def _extra(cells: Cells, cell: BufferCell, base: str) -> float | None:
    if cell.way in REGISTERED:
        if REGISTERED[cell.way] != base:
            return None
        if cell.register_seconds is None or cell.unregister_seconds is None:
            return None
        return cell.register_seconds.median + cell.unregister_seconds.median
    pageable = cells.get((base, cell.bytes))
    if pageable is None or cell.way not in ("pinned", *POOLS):  # copies of the others were not timed
        return None
    return cell.both_seconds.median - pageable.both_seconds.median


def per_gib(seconds: float, nbytes: int) -> float:
    """Seconds for 2**30 bytes at this pace."""
    return seconds * GIB / nbytes
