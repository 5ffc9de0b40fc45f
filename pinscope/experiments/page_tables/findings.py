"""What the page_tables experiment found out: what a pinned byte takes, and which ways take less."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pinscope.analysis.line_fit import SlopeBounds
from pinscope.analysis.page_table_model import GRANULE_BYTES
from pinscope.analysis.statistics import measured
from pinscope.experiments.page_tables.arithmetic import (
    ALL_RETURNED,
    GIB,
    GPU_METERS,
    Cost,
    Growth,
    unreached,
    way_words,
)
from pinscope.records.finding import Finding, Quantity, costing, finding, good, note, quantity, warning
from pinscope.records.run import ExperimentRun
from pinscope.units import format_bytes, format_seconds, format_share

AGREE = 0.05
"""Times that differ by less are the same."""
HUGE = ("thp", "hugetlb", "hugetlb_1g")
"""Backings of huge pages."""
PAGES = {
    "4k": "4 KiB pages",
    "thp": "huge pages",
    "hugetlb": "hugetlb pages",
    "hugetlb_1g": "hugetlb pages of 1 GiB",
    "shm": "shared memory",
    "shm_open": "POSIX shared memory",
}
"""Backing → for people."""
BEST_PAGE_BYTES = 2**21
"""The largest page by which a GPU maps host memory: what a smaller table would come from."""


def page_tables_findings(
    run: ExperimentRun, found: Sequence[Cost], own: Sequence[Cost], best: Cost
) -> tuple[Finding, ...]:
    """All findings of a run.

    Args:
        own: of ``found``, the ways as the run's own device saw them.
        best: of these, the one that stands for all.
    """
    kinds = tuple(_kinds(run, own))
    return (
        *_not_returned(run, found),
        *_not_straight(run, found),
        *_where_time_goes(own),
        *_price(run, best),
        *_other_devices(run, found),
        *(kinds or _backings(run, own)),
        *_without_access(own),
        *_meters(own),
    )


def tables_of(run: ExperimentRun) -> str:
    """What the page tables lie in."""
    return "GPU memory" if run.lab == "cuda" else "page tables"


def unseen(cost: Cost) -> str:
    """Why a growth gives no figure."""
    if unreached([cost]):
        return "no GPU was granted access to it, so it has no page table"
    steps = f", as it grows in steps of {format_bytes(GRANULE_BYTES)}" if cost.growth.meter in GPU_METERS else ""
    return (
        f"the meter grew by {format_bytes(cost.growth.table_bytes[-1])} for {format_bytes(cost.growth.bytes[-1])}, too "
        f"little for a figure{steps}"
    )


def _price(run: ExperimentRun, cost: Cost) -> Iterator[Finding]:
    growth, slope, per_byte = cost.growth, cost.growth.known_slope, cost.growth.per_byte
    if slope is None or per_byte is None or growth.page_bytes is None:
        yield note(
            "page-tables-unseen",
            quantity("Growth", growth.table_bytes[-1], "bytes"),
            title=f"The page table of {format_bytes(growth.bytes[-1])} of pinned memory is too small to see",
            detail=f"{unseen(cost)[:1].upper()}{unseen(cost)[1:]}. Pages of 2 MiB would take 4 KiB a GiB.",
            advice="Pin more to see it: --set total=64GiB",
        )
        return
    known = growth.known_page_bytes
    named = f"pages of {format_bytes(known)}" if known else f"{format_bytes(round(growth.page_bytes))} a page"
    whose = "the GPU maps it" if run.lab == "cuda" else "the kernel maps it"
    step = format_bytes(growth.bytes[-1] - growth.bytes[-2])
    advice = (
        "Count it for every process that pins, on every GPU on which that process has a context. Where several "
        "processes need the same data, one can pin it and copy for the others: see the experiment registration."
        if run.lab == "cuda"
        else "Where several processes map the same data, each has page tables of its own for it."
    )
    yield note(
        "page-table-price",
        quantity("Page table per pinned GiB, at least", slope.low * GIB, "bytes"),
        quantity("Page table per pinned GiB, at most", slope.high * GIB, "bytes"),
        quantity("Page size of the mapping", growth.page_bytes, "bytes"),
        quantity("Pinned at most", growth.bytes[-1], "bytes"),
        title=f"Each pinned GiB takes {format_bytes(round(per_byte * GIB))} of {tables_of(run)}: {whose} in {named}",
        detail=f"{_read(run)} in steps of {format_bytes(growth.granule_bytes)}: readings after every {step}, up to "
        f"{format_bytes(growth.bytes[-1])}, show {_between(slope)} for a pinned GiB{_returned_words(growth)}. A TiB "
        f"would take {format_bytes(round(1024 * GIB * per_byte))}.",
        advice=advice,
    )


def _read(run: ExperimentRun) -> str:
    return "GPU memory is reported" if run.lab == "cuda" else "The kernel counts page tables"


def _returned_words(growth: Growth) -> str:
    if growth.returned is None:
        return ""
    if growth.returned >= ALL_RETURNED:
        return ", all given back by freeing"
    return f", of which freeing gave back {format_share(growth.returned)}"


def _between(slope: SlopeBounds) -> str:
    """Bytes a GiB, as closely as the readings let it be known."""
    low, high = (format_bytes(round(bound * GIB)) for bound in (slope.low, slope.high))
    return low if low == high else f"{low} to {high}"


def _kinds(run: ExperimentRun, own: Sequence[Cost]) -> Iterator[Finding]:
    """Whether any kind of pinned memory takes less than 4 KiB pages do; of a run that has more than the usual two."""
    if not any(cost.way.memory not in ("pinned", "registered") for cost in own):
        return
    reached = [cost for cost in own if cost not in unreached(own) and cost.growth.slope]
    usual = next((cost for cost in reached if cost.growth.known_slope), None)
    if usual is None or usual.growth.known_slope is None or usual.growth.per_byte is None or len(reached) < 2:
        return
    least = usual.growth.known_slope.low
    smaller = [cost for cost in reached if cost.growth.slope and cost.growth.slope.high < least]
    evidence = tuple(_per_gib_quantity(cost) for cost in (smaller or reached))
    per_gib = format_bytes(round(usual.growth.per_byte * GIB))
    if smaller:
        names = ", ".join(way_words(cost) for cost in smaller)
        yield good(
            "kind-shrinks-tables",
            *evidence,
            title=f"{len(smaller)} of {len(reached)} ways take less {tables_of(run)} than {per_gib} a GiB: {names}",
            detail=f"The way to compare with, {way_words(usual)}, takes {per_gib} a GiB.",
            advice=f"Pin large amounts in one of these ways: {names}.",
        )
        return
    yield note(
        "all-kinds-same-tables",
        *evidence,
        title=f"No way to pin for the GPU makes the page table smaller: each of {len(reached)} takes {per_gib} a GiB",
        detail=f"If the GPU mapped pages of {format_bytes(BEST_PAGE_BYTES)}, a GiB would take "
        f"{format_bytes(GIB // BEST_PAGE_BYTES * 8)}; none of these ways made it do so.{_virtual(run)}",
        advice="Choose the way to pin by its time, which 'pinscope run pinning_strategy' measures.",
    )


def _virtual(run: ExperimentRun) -> str:
    return " This is a virtual machine; others may differ." if run.environment.virtualization else ""


def _without_access(own: Sequence[Cost]) -> Iterator[Finding]:
    """Memory that the GPU has no access to, beside the same with access."""
    free = next(iter(unreached(own)), None)
    granted = next((cost for cost in own if cost.way.memory == "pool_granted"), None)
    if free is None:
        return
    amount, taken = format_bytes(free.growth.bytes[-1]), free.growth.table_bytes[-1]
    beside = f"; with access {format_bytes(granted.growth.table_bytes[-1])}" if granted else ""
    yield note(
        "no-access-no-table",
        quantity("Without access", taken, "bytes"),
        *([quantity("With access", granted.growth.table_bytes[-1], "bytes")] if granted else []),
        title="A host pool takes GPU memory only where the GPU has access: "
        f"{amount} took {format_bytes(taken)}{beside}",
        detail="A GPU maps the memory of a pool when cuMemPoolSetAccess gives it access.",
        advice="Grant access only to the GPUs that copy from the pool, or whose kernels read it.",
    )


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
        + f"{tables_of(run)}: touching and pinning 1 GiB took {format_seconds(_total_seconds(_fastest(huge)))}, "
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
    return f"With 4 KiB pages under it a GiB takes {per_gib}, and no less with huge pages.{_virtual(run)}"


def _per_gib_quantity(cost: Cost) -> Quantity:
    per_byte = cost.growth.per_byte
    return quantity(
        f"Per GiB, {way_words(cost)}", None if per_byte is None else per_byte * GIB, "bytes", reason=unseen(cost)
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
            title="Only the GPU that pinned the memory keeps a page table for it",
            detail=f"Used memory did not grow on the other GPUs with a context ({len(others)}).",
        )
        return
    yield note(
        "every-gpu-pays",
        *(quantity(f"GPU {device}, per pinned GiB", slope * GIB, "bytes") for device, slope in sorted(paying.items())),
        title=f"{len(paying) + 1} of {len(others) + 1} GPUs keep a page table for memory that is pinned once",
        detail="Each GPU on which the process has a context keeps one of its own.",
        advice="Make contexts only on the GPUs that a process uses (CUDA_VISIBLE_DEVICES), one process per GPU.",
    )


def _not_returned(run: ExperimentRun, found: Sequence[Cost]) -> Iterator[Finding]:
    kept = [
        cost
        for cost in found
        if cost.growth.returned is not None
        and cost.growth.returned < ALL_RETURNED
        and (cost.growth.left_bytes or 0) > GRANULE_BYTES
    ]
    if not kept:
        return
    worst = min(kept, key=lambda cost: cost.growth.returned or 0.0)
    yield warning(
        "page-tables-kept",
        quantity("Returned", worst.growth.returned, "share"),
        title=f"{format_bytes(worst.growth.left_bytes)} of {tables_of(run)} did not come back after freeing",
        detail=f"Way to pin: {way_words(worst)}, device {worst.way.device}. Another process that took memory meanwhile "
        "would look the same.",
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
        title=f"{tables_of(run)[0].upper()}{tables_of(run)[1:]} did not grow in a straight line: readings are up to "
        f"{format_bytes(_off_the_line(worst))} off it",
        detail=f"Way to pin: {way_words(worst)}, device {worst.way.device}. What other processes take or free "
        "meanwhile is in the figures.",
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
                detail=f"Way to pin: {way_words(cost)}. The figures of this run are NVML's.",
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
        f", {times:.1f} times as long as in huge pages ({format_seconds(total / times)})"
        if times >= 1 + AGREE
        else f", {format_share(touching / total)} of that for touching it by one thread"
    )
    yield finding(
        costing(times),
        "time-of-pinning",
        measured("Touching a GiB", cost.touch_seconds, "seconds"),
        measured("Registering a GiB", cost.pin_seconds, "seconds"),
        *(
            quantity(f"Touching and registering a GiB, {one.way.backing}", _total_seconds(one), "seconds")
            for one in huge
            if one is not cost
        ),
        title=f"Touching and registering 1 GiB in {pages} takes {format_seconds(total)}{beside}",
        detail=f"One thread touched it in {format_seconds(touching)}, {format_share(touching / total)} of the time; "
        f"registering took {format_seconds(pinning)}. Allocating pinned memory does both in one call.",
        advice="Use huge pages, or touch with several threads, before registering: 'pinscope run pinning_strategy' "
        "measures which way is fastest.",
    )
