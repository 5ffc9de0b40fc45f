"""What the page_tables experiment concludes: headline, tables and findings from the rows of a run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pinscope.analysis.page_table_model import GPU_PAGE_SIZES, GRANULE_BYTES, page_table_bytes
from pinscope.analysis.rows import median
from pinscope.experiments.page_tables.arithmetic import ALL_RETURNED, GIB, GPU_METERS, Cost, Growth, costs
from pinscope.experiments.page_tables.verdict import page_tables_verdict
from pinscope.records.finding import (
    Finding,
    Quantity,
    Reading,
    Table,
    costing,
    finding,
    good,
    note,
    quantity,
    table,
    warning,
)
from pinscope.records.run import ExperimentRun
from pinscope.units import format_bytes, format_seconds, format_share

AGREE = 0.05
"""Times that differ by less are the same."""
HUGE = ("thp", "hugetlb")
"""Backings of huge pages."""
PAGES = {"4k": "4 KiB pages", "thp": "huge pages", "hugetlb": "hugetlb pages", "shm": "shared memory"}
"""Backing → for people."""
AMOUNTS = (64 * GIB, 256 * GIB, 1024 * GIB)
"""Sizes for which the cost is worked out."""


def read_page_tables(run: ExperimentRun, rows: Sequence[Mapping[str, Any]]) -> Reading:
    """Headline, tables and findings of a page_tables run; empty parts where nothing was measured yet."""
    found = costs(rows)
    own = [cost for cost in found if cost.way.device == run.device]
    if not own:
        return Reading(headline=(), tables=(), findings=())
    best = next((cost for cost in own if cost.growth.per_byte is not None), own[0])
    return Reading(
        verdict=page_tables_verdict(run, found),
        headline=_headline(run, own),
        tables=(_table(found), *_amounts(run, best)),
        findings=(
            *_not_returned(run, found), *_not_straight(run, found), *_where_time_goes(own), *_price(run, best),
            *_other_devices(run, found), *_backings(run, own), *_meters(own),
        ),
    )  # fmt: skip


def way_words(cost: Cost) -> str:
    """How the memory was pinned, for people."""
    return f"registered ({cost.way.backing})" if cost.way.backing else "allocated pinned"


def _tables_of(run: ExperimentRun) -> str:
    return "GPU memory" if run.lab == "cuda" else "page tables"


def _headline(run: ExperimentRun, own: Sequence[Cost]) -> tuple[Quantity, ...]:
    """The first way's price, what it means and whether it comes back; then the other ways."""
    first = own[0].growth
    reason = "not freed yet" if first.left_bytes is None else "nothing had grown"
    prices = [_price_quantity(run, cost) for cost in own]
    return (
        prices[0],
        quantity("Page size of the mapping", first.page_bytes, "bytes", reason=_unseen(own[0])),
        quantity(
            f"{_tables_of(run).capitalize() if run.lab == 'host' else 'GPU memory'} given back after freeing",
            first.returned,
            "share",
            reason=reason,
        ),
        *prices[1:],
    )


def _price_quantity(run: ExperimentRun, cost: Cost) -> Quantity:
    per_byte = cost.growth.per_byte
    return quantity(
        f"{'Page tables' if run.lab == 'host' else 'GPU memory'} per pinned GiB, {way_words(cost)}",
        None if per_byte is None else per_byte * GIB,
        "bytes",
        reason=_unseen(cost),
    )


def _unseen(cost: Cost) -> str:
    steps = f", as it grows in steps of {format_bytes(GRANULE_BYTES)}" if cost.growth.meter in GPU_METERS else ""
    return (
        f"{format_bytes(cost.growth.bytes[-1])} grew it by {format_bytes(cost.growth.table_bytes[-1])}: too little to "
        f"tell{steps}"
    )


