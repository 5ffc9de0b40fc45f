"""Page tables of pinned memory: what each pinned byte takes, and which page size that means."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from pinscope.analysis.line_fit import SlopeBounds, bound_slope
from pinscope.analysis.page_table_model import (
    ENTRY_BYTES,
    GPU_PAGE_SIZES,
    GRANULE_BYTES,
    UPPER_LEVELS,
    implied_page_bytes,
)
from pinscope.analysis.rows import Row, counted, grouped
from pinscope.analysis.statistics import Summary, summarize

GIB = 2**30
Meter = Literal["nvml_used_bytes", "device_used_bytes", "page_table_bytes"]
GPU_METERS: tuple[Meter, ...] = ("nvml_used_bytes", "device_used_bytes")
"""The driver's view first: cudaMemGetInfo may leave out what the driver holds back."""
HOST_METERS: tuple[Meter, ...] = ("page_table_bytes",)
HOST_GRANULE_BYTES = 4096
"""The kernel's page tables grow by pages."""
_ROUNDING = 1e-9
"""Of the bounds as floating-point numbers."""
ALL_RETURNED = 0.95
"""Share that must come back; the rest is within a step of the meter for a quick run."""
STRAIGHT_STEPS = 2
"""A growth is a line while no reading lies farther from it: the tables' own tables may bring one step forward."""


@dataclass(frozen=True, order=True)
class Way:
    """How memory was pinned, and whose page table is looked at."""

    memory: str
    backing: str
    """Empty for memory that CUDA allocates itself."""
    device: int


WAY_WORDS: Mapping[str, str] = {
    "pinned": "allocated pinned",
    "write_combined": "allocated write-combined",
    "created": "cuMemCreate",
    "created_pieces": "cuMemCreate in small handles",
    "pool": "host pool without access",
    "pool_granted": "host pool",
}
"""Ways of the driver's own memory → for people."""


@dataclass(frozen=True)
class Growth:
    """One meter's view of one way.

    Attributes:
        meter: which reading.
        bytes: pinned at each step, ascending.
        table_bytes: what the meter had grown by then.
        slope: bytes of page table per pinned byte, as the steps in which the meter counts let it be known; ``None``
            with too few readings.
        left_bytes: what the meter still showed above its start when all was freed; ``None`` before that.
    """

    meter: Meter
    bytes: tuple[int, ...]
    table_bytes: tuple[int, ...]
    slope: SlopeBounds | None
    left_bytes: int | None

    @property
    def granule_bytes(self) -> int:
        """How finely the meter counts."""
        return _granule(self.meter)

    @property
    def known_slope(self) -> SlopeBounds | None:
        """The slope; ``None`` where the growth is too small to tell."""
        too_small = self.table_bytes[-1] < 2 * self.granule_bytes
        return None if too_small or self.slope is None or self.slope.low <= 0 else self.slope

    @property
    def per_byte(self) -> float | None:
        """Bytes of page table per pinned byte; ``None`` where that is not known.

        The middle of what it may be; where that includes what a page size of GPUs takes, that.
        """
        if self.known_slope is None:
            return None
        entry = ENTRY_BYTES / self.known_page_bytes if self.known_page_bytes else self.known_slope.middle
        return min(max(entry, self.known_slope.low), self.known_slope.high)

    @property
    def known_page_bytes(self) -> int | None:
        """The page size of a GPU that lies within what the slope implies; ``None`` if none does."""
        slope = self.known_slope
        if slope is None:
            return None
        low, high = slope.low * (1 - _ROUNDING), slope.high * (1 + _ROUNDING)
        entries = {size: ENTRY_BYTES / size for size in GPU_PAGE_SIZES}
        return next((size for size, one in entries.items() if low <= one * (1 + UPPER_LEVELS) and one <= high), None)

    @property
    def page_bytes(self) -> float | None:
        """The page size that the slope implies: one that a GPU knows, if that fits."""
        if self.per_byte is None:
            return None
        return self.known_page_bytes or implied_page_bytes(self.per_byte)

    @property
    def straight(self) -> bool:
        """Whether the growth is a line, as far as the steps of the meter let it be one."""
        return self.slope is None or self.slope.steps <= STRAIGHT_STEPS

    @property
    def returned(self) -> float | None:
        """Share of the growth that came back; ``None`` if nothing was freed yet or nothing had grown.

        From none to all of it: what the meter shows beyond that, above or below, is somebody else's.
        """
        if self.left_bytes is None or self.table_bytes[-1] <= 0:
            return None
        return min(max(1 - self.left_bytes / self.table_bytes[-1], 0.0), 1.0)


