"""Arithmetic of pinning strategies: what each took, how long neighbours waited, which one is best."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pinscope.analysis.statistics import Summary, summarize

USUAL = "host_alloc"
"""What the others are compared with: one cudaHostAlloc."""
IDLE = "idle"
WAITS: Mapping[str, str] = {
    "neighbour_info_seconds": "cudaMemGetInfo",
    "neighbour_nvml_seconds": "NVML",
    "neighbour_kernel_seconds": "kernel",
    "neighbour_allocation_seconds": "cudaMalloc + cudaFree",
}
"""Field of an observation → the call it is the longest of."""
TITLES: Mapping[str, str] = {
    "host_alloc": "one cudaHostAlloc",
    "host_alloc_chunks": "cudaHostAlloc in chunks",
    "register_untouched": "4 KiB pages, untouched, register",
    "touch_register": "4 KiB pages, threads touch, register",
    "touch_register_chunks": "4 KiB pages, threads touch, register chunks",
    "thp_register": "huge pages, threads touch, register",
    "thp_register_chunks": "huge pages, threads touch, register chunks",
    "thp_register_threads": "huge pages, threads touch, threads register chunks",
    "thp_pipeline": "huge pages, register each chunk once touched",
    "idle": "idle",
}
NEAR = 1.5
"""Strategies within this factor of the fastest are fast; of those, within this factor of the gentlest, gentle."""


@dataclass(frozen=True)
class StrategyCell:
    """All repeats of one strategy.

    Attributes:
        strategy: its name.
        bytes: how much it pinned.
        chunk_bytes: length of a piece; ``None`` where all is pinned by one call.
        threads: how many touched.
        total_seconds: until all was pinned.
        touch_seconds, pin_seconds, release_seconds: parts, and giving back (medians); ``None`` where there is none.
        waits: call of a neighbour → the longest over all repeats, seconds.
        release_wait_seconds: the longest of all calls while memory was given back.
        pinned: whether CUDA called all of it pinned, every time.
        copy_bytes_per_second: of one copy within a piece (median).
        crossing_copies: whether CUDA took a copy across a boundary; ``None`` where there is none.
    """

    strategy: str
    bytes: int
    chunk_bytes: int | None
    threads: int
    total_seconds: Summary
    touch_seconds: float | None
    pin_seconds: float | None
    release_seconds: float | None
    waits: Mapping[str, float]
    release_wait_seconds: float | None
    pinned: bool | None
    copy_bytes_per_second: float | None
    crossing_copies: bool | None

    @property
    def bytes_per_second(self) -> float:
        """How fast it pins (median)."""
        return self.bytes / self.total_seconds.median

    @property
    def longest_wait(self) -> float:
        """The longest call of any neighbour, seconds."""
        return max(self.waits.values())

    def seconds_for(self, nbytes: int) -> float:
        """Seconds to pin this much at the same pace."""
        return nbytes / self.bytes_per_second


def strategy_cells(rows: Iterable[Mapping[str, Any]]) -> dict[str, StrategyCell]:
    """Strategy → its repeats, in the order in which they were measured; ``idle`` is among them."""
    groups: dict[str, list[Mapping[str, Any]]] = {}
    for row in rows:
        if not row["warmup"]:
            groups.setdefault(row["strategy"], []).append(row)
    return {name: _cell(name, group) for name, group in groups.items()}


def _cell(name: str, rows: Sequence[Mapping[str, Any]]) -> StrategyCell:
    def values(field: str) -> list[Any]:
        return [row[field] for row in rows if row[field] is not None]

    def median(field: str) -> float | None:
        return summarize(values(field)).median if values(field) else None

    rates = [row["copy_bytes"] / row["copy_seconds"] for row in rows if row["copy_bytes"] and row["copy_seconds"]]
    return StrategyCell(
        strategy=name,
        bytes=rows[0]["bytes"],
        chunk_bytes=rows[0]["chunk_bytes"],
        threads=rows[0]["threads"],
        total_seconds=summarize(values("total_seconds")),
        touch_seconds=median("touch_seconds"),
        pin_seconds=median("pin_seconds"),
        release_seconds=median("release_seconds"),
        waits={call: max(values(field)) for field, call in WAITS.items()},
        release_wait_seconds=max(values("release_neighbour_seconds"), default=None),
        pinned=all(values("pinned")) if values("pinned") else None,
        copy_bytes_per_second=summarize(rates).median if rates else None,
        crossing_copies=all(values("crossing_copies")) if values("crossing_copies") else None,
    )


def best_strategy(cells: Iterable[StrategyCell], whole: bool = False) -> StrategyCell | None:
    """The fastest of those that are fast and gentle.

    Fast: at most ``NEAR`` times the time of the fastest. Gentle: of the fast ones, at most ``NEAR`` times the longest
    neighbour wait of the gentlest; a smaller difference in a longest wait is chance.

    Args:
        cells: strategies; ``idle`` is passed over.
        whole: only strategies after which one copy may take any part of the memory.
    """
    able = [cell for cell in cells if cell.strategy != IDLE and (not whole or cell.chunk_bytes is None)]
    if not able:
        return None
    fastest = min(cell.total_seconds.median for cell in able)
    fast = [cell for cell in able if cell.total_seconds.median <= NEAR * fastest]
    gentlest = min(cell.longest_wait for cell in fast)
    gentle = [cell for cell in fast if cell.longest_wait <= NEAR * gentlest]
    return min(gentle, key=lambda cell: cell.total_seconds.median)