def _table(found: Sequence[Cost]) -> Table:
    def row(cost: Cost) -> tuple[float | int | str | None, ...]:
        growth = cost.growth
        return (
            way_words(cost), cost.way.device, growth.bytes[-1], growth.table_bytes[-1],
            *_per_gib(growth), growth.page_bytes, growth.left_bytes,
            cost.host_pinned_bytes,
            median(cost.touch_seconds),
            median(cost.pin_seconds), cost.free_seconds,
        )  # fmt: skip

    return table(
        "Every way",
        {
            "way": "text", "device": "count", "pinned": "bytes", "page tables": "bytes", "per GiB": "bytes",
            "at least": "bytes", "at most": "bytes", "implied page": "bytes", "left after freeing": "bytes",
            "host pins": "bytes", "touching a GiB": "seconds", "pinning a GiB": "seconds",
            "giving back a GiB": "seconds",
        },
        [row(cost) for cost in found],
        note="Page tables are counted in whole steps, so what a GiB takes lies between at least and at most. Per "
        "GiB is what a page size of GPUs takes, where that lies between, else the middle. Host pins are what the "
        "kernel's count of pinned pages grew by. "
        "Touching is by one thread; giving back is unpinning and unmapping. Memory allocated pinned "
        "is touched by the driver as it is allocated. Times are "
        "those of the run's own device.",
    )  # fmt: skip


def _per_gib(growth: Growth) -> tuple[float | None, float | None, float | None]:
    """Bytes a GiB; at least, at most."""
    slope, per_byte = growth.known_slope, growth.per_byte
    return (per_byte * GIB, slope.low * GIB, slope.high * GIB) if slope and per_byte else (None, None, None)


def _amounts(run: ExperimentRun, cost: Cost) -> tuple[Table, ...]:
    """What larger amounts would take, by the slope and by the formula."""
    per_byte = cost.growth.per_byte
    total = run.gpu.memory_total_bytes if run.gpu else None
    if per_byte is None:
        return ()
    return (
        table(
            "What more would take",
            {
                "pinned": "bytes", "as measured here": "bytes", "share of the GPU": "share", "at 4 KiB": "bytes",
                "at 64 KiB": "bytes", "at 2 MiB": "bytes",
            },
            [
                (
                    amount, round(amount * per_byte), amount * per_byte / total if total else None,
                    *(page_table_bytes(amount, size) for size in GPU_PAGE_SIZES),
                )
                for amount in AMOUNTS
            ],
            note="As measured here is what the formula gives, where the readings leave it possible, else the middle of "
            "what they leave possible. For each process that pins it, "
            "and on each GPU on which that process has a context. The formula is "
            "bytes ÷ page size × 8. Other amounts, processes and GPUs: the page Plan, or pinscope plan.",
        ),
    )  # fmt: skip


def _price(run: ExperimentRun, cost: Cost) -> Iterator[Finding]:
    growth, slope, per_byte = cost.growth, cost.growth.known_slope, cost.growth.per_byte
    if slope is None or per_byte is None or growth.page_bytes is None:
        yield note(
            "page-tables-unseen",
            quantity("Growth", growth.table_bytes[-1], "bytes"),
            title=f"{format_bytes(growth.bytes[-1])} of pinned memory took too little to see",
            detail=_unseen(cost) + ". Pages of 2 MiB would take 4 KiB a GiB.",
            advice="Pin more at once to see it: --set total=64GiB",
        )
        return
    known = growth.known_page_bytes
    named = f"pages of {format_bytes(known)}" if known else f"{format_bytes(round(growth.page_bytes))} a page"
    whose = "the GPU maps it" if run.lab == "cuda" else "the kernel maps it"
    step = format_bytes(growth.bytes[-1] - growth.bytes[-2])
    advice = (
        "Count it in for every process that pins, on every GPU where it has a context. Let one process pin and copy "
        "for the others (CUDA IPC) where several need the same data: see the experiment registration."
        if run.lab == "cuda"
        else "Where several processes map the same data, each has page tables of its own for it."
    )
    yield note(
        "page-table-price",
        quantity("Page table per pinned GiB, at least", slope.low * GIB, "bytes"),
        quantity("Page table per pinned GiB, at most", slope.high * GIB, "bytes"),
        quantity("Page size of the mapping", growth.page_bytes, "bytes"),
        quantity("Pinned at most", growth.bytes[-1], "bytes"),
        title=f"Each pinned GiB takes {format_bytes(round(per_byte * GIB))} of {_tables_of(run)}: {whose} in {named}",
        detail=f"{_read(run)} in steps of {format_bytes(growth.granule_bytes)}. This run pinned "
        f"{format_bytes(growth.bytes[-1])}, {step} at a time, so it knows to within {step} when each step came: a "
        f"pinned GiB takes between {format_bytes(round(slope.low * GIB))} and {format_bytes(round(slope.high * GIB))}."
        f"{_returned_words(growth)} A TiB would take "
        f"{format_bytes(round(1024 * GIB * per_byte))}.",
        advice=advice,
    )


