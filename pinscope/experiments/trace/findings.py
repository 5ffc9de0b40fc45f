"""What a trace shows to be costly, or to be well: rules, each with its numbers and what to do."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from pinscope.analysis.rows import Row
from pinscope.experiments.trace.arithmetic import SMALL_COPIES, Seen, Site, line_name
from pinscope.records.finding import Finding, costing, finding, good, note, quantity, warning
from pinscope.records.run import Run
from pinscope.records.trace_row import LARGE_BYTES
from pinscope.units import format_bytes, format_seconds, format_share

MOST_ACCUSED = 5
"""Lines with a finding of their own; the table has all."""
CHURN_TIMES = 10
"""A line that allocated pinned memory so often does it in a loop."""
WORTH = 0.01
"""Of the program's time; what costs less is not worth a finding."""

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
    return (*found, *_without_lines(run, seen))


def _pageable(seen: Seen) -> Iterator[Finding]:
    for site in [site for site in seen.pageable if seen.is_worth(site)][:MOST_ACCUSED]:
        yield _accused(seen, site)


def _accused(seen: Seen, site: Site) -> Finding:
    row, saved = site.row, site.saved_in_place
    times = seen.seconds / (seen.seconds - saved) if saved is not None and 0 < saved < seen.seconds else 1.0
    down = row["direction"] == "d2h"
    what = f"{row['count']:,} {'copies' if row['count'] > 1 else 'copy'} {'to' if down else 'from'} pageable memory"
    saves = f": pinned it would save about {format_seconds(saved)}" if saved else ""
    return finding(
        costing(times),
        "pageable-copies",
        quantity("Bytes", row["bytes"], "bytes"),
        quantity("Bandwidth", site.bytes_per_second, "bytes/second", reason="no transfer was seen to its end"),
        quantity("Bandwidth of pinned memory", site.pinned_rate, "bytes/second", reason="no run of bandwidth tells it"),
        quantity("CPU held by the calls", row["call_seconds"], "seconds"),
        quantity("GPU compute idle", row["idle_seconds"], "seconds", reason="the program ran no kernel"),
        quantity("Saved if pinned (about)", saved, "seconds", reason="the rate of pinned copies is not known"),
        quantity("Saved if also ahead of compute (at most)", site.saved_ahead, "seconds"),
        title=f"{site.name} makes {what}{saves}",
        detail=_where(row),
        advice="Copy into pinned memory that is allocated once and used again."
        if down
        else "Copy from pinned memory; with non_blocking=True the call returns at once, and the copy can run while "
        "the GPU computes.",
        code=PIN_CODE,
    )


def _where(row: Row) -> str:
    """The line itself, as the file had it."""
    source = f": {row['source_line']}" if row["source_line"] else ""
    place = f"Line {row['line']} of {row['file']}, in {row['function']}{source}" if row["file"] else "No Python code"
    return place if place.endswith(".") else f"{place}."


def _all_pinned(seen: Seen) -> Iterator[Finding]:
    if seen.pinned and not any(map(seen.is_worth, seen.pageable)):
        size = sum(site.row["bytes"] for site in seen.pinned)
        yield good(
            "copies-pinned",
            quantity("Copies", sum(site.row["large_count"] for site in seen.pinned), "count"),
            quantity("Bytes", size, "bytes"),
            title=(
                "Every large copy uses pinned memory"
                if not seen.pageable
                else f"Large copies use pinned memory: {format_share(seen.pinned_share)} of their bytes"
            ),
            detail=f"Large are copies of more than {format_bytes(LARGE_BYTES)}; pageable ones hold the CPU.",
        )


def _small(seen: Seen) -> Iterator[Finding]:
    for site in seen.sites:
        row = site.row
        if row["count"] < SMALL_COPIES or row["median_bytes"] > LARGE_BYTES or row["direction"] not in ("h2d", "d2h"):
            continue
        held = row["call_seconds"] or 0.0
        if held < WORTH * seen.seconds:
            continue
        yield note(
            "many-small-copies",
            quantity("Copies", row["count"], "count"),
            quantity("Median size", row["median_bytes"], "bytes"),
            quantity("CPU held by the calls", held, "seconds"),
            title=f"{site.name} makes {row['count']:,} copies of {format_bytes(row['median_bytes'])}: "
            f"they hold the CPU for {format_seconds(held)}",
            detail=_where(row),
            advice="Collect them in one pinned buffer and copy that. 'pinscope run scatter' measures which way of "
            "gathering is fastest here.",
        )


def _churn(seen: Seen) -> Iterator[Finding]:
    for row in seen.allocations:
        if row["count"] < CHURN_TIMES or row["call_seconds"] < WORTH * seen.seconds:
            continue
        yield finding(
            costing(seen.seconds / max(seen.seconds - row["call_seconds"], 1e-9)),
            "pinned-memory-in-a-loop",
            quantity("Allocations", row["count"], "count"),
            quantity("Bytes", row["bytes"], "bytes"),
            quantity("Time in the calls", row["call_seconds"], "seconds"),
            quantity("Not released at the end", row["left_count"], "count"),
            title=f"{line_name(row)} pins memory {row['count']:,} times: {format_seconds(row['call_seconds'])} of "
            f"{format_seconds(seen.seconds)} in {row['call']}",
            detail=_where(row),
            advice="Pin a buffer once and use it again: pinning costs more than the copy that it speeds up.",
            code=REUSE_CODE,
        )


def _kept(seen: Seen) -> Iterator[Finding]:
    for row in seen.allocations:
        if row["count"] >= CHURN_TIMES and row["left_count"] == row["count"]:
            yield warning(
                "pinned-memory-grows",
                quantity("Allocations", row["count"], "count"),
                quantity("Bytes left at the end", row["left_bytes"], "bytes"),
                title=f"{line_name(row)} pinned {format_bytes(row['left_bytes'])} in {row['count']:,} steps and gave "
                "none back",
                detail=_where(row),
                advice="Release what is not used any more, or use it again. Pinned memory can be neither swapped nor "
                "reclaimed.",
            )


def _waits(seen: Seen) -> Iterator[Finding]:
    for row in seen.waits[:MOST_ACCUSED]:
        idle = row["idle_seconds"]
        if row["count"] < CHURN_TIMES or idle < WORTH * seen.seconds:
            continue
        yield note(
            "waits-for-the-gpu",
            quantity("Waits", row["count"], "count"),
            quantity("GPU compute idle afterwards", idle, "seconds"),
            quantity("CPU held", row["call_seconds"], "seconds"),
            title=f"{line_name(row)} waits for the GPU {row['count']:,} times; compute then stood idle, "
            f"{format_seconds(idle)} or {format_share(idle / seen.seconds)} of the time",
            detail=_where(row),
            advice="Ask for results less often: .item(), .cpu(), print() of a tensor and synchronize() wait until "
            "everything before them is done, and only then can the next work be issued.",
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


def _without_lines(run: Run, seen: Seen) -> Iterator[Finding]:
    if not run.params.get("stacks", True) and seen.sites:
        yield note(
            "no-lines",
            title="The trace has no lines: it was made with --no-stacks",
            detail="All copies between the same kinds of memory stand in one row.",
            advice="Trace it again without --no-stacks.",
        )


_RULES: tuple[Callable[[Seen], Iterator[Finding]], ...] = (
    _pageable,
    _all_pinned,
    _small,
    _churn,
    _kept,
    _waits,
    _lost,
)
