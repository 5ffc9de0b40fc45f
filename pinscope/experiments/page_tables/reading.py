"""What the page_tables experiment concludes: what each pinned byte takes, verdict, headline and tables."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated

from pinscope.analysis.cells import Label, Value, every_combination
from pinscope.analysis.models import ENTRY_BYTES, GPU_PAGE_SIZES, GRANULE_BYTES, UPPER_LEVELS
from pinscope.analysis.read_rows import Row, counted, grouped
from pinscope.analysis.statistics import SlopeBounds, Summary, bound_slope, summarize
from pinscope.analysis.texts import part_words
from pinscope.experiments.page_tables.ways import WAYS
from pinscope.records.run import ExperimentRun, Quantity, Table, quantity
from pinscope.units import GIB, format_bytes

METERS = {"nvml_used_bytes": GRANULE_BYTES, "device_used_bytes": GRANULE_BYTES, "page_table_bytes": 4096}
"""What is read, the first that there is, and how finely it counts: by cudaMemGetInfo only where NVML gives nothing, as
that may leave out what the driver holds back; the kernel's page tables of the process on the host model."""
_ROUNDING = 1e-9
"""Of the bounds as floating-point numbers."""
ALL_RETURNED = 0.95
"""Share that must come back; the rest is within a step of the meter for a quick run."""
STRAIGHT_STEPS = 2
"""A growth is a line while no reading lies farther from it: the tables' own tables may bring one step forward."""


@dataclass(frozen=True)
class Cell:
    """All that was measured of one way to pin, as one GPU saw it.

    Attributes:
        backing: empty for memory that CUDA allocates itself.
        granule_bytes: how finely the meter counts.
        sizes: pinned at each step, ascending; bytes.
        grown: what the meter had grown by then.
        left_bytes: what it still showed above its start when all was freed; ``None`` before that.
        both_seconds_per_gib: touching and pinning; ``None`` where CUDA touches the memory itself.
    """

    memory: str
    backing: str
    way: Annotated[str, Label("way")]
    device: Annotated[int, Label("device", "count")]
    granule_bytes: int
    sizes: tuple[int, ...]
    grown: tuple[int, ...]
    pinned_bytes: Annotated[int, Value("pinned", "bytes")]
    table_bytes: Annotated[int, Value("page tables", "bytes", "less")]
    left_bytes: Annotated[int | None, Value("left after freeing", "bytes", "less")]
    host_pinned_bytes: Annotated[int | None, Value("host pins", "bytes")]
    touch_seconds_per_gib: Annotated[Summary | None, Value("touching a GiB", "seconds", "less")]
    pin_seconds_per_gib: Annotated[Summary | None, Value("pinning a GiB", "seconds", "less")]
    free_seconds_per_gib: Annotated[float | None, Value("giving back a GiB", "seconds", "less")]
    both_seconds_per_gib: Summary | None

    @cached_property
    def slope(self) -> SlopeBounds | None:
        """Bytes of page table per pinned byte, as the steps in which the meter counts let it be known; ``None`` with
        too few readings."""
        return bound_slope(self.sizes, self.grown, self.granule_bytes)

    @property
    def known_slope(self) -> SlopeBounds | None:
        """The slope; ``None`` where the growth is too small to tell."""
        too_small = self.table_bytes < 2 * self.granule_bytes
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
        return next((size for size, of in entries.items() if low <= of * (1 + UPPER_LEVELS) and of <= high), None)

    @property
    def page_bytes(self) -> Annotated[float | None, Value("implied page", "bytes", "more")]:
        """The page size that the slope implies: one that a GPU knows, if that fits."""
        return self.known_page_bytes or (ENTRY_BYTES / self.per_byte if self.per_byte else None)

    @property
    def straight(self) -> bool:
        """Whether the growth is a line, as far as the steps of the meter let it be one."""
        return self.slope is None or self.slope.steps <= STRAIGHT_STEPS

    @property
    def off_the_line_bytes(self) -> int:
        """By which readings lie off a straight line at most, in whole steps of the meter."""
        return self.slope.steps * self.granule_bytes if self.slope else 0

    @property
    def returned(self) -> float | None:
        """Share of the growth that came back; ``None`` if nothing was freed yet or nothing had grown.

        From none to all of it: what the meter shows beyond that, above or below, is somebody else's.
        """
        if self.left_bytes is None or self.table_bytes <= 0:
            return None
        return min(max(1 - self.left_bytes / self.table_bytes, 0.0), 1.0)

    @property
    def bytes_per_gib(self) -> Annotated[float | None, Value("per GiB", "bytes", "less")]:
        """Of page table."""
        return self.per_byte and self.per_byte * GIB

    @property
    def least_bytes_per_gib(self) -> Annotated[float | None, Value("at least", "bytes")]:
        """As the readings let it be known."""
        return self.known_slope.low * GIB if self.known_slope else None

    @property
    def most_bytes_per_gib(self) -> Annotated[float | None, Value("at most", "bytes")]:
        """:attr:`known_slope` at its most, bytes for each GiB."""
        return self.known_slope.high * GIB if self.known_slope else None

    @property
    def unreached(self) -> bool:
        """Whether no GPU was granted access, and it took no GPU memory that could be seen."""
        return self.memory == "pool" and self.table_bytes < GRANULE_BYTES

    @property
    def unseen(self) -> str:
        """Why its growth gives no figure."""
        if self.unreached:
            return "no GPU was granted access to it, so it has no page table"
        steps = (
            f", as it grows in steps of {format_bytes(GRANULE_BYTES)}" if self.granule_bytes == GRANULE_BYTES else ""
        )
        return (
            f"the meter grew by {format_bytes(self.table_bytes)} for {format_bytes(self.pinned_bytes)}, too little "
            f"for a figure{steps}"
        )

    def price(self, name: str) -> Quantity:
        """What a pinned GiB takes."""
        key = ".".join(filter(None, (self.memory, self.backing, "per_gib")))
        return quantity(f"{name}, {self.way}", self.bytes_per_gib, "bytes", reason=self.unseen, key=key)


