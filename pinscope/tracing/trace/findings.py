"""What a trace shows to be costly: its texts, and the rules, which give the numbers."""

from __future__ import annotations

from collections.abc import Iterator

from pinscope.analysis.read_rows import Row
from pinscope.analysis.texts import Costed, Text, Texts, say
from pinscope.records.run import Finding, costing, quantity
from pinscope.tracing.sites import Seen, line_name
from pinscope.tracing.trace import hazards
from pinscope.tracing.trace.costs import comes_late, spared_by_not_waiting
from pinscope.tracing.trace.cpu_work import is_hidden, pins_again
from pinscope.tracing.trace.cpu_work_findings import CPU_TEXTS, work_findings
from pinscope.tracing.trace.failed_calls import TEXTS as FAILED_TEXTS
from pinscope.tracing.trace.failed_calls import failed_findings
from pinscope.tracing.trace.managed import TEXTS as MANAGED_TEXTS
from pinscope.tracing.trace.managed import managed_findings, managed_words
from pinscope.tracing.trace.needless import NEEDLESS_TEXTS, needless_findings
from pinscope.tracing.trace.reading import Traced, origin, pinned_memory, share_of_time
from pinscope.tracing.trace.source_memory import (
    FILE_CODE,
    MAPPED_FILE,
    faults_words,
    file_name,
    source_words,
    waits_for_file,
)
from pinscope.tracing.trace.source_memory import TEXTS as MEMORY_TEXTS
from pinscope.tracing.trace.source_memory import figures as memory_figures
from pinscope.tracing.trace.switches import SWITCH, SWITCH_TEXTS, batches_words, switch_of
from pinscope.tracing.trace.unrecorded import TEXTS as OF_CHILDREN
from pinscope.tracing.trace.unrecorded import children_findings
from pinscope.tracing.trace.what_if import WhatIf

MOST_ACCUSED = 5
"""Lines with a finding of their own; the table has all."""
NOT_RECORDED = "an earlier version made this trace"
NO_GATHERING = "no run of scatter says how fast pieces are gathered"
_COPIES = "{line} makes {copies}[: {into} the program would take about {saved:seconds} less, {share}]"
_PLACE = "{where}[ {slow}][ {batches}][ {others} there likewise.]"
_MADE_THERE = (
    "Refill a buffer only once its copy is done. On a stream of its own the copy can run while the GPU computes. The "
    "saving holds where the data is made in pinned memory. Where it must be copied there first, that takes CPU time; "
    "DataLoader(pin_memory=True) with workers does it in a thread of its own."
)
_SMALL = (
    "{line} makes {times:,} copies of {size:bytes}: they hold the CPU for {held:seconds}[, gathered they would take "
    "about {gathered:seconds}]"
)
_SCATTER = "'pinscope run scatter' measures which way is fastest here."
_IDLE = (
    "That is {share}. The waits themselves took {held:seconds}. {where} What the CPU did between a wait and the next "
    "kernel counts, such as loading data. Idle time of copies counts [twice, here and at the copies' line: {twice}]"
    "[at the copies' line only{once}]."
)
_EARLIER = "what the CPU does between the wait and the next kernel in another process, as a DataLoader's workers do"
TEXTS: Texts = {
    **FAILED_TEXTS,
    **CPU_TEXTS,
    **OF_CHILDREN,
    "pageable-copies": Text(
        "large copies of a line come from pageable memory and cost a thousandth of the time, or are a twentieth of the "
        "bytes of large copies; not where pinning would save nothing",
        _COPIES,
        _PLACE,
        f"Copy from pinned memory; with non_blocking=True the call returns at once. {_MADE_THERE}",
    ),
    "pageable-copies/asynchronous": Text(
        "the same, where the line asks for non_blocking=True",
        _COPIES,
        _PLACE,
        "Copy from pinned memory: from pageable memory non_blocking=True has hardly any effect, from pinned memory the "
        f"call returns at once. {_MADE_THERE}",
    ),
    "pageable-copies/to-host": Text(
        "the same of copies to the host",
        _COPIES,
        _PLACE,
        "Copy into pinned memory that is allocated once and used again; wait for the copy before you read it.",
    ),
    **SWITCH_TEXTS,
    **NEEDLESS_TEXTS,
    **MEMORY_TEXTS,
    "pinned-memory-in-a-loop": Text(
        "a line pins memory ten times or more, which takes a hundredth of the time",
        "{line} pins memory {times:,} times: {held:seconds} in {call}, {share}",
        "{where}",
        "Pin a buffer once and use it again: pinning costs more than the copy that it speeds up.",
    ),
    "waits-for-the-gpu": Text(
        "a line waits ten times or more, and compute stands idle afterwards for a hundredth of the time, the longest "
        "such time not counted; not where copies to the host are asynchronous, or managed memory is used",
        "After each of {times:,} waits of {line} the GPU idled: {idle:seconds} in all",
        _IDLE,
        "Ask for results less often: .item(), .cpu(), print() of a tensor and synchronize() wait until everything "
        "before them is done, and only then can the next work be issued; without these waits the program would take "
        f"at most {{spared:seconds}} less. Or do {_EARLIER}.",
    ),
    "waits-for-the-gpu/late": Text(
        "the same, where the waits hold the CPU for less than half as long",
        "At {line} the CPU waits {times:,} times for the GPU, which idles {idle:seconds} in all after these waits "
        "(fewer waits save at most {spared:seconds})",
        _IDLE,
        "Fewer waits save at most {spared:seconds}: the GPU had mostly finished before, and then the CPU was late. Do "
        f"{_EARLIER}; larger batches and CUDA graphs let it issue the same work by fewer calls.",
    ),
    **MANAGED_TEXTS,
    "not-recorded": Text(
        "managed memory was not followed",
        "Copies may be missing",
        "{managed}",
        "Nsight Systems shows how managed memory moves.",
        "warning",
    ),
    "records-lost": Text(
        "CUPTI's records could not be read",
        "{lost:bytes} of CUPTI's records could not be read: counts are too low",
        "They have another layout than the library of CUPTI says.",
        "Trace it with another version of CUPTI: pip install nvidia-cuda-cupti (CUDA 12: nvidia-cuda-cupti-cu12).",
        "warning",
    ),
    "many-small-copies": Text(
        "a line makes 1,000 copies or more, of 64 KiB at most (median), which hold the CPU for a hundredth of the time",
        _SMALL,
        "{where}",
        f"Collect them in one pinned buffer and copy that. {_SCATTER}",
    ),
    "many-small-copies/as-long": Text(
        "the same, where gathering them takes as long",
        _SMALL,
        "{where}",
        f"Gathering them with one thread would take as long. {_SCATTER}",
    ),
    "program-failed": Text(
        "the program did not end well",
        "The program {failure}",
        "The trace holds what it did until then.",
        "What the program wrote to its terminal says why.",
    ),
    "what-if-output-differs": Text(
        "the second run of --what-if wrote something else to stdout",
        "With lines pinned the program wrote something else to stdout",
        "A program that prints times or uses random numbers without a seed does so in each run.",
        "Fix the seeds, print no times, and try again: then the same output shows that the results are equal.",
        "warning",
    ),
    **hazards.TEXTS,
}
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
    torch.cuda.current_stream().synchronize()         # just before the data is read
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


