"""What the pressure experiment concludes: headline, table and findings from the rows of a run."""

from __future__ import annotations

from collections.abc import Sequence

from pinscope.analysis.rows import Row
from pinscope.analysis.statistics import measured
from pinscope.experiments.pressure.arithmetic import STALLS, Stages, median_of, stages
from pinscope.experiments.pressure.findings import (
    Memory,
    felt_by_others,
    floor,
    gone,
    least_share,
    lost_quantity,
    most_stalled,
    nobody_felt_it,
    rate_of,
)
from pinscope.experiments.pressure.verdict import pressure_verdict
from pinscope.records.environment import Limits
from pinscope.records.finding import Quantity, Reading, Table, quantity, table
from pinscope.records.run import ExperimentRun
from pinscope.units import format_bytes


def read_pressure_run(run: ExperimentRun, rows: Sequence[Row]) -> Reading:
    """Headline, tables and findings of a pressure run; empty parts where nothing was measured yet."""
    found, memory = stages(rows), _memory(run.environment.limits)
    if found.before is None or not found.held:
        return Reading(headline=(), tables=_table(found), findings=())
    felt = felt_by_others(found)
    return Reading(
        verdict=pressure_verdict(run, found, memory.words(found.most_bytes), felt),
        headline=_headline(found, memory),
        tables=_table(found),
        findings=(
            *gone(found),
            *felt,
            *(nobody_felt_it(found, memory) if found.after and not felt else ()),
            *floor(found),
        ),
    )


def _memory(limits: Limits) -> Memory:
    if limits.cgroup_limit_bytes is not None and limits.cgroup_limit_bytes < limits.host_total_bytes:
        return Memory(limits.cgroup_limit_bytes, "control group's")
    return Memory(limits.host_total_bytes, "host's")


def _headline(found: Stages, memory: Memory) -> tuple[Quantity, ...]:
    """The price and what an ordinary process felt first."""
    fault = found.before.fault if found.before else None
    slowest = max(found.held, key=lambda stage: median_of(stage.fault) or 0.0)
    ratio = (median_of(slowest.fault) or 0.0) / fault.rounds.median if fault else None
    share, stalled = least_share(found), most_stalled(found, "memory_some")
    return (
        lost_quantity(found),
        quantity(
            f"Page fault time with {format_bytes(slowest.bytes)} pinned (the slowest step) ÷ before",
            ratio,
            "ratio",
            reason="nothing to compare with",
        ),
        quantity("Most memory pinned", found.most_bytes, "bytes"),
        quantity(f"Most memory pinned, share of the {memory.owner} memory", memory.share(found.most_bytes), "share"),
        measured("Page fault before pinning", fault.rounds, "seconds")
        if fault
        else quantity("Page fault before pinning", None, "seconds", reason="not measured yet"),
        quantity(
            "Least share of the test file in the page cache",
            share[1] if share else None,
            "share",
            reason="no file could be made; the notes say why",
        ),
        quantity(
            "Longest stall for memory, share of a step's time",
            stalled[1] if stalled else None,
            "share",
            reason=None if stalled else _why_no_stalls(found),
        ),
    )


def _why_no_stalls(found: Stages) -> str:
    reported = found.before is not None and found.before.stalled["memory_some"] is not None
    return "no step has ended yet" if reported else "this kernel does not report it; the notes say why"


def _table(found: Stages) -> tuple[Table, ...]:
    rows = tuple(
        (
            stage.phase,
            stage.bytes,
            stage.pin_seconds,
            stage.available_bytes,
            stage.left_bytes,
            stage.free_bytes,
            stage.per_cpu_bytes,
            stage.cached_bytes,
            median_of(stage.fault),
            stage.longest.worst if stage.longest else None,
            rate_of(stage.byte_seconds),
            stage.cached_share,
            *(stage.stalled[name] for name in STALLS),
            stage.swapped_in_bytes,
            stage.swapped_out_bytes,
            stage.fault.rounds.count if stage.fault else 0,
        )
        for stage in found.all
    )
    every_step = table(
        "Every step",
        {
            "phase": "text",
            "pinned": "bytes",
            "pinning took": "seconds",
            "available": "bytes",
            "left here": "bytes",
            "free": "bytes",
            "on lists": "bytes",
            "page cache, shared memory": "bytes",
            "page fault": "seconds",
            "longest fault": "seconds",
            "file read": "bytes/second",
            "file in cache": "share",
            **{f"stalled: {words}": "share" for words in STALLS.values()},
            "swapped in": "bytes",
            "swapped out": "bytes",
            "rounds": "count",
        },
        rows,
        note="Page fault and file read: medians over the rounds; longest fault: of all pages; file in cache: the "
        "least. Left here is the tighter of the host's available memory and what the control group leaves. On "
        "lists: free pages that each processor has at hand, neither free nor available by the kernel's count. The "
        "kernel counts shared memory with the page cache, and memory of cudaHostAlloc is shared memory. Stalls are "
        "shares of the step's time, pinning included. n/a: not reported here, or not measured.",
    )
    return (every_step,) if rows else ()