def cells_of(rows: Sequence[Row]) -> list[Cell]:
    """Every way of a run's rows that has a start and a step; allocated memory first."""
    groups = grouped(counted(rows), lambda row: (row["memory"], row["backing"] or "", row["device"]))
    made = (_cost(*labels, group) for labels, group in groups.items())
    return [cost for cost in made if cost]


def _cost(memory: str, backing: str, device: int, rows: Sequence[Row]) -> Cell | None:
    phases = grouped(rows, lambda row: row["phase"])
    before, after = (next(iter(phases.get(phase, ())), None) for phase in ("before", "freed"))
    held = sorted(phases.get("held", ()), key=lambda row: row["bytes"])
    if before is None or not held:
        return None
    meter = next((meter for meter in METERS if before[meter] is not None), None)
    grown = [(row["bytes"], rise) for row in held if meter and (rise := _difference(row, before, meter)) is not None]
    if meter is None or not grown:
        return None
    sizes, table_bytes = zip((0, 0), *grown, strict=True)
    last, portable = held[-1], ", portable" if memory == "portable" else ""
    freeing = after["free_seconds"] if after and last["bytes"] else None
    return Cell(
        memory,
        backing,
        f"registered ({backing}{portable})" if backing else WAYS[memory].title,
        device,
        METERS[meter],
        sizes,
        table_bytes,
        pinned_bytes=sizes[-1],
        table_bytes=table_bytes[-1],
        left_bytes=_difference(after, before, meter),
        host_pinned_bytes=_difference(last, before, "pinned_bytes"),
        touch_seconds_per_gib=_per_gib(held, "touch_seconds"),
        pin_seconds_per_gib=_per_gib(held, "pin_seconds"),
        free_seconds_per_gib=None if freeing is None else freeing * GIB / last["bytes"],
        both_seconds_per_gib=_per_gib(held, "touch_seconds", "pin_seconds"),
    )


def _difference(later: Row | None, before: Row, name: str) -> int | None:
    known = later is not None and later[name] is not None and before[name] is not None
    return later[name] - before[name] if later and known else None


def _per_gib(held: Sequence[Row], *names: str) -> Summary | None:
    timed = [row for row in held if row["step_bytes"] and None not in [row[name] for name in names]]
    rates = [sum(row[name] for name in names) * GIB / row["step_bytes"] for row in timed]
    return summarize(rates) if rates else None


