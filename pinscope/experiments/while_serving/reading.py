"""What the experiment concludes: headline, tables and findings from the rows of a run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pinscope.analysis.statistics import measured
from pinscope.experiments.while_serving.arithmetic import (
    AUTO,
    CALLS,
    GIVEN_BACK,
    IDLE,
    ROUND,
    TAKEN,
    TOUCH,
    Cell,
    cells,
    fastest,
    of_way,
    slower,
)
from pinscope.experiments.while_serving.findings import while_serving_findings
from pinscope.experiments.while_serving.verdict import while_serving_verdict
from pinscope.records.finding import Quantity, Reading, Table, quantity, table
from pinscope.records.run import ExperimentRun
from pinscope.units import format_bytes, format_seconds

USUAL_LIMIT = 0.02
"""Seconds, where a run does not name its limit."""


def limit_of(run: ExperimentRun) -> float:
    """How long a call may wait, as the run was asked."""
    return float(run.params.get("longest_wait", USUAL_LIMIT))


def read_while_serving(run: ExperimentRun, rows: Sequence[Mapping[str, Any]]) -> Reading:
    """Headline, tables and findings; empty parts where nothing was measured yet."""
    found, limit = cells(rows), limit_of(run)
    if not fastest(found):
        return Reading(headline=(), tables=(), findings=())
    return Reading(
        verdict=while_serving_verdict(found, limit),
        headline=tuple(_headline(found)),
        tables=(_ways(found, limit), _calls(found)),
        findings=while_serving_findings(found, limit),
    )


def _headline(found: Sequence[Cell]) -> Iterator[Quantity]:
    """What calls wait with the chunk that is found at run time, and without; then what it costs; then the controls."""
    auto = of_way(found, AUTO)
    shown = [cell for way in (AUTO, "host_alloc", "register") if (cell := of_way(found, way))]
    yield from (_wait(cell) for cell in shown)
    if auto and (times := slower(auto, found)):
        yield quantity(f"Time of {auto.title} ÷ the fastest way", times, "ratio")
        yield quantity(f"Chunk of {auto.title}", auto.chunk_bytes, "bytes", reason="memory cannot be registered here")
    yield from (_time(cell) for cell in shown)
    yield from (_wait(cell) for way in (TOUCH, IDLE) if (cell := of_way(found, way)))


def _wait(cell: Cell) -> Quantity:
    return quantity(f"Longest wait of a call, {cell.title}", cell.longest.seconds, "seconds")


def _time(cell: Cell) -> Quantity:
    name = f"Time to pin {format_bytes(cell.bytes)}, {cell.title}"
    return measured(name, cell.seconds, "seconds")


def _ways(found: Sequence[Cell], limit: float) -> Table:
    return table(
        "Ways to pin while serving",
        {
            "way": "text",
            "chunk": "bytes",
            "total": "seconds",
            "× the fastest": "ratio",
            "rate": "bytes/second",
            "give back": "seconds",
            "longest wait, pinning": "seconds",
            "longest wait, giving back": "seconds",
            "of the call": "text",
            "within the limit": "text",
            "longest round": "seconds",
            "repeats": "count",
        },
        [
            (
                cell.title,
                cell.chunk_bytes,
                cell.seconds.median,
                slower(cell, found),
                cell.bytes / cell.seconds.median if cell.pins else None,
                cell.release_seconds,
                cell.wait(TAKEN),
                cell.wait(GIVEN_BACK),
                cell.longest.call,
                "yes" if cell.longest.seconds <= limit else "no",
                max(cell.rounds.values()),
                cell.seconds.count,
            )
            for cell in found
            if cell.way != IDLE
        ],
        note="Total and give back are medians; a longest wait is the longest single call of all repeats. The limit is "
        f"{format_seconds(limit)} for each call. {found[0].threads} threads touched memory. A round is all calls once, "
        "and several of them may wait in it. A program that pins in the thread that serves waits for the total.",
    )


def _calls(found: Sequence[Cell]) -> Table:
    """Both phases of every way, call by call."""
    return table(
        "Calls of the serving loop",
        {
            "way": "text",
            "memory is": "text",
            **{f"longest {call}": "seconds" for call in CALLS.values()},
            **{f"typical {call}": "seconds" for call in CALLS.values()},
            "typical round": "seconds",
        },
        [
            (
                cell.title,
                {TAKEN: "taken", GIVEN_BACK: "given back"}.get(phase),
                *(cell.wait(phase, call) for call in CALLS.values()),
                *(cell.typical[phase, name] for name in (*CALLS, ROUND)),
            )
            for cell in found
            for phase in cell.phases
        ],
        note="Longest: of all repeats. Typical: the median. A stream synchronize waits for the kernel and the copy of "
        "its round, so it takes about as long as they do also when nothing else goes on.",
    )
