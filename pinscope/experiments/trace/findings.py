"""What a trace shows to be costly, or to be well: rules, each with its numbers and what to do."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from pinscope.analysis.rows import Row
from pinscope.experiments.trace.arithmetic import (
    Seen,
    Site,
    comes_late,
    line_name,
    pinned_memory,
    share_of_time,
    slow_source,
    small_copies,
    spared_by_not_waiting,
    waits_and_then,
)
from pinscope.records.finding import Finding, costing, finding, note, quantity, warning
from pinscope.records.run import Run
from pinscope.units import format_bytes, format_seconds

MOST_ACCUSED = 5
"""Lines with a finding of their own; the table has all."""

NOT_RECORDED = "an earlier version made this trace"
NO_GATHERING = "no run of scatter says how fast pieces are gathered"
PIN_CODE = """\
# PyTorch, batches of a DataLoader: copied from pinned memory, while the GPU computes
loader = DataLoader(dataset, ..., pin_memory=True)
batch = batch.to("cuda", non_blocking=True)

# PyTorch, a tensor that is copied again and again: pin it once
tensor = tensor.pin_memory()

# CuPy: an array in pinned memory, filled in place
array = cupyx.empty_pinned(shape, dtype)
device.set(array, stream=stream)
"""
TO_HOST_CODE = """\
# Once, before the loop. CuPy: cupyx.empty_pinned(shape, dtype)
buffer = torch.empty(shape, dtype=dtype, pin_memory=True)
for result in results:
    buffer.copy_(result, non_blocking=True)           # CuPy: result.get(out=buffer, blocking=False)
    torch.cuda.current_stream().synchronize()         # before the data is read; later, if work comes between
"""
REUSE_CODE = """\
# Once, before the loop. CuPy: cupyx.empty_pinned(shape, dtype), cupy.cuda.Event()
buffer = torch.empty(shape, dtype=dtype, pin_memory=True)
copied = torch.cuda.Event()
for batch in batches:
    copied.synchronize()                              # the last copy has left the buffer
    buffer.copy_(batch)
    on_gpu = buffer.to("cuda", non_blocking=True)
    copied.record()