@dataclass(frozen=True)
class PageTableCosts:
    """The ways of a run, as every GPU saw them."""

    run: ExperimentRun
    rows: Sequence[Row]

    @cached_property
    def cells(self) -> list[Cell]:
        """Of all GPUs."""
        return cells_of(self.rows)

    @cached_property
    def own(self) -> list[Cell]:
        """As the run's own device saw them."""
        return [cost for cost in self.cells if cost.device == self.run.device]

    @cached_property
    def best(self) -> Cell:
        """Of these the one that stands for all."""
        return next((cost for cost in self.own if cost.per_byte is not None), self.own[0])

    @property
    def tables_lie_in(self) -> str:
        """For people."""
        return "GPU memory" if self.run.lab == "cuda" else "page tables"


def of(run: ExperimentRun, rows: Sequence[Row]) -> PageTableCosts | None:
    """All that a run measured; ``None``: no step yet."""
    costs = PageTableCosts(run, rows)
    return costs if costs.own else None


def verdict(measured: PageTableCosts) -> str | None:
    """What a pinned GiB takes; then what does not come back, where, or how. ``None`` without straight growth."""
    reached = [cost for cost in measured.cells if not cost.unreached]
    known = [cost for cost in reached if cost.known_slope and cost.straight]
    own = [cost for cost in known if cost.device == measured.run.device]
    if not own:
        return None
    amount, back = _amount(reached, own), _back(own)
    if measured.run.lab == "host":
        return f"Each locked GiB takes {amount} of the kernel's page tables{back}."
    usual = {cost.memory for cost in own} <= {"pinned", "registered"}
    kinds = "" if usual or amount.startswith("up to") else f", in any of {len(own)} ways"
    devices, paying = ({cost.device for cost in costs} for costs in (reached, known))
    where = f", on {len(paying)} of {len(devices)} GPUs with a context" if len(devices) > 1 else ""
    of_what = "a GPU" if where else "each GPU with access" if kinds and not back else "each of its GPUs"
    return f"Each GiB that a process pins takes {amount} of {of_what}{back or where or kinds}."


def _amount(reached: Sequence[Cell], own: Sequence[Cell]) -> str:
    """One figure where one fits all ways, else the least and the most; ``own``: those whose figure is known."""
    slopes = [cost.known_slope for cost in own if cost.known_slope]
    prices = [round(cost.bytes_per_gib) for cost in own if cost.bytes_per_gib]
    floor = max(slope.low for slope in slopes)
    others = [cost.slope for cost in reached if cost.device == own[0].device and cost not in own]
    if any(slope and slope.high < floor for slope in others):  # too little for a figure
        return f"up to {format_bytes(max(prices))}"
    if floor <= min(slope.high for slope in slopes):
        return format_bytes(prices[0])
    return f"{format_bytes(min(prices))} to {format_bytes(max(prices))}"


def _back(own: Sequence[Cell]) -> str:
    least = min((cost.returned for cost in own if cost.returned is not None), default=None)
    if least is None:
        return ""
    return "" if least >= ALL_RETURNED else f", of which freeing gave back {part_words(least)}"


def headline(measured: PageTableCosts) -> tuple[Quantity, ...]:
    """The first way's price, what it means and whether it comes back; then other ways."""
    first, what = measured.own[0], measured.tables_lie_in.replace("page", "Page")
    reason = "not freed yet" if first.left_bytes is None else "nothing had grown"
    prices = [cost.price(f"{what} per pinned GiB") for cost in measured.own]
    return (
        prices[0],
        quantity("Page size of the mapping", first.page_bytes, "bytes", reason=first.unseen, key="page_size"),
        quantity(f"{what} given back after freeing", first.returned, "share", reason=reason, key="returned"),
        *prices[1:],
    )


def tables(measured: PageTableCosts) -> Iterator[Table]:
    """All that was measured. What other amounts would take, the page Plan and ``pinscope plan`` say."""
    yield every_combination(
        measured.cells,
        note="GPU memory is taken in whole steps, so a GiB takes between at least and at most. Per GiB: what a page "
        "size of GPUs takes, where that lies between, else the middle. Host pins: what the kernel's count of pinned "
        "pages grew by, of all processes together. Touching is by one thread; giving back is unpinning and unmapping. "
        "The driver touches the memory that it allocates. Times are those of the run's own device.",
    )