def findings(traced: Traced) -> tuple[Finding, ...]:
    """All that the rules find."""
    run, seen, what = traced.run, traced.seen, traced.what
    costed = (
        *failed_findings(seen),
        *(hazards.hazard_findings(run, seen) if traced.waited is None else ()),
        *children_findings(seen),
        *work_findings(seen, _where, share_of_time),
        *_pageable(seen, origin(run, "pinned_from")),
        *managed_findings(seen, _where),
        *_churn(seen),
        *(_waits(seen) if traced.waited is None else ()),
        *_missing(seen),
        *_lost(seen),
        *_small(seen, origin(run, "gathered_from")),
        *needless_findings(seen, _where),
    )
    if what is None and traced.waited is None and seen.failure:
        costed = (*costed, say(TEXTS, "program-failed", failure=seen.failure))
    waited = () if traced.waited is None else hazards.waited_findings(traced.waited)
    return (*waited, *(() if what is None else what_if_findings(what)), *(finding for _, finding in costed))


def _pageable(seen: Seen, rate_from: str | None) -> Iterator[Costed]:
    for site, others in seen.accused[:MOST_ACCUSED]:
        row, saved, waits = site.row, site.saved_in_place, waits_for_file(site)
        if is_hidden(site) or (saved == 0 and not waits):  # the work of its line says why; pinning saves nothing
            continue
        whole, to_host = seen.seconds_from_first(row), row["direction"] == "d2h"
        asks = "/asynchronous" if "non_blocking=True" in (row["source_line"] or "") else ""
        switch = switch_of(seen, site)
        variant = SWITCH if switch else f"pageable-copies{'/to-host' if to_host else asks}"
        yield say(
            TEXTS,
            MAPPED_FILE if waits else variant,
            quantity("Bytes", row["bytes"], "bytes"),
            quantity("Bandwidth", site.bytes_per_second, "bytes/second", reason="no transfer was seen to its end"),
            quantity(
                "Bandwidth of pinned memory", site.pinned_rate, "bytes/second", reason="no run of bandwidth says it"
            ),
            quantity("That bandwidth from", rate_from, "text", reason="no run of bandwidth says it"),
            quantity("CPU held by the calls", row["call_seconds"], "seconds"),
            quantity("GPU compute idle", row["idle_seconds"], "seconds", reason="the program ran no kernel"),
            quantity("Saved if pinned (about)", saved, "seconds", reason="the rate of pinned copies is not known"),
            quantity("Saved if also issued early (of the copies, at most)", site.saved_early, "seconds"),
            *memory_figures(row),
            severity=costing(whole / (whole - saved) if saved is not None and 0 < saved < whole else 1.0),
            code=FILE_CODE if waits else TO_HOST_CODE if to_host else PIN_CODE,
            line=site.name,
            copies=f"{row['count']:,} {'copies' if row['count'] > 1 else 'copy'} {'to' if to_host else 'from'} "
            "pageable memory",
            into=_lower_first(pinned_memory(site)),
            saved=saved or None,
            share=share_of_time(seen, row, saved or 0.0),
            where=_where(row),
            slow=source_words(site) or None,
            switch=switch,
            batches=batches_words(seen, site),
            file=file_name(row),
            faults=faults_words(row),
            spent=site.unexplained_seconds,
            others=f"{others:,} more {'processes copy' if others > 1 else 'process copies'}" if others else None,
        )


