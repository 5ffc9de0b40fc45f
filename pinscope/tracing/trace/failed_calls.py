"""What a trace says of calls of CUDA that returned an error: which of them mean something, and their texts."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import PurePath

from pinscope.analysis.read_rows import Row
from pinscope.analysis.texts import Costed, Text, Texts, say
from pinscope.records.run import Table, quantity
from pinscope.tracing.failed_calls import ALREADY_REGISTERED, LOSES_CONTEXT, OUT_OF_MEMORY, READS_ERROR
from pinscope.tracing.sites import MOST_SHOWN, UNKNOWN_LINE, Seen, headed_table, line_name
from pinscope.tracing.trace.costs import told

_ASKS = re.compile(
    r"cu(da)?(\w*Get\w*(Attribute|Propert|Count|Current|Flags|ProcAddress|EntryPoint|ExportTable|State|Info|Limit|Device$"
    r"|AddressRange|Granularity|Global|Priority|Version)|(Ctx|Stream|Device|Library)Get|\w*(CanAccessPeer|Query))"
)
"""Functions by which libraries ask what there is: an error is an answer, such as of an attribute that the driver does
not know."""
_EXPECTED = frozenset({4, 5, 6, 7, 8, 704})
"""CUDA is being taken down; profiling is on or off already; two GPUs reach each other already (driver_types.h)."""
MOST_FAILED = 5
"""Calls with a finding of their own; the table has all."""
UNNOTICED = "failed calls were not noticed: that takes x86-64, and a system that lets a program make code"
"""Why there is nothing to say of them."""
_RETURNED = "{line}: {call} returned error {error}, {error_name}[, {times:,} times][; {noticed} met that error]"
_WHERE = "{where}[ {earlier}][ {met}]"
_ANSWERS = "Look at the answer of each call of CUDA; cudaGetLastError() clears the error that a call has left behind."
TEXTS: Texts = {
    "failed-calls": Text(
        "a call of CUDA returned an error; not of functions that only ask, such as cudaEventQuery, nor where the "
        "caller had to expect it",
        _RETURNED,
        _WHERE,
        f"Fix this call first: what fails later may fail for it. {_ANSWERS}",
        "critical",
    ),
    "failed-calls/registered": Text(
        "the same, of host memory that was allocated pinned or registered already",
        _RETURNED,
        _WHERE,
        f"Register each range once: pinned memory need not be registered, nor a part of a registered range. {_ANSWERS}",
        "critical",
    ),
    "failed-calls/memory": Text(
        "the same, where memory ran out",
        _RETURNED,
        _WHERE,
        "Ask for less, or give memory back first. An allocator that frees what it had kept and tries again, as "
        "PyTorch's and CuPy's, goes on after this.",
        "critical",
    ),
    "failed-calls/left-behind": Text(
        "the same, where a call before had failed that was not noticed, and left the error to be read here",
        "{line} read error {error}, {error_name}, which an earlier call had left behind[, {times:,} times]",
        "{where}[ {earlier}]",
        f"Look for the call before this line that fails. {_ANSWERS}",
        "critical",
    ),
    "failed-calls/kernel": Text(
        "an error by a kernel, after which each call of the process fails",
        "A kernel failed with error {error}, {error_name}; {line} was told first[, {later:,} calls later]",
        "{where}[ {earlier}] Kernels run behind the line that launches them.",
        "Run it with CUDA_LAUNCH_BLOCKING=1: then the line that launches the kernel gets the error. "
        "'compute-sanitizer python …' names the access.",
        "critical",
    ),
}
_SHORT = {ALREADY_REGISTERED: "already registered", OUT_OF_MEMORY: "out of memory"}


def _means_something(row: Row) -> bool:
    """Whether something went wrong. Not where a library asked what there is, or had to expect the error; and not for
    the calls behind an error by a kernel, which all fail."""
    if row["follows_lost_context"]:
        return False
    asked = _ASKS.match(row["call"]) is not None and not row["noticed_file"] and row["error"] not in LOSES_CONTEXT
    return not asked and row["error"] not in _EXPECTED


def is_left_behind(row: Row) -> bool:
    """Whether the error is of a call that was not noticed, such as one that only asked."""
    return bool(READS_ERROR.match(row["call"]))


def alarming(seen: Seen) -> tuple[Row, ...]:
    """Calls that failed, the earliest first. Who asks and then clears the answer on the same line, as NCCL does, met
    nobody else's error."""
    asked = {(row["file"], row["line"], row["error"]) for row in seen.failed if not _means_something(row)}
    return tuple(
        row
        for row in seen.failed
        if _means_something(row) and not (is_left_behind(row) and (row["file"], row["line"], row["error"]) in asked)
    )


