"""What the topology experiment concludes: headline, tables and findings from the rows of a run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pinscope.analysis.statistics import measured
from pinscope.experiments.topology.arithmetic import (
    Cell,
    Opened,
    Tables,
    alone,
    at_once,
    cells,
    directions,
    opened,
    share,
    tables,
)
from pinscope.experiments.topology.findings import topology_findings
from pinscope.experiments.topology.verdict import topology_verdict
from pinscope.experiments.topology.words import BY
from pinscope.records.finding import Quantity, Reading, Table, quantity, table
from pinscope.records.run import ExperimentRun

_RATE = "bytes/second"
_SOURCES = {"host": "its pinned memory", "device": "its own GPU"}


def read_topology(run: ExperimentRun, rows: Sequence[Mapping[str, Any]]) -> Reading:
    """Headline, tables and findings of a run; empty parts where nothing was measured yet."""
    found, taken, reached = cells(rows), tables(rows), opened(rows)
    return Reading(
        verdict=topology_verdict(found, taken, reached),
        headline=(*_rates(found), *_memory(taken, reached)),
        tables=tuple(one for one in (_copies(found), _pages(taken), _reached(reached)) if one.rows),
        findings=topology_findings(run, found, taken, reached),
    )


def _rates(found: Sequence[Cell]) -> Iterator[Quantity]:
    """All at once, and their share of the rates alone; then each alone."""
    for way in directions(found):
        if cell := at_once(found, way):
            yield measured(f"All {len(cell.gpus)} GPUs at once, {way}", cell.total, _RATE)
            yield quantity(f"All at once ÷ alone, {way}", share(found, cell), "share", reason="not all ran alone")
    for way in directions(found):
        for gpu, cell in sorted(alone(found, way).items()):
            yield measured(f"GPU {gpu} alone, {way}", cell.total, _RATE)


def _memory(taken: Sequence[Tables], reached: Sequence[Opened]) -> Iterator[Quantity]:
    unknown = "not all registered, or no meter could be read"
    for one in taken:
        if one.contexts == "every_gpu":
            name = f"Page tables of {one.processes} processes, GPU {one.device}"
            yield quantity(name, one.table_bytes, "bytes", reason=unknown)
    if known := [one for one in reached if one.context_bytes is not None]:
        most = max(known, key=lambda one: one.context_bytes or 0)
        name = f"GPU memory taken by opening memory of GPU {most.device} from GPU {most.opener}"
        yield quantity(name, most.context_bytes, "bytes")


def _copies(found: Sequence[Cell]) -> Table:
    return table(
        "GPUs that copied at once",
        {
            "GPUs": "text",
            "direction": "text",
            "host memory": "text",
            "issued by": "text",
            "together": _RATE,
            "±": "spread",
            "of the rates alone": "share",
            "slowest GPU": _RATE,
            "fastest GPU": _RATE,
            "wrong words": "count",
        },
        [
            (
                "+".join(map(str, cell.gpus)),
                cell.direction,
                _place(cell),
                BY[cell.issued_by],
                cell.total.median,
                None if cell.total.few else cell.total.known_within,
                share(found, cell) if len(cell.gpus) > 1 else None,
                min(one.median for one in cell.each.values()),
                max(one.median for one in cell.each.values()),
                cell.wrong,
            )
            for cell in found
        ],
        note="Medians, over the time in which all of these GPUs copied. Of the rates alone: together, divided by the "
        "sum of what each reaches alone. A bidirectional rate is the sum of both directions.",
    )


def _place(cell: Cell) -> str:
    nodes = sorted({node for node in cell.nodes.values() if node is not None})
    if not nodes:
        return "not known"
    words = f"node {', '.join(map(str, nodes))}"
    return f"near ({words})" if cell.placed == "near" else words


def _pages(taken: Sequence[Tables]) -> Table:
    return table(
        "Page tables of processes that register the same memory",
        {
            "GPU": "count",
            "processes": "count",
            "context on": "text",
            "registered": "bytes",
            "expected": "bytes",
            "measured": "bytes",
            "first process": "bytes",
        },
        [
            (
                one.device,
                one.processes,
                "every GPU" if one.contexts == "every_gpu" else "one GPU each",
                one.bytes,
                one.expected_bytes,
                one.table_bytes,
                one.steps[0] if one.steps else None,
            )
            for one in taken
        ],
        note="Measured: what the GPU's used memory grew by. Expected: 8 bytes a 4 KiB page, in steps of 2 MiB, for "
        "each process with a context on the GPU. First process: what it grew by once the first process had registered; "
        "0 B where that has no context on this GPU.",
    )


def _reached(reached: Sequence[Opened]) -> Table:
    return table(
        "Memory of one GPU, opened on another one",
        {
            "memory on GPU": "count",
            "opened from GPU": "count",
            "taken by opening": "bytes",
            "opening": "seconds",
            **{f"from {words}": _RATE for words in _SOURCES.values()},
            "wrong words": "count",
        },
        [
            (
                one.device,
                one.opener,
                one.context_bytes,
                one.seconds,
                *(one.rates[source].median if source in one.rates else None for source in _SOURCES),
                one.wrong,
            )
            for one in reached
        ],
        note="Rates of large copies into the opened memory. Taken by opening: what used memory grew by on the GPU on "
        "which the opened memory lies, while the opener's own GPU was the current device.",
    )
