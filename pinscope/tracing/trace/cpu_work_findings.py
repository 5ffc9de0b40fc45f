"""What a trace says of the CPU's work for copies: its texts, and the numbers in them."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from pinscope.analysis.read_rows import Row
from pinscope.analysis.texts import Costed, Text, Texts, say
from pinscope.records.run import costing, quantity
from pinscope.tracing.sites import Seen
from pinscope.tracing.trace.cpu_work import WorkingLine, words_of_parts, working_lines

MOST_TOLD = 5
"""Lines with a finding of their own; the table has all."""
NOT_COUNTED = "another system or an earlier version counted none"
_TITLE = (
    "{line} keeps the CPU {held:seconds} in {times:,} calls of {call}[: without it about {saved:seconds} less, {share}]"
)
_DETAIL = "{where}[ {parts}][ It has {faults:,} page faults.]"
_CONVERT = (
    "Copy in its own type with non_blocking=True and convert on the GPU: .to('cuda', non_blocking=True).to(dtype)."
)
_GATHER = "Copy the whole as it lies in memory, and slice or transpose it on the GPU."
_HIDDEN = (
    "{line} copies pinned memory through pageable memory[: straight it would take about {saved:seconds} less, {share}]"
)
_HIDDEN_DETAIL = "{where} The source is pinned, but the library makes a temporary on the CPU: {reason}."
CPU_TEXTS: Texts = {
    "cpu-work": Text(
        "calls of a line that move or pin data are on the CPU, beside the driver's calls, for a hundredth of the time",
        _TITLE,
        _DETAIL,
        "Make the data in pinned memory that is kept (torch.empty with pin_memory=True, cupyx.empty_pinned), and copy "
        "from there (copy_, ndarray.set): this call copies it on the CPU first.",
    ),
    "cpu-work/convert": Text("the same, where the data gets another type", _TITLE, _DETAIL, _CONVERT),
    "cpu-work/gather": Text("the same, where the data is not contiguous", _TITLE, _DETAIL, _GATHER),
    "cpu-work/pin": Text(
        "the same of pin_memory()",
        _TITLE,
        _DETAIL,
        "Pin once, before the loop, and use it again: pin_memory() copies all of the data each time. Where it is new "
        "each time, have it made in a pinned buffer that is kept.",
    ),
    "cpu-work/fetch": Text(
        "the same of copies to the host",
        _TITLE,
        _DETAIL,
        "Copy into pinned memory that is allocated once and used again, and wait before you read it. JAX has no such "
        "call: there begin the copy earlier, by copy_to_host_async().",
    ),
    "cpu-work/receive": Text(
        "the same of what a DataLoader's workers send",
        _TITLE,
        _DETAIL,
        "DataLoader(pin_memory=True) receives in a thread of its own. Fewer tensors in a batch cost less: each is "
        "opened and mapped by itself.",
    ),
    "hidden-temporary/convert": Text(
        "large copies are pageable although their source is pinned, as the data gets another type",
        _HIDDEN,
        _HIDDEN_DETAIL,
        _CONVERT,
    ),
    "hidden-temporary/gather": Text(
        "the same, where it is not contiguous", _HIDDEN, _HIDDEN_DETAIL, f"{_GATHER} Its copy is asynchronous then."
    ),
}


def work_findings(
    seen: Seen, where: Callable[[Row], str], share: Callable[[Seen, Row, float], str]
) -> Iterator[Costed]:
    """Of each line that keeps the CPU for copies.

    Args:
        seen: the trace.
        where: names the line itself.
        share: says how much a time is for it.
    """
    for line in working_lines(seen)[:MOST_TOLD]:
        whole, saved = seen.seconds_from_first(line.row), line.saved
        faults = sum(row["minor_faults"] or 0 for row in line.rows)
        yield say(
            CPU_TEXTS,
            _rule(line),
            quantity("Calls", line.row["count"], "count"),
            quantity("Bytes", line.row["bytes"], "bytes"),
            quantity("On the CPU, pinning too", line.seconds, "seconds"),
            quantity("The whole calls", sum(row["call_seconds"] for row in line.rows), "seconds"),
            quantity("GPUs idle meanwhile", sum(row["idle_seconds"] for row in line.rows), "seconds"),
            quantity("Page faults", faults, "count", reason=NOT_COUNTED),
            quantity("Memory newly pinned", line.row["newly_pinned_bytes"], "bytes", reason=NOT_COUNTED),
            quantity("Saved without this work (about)", saved, "seconds"),
            severity=costing(whole / (whole - saved) if 0 < saved < whole else 1.0),
            line=line.name,
            held=line.seconds,
            times=line.row["count"],
            call=line.row["call"],
            saved=saved or None,
            share=share(seen, line.row, saved),
            where=where(line.row),
            parts=words_of_parts(line),
            faults=faults or None,
            reason=_reason(line),
        )


def _rule(line: WorkingLine) -> str:
    remedy = line.remedy
    if line.hidden and remedy in {"convert", "gather"}:
        return f"hidden-temporary/{remedy}"
    return "cpu-work" if remedy in {"make", None} else f"cpu-work/{remedy}"


def _reason(line: WorkingLine) -> str:
    """What was done to the data, as its rows say."""
    return next((str(row["reason"]) for row in (*(site.row for site in line.hidden), line.row) if row["reason"]), "")