def failed_line(row: Row) -> str:
    """``train.py:33``; ``near train.py:33`` where the call came from a thread without Python, or the last call that was
    recorded before stands there."""
    if row["file"]:
        return f"near {line_name(row)}" if row["is_elsewhere"] else line_name(row)
    earlier = _other_line(row, "earlier")
    return f"near {earlier}" if earlier else line_name(row)


def _other_line(row: Row, which: str) -> str | None:
    """The earlier line, or the one that met the error."""
    file = row[f"{which}_file"]
    if file is None:
        return None
    return f"{PurePath(file).name}:{row[f'{which}_line']}" if file else UNKNOWN_LINE


def failed_verdict(seen: Seen) -> str:
    """The first call that failed; empty where none did."""
    failed = alarming(seen)
    if not failed:
        return ""
    row, earlier, noticed = failed[0], _other_line(failed[0], "earlier"), _other_line(failed[0], "noticed")
    error = f"{row['error']}, {_SHORT.get(row['error'], row['error_name'])}"
    if row["error"] in LOSES_CONTEXT:
        since = f" after {earlier}" if earlier else ""
        return f"A kernel launched{since} failed with error {error}: {failed_line(row)} was told first."
    cause = f" at {earlier}" if earlier and row["earlier"] == "taken" else ""
    times = f", {row['count']:,} times" if row["count"] > 1 else ""
    met = f"; {noticed} met that error" if noticed else ""
    line = failed_line(row)
    if is_left_behind(row):
        since = f" after {earlier}" if earlier else ""
        return f"Error {error}, of an earlier call{since} was read at {line}."
    where = f"a call {line}" if line.startswith("near ") else line
    return f"Fix {where}: {row['call']} returned error {error}{cause}{times}{met}."


def failed_findings(seen: Seen) -> Iterator[Costed]:
    """A finding for each of the first calls that failed."""
    for row in alarming(seen)[:MOST_FAILED]:
        variants = {ALREADY_REGISTERED: "/registered", OUT_OF_MEMORY: "/memory"}
        if row["error"] in LOSES_CONTEXT:
            variant = "/kernel"
        else:
            variant = "/left-behind" if is_left_behind(row) else variants.get(row["error"], "")
        later = sum(
            other["count"]
            for other in seen.failed
            if other["follows_lost_context"] and other["process"] == row["process"]
        )
        noticed = _other_line(row, "noticed")
        yield say(
            TEXTS,
            f"failed-calls{variant}",
            quantity("Error", row["error"], "count"),
            quantity("Calls", row["count"], "count"),
            quantity("Bytes asked for", row["bytes"], "bytes", reason="the function takes no number of bytes"),
            times=row["count"] if row["count"] > 1 else None,
            noticed=noticed,
            met=f"{noticed} only read the error that this call had left behind, and is not to blame."
            if noticed
            else None,
            later=later or None,
            **told(row, line=failed_line(row), earlier=_earlier(row) or None),
        )


def _earlier(row: Row) -> str:
    """What came before, as a sentence."""
    line = _other_line(row, "earlier")
    sentences = {
        "taken": f"The range had been allocated or registered at {line}, and not given back.",
        "released": f"It had been given back at {line}.",
        "before": f"The last call that was recorded before stands at {line}.",
    }
    return sentences.get(row["earlier"], "")


def failed_table(seen: Seen) -> Table:
    """All calls that failed, also those that mean nothing."""
    failed = alarming(seen)
    return headed_table(
        "Failed calls",
        [
            {
                "line": ("text", failed_line(row)),
                "call": ("text", row["call"]),
                "error": ("text", f"{row['error']} {row['error_name']}"),
                "times": ("count", row["count"]),
                "means": ("text", _meaning(row, row in failed)),
                "earlier line": ("text", _other_line(row, "earlier")),
                "met at": ("text", _other_line(row, "noticed")),
                "bytes asked for": ("bytes", row["bytes"]),
                "source": ("text", row["source_line"] or None),
            }
            for row in (*failed, *(row for row in seen.failed if row not in failed))[:MOST_SHOWN]
        ],
        "Earlier line: where the range had been allocated, registered or given back; of an error by a kernel, and of "
        "calls without a line, the last call that was recorded before. Met at: the first other line whose thread read "
        "the error that the call had left behind. Questions that libraries ask in nearly every operation, such as "
        "cudaEventQuery and cudaGetDevice, are left out.",
    )


def _meaning(row: Row, is_alarming: bool) -> str:
    if is_alarming:
        return "failed"
    return "after a kernel's error" if row["follows_lost_context"] else "only asked, or expected"