def _lower_first(words: str) -> str:
    return words[:1].lower() + words[1:]


def _where(row: Row) -> str:
    """The line itself, as the file had it."""
    if not row["file"]:
        return "The Python line is not known."
    source = f": {row['source_line']}" if row["source_line"] else ""
    through = f" (through line {row['library_line']} of {row['library_file']})" if row["library_file"] else ""
    place = f"Line {row['line']} of {row['file']}, in {row['function']}{through}{source}"
    return place if place.endswith(".") else f"{place}."


def _small(seen: Seen, rate_from: str | None) -> Iterator[Costed]:
    for site in seen.small:
        row, gathered, held = site.row, site.gathered_seconds, site.row["call_seconds"]
        as_long = gathered is not None and gathered >= held
        yield say(
            TEXTS,
            f"many-small-copies{'/as-long' if as_long else ''}",
            quantity("Copies", row["count"], "count"),
            quantity("Median size", row["median_bytes"], "bytes"),
            quantity("Bytes", row["bytes"], "bytes"),
            quantity("CPU held by the calls", held, "seconds"),
            quantity("Gathered and copied at once (about)", gathered, "seconds", reason=NO_GATHERING),
            quantity("Rate of gathering from", rate_from, "text", reason=NO_GATHERING),
            line=site.name,
            times=row["count"],
            size=row["median_bytes"],
            held=held,
            gathered=None if as_long else gathered,
            where=_where(row),
        )


def _churn(seen: Seen) -> Iterator[Costed]:
    for row in pins_again(seen):
        whole, held = seen.seconds_from_first(row), row["call_seconds"]
        yield say(
            TEXTS,
            "pinned-memory-in-a-loop",
            quantity("Allocations", row["count"], "count"),
            quantity("Bytes asked for", row["bytes"], "bytes"),
            quantity("Bytes held", row["held_bytes"], "bytes", reason=NOT_RECORDED),
            quantity("Most at once", row["peak_bytes"], "bytes", reason=NOT_RECORDED),
            quantity("Time in the calls", held, "seconds"),
            quantity("Not released at the end", row["left_count"], "count"),
            severity=costing(whole / max(whole - held, 1e-9)),
            code=REUSE_CODE,
            line=line_name(row),
            times=row["count"],
            held=held,
            call=row["call"],
            share=share_of_time(seen, row, held),
            where=_where(row),
        )


def _waits(seen: Seen) -> Iterator[Costed]:
    if seen.read_later or (seen.program and seen.program["managed_bytes"]):
        return  # data may be read or written only after a wait: none of them is known to be of no use
    twice = seen.counts_copies_after_waits
    for row in seen.idling[:MOST_ACCUSED]:
        idle, spared = row["idle_seconds"], spared_by_not_waiting(row)
        yield say(
            TEXTS,
            f"waits-for-the-gpu{'/late' if comes_late(row) else ''}",
            quantity("Waits", row["count"], "count"),
            quantity("GPU compute idle afterwards", idle, "seconds"),
            quantity("Longest of these times", row["longest_idle_seconds"], "seconds", reason=NOT_RECORDED),
            quantity("CPU held by the waits", row["call_seconds"], "seconds"),
            quantity("Saved without these waits (at most)", spared, "seconds"),
            line=line_name(row),
            times=row["count"],
            idle=idle,
            held=row["call_seconds"],
            share=share_of_time(seen, row, idle),
            where=_where(row),
            twice=NOT_RECORDED if twice else None,
            once=None if twice else "",
            spared=spared,
        )


def _missing(seen: Seen) -> Iterator[Costed]:
    if managed := managed_words(seen):
        yield say(TEXTS, "not-recorded", managed=managed)


def _lost(seen: Seen) -> Iterator[Costed]:
    if lost := seen.program and seen.program["lost_bytes"]:
        yield say(TEXTS, "records-lost", quantity("Bytes that could not be read", lost, "bytes"), lost=lost)


def what_if_findings(what: WhatIf) -> Iterator[Finding]:
    """A result that differs."""
    if not what.seen.failure and not what.before["same_output"]:
        seconds = quantity("Seconds of the second run", what.seen.seconds, "seconds")
        yield say(TEXTS, "what-if-output-differs", seconds)[1]