"""


def trace_findings(run: Run, seen: Seen) -> tuple[Finding, ...]:
    """All that the rules find."""
    found = (each for rule in _RULES for each in rule(seen))
    small = _small(seen, origin(run, "gathered_from"))
    return (*_pageable(seen, origin(run, "pinned_from")), *found, *small, *_without_lines(run, seen))


def origin(run: Run, parameter: str) -> str | None:
    """Where rates come from. A run from elsewhere may hold anything."""
    value = run.params.get(parameter)
    return value if isinstance(value, str) else None


def _pageable(seen: Seen, rate_from: str | None) -> Iterator[Finding]:
    for site, others in seen.accused[:MOST_ACCUSED]:
        yield _accused(seen, site, others, rate_from)


def _accused(seen: Seen, site: Site, others: int, rate_from: str | None) -> Finding:
    row, saved = site.row, site.saved_in_place
    whole = seen.seconds_from_first(row)
    times = whole / (whole - saved) if saved is not None and 0 < saved < whole else 1.0
    way = "to" if row["direction"] == "d2h" else "from"
    what = f"{row['count']:,} {'copies' if row['count'] > 1 else 'copy'} {way} pageable memory"
    saves = (
        f": {pinned_memory(site).lower()} the program would take about {format_seconds(saved)} less, "
        f"{share_of_time(seen, row, saved)}"
        if saved
        else ""
    )
    return finding(
        costing(times),
        "pageable-copies",
        quantity("Bytes", row["bytes"], "bytes"),
        quantity("Bandwidth", site.bytes_per_second, "bytes/second", reason="no transfer was seen to its end"),
        quantity("Bandwidth of pinned memory", site.pinned_rate, "bytes/second", reason="no run of bandwidth says it"),
        quantity("That bandwidth from", rate_from, "text", reason="no run of bandwidth says it"),
        quantity("CPU held by the calls", row["call_seconds"], "seconds"),
        quantity("GPU compute idle", row["idle_seconds"], "seconds", reason="the program ran no kernel"),
        quantity("Saved if pinned (about)", saved, "seconds", reason="the rate of pinned copies is not known"),
        quantity("Saved if also issued early (of the copies, at most)", site.saved_early, "seconds"),
        title=f"{site.name} makes {what}{saves}",
        detail=" ".join(filter(None, (_where(row), slow_source(site), _alike(others)))),
        advice=_how_to_pin(row),
        code=TO_HOST_CODE if row["direction"] == "d2h" else PIN_CODE,
    )


_MADE_THERE = (
    "Refill a buffer only once its copy is done. On a stream of its own the copy can run while the GPU computes. The "
    "saving holds where the data is made in pinned memory. Where it must be copied there first, that takes CPU time; "
    "DataLoader(pin_memory=True) does it in a thread of its own."
)


def _how_to_pin(row: Row) -> str:
    if row["direction"] == "d2h":
        return "Copy into pinned memory that is allocated once and used again; wait for the copy before you read it."
    if "non_blocking=True" in (row["source_line"] or ""):
        return (
            "Copy from pinned memory: from pageable memory non_blocking=True has hardly any effect, from pinned "
            f"memory the call returns at once. {_MADE_THERE}"
        )
    return f"Copy from pinned memory; with non_blocking=True the call returns at once. {_MADE_THERE}"


def _alike(others: int) -> str:
    """Of the same line in other processes."""
    if not others:
        return ""
    return f"{others:,} more {'processes copy' if others > 1 else 'process copies'} there likewise."


def _where(row: Row) -> str:
    """The line itself, as the file had it."""
    if not row["file"]:
        return "The Python line is not known."
    source = f": {row['source_line']}" if row["source_line"] else ""
    place = f"Line {row['line']} of {row['file']}, in {row['function']}{source}"
    return place if place.endswith(".") else f"{place}."


def _small(seen: Seen, rate_from: str | None) -> Iterator[Finding]:
    for site in seen.small:
        row, gathered = site.row, site.gathered_seconds
        quicker = gathered is not None and gathered < row["call_seconds"]
        yield note(
            "many-small-copies",
            quantity("Copies", row["count"], "count"),
            quantity("Median size", row["median_bytes"], "bytes"),
            quantity("Bytes", row["bytes"], "bytes"),
            quantity("CPU held by the calls", row["call_seconds"], "seconds"),
            quantity("Gathered and copied at once (about)", gathered, "seconds", reason=NO_GATHERING),
            quantity("Rate of gathering from", rate_from, "text", reason=NO_GATHERING),
            title=f"{small_copies(site)}: they hold the CPU for {format_seconds(row['call_seconds'])}"
            + (f", gathered they would take about {format_seconds(gathered)}" if quicker else ""),
            detail=_where(row),
            advice=(
                "Gathering them with one thread would take as long. "
                if gathered is not None and not quicker
                else "Collect them in one pinned buffer and copy that. "
            )
            + "'pinscope run scatter' measures which way is fastest here.",
        )


def _churn(seen: Seen) -> Iterator[Finding]:
    for row in seen.churn:
        whole = seen.seconds_from_first(row)
        yield finding(
            costing(whole / max(whole - row["call_seconds"], 1e-9)),
            "pinned-memory-in-a-loop",
            quantity("Allocations", row["count"], "count"),
            quantity("Bytes asked for", row["bytes"], "bytes"),
            quantity("Bytes held", row["held_bytes"], "bytes", reason=NOT_RECORDED),
            quantity("Most at once", row["peak_bytes"], "bytes", reason=NOT_RECORDED),
            quantity("Time in the calls", row["call_seconds"], "seconds"),
            quantity("Not released at the end", row["left_count"], "count"),
            title=f"{line_name(row)} pins memory {row['count']:,} times: {format_seconds(row['call_seconds'])} in "
            f"{row['call']}, {share_of_time(seen, row, row['call_seconds'])}",
            detail=_where(row),
            advice="Pin a buffer once and use it again: pinning costs more than the copy that it speeds up.",
            code=REUSE_CODE,
        )


def _waits(seen: Seen) -> Iterator[Finding]:
    if seen.read_later or (seen.program and seen.program["managed_bytes"]):
        return  # data may be read or written only after a wait: none of them is known to be of no use
    for row in seen.idling[:MOST_ACCUSED]:
        idle = row["idle_seconds"]
        yield note(
            "waits-for-the-gpu",
            quantity("Waits", row["count"], "count"),
            quantity("GPU compute idle afterwards", idle, "seconds"),
            quantity("Longest of these times", row["longest_idle_seconds"], "seconds", reason=NOT_RECORDED),
            quantity("CPU held by the waits", row["call_seconds"], "seconds"),
            quantity("Saved without these waits (at most)", spared_by_not_waiting(row), "seconds"),
            title=waits_and_then(row, f", {share_of_time(seen, row, idle)}"),
            detail=f"{_where(row)} What the CPU did between a wait and the next kernel counts, such as loading data. "
            + (
                f"Idle time of copies counts twice, here and at the copies' line: {NOT_RECORDED}."
                if seen.counts_copies_after_waits
                else "Idle time of copies counts at the copies' line only."
            ),
            advice=_how_to_wait_less(row),
        )


def _how_to_wait_less(row: Row) -> str:
    spared = format_seconds(spared_by_not_waiting(row))
    earlier = "what the CPU does between the wait and the next kernel in another process, as a DataLoader's workers do"
    if comes_late(row):
        return (
            f"Fewer waits save at most {spared}: the GPU had mostly finished before, and then the CPU "
            f"was late. Do {earlier}; larger batches and CUDA graphs let it issue the same work by fewer calls."
        )
    return (
        "Ask for results less often: .item(), .cpu(), print() of a tensor and synchronize() wait until everything "
        "before them is done, and only then can the next work be issued; without these waits the program would take "
        f"at most {spared} less. Or do {earlier}."
    )


def _lost(seen: Seen) -> Iterator[Finding]:
    lost = seen.program["lost_bytes"] if seen.program else 0
    if lost:
        yield warning(
            "records-lost",
            quantity("Bytes that could not be read", lost, "bytes"),
            title=f"{format_bytes(lost)} of CUPTI's records could not be read: counts are too low",
            detail="They have another layout than cupti-python describes.",
            advice="Install the cupti-python that belongs to the CUPTI library of the program: the same CUDA version.",
        )


def _left_out(seen: Seen) -> Iterator[Finding]:
    more = seen.program["sites_left_out"] if seen.program else None
    if more:
        yield note(
            "lines-left-out",
            quantity("Lines left out", more, "count"),
            title=f"{more:,} lines that copy are left out: the trace keeps {len(seen.sites):,}, those with pageable "
            "copies before others",
            detail="Sums of lines are without them; the single copies are all kept.",
            advice="Trace a part of the program, or with --no-stacks.",
        )


def _without_lines(run: Run, seen: Seen) -> Iterator[Finding]:
    if not run.params.get("stacks", True) and seen.sites:
        yield note(
            "no-lines",
            title="The trace has no lines: it was made with --no-stacks",
            detail="All copies between the same kinds of memory stand in one row.",
            advice="Trace it again without --no-stacks.",
        )


def program_failed(seen: Seen) -> Iterator[Finding]:
    """Where the program did not end well, that stands among the findings."""
    if seen.failure:
        yield note(
            "program-failed",
            title=f"The program {seen.failure}",
            detail="The trace holds what it did until then.",
            advice="What the program wrote to its terminal says why.",
        )


_RULES: tuple[Callable[[Seen], Iterator[Finding]], ...] = (_churn, _waits, _lost, _left_out)
