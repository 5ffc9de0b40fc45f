"""Page tables of pinned memory: what each pinned byte takes, and which page size that means."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from pinscope.analysis.line_fit import LineFit, fit_line
from pinscope.analysis.page_table_model import GPU_PAGE_SIZES, GRANULE_BYTES, implied_page_bytes
from pinscope.analysis.statistics import Summary, summarize

GIB = 2**30
Meter = Literal["nvml_used_bytes", "device_used_bytes", "page_table_bytes"]
GPU_METERS: tuple[Meter, ...] = ("nvml_used_bytes", "device_used_bytes")
"""The driver's view first: cudaMemGetInfo may leave out what the driver holds back."""
HOST_METERS: tuple[Meter, ...] = ("page_table_bytes",)
STRAIGHT = 0.98
"""r² from which on a growth is a line."""
ENOUGH_RISES = 4
"""With fewer, the line through all steps is the surer one."""
SAME_PAGE = 0.1
"""A page size is named when the measured slope is within this share of what it predicts."""


@dataclass(frozen=True, order=True)
class Way:
    """How memory was pinned, and whose page table is looked at."""

    memory: str
    backing: str
    """Empty for memory that CUDA allocates itself."""
    device: int


@dataclass(frozen=True)
class Growth:
    """One meter's view of one way.

    Attributes:
        meter: which reading.
        bytes: pinned at each step, ascending.
        table_bytes: what the meter had grown by then.
        fit: the line through them; ``None`` with too few steps.
        rises: the line through those at which the meter rose above all before; ``None`` with too few. A GPU's memory
            is taken in large steps, and where a step is taken says more than how long it then lasts.
        left_bytes: what the meter still showed above its start when all was freed; ``None`` before that.
    """

    meter: Meter
    bytes: tuple[int, ...]
    table_bytes: tuple[int, ...]
    fit: LineFit | None
    rises: LineFit | None
    left_bytes: int | None

    @property
    def line(self) -> LineFit | None:
        """The line that the slope is taken from."""
        return self.rises if self.rises and self.rises.count >= ENOUGH_RISES else self.fit

    @property
    def per_byte(self) -> float | None:
        """Bytes of page table per pinned byte; ``None`` where the growth is too small to tell."""
        steps = 2 if self.meter in GPU_METERS else 0
        if self.line is None or self.line.slope <= 0 or self.table_bytes[-1] < steps * GRANULE_BYTES:
            return None
        return self.line.slope

    @property
    def page_bytes(self) -> float | None:
        """The page size that the slope implies."""
        return None if self.per_byte is None else implied_page_bytes(self.per_byte)

    @property
    def known_page_bytes(self) -> int | None:
        """The page size a GPU knows that fits; ``None`` if none does."""
        implied = self.page_bytes
        if implied is None:
            return None
        return next((size for size in GPU_PAGE_SIZES if abs(implied / size - 1) <= SAME_PAGE), None)

    @property
    def straight(self) -> bool:
        """Whether the growth is a line, as far as the steps of the meter let it be one."""
        step = GRANULE_BYTES if self.meter in GPU_METERS else 0
        return self.fit is None or self.fit.r_squared >= STRAIGHT or self.fit.largest_residual <= step

    @property
    def returned(self) -> float | None:
        """Share of the growth that came back; ``None`` if nothing was freed yet or nothing had grown.

        No more than all of it: what the meter fell below its start was somebody else's.
        """
        if self.left_bytes is None or self.table_bytes[-1] <= 0:
            return None
        return min(1 - self.left_bytes / self.table_bytes[-1], 1.0)


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


def costs(rows: Sequence[Mapping[str, Any]]) -> list[Cost]:
    """Every way of a run's rows that has a start and a step; allocated memory first."""
    groups: dict[Way, list[Mapping[str, Any]]] = {}
    for row in rows:
        if not row["warmup"]:
            groups.setdefault(Way(row["memory"], row["backing"] or "", row["device"]), []).append(row)
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


def _meters(before: Mapping[str, Any]) -> tuple[Meter, ...]:
    """The GPU's where it has any; the process's own page tables are the host model's."""
    return GPU_METERS if any(before[meter] is not None for meter in GPU_METERS) else HOST_METERS


def _growth(
    meter: Meter, before: Mapping[str, Any], held: Sequence[Mapping[str, Any]], after: Mapping[str, Any] | None
) -> Growth | None:
    told = [row for row in held if row[meter] is not None]
    if before[meter] is None or not told:
        return None
    x = [0, *(row["bytes"] for row in told)]
    y = [0, *(row[meter] - before[meter] for row in told)]
    left = after[meter] - before[meter] if after and after[meter] is not None else None
    highest = [max(y[:place]) for place in range(1, len(y))]
    corners = [(size, grown) for size, grown, before_it in zip(x[1:], y[1:], highest, strict=True) if grown > before_it]
    rises = fit_line([size for size, _ in corners], [grown for _, grown in corners])
    return Growth(meter, tuple(x), tuple(y), fit_line(x, y), rises, left)


def _cost(
    way: Way,
    growths: tuple[Growth, ...],
    before: Mapping[str, Any],
    held: Sequence[Mapping[str, Any]],
    after: Mapping[str, Any] | None,
) -> Cost:
    last = held[-1]
    both = before["pinned_bytes"] is not None and last["pinned_bytes"] is not None
    return Cost(
        way,
        growths,
        _per_gib(held, "touch_seconds"),
        _per_gib(held, "pin_seconds"),
        after["free_seconds"] * GIB / last["bytes"] if after and after["free_seconds"] is not None else None,
        last["pinned_bytes"] - before["pinned_bytes"] if both else None,
    )


def _per_gib(held: Sequence[Mapping[str, Any]], name: str) -> Summary | None:
    told = [row[name] * GIB / row["step_bytes"] for row in held if row[name] is not None]
    return summarize(told) if told else None