def _read(run: ExperimentRun) -> str:
    return "GPU memory is reported" if run.lab == "cuda" else "The kernel counts page tables"


def _returned_words(growth: Growth) -> str:
    if growth.returned is None:
        return ""
    if growth.returned >= ALL_RETURNED:
        return " All of it came back after freeing."
    return f" {format_share(growth.returned)} of it came back after freeing."


def _backings(run: ExperimentRun, own: Sequence[Cost]) -> Iterator[Finding]:
    """Whether huge pages under the memory make the page table smaller."""
    small = next((cost for cost in own if cost.way.backing == "4k"), None)
    huge = [cost for cost in own if cost.way.backing in HUGE]
    if small is None or small.growth.per_byte is None or not huge:
        return
    least = small.growth.known_slope.low if small.growth.known_slope else 0.0
    helping = [cost for cost in huge if cost.growth.slope and cost.growth.slope.high < least]
    names = " and ".join(cost.way.backing for cost in (helping or huge))
    evidence = tuple(_per_gib_quantity(cost) for cost in huge)
    if helping:
        yield good(
            "huge-pages-shrink-tables",
            *evidence,
            title=f"Huge pages ({names}) under the memory make its page table smaller",
            detail=f"Small pages take {format_bytes(round(small.growth.per_byte * GIB))} a GiB.",
            advice=f"Register memory over huge pages ({names}) where much of it is pinned.",
        )
        return
    yield note(
        "huge-pages-same-tables",
        *evidence,
        title=f"Huge pages ({names}) under the memory do not make its page table smaller",
        detail=_same_tables(run, small),
        advice="Use huge pages for speed, not to save "
        + f"{_tables_of(run)}: touching and pinning 1 GiB took {format_seconds(_total_seconds(_fastest(huge)))}, "
        f"{format_seconds(_total_seconds(small))} in 4 KiB pages."
        if _is_faster(small, huge)
        else "Nothing to do.",
    )


def _same_tables(run: ExperimentRun, small: Cost) -> str:
    """What was seen where huge pages under the memory changed nothing."""
    if run.lab == "host":
        return (
            "It takes as much as with small pages: the kernel sets the small pages' table aside for the case that a "
            "huge page must be split."
        )
    per_gib = format_bytes(round((small.growth.per_byte or 0.0) * GIB))
    where = " This is a virtual machine; others may differ." if run.environment.virtualization else ""
    return f"With 4 KiB pages under it a GiB takes {per_gib}, and no less with huge pages.{where}"


def _per_gib_quantity(cost: Cost) -> Quantity:
    per_byte = cost.growth.per_byte
    return quantity(
        f"Per GiB, {way_words(cost)}", None if per_byte is None else per_byte * GIB, "bytes", reason=_unseen(cost)
    )


def _fastest(costs: Sequence[Cost]) -> Cost:
    return min(costs, key=_total_seconds)


def _is_faster(small: Cost, huge: Sequence[Cost]) -> bool:
    """Whether huge pages are worth it for their speed."""
    return _total_seconds(small) > (1 + AGREE) * _total_seconds(_fastest(huge))


def _total_seconds(cost: Cost) -> float:
    """Touching and pinning a GiB."""
    return sum(part.median for part in (cost.touch_seconds, cost.pin_seconds) if part)


def _other_devices(run: ExperimentRun, found: Sequence[Cost]) -> Iterator[Finding]:
    paying: dict[int, float] = {}
    for cost in found:
        if cost.way.device != run.device and cost.growth.per_byte is not None:
            paying.setdefault(cost.way.device, cost.growth.per_byte)
    others = {cost.way.device for cost in found} - {run.device}
    if not others:
        return
    if not paying:
        yield good(
            "one-gpu-pays",
            quantity("GPUs with a context", len(others) + 1, "count"),
            title="Only the GPU that pinned the memory pays for it",
            detail=f"The other GPUs with a context ({len(others)}) show no growth.",
        )
        return
    yield note(
        "every-gpu-pays",
        *(quantity(f"GPU {device}, per pinned GiB", slope * GIB, "bytes") for device, slope in sorted(paying.items())),
        title=f"Every GPU with a context pays: {len(paying) + 1} of {len(others) + 1}",
        detail="The process pinned the memory once; each GPU on which it has a context keeps a page table of "
        "its own for it.",
        advice="Make contexts only on GPUs that a process uses (CUDA_VISIBLE_DEVICES), one process a GPU.",
    )


