"""What the page_tables experiment concludes: headline, tables and findings from the rows of a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pinscope.analysis.page_table_model import GPU_PAGE_SIZES, page_table_bytes
from pinscope.analysis.rows import median
from pinscope.experiments.page_tables.arithmetic import GIB, Cost, Growth, costs, way_words
from pinscope.experiments.page_tables.findings import page_tables_findings, tables_of, unseen
from pinscope.experiments.page_tables.verdict import page_tables_verdict
from pinscope.records.finding import Quantity, Reading, Table, quantity, table
from pinscope.records.run import ExperimentRun

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
        findings=page_tables_findings(run, found, own, best),
    )


def _headline(run: ExperimentRun, own: Sequence[Cost]) -> tuple[Quantity, ...]:
    """The first way's price, what it means and whether it comes back; then the other ways."""
    first = own[0].growth
    reason = "not freed yet" if first.left_bytes is None else "nothing had grown"
    prices = [_price_quantity(run, cost) for cost in own]
    return (
        prices[0],
        quantity("Page size of the mapping", first.page_bytes, "bytes", reason=unseen(own[0])),
        quantity(
            f"{tables_of(run).capitalize() if run.lab == 'host' else 'GPU memory'} given back after freeing",
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
        reason=unseen(cost),
    )


def _table(found: Sequence[Cost]) -> Table:
    def row(cost: Cost) -> tuple[float | int | str | None, ...]:
        growth = cost.growth
        return (
            way_words(cost),
            cost.way.device,
            growth.bytes[-1],
            growth.table_bytes[-1],
            *_per_gib(growth),
            growth.page_bytes,
            growth.left_bytes,
            cost.host_pinned_bytes,
            median(cost.touch_seconds),
            median(cost.pin_seconds),
            cost.free_seconds,
        )

    return table(
        "Every way",
        {
            "way": "text",
            "device": "count",
            "pinned": "bytes",
            "page tables": "bytes",
            "per GiB": "bytes",
            "at least": "bytes",
            "at most": "bytes",
            "implied page": "bytes",
            "left after freeing": "bytes",
            "host pins": "bytes",
            "touching a GiB": "seconds",
            "pinning a GiB": "seconds",
            "giving back a GiB": "seconds",
        },
        [row(cost) for cost in found],
        note="GPU memory is taken in whole steps, so a GiB takes between at least and at most. Per GiB: what a page "
        "size of GPUs takes, where that lies between, else the middle. Host pins: what the kernel's count of pinned "
        "pages grew by, of all processes together. Touching is by one thread; giving back is unpinning and unmapping. "
        "The driver touches the memory that it allocates. Times are those of the run's own device.",
    )


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
                "pinned": "bytes",
                "as measured here": "bytes",
                "share of the GPU": "share",
                "at 4 KiB": "bytes",
                "at 64 KiB": "bytes",
                "at 2 MiB": "bytes",
            },
            [
                (
                    amount,
                    round(amount * per_byte),
                    amount * per_byte / total if total else None,
                    *(page_table_bytes(amount, size) for size in GPU_PAGE_SIZES),
                )
                for amount in AMOUNTS
            ],
            note="For each process that pins it, on each GPU on which that process has a context. The formula is bytes "
            "÷ page size × 8; as measured here is the page size that fits this run's readings, else the middle of what "
            "they allow. Other amounts, processes and GPUs: the page Plan, or pinscope plan.",
        ),
    )
