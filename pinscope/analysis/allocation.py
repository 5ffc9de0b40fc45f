"""Arithmetic of buffers: what each costs, and after how many copies a pinned one has paid for itself."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pinscope.analysis.statistics import Summary, summarize

GIB = 2**30
WAY_TITLES: Mapping[str, str] = {
    "malloc": "malloc",
    "malloc_touch": "malloc + touch",
    "pinned": "cudaHostAlloc",
    "write_combined": "cudaHostAlloc, write-combined",
    "registered_4k": "touch + register, 4 KiB pages",
    "registered_thp": "touch + register, huge pages",
    "registered_hugetlb": "touch + register, hugetlb pages",
    "pool": "reused, from a pool",
    "cupy_pool": "reused, from CuPy's pool",
}
HOST_TITLES: Mapping[str, str] = {
    **WAY_TITLES,
    "pinned": "map + mlock",
    "registered_4k": "touch + mlock, 4 KiB pages",
    "registered_thp": "touch + mlock, huge pages",
    "registered_hugetlb": "touch + mlock, hugetlb pages",
}
"""The same on the host model, where pinning is mlock."""
POOLS = ("pool", "cupy_pool")
REGISTERED = ("registered_4k", "registered_thp", "registered_hugetlb")


@dataclass(frozen=True)
class BufferCell:
    """All counted buffers of one way and size. Medians with spread, seconds."""

    way: str
    bytes: int
    get_seconds: Summary
    touch_seconds: Summary | None
    register_seconds: Summary | None
    give_back_seconds: Summary
    both_seconds: Summary
    """Getting and giving back together."""


@dataclass(frozen=True)
class BreakEven:
    """What a pinned buffer costs more than a pageable one, and what each copy gains.

    Attributes:
        way: how the pinned buffer is got.
        extra_seconds: beyond what the pageable buffer costs; for a registration, registering and unregistering.
        gain_seconds: pageable copy less pinned copy; not positive where pinning makes no copy faster.
        copies: after so many copies it has paid; 0 if it costs nothing extra, ``None`` if it does and copies gain
            nothing.
    """

    way: str
    bytes: int
    direction: str
    extra_seconds: float
    gain_seconds: float
    copies: int | None


Cells = Mapping[tuple[str, int], BufferCell]
Copies = Mapping[tuple[str, str, int], Summary]


def buffer_cells(rows: Iterable[Mapping[str, Any]]) -> dict[tuple[str, int], BufferCell]:
    """(way, bytes) → its counted buffers, in the order of the rows."""
    groups: dict[tuple[str, int], list[Mapping[str, Any]]] = {}
    for row in rows:
        if row["kind"] == "buffer" and not row["warmup"]:
            groups.setdefault((row["way"], row["bytes"]), []).append(row)
    return {key: _cell(key, group) for key, group in groups.items()}


def _cell(key: tuple[str, int], rows: Sequence[Mapping[str, Any]]) -> BufferCell:
    def summary(name: str) -> Summary | None:
        values = [row[name] for row in rows if row[name] is not None]
        return summarize(values) if values else None

    return BufferCell(
        *key,
        get_seconds=summarize([row["get_seconds"] for row in rows]),
        touch_seconds=summary("touch_seconds"),
        register_seconds=summary("register_seconds"),
        give_back_seconds=summarize([row["give_back_seconds"] for row in rows]),
        both_seconds=summarize([row["get_seconds"] + row["give_back_seconds"] for row in rows]),
    )


def copy_times(rows: Iterable[Mapping[str, Any]]) -> dict[tuple[str, str, int], Summary]:
    """(memory, direction, bytes) → seconds of a complete copy."""
    groups: dict[tuple[str, str, int], list[float]] = {}
    for row in rows:
        if row["kind"] == "copy" and not row["warmup"]:
            groups.setdefault((row["memory"], row["direction"], row["bytes"]), []).append(row["wall_seconds"])
    return {key: summarize(values) for key, values in groups.items()}


def break_evens(cells: Cells, copies: Copies) -> list[BreakEven]:
    """One for each pinned way, size and direction of which everything needed was measured.

    A fresh or a reused pinned buffer replaces a fresh touched pageable one. A registration is of memory that is
    there and touched anyway: what it costs is registering and the difference in giving back.
    """
    found = []
    for (way, size), cell in cells.items():
        extra = _extra(cells, cell)
        if extra is None:
            continue
        for direction in ("h2d", "d2h"):
            slow, fast = copies.get(("pageable", direction, size)), copies.get(("pinned", direction, size))
            if slow and fast:
                gain = slow.median - fast.median
                copies_needed = 0 if extra <= 0 else math.ceil(extra / gain) if gain > 0 else None
                found.append(BreakEven(way, size, direction, extra, gain, copies_needed))
    return found


def _extra(cells: Cells, cell: BufferCell) -> float | None:
    pageable = cells.get(("malloc_touch", cell.bytes))
    if cell.way.startswith("malloc") or pageable is None:
        return None
    if cell.way in REGISTERED:
        if cell.register_seconds is None:
            return None
        return cell.register_seconds.median + max(
            cell.give_back_seconds.median - pageable.give_back_seconds.median, 0.0
        )
    return cell.both_seconds.median - pageable.both_seconds.median


def per_gib(seconds: float, nbytes: int) -> float:
    """Seconds for 2**30 bytes at this pace."""
    return seconds * GIB / nbytes