def _not_returned(run: ExperimentRun, found: Sequence[Cost]) -> Iterator[Finding]:
    kept = [cost for cost in found if cost.growth.returned is not None and cost.growth.returned < ALL_RETURNED
            and (cost.growth.left_bytes or 0) > GRANULE_BYTES]  # fmt: skip
    if not kept:
        return
    worst = min(kept, key=lambda cost: cost.growth.returned or 0.0)
    yield warning(
        "page-tables-kept",
        quantity("Returned", worst.growth.returned, "share"),
        title=f"{format_bytes(worst.growth.left_bytes)} of {_tables_of(run)} did not come back after freeing",
        detail=f"The way: {way_words(worst)}, device {worst.way.device}. Another process that took memory "
        "meanwhile would look the same.",
        advice="Run it again while nothing else uses the GPU.",
    )


def _not_straight(run: ExperimentRun, found: Sequence[Cost]) -> Iterator[Finding]:
    bent = [cost for cost in found if cost.growth.per_byte and not cost.growth.straight]
    if not bent:
        return
    worst = max(bent, key=_off_the_line)
    yield warning(
        "growth-not-straight",
        quantity("Farthest from a line", _off_the_line(worst), "bytes"),
        title=f"{_tables_of(run)} did not grow in a straight line: readings are up to "
        f"{format_bytes(_off_the_line(worst))} off it",
        detail=f"The way: {way_words(worst)}, device {worst.way.device}. Other processes that take or free "
        "memory meanwhile are in the figures.",
        advice="Run it again while nothing else uses the GPU.",
    )


def _off_the_line(cost: Cost) -> int:
    """Bytes by which the meter's readings lie off a straight line at most, in whole steps of the meter."""
    return cost.growth.slope.steps * cost.growth.granule_bytes if cost.growth.slope else 0


def _meters(own: Sequence[Cost]) -> Iterator[Finding]:
    for cost in own:
        slopes = [growth.known_slope for growth in cost.growths]
        nvml, runtime = slopes if len(slopes) == 2 else (None, None)
        if nvml and runtime and (nvml.high < runtime.low or runtime.high < nvml.low):
            yield note(
                "meters-disagree",
                quantity("Per GiB, NVML", nvml.middle * GIB, "bytes"),
                quantity("Per GiB, cudaMemGetInfo", runtime.middle * GIB, "bytes"),
                title="NVML and cudaMemGetInfo do not agree on what pinned memory takes",
                detail=f"The way: {way_words(cost)}. NVML's figure is the one used.",
                advice="Run it again while nothing else uses the GPU.",
            )
            return


def _where_time_goes(own: Sequence[Cost]) -> Iterator[Finding]:
    """What touching small pages by one thread costs, beside huge pages where they were measured."""
    cost = next((cost for cost in own if cost.touch_seconds and cost.pin_seconds), None)
    if cost is None or cost.touch_seconds is None or cost.pin_seconds is None:
        return
    pages = PAGES.get(cost.way.backing, cost.way.backing)
    touching, pinning, total = cost.touch_seconds.median, cost.pin_seconds.median, _total_seconds(cost)
    huge = [one for one in own if one.way.backing in HUGE and one.touch_seconds and one.pin_seconds]
    times = total / _total_seconds(_fastest(huge)) if huge and cost.way.backing == "4k" else 1.0
    beside = (
        f", {times:.1f} times as long as in huge pages ({format_seconds(total / times)})" if times >= 1 + AGREE
        else f", {format_share(touching / total)} of that for touching it by one thread"
    )  # fmt: skip
    yield finding(
        costing(times),
        "time-of-pinning",
        quantity("Touching a GiB", touching, "seconds", spread=cost.touch_seconds.known_within),
        quantity("Registering a GiB", pinning, "seconds", spread=cost.pin_seconds.known_within),
        *(quantity(f"Touching and registering a GiB, {one.way.backing}", _total_seconds(one), "seconds")
          for one in huge if one is not cost),
        title=f"Touching and registering 1 GiB in {pages} takes {format_seconds(total)}{beside}",
        detail=f"One thread touched it in {format_seconds(touching)}, {format_share(touching / total)} of the time; "
        f"registering took {format_seconds(pinning)}. Allocating pinned memory does both in one call.",
        advice="Use huge pages, or touch with several threads, before registering: 'pinscope run pinning_strategy' "
        "measures which way is fastest.",
    )  # fmt: skip