@dataclass(frozen=True)
class Cost:
    """All that was measured of one way.

    Attributes:
        way: how memory was pinned.
        growths: by meter, the preferred one first.
        touch_seconds, pin_seconds: per GiB, over the steps; ``None`` where there is no such part.
        free_seconds: of the largest amount, per GiB.
        host_pinned_bytes: what the host's pin counter grew by at the largest amount.
    """

    way: Way
    growths: tuple[Growth, ...]
    touch_seconds: Summary | None
    pin_seconds: Summary | None
    free_seconds: float | None
    host_pinned_bytes: int | None

    @property
    def growth(self) -> Growth:
        """The preferred meter's."""
        return self.growths[0]


def way_words(cost: Cost) -> str:
    """How the memory was pinned, for people."""
    way = cost.way
    portable = ", portable" if way.memory == "portable" else ""
    return f"registered ({way.backing}{portable})" if way.backing else WAY_WORDS.get(way.memory, way.memory)


def unreached(found: Sequence[Cost]) -> list[Cost]:
    """Ways to which no GPU was granted access, and that took no GPU memory that could be seen."""
    return [cost for cost in found if cost.way.memory == "pool" and cost.growth.table_bytes[-1] < GRANULE_BYTES]


def costs(rows: Sequence[Row]) -> list[Cost]:
    """Every way of a run's rows that has a start and a step; allocated memory first."""
    groups = grouped(counted(rows), lambda row: Way(row["memory"], row["backing"] or "", row["device"]))
    found = []
    for way, group in groups.items():
        before = next((row for row in group if row["phase"] == "before"), None)
        held = sorted((row for row in group if row["phase"] == "held"), key=lambda row: row["bytes"])
        if before is None or not held:
            continue
        after = next((row for row in group if row["phase"] == "freed"), None)
        growths = tuple(
            growth for growth in (_growth(meter, before, held, after) for meter in _meters(before)) if growth
        )
        if growths:
            found.append(_cost(way, growths, before, held, after))
    return found


def _meters(before: Row) -> tuple[Meter, ...]:
    """The GPU's where it has any; the process's own page tables are the host model's."""
    return GPU_METERS if any(before[meter] is not None for meter in GPU_METERS) else HOST_METERS


def _growth(meter: Meter, before: Row, held: Sequence[Row], after: Row | None) -> Growth | None:
    metered = [row for row in held if row[meter] is not None]
    if before[meter] is None or not metered:
        return None
    x = [0, *(row["bytes"] for row in metered)]
    y = [0, *(row[meter] - before[meter] for row in metered)]
    left = after[meter] - before[meter] if after and after[meter] is not None else None
    return Growth(meter, tuple(x), tuple(y), bound_slope(x, y, _granule(meter)), left)


def _granule(meter: Meter) -> int:
    return GRANULE_BYTES if meter in GPU_METERS else HOST_GRANULE_BYTES


def _cost(way: Way, growths: tuple[Growth, ...], before: Row, held: Sequence[Row], after: Row | None) -> Cost:
    last = held[-1]
    both = before["pinned_bytes"] is not None and last["pinned_bytes"] is not None
    return Cost(
        way=way,
        growths=growths,
        touch_seconds=_per_gib(held, "touch_seconds"),
        pin_seconds=_per_gib(held, "pin_seconds"),
        free_seconds=_free_per_gib(after, last["bytes"]),
        host_pinned_bytes=last["pinned_bytes"] - before["pinned_bytes"] if both else None,
    )


def _free_per_gib(after: Row | None, nbytes: int) -> float | None:
    """Giving all of it back; ``None`` before that."""
    if after is None or after["free_seconds"] is None or not nbytes:
        return None
    return float(after["free_seconds"] * GIB / nbytes)


def _per_gib(held: Sequence[Row], name: str) -> Summary | None:
    rates = [row[name] * GIB / row["step_bytes"] for row in held if row[name] is not None and row["step_bytes"]]
    return summarize(rates) if rates else None
