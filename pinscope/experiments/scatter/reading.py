"""What the experiment concludes: headline, tables and findings from the rows of a run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pinscope.analysis.precision import Repeated, precision_not_reached
from pinscope.analysis.statistics import measured
from pinscope.experiments.scatter.arithmetic import (
    WAY_TITLES,
    Beside,
    Cell,
    beside,
    by_case,
    by_way,
    cells,
    loop_suffices,
    ranked,
    winners,
)
from pinscope.experiments.scatter.findings import EQUAL, longer, scatter_findings
from pinscope.experiments.scatter.verdict import first_case, scatter_verdict
from pinscope.experiments.scatter.words import BY_WAY, TOWARDS, pieces_words
from pinscope.records.finding import Finding, Quantity, Reading, Table, quantity, table, wrong_data
from pinscope.records.run import ExperimentRun


def read_scatter(run: ExperimentRun, rows: Sequence[Mapping[str, Any]]) -> Reading:
    """Headline, tables and findings; empty parts where nothing was measured yet."""
    found, loads = cells(rows), beside(rows)
    if not found:
        return Reading(headline=(), tables=(), findings=())
    return Reading(
        verdict=scatter_verdict(found),
        headline=tuple(_headline(found)),
        tables=(_winners(found), *([_loads(loads)] if loads else []), _all(found)),
        findings=(*_wrong(found), *scatter_findings(found, loads), *precision_not_reached(run, _repeated(found))),
    )


def _headline(found: Sequence[Cell]) -> Iterator[Quantity]:
    """The smallest pieces: the best way beside a loop, what it takes; then the best way of each other case."""
    first = first_case(found)
    ways, order = by_way(first), ranked(first)
    if not order:
        return
    best = winners(first)[0]
    yield _rate(best)
    if "loop" in ways and best.way != "loop":
        yield quantity("Gain over a loop of copies", best.rate / ways["loop"].rate, "ratio")
    if "loop" in ways:
        yield _rate(ways["loop"])
        if "contiguous" in ways:
            from_size = loop_suffices(found, best.direction, best.layout)
            why = "it is not, up to the largest size measured"
            yield quantity("Size from which a loop is good enough", from_size, "bytes", reason=why)
    kernel = ways.get("kernel")
    if kernel:
        yield quantity("Multiprocessors that the kernel needs on an idle GPU", kernel.sms, "count")
    least = first[0].bytes
    for case, group in by_case(found).items():
        if case != first[0].case and case[2] == least and ranked(group):
            yield _rate(winners(group)[0])


def _rate(cell: Cell) -> Quantity:
    name = f"{pieces_words(cell)} {TOWARDS[cell.direction]} by {BY_WAY[cell.way]}"
    return measured(name, cell.wall, "bytes/second", cell.rate)


def _winners(found: Sequence[Cell]) -> Table:
    rows = []
    for group in by_case(found).values():
        best = winners(group)
        if not best:
            continue
        ways = by_way(group)
        loop, contiguous = ways.get("loop"), ways.get("contiguous")
        rows.append(
            (
                TOWARDS[best[0].direction],
                best[0].layout,
                best[0].bytes,
                best[0].pieces,
                " or ".join(WAY_TITLES[cell.way] for cell in best),
                best[0].rate,
                best[0].held,
                best[0].sms,
                loop.rate if loop else None,
                loop.held if loop else None,
                contiguous.rate if contiguous else None,
            )
        )
    return table(
        "Which way wins",
        {
            "direction": "text",
            "layout": "text",
            "piece": "bytes",
            "pieces": "count",
            "best way": "text",
            "its rate": "bytes/second",
            "thread held": "share",
            "multiprocessors": "count",
            "loop of copies": "bytes/second",
            "thread held by the loop": "share",
            "one contiguous copy": "bytes/second",
        },
        rows,
        note=f"{EQUAL} Figures are of the first that is named.",
    )


def _loads(loads: Sequence[Beside]) -> Table:
    return table(
        "Compute beside the copies",
        {
            "direction": "text",
            "piece": "bytes",
            "way": "text",
            "blocks": "count",
            "compute longer by": "share",
            "moved meanwhile": "bytes/second",
            "repeats": "count",
        },
        [
            (
                TOWARDS[one.direction],
                one.bytes,
                WAY_TITLES[one.way],
                one.blocks,
                longer(one),
                one.rate,
                one.slower.count,
            )
            for one in loads
        ],
        note="The load keeps the arithmetic units of all multiprocessors busy.",
    )


def _all(found: Sequence[Cell]) -> Table:
    return table(
        "Every combination",
        {
            "direction": "text",
            "layout": "text",
            "piece": "bytes",
            "pieces": "count",
            "way": "text",
            "blocks": "count",
            "CPU threads": "count",
            "rate": "bytes/second",
            "time": "seconds",
            "spread": "spread",
            "of it on the GPU": "seconds",
            "thread held": "seconds",
            "one call of a loop": "seconds",
            "multiprocessors": "count",
            "repeats": "count",
        },
        [
            (
                TOWARDS[cell.direction],
                cell.layout,
                cell.bytes,
                cell.pieces,
                WAY_TITLES[cell.way],
                cell.blocks,
                cell.threads,
                cell.rate,
                cell.wall.median,
                cell.wall.spread,
                cell.device.median,
                cell.issue.median,
                cell.call.median if cell.call else None,
                cell.sms,
                cell.wall.count,
            )
            for cell in found
        ],
        note="Medians. Time and rate run from the first call until all pieces are in place. One call: while nothing "
        "makes it wait.",
    )


def _repeated(found: Sequence[Cell]) -> list[Repeated]:
    least = first_case(found)[0].bytes
    chosen = {id(winners(group)[0]) for case, group in by_case(found).items() if case[2] == least and ranked(group)}
    return [
        Repeated(
            f"{WAY_TITLES[cell.way]}{_many(cell)}, {pieces_words(cell)} {TOWARDS[cell.direction]}",
            cell.wall,
            (
                f"ways={cell.way}",
                f"sizes={cell.bytes}",
                f"directions={cell.direction}",
                f"layouts={cell.layout}",
                *([f"blocks={cell.blocks}"] if cell.blocks else []),
                *([f"threads={cell.threads}"] if cell.threads else []),
            ),
            id(cell) in chosen,
        )
        for cell in found
    ]


def _many(cell: Cell) -> str:
    return f" of {cell.blocks} blocks" if cell.blocks else f" ({cell.threads} threads)" if cell.threads else ""


def _wrong(found: Sequence[Cell]) -> Iterator[Finding]:
    wrong = [cell for cell in found if cell.wrong]
    if not wrong:
        return
    first = wrong[0]
    yield wrong_data(
        "scatter-wrong",
        quantity("Wrong words of 8 bytes", sum(cell.wrong or 0 for cell in wrong), "count"),
        title="Pieces arrived wrong, or what lies between them was changed",
        detail=f"The first case: {WAY_TITLES[first.way]}, {pieces_words(first)} {TOWARDS[first.direction]}.",
    )
