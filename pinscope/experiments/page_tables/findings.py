"""What the page_tables experiment found out: what a pinned byte takes, and which ways take less."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from pinscope.analysis.cells import clearly_more, of_kind
from pinscope.analysis.models import GPU_PAGE_SIZES, GRANULE_BYTES, page_table_bytes
from pinscope.analysis.statistics import measured
from pinscope.analysis.texts import Costed, Text, part_words, saying
from pinscope.experiments.page_tables.reading import ALL_RETURNED, PageTableCosts
from pinscope.experiments.page_tables.ways import BACKINGS
from pinscope.records.run import quantity
from pinscope.units import GIB, format_bytes, format_seconds

AGAIN = "Run it again while nothing else uses the GPU."
TEXTS: Mapping[str, Text] = {
    "page-tables-kept": Text(
        when="less than 95 % of what the page tables took comes back after freeing",
        title="{worst.left_bytes:bytes} of {tables} did not come back after freeing",
        detail="Way to pin: {worst.way}, device {worst.device}. Another process that took memory meanwhile would look "
        "the same.",
        advice=AGAIN,
        severity="warning",
    ),
    "growth-not-straight": Text(
        when="readings lie more than two steps of the meter off a straight line",
        title="The growth of {tables} is no straight line: readings are up to {worst.off_the_line_bytes:bytes} off it",
        detail="Way to pin: {worst.way}, device {worst.device}. What other processes take or free meanwhile is in the "
        "figures.",
        advice=AGAIN,
        severity="warning",
    ),
    "time-of-pinning": Text(
        when="memory was touched and then registered",
        title="Touching and registering 1 GiB in {pages} takes {took:seconds}[, {times} times as long "
        "as in huge pages ({huge})]",
        detail="One thread touched it in {way.touch_seconds_per_gib.median:seconds}[, {part:share} of the time]; "
        "registering took {way.pin_seconds_per_gib.median:seconds}. Allocating pinned memory does both in one call.",
        advice="{how} before registering: 'pinscope run pinning_strategy' measures which way is fastest.",
    ),
    "page-table-price": Text(
        when="the page table of pinned memory lies in GPU memory and is large enough to be seen",
        title="Each pinned GiB takes {price:bytes} of GPU memory: the GPU maps it in [pages of "
        "{best.known_page_bytes:bytes}][{implied:bytes} a page]",
        detail="GPU memory is reported in steps of {best.granule_bytes:bytes}: readings after every {step:bytes}, "
        "up to {best.pinned_bytes:bytes}, show {best.least_bytes_per_gib:bytes}[ to {most:bytes}] for a pinned GiB[, "
        "of which freeing gave back {back}]. A TiB would take {tebibyte:bytes}.",
        advice="Count it for every process that pins, on every GPU on which that process has a context (or, of a host "
        "pool, access). Whether one owner of memory that several processes share is worth it depends on how much that "
        "is: the experiment registration tells.",
    ),
    "every-gpu-pays": Text(
        when="memory of another GPU grows with what is pinned",
        title="{paying} of {gpus} GPUs keep a page table for memory that is pinned once",
        detail="Each GPU on which the process has a context keeps one of its own.",
        advice="Make contexts only on the GPUs that a process uses (CUDA_VISIBLE_DEVICES), one process per GPU.",
    ),
    "kind-shrinks-tables": Text(
        when="a way to pin takes less than the first of those whose page table is seen",
        title="{few} of {count} ways take less {tables} than {price:bytes} a GiB: {names}",
        detail="The way to compare with, {usual.way}, takes {price:bytes} a GiB.",
        advice="Pin large amounts in one of these ways: {names}.",
        severity="good",
    ),
    "all-kinds-same-tables": Text(
        when="no way to pin takes less than the first of those whose page table is seen",
        title="None of {count} ways to pin makes the page table smaller where the GPU has access: each takes "
        "{price:bytes} a GiB",
        detail="In pages of {page:bytes} a GiB would take {best:bytes}; none of these ways came to that.[ Measured in: "
        "{virtual}; other hosts may differ.]",
        advice="Choose the way to pin by its time, which 'pinscope run pinning_strategy' measures.",
    ),
    "no-access-no-table": Text(
        when="a host pool to which no GPU has access took no GPU memory",
        title="A host pool takes GPU memory only where the GPU has access: {free.pinned_bytes:bytes} took "
        "{free.table_bytes:bytes}[; with access {granted.table_bytes:bytes}]",
        detail="A GPU maps the memory of a pool when cuMemPoolSetAccess gives it access.",
        advice="Grant access only to the GPUs that copy from the pool, or whose kernels read it.",
    ),
}
say = saying(TEXTS)


def _not_returned(costs: PageTableCosts) -> Iterator[Costed]:
    back = {cost: share for cost in costs.cells if (share := cost.returned) is not None}
    kept = [cost for cost, share in back.items() if share < ALL_RETURNED and (cost.left_bytes or 0) > GRANULE_BYTES]
    if kept:
        worst = min(kept, key=back.__getitem__)
        returned = quantity("Returned", back[worst], "share")
        yield say("page-tables-kept", returned, worst=worst, tables=costs.tables_lie_in)


def _not_straight(costs: PageTableCosts) -> Iterator[Costed]:
    bent = [cost for cost in costs.cells if cost.per_byte and not cost.straight]
    if bent:
        worst = max(bent, key=lambda cost: cost.off_the_line_bytes)
        off = quantity("Farthest from a line", worst.off_the_line_bytes, "bytes")
        yield say("growth-not-straight", off, worst=worst, tables=costs.tables_lie_in)


def _where_time_goes(costs: PageTableCosts) -> Iterator[Costed]:
    """What touching small pages by one thread costs, beside huge pages where they were measured."""
    timed = {cost: both for cost in costs.own if (both := cost.both_seconds_per_gib)}
    if not timed:
        return
    cost, took = next(iter(timed.items()))
    huge = [other for other in timed if cost.backing == "4k" and other.backing in of_kind(BACKINGS, "huge")]
    parts = {"Touching": cost.touch_seconds_per_gib, "Registering": cost.pin_seconds_per_gib}
    others = sorted((timed[other].median for other in huge if clearly_more(took, timed[other])), reverse=True)
    ratios = [took.median / seconds for seconds in others] or [1.0]
    yield say(
        "time-of-pinning",
        *(measured(f"{name} a GiB", part, "seconds") for name, part in parts.items() if part),
        *(
            measured(f"Touching and registering a GiB, {other.backing}", timed[other], "seconds")
            for other in (cost, *huge)
        ),
        cost=ratios[-1],
        severity="by cost",
        pages=BACKINGS[cost.backing].title,
        way=cost,
        took=took.median,
        part=cost.touch_seconds_per_gib.median / took.median if cost.touch_seconds_per_gib else None,
        times=" to ".join(dict.fromkeys(f"{ratios[end]:.1f}" for end in (0, -1))) if others else None,
        how="Touch with several threads" if huge and not others else "Use huge pages, or touch with several threads,",
        huge=" to ".join(dict.fromkeys(format_seconds(seconds) for seconds in (*others[:1], *others[-1:]))),
    )


def _price(costs: PageTableCosts) -> Iterator[Costed]:
    best, price = costs.best, costs.best.bytes_per_gib
    if price is not None and costs.run.lab == "cuda":
        least, most = best.least_bytes_per_gib, best.most_bytes_per_gib
        yield say(
            "page-table-price",
            quantity("Page table per pinned GiB, at least", least, "bytes"),
            quantity("Page table per pinned GiB, at most", most, "bytes"),
            quantity("Page size of the mapping", best.page_bytes, "bytes"),
            quantity("Pinned at most", best.pinned_bytes, "bytes"),
            best=best,
            price=round(price),
            back=None if best.returned is None else part_words(best.returned),
            implied=None if best.known_page_bytes else best.page_bytes,
            step=best.sizes[-1] - best.sizes[-2],
            most=None if format_bytes(least) == format_bytes(most) else most,
            tebibyte=1024 * price,
        )


def _other_devices(costs: PageTableCosts) -> Iterator[Costed]:
    others = [cost for cost in costs.cells if cost.device != costs.run.device]
    paying = {cost.device: cost.bytes_per_gib for cost in reversed(others) if cost.bytes_per_gib is not None}
    if paying:
        evidence = (quantity(f"GPU {device}, per pinned GiB", paying[device], "bytes") for device in sorted(paying))
        gpus = len({cost.device for cost in others}) + 1
        yield say("every-gpu-pays", *evidence, paying=len(paying) + 1, gpus=gpus)


def _kinds(costs: PageTableCosts) -> Iterator[Costed]:
    """Whether any way takes less than the first that shows its page table."""
    reached = [(cost, slope) for cost in costs.own if (slope := cost.slope) and not cost.unreached]
    usual, least = next(((cost, known.low) for cost, _ in reached if (known := cost.known_slope)), (None, 0.0))
    if usual is None or len(reached) < 2:
        return
    smaller = [cost for cost, slope in reached if slope.high < least]
    if not smaller and costs.run.lab == "host":
        return
    yield say(
        "kind-shrinks-tables" if smaller else "all-kinds-same-tables",
        *(cost.price("Per GiB") for cost in smaller or [cost for cost, _ in reached]),
        usual=usual,
        few=len(smaller),
        count=len(reached),
        price=round(usual.bytes_per_gib or 0.0),
        tables=costs.tables_lie_in,
        names=", ".join(cost.way for cost in smaller),
        page=GPU_PAGE_SIZES[-1],
        best=page_table_bytes(GIB, GPU_PAGE_SIZES[-1]),
        virtual=costs.run.environment.virtualization,
    )


def _without_access(costs: PageTableCosts) -> Iterator[Costed]:
    """Memory that the GPU has no access to, beside the same with access."""
    free = next((cost for cost in costs.own if cost.unreached), None)
    granted = next((cost for cost in costs.own if cost.memory == "pool_granted"), None)
    if free:
        pools = (("Without access", free), ("With access", granted))
        figures = (quantity(name, cost.table_bytes, "bytes") for name, cost in pools if cost)
        yield say("no-access-no-table", *figures, free=free, granted=granted)


RULES = (_not_returned, _not_straight, _where_time_goes, _price, _other_devices, _kinds, _without_access)
