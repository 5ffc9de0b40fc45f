"""What a trace tells, from its rows: sentences and verdict, headline, tables, and a second run beside the first."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated

from pydantic import AfterValidator

from pinscope.analysis.read_rows import Kind, Row
from pinscope.analysis.texts import fits
from pinscope.records.parameters import Inputs, parameter
from pinscope.records.run import Quantity, Run, Table, quantity
from pinscope.records.trace_row import LARGE_BYTES, TraceRow
from pinscope.text import encodable
from pinscope.tracing.sites import (
    MOST_SHOWN,
    MOSTLY,
    Headed,
    Seen,
    Site,
    gpu_name,
    headed_table,
    seen_in,
    table_of_lines,
)
from pinscope.tracing.trace.answer import answer_tables, ranked, total_share
from pinscope.tracing.trace.cpu_work import table_of_work, working_lines
from pinscope.tracing.trace.failed_calls import failed_table, failed_verdict
from pinscope.tracing.trace.hazards import early_reads_table, hazard_verdict, unwatched_words
from pinscope.tracing.trace.managed import managed_table, managed_words
from pinscope.tracing.trace.needless import table_of_needless
from pinscope.tracing.trace.pageable import memory_words
from pinscope.tracing.trace.unrecorded import children_words, unseen_words
from pinscope.tracing.trace.what_if import Pinned, Waited, second_run_in
from pinscope.units import format_bytes, format_seconds, format_share

NO_RATE = "no run of bandwidth says the rate of pinned copies"
NO_KERNELS = "the program ran no kernel"


# Verdict


def trace_verdict(seen: Seen) -> str:
    """What to do: the first of :data:`CLAUSES` that has something to say, and those after it as far as they fit."""
    said = ""
    for clause in filter(None, (words(seen) for words in CLAUSES)):
        longer = f"{said} {clause}".strip()
        if not said or fits(longer):
            said = longer
    return said or _nothing(seen)


def _unrecorded(seen: Seen) -> str:
    """What was not recorded."""
    if seen.program["recorded_seconds"] == 0:
        return "Nothing was recorded: the program ended before what was to be recorded began."
    gap = _gap(seen)
    return f"{gap} No copy was recorded." if gap and not seen.program["copies"] else gap


def _gap(seen: Seen) -> str:
    if children := children_words(seen):
        return f"{children}."
    if managed_words(seen):
        return "Managed memory was not followed."
    if not seen.program["copies"] and (brief := unseen_words(seen)):
        return f"{brief}."
    gaps = seen.run.notes or seen.program["lost_bytes"] or seen.run.params.get("children") is False
    return "Not all of the program was recorded." if gaps and not seen.program["copies"] else ""


def _costliest(seen: Seen) -> str:
    """What to do about the line that costs most; empty where all lines together cost little, or none costs much."""
    costs = ranked(seen)
    if not costs:
        return ""
    first = costs[0]
    is_little = total_share(seen) < MOSTLY and first.seconds < MOSTLY * seen.seconds_from_first(first.row)
    return "" if is_little else first.advice


def _nothing(seen: Seen) -> str:
    """Of a program in which nothing costs much, or that copied nothing."""
    recorded = seen.program["recorded_seconds"]
    if not seen.program["copies"]:
        when = "" if recorded is None else f" in the {format_seconds(recorded)} that were recorded"
        return f"The program copied nothing to or from a GPU{when}."
    share, count = total_share(seen), sum(site.row["large_count"] for site in seen.pinned)
    cost = f"copies and waits take {format_share(share)} of {format_seconds(seen.seconds)}"
    if share >= MOSTLY:
        return f"No line alone costs much: {cost}."
    pinned = f"; all {count:,} large copies use pinned memory" if count and not seen.pageable else ""
    # A trace that has no sizes is of a version that did not record the CPU's work for copies: it may be the most.
    return f"{'Nothing to do' if seen.sizes else 'Little to gain'}: {cost}{pinned}."


CLAUSES: tuple[Callable[[Seen], str], ...] = (
    failed_verdict, _unrecorded, hazard_verdict, _costliest, unwatched_words
)  # fmt: skip
"""What a verdict says, in this order: failed calls, what was not recorded, hazards, the line that costs most. Each is a
sentence, empty where there is nothing to say of it."""


# Headline and tables


@dataclass(frozen=True)
class Traced:
    """A trace: its rows taken apart, and what it is compared with, if it is a second run."""

    seen: Seen
    second_run: Pinned | Waited | None


def of(run: Run, rows: Sequence[Row]) -> Traced | None:
    """All that was recorded; ``None`` while the program runs."""
    seen = seen_in(run, rows)
    return Traced(seen, second_run_in(seen, rows)) if seen.has_ended else None


def verdict(traced: Traced) -> str:
    """What the program was held up by; of a second run what pinning saved, or waits proved."""
    return traced.second_run.verdict if traced.second_run else trace_verdict(traced.seen)


def headline(traced: Traced) -> Iterator[Quantity]:
    """What pinning saved or would save, and what the program copied how."""
    if traced.second_run:
        yield from traced.second_run.headline()
    yield from _headline(traced.seen)


def _headline(seen: Seen) -> Iterator[Quantity]:
    pageable = seen.pageable
    yield quantity("Saved if pinned (about)", seen.saved_in_place, "seconds", reason=NO_RATE, key="saved")
    busy = sum(row["busy_seconds"] for row in seen.devices) / (len(seen.devices) or 1)
    kernels = any(row["kernels"] for row in seen.devices)
    share = busy / seen.seconds if kernels and seen.seconds else None
    yield quantity("GPU compute busy, first to last copy or kernel", share, "share", reason=NO_KERNELS, key="busy")
    for kind, sites in (("pageable", pageable), ("pinned", seen.pinned)):
        size = sum(site.row["bytes"] for site in sites)
        name = f"Copied from or to {kind} memory by lines with large copies"
        yield quantity(name, size, "bytes", key=f"{kind}.copied")
    yield quantity(
        "Saved if also issued early (of the copies, at most)", seen.saved_early, "seconds", key="saved_early"
    )
    idle = [site.row["idle_seconds"] for site in pageable if site.row["idle_seconds"] is not None]
    stood = None if pageable and not idle else sum(idle)
    yield quantity(
        "GPU compute idle for large pageable copies", stood, "seconds", reason=NO_KERNELS, key="pageable.idle"
    )
    if seen.host_calls:
        work = sum(row["host_seconds"] for row in seen.host_calls)
        yield quantity("CPU's work for copies beside the driver's calls", work, "seconds", key="work")
        saved = min(sum(line.saved for line in working_lines(seen)), seen.seconds)
        yield quantity("Saved without this work (about)", saved, "seconds", key="work.saved")
    held = sum(site.row["call_seconds"] or 0.0 for site in pageable)
    yield quantity("CPU held by large pageable copies", held, "seconds", key="pageable.held")
    yield quantity("From the first copy or kernel to the last", seen.seconds, "seconds", key="copying")
    yield quantity("The program ran", seen.program["seconds"], "seconds", key="program")
    if seen.program["recorded_seconds"] is not None:
        yield quantity("Of it recorded", seen.program["recorded_seconds"], "seconds", key="recorded")
    yield quantity("Copies recorded", seen.program["copies"], "count", key="copies")


def tables(traced: Traced) -> tuple[Table, ...]:
    """Both runs beside each other and the answer's own; copies by line, pinned memory, waits and GPUs; those without
    rows are left out."""
    seen, second_run = traced.seen, traced.second_run
    return (
        failed_table(seen),
        *(second_run.tables() if second_run else ()),
        *(() if isinstance(second_run, Waited) else (early_reads_table(seen),)),
        *answer_tables(seen),
        _sites(seen),
        managed_table(seen),
        table_of_needless(seen),
        table_of_work(seen),
        _allocations(seen),
        _waits(seen),
        _devices(seen),
    )


def _sites(seen: Seen) -> Table:
    rate_from = seen.origin("pinned_from")
    drawn = seen.sites[:MOST_SHOWN]
    ranges = any(site.row["ranges"] for site in drawn)
    looked_at = any(site.row["mapping"] for site in drawn)
    return headed_table(
        "Copies by line",
        [_site(site, ranges=ranges, looked_at=looked_at) for site in drawn],
        "Ranked by what pinning would save. CPU held: by the calls. Compute idle: the GPU's compute stood still while "
        "the copies were issued and ran. Saved if pinned: idle compute during the copies, plus the idle time just "
        "behind them that kernels issued during the copies would have filled, less the time of the transfers at the "
        f"rate of pinned memory{f' ({rate_from})' if rate_from else ''}. If also early: the same, and the transfers "
        "cost nothing, because each copy is issued so early that it runs while the GPU computes. Small copies: none is "
        f"above {format_bytes(LARGE_BYTES)}; what pinning would save there is not estimated. Bandwidth: of the "
        f"transfers, where most copies are above that.{_left_out(seen)}",
        dict.fromkeys(("saved if pinned", "if also early"), tuple(site.unsaved_word for site in drawn)),
    )


def _site(site: Site, *, ranges: bool, looked_at: bool) -> Headed:
    row, is_pageable = site.row, site.is_pageable
    return {
        "line": ("text", site.name),
        "saved if pinned": ("seconds", site.saved_in_place if is_pageable else None),
        "compute idle": ("seconds", row["idle_seconds"]),
        "CPU held": ("seconds", row["call_seconds"]),
        "memory": ("text", site.memory),
        "copies": ("count", row["count"]),
        "bytes": ("bytes", row["bytes"]),
        "median size": ("bytes", row["median_bytes"]),
        "bandwidth": ("bytes/second", site.bytes_per_second),
        "if also early": ("seconds", site.saved_early if is_pageable else None),
        **({"pageable memory": ("text", memory_words(row))} if looked_at else {}),
        **({"in range": ("text", row["ranges"])} if ranges else {}),
        "function": ("text", row["function"] or None),
        "source": ("text", row["source_line"] or None),
    }


def _left_out(seen: Seen) -> str:
    unkept = seen.program["sites_left_out"] or 0
    more = max(len(seen.sites) - MOST_SHOWN, 0) + unkept
    return f" {more:,} lines that save less are left out." if more > 0 else ""


def _allocations(seen: Seen) -> Table:
    return table_of_lines(
        "Pinned memory allocated",
        seen.allocations,
        {
            "call": ("text", "call"),
            "times": ("count", "count"),
            "took": ("seconds", "call_seconds"),
            "bytes asked for": ("bytes", "bytes"),
            "bytes held": ("bytes", "held_bytes"),
            "most at once": ("bytes", "peak_bytes"),
            "left at the end": ("count", "left_count"),
            "bytes left": ("bytes", "left_bytes"),
            "source": ("text", "source_line"),
        },
        "Asked for: of CUDA; PyTorch asks for a power of two, up to twice what a tensor needs. Held: the whole "
        "pages that this reaches into. Both add up all times; most at once is the most that was there together. "
        "PyTorch's .item() pins a few bytes for its result.",
    )


def _waits(seen: Seen) -> Table:
    return table_of_lines(
        "Waiting for the GPU",
        seen.waits,
        {
            "call": ("text", "call"),
            "times": ("count", "count"),
            "CPU held": ("seconds", "call_seconds"),
            "compute idle afterwards": ("seconds", "idle_seconds"),
            "during a copy": ("count", "after_async_count"),
            "source": ("text", "source_line"),
        },
        "Copies that are not asynchronous wait as well. CPU held: by the waits; their copies stand in the table "
        "of copies. Compute idle afterwards: from the end of the wait until the next kernel began or the next wait was "
        f"over, {'with' if seen.counts_copies_after_waits else 'without'} the idle time of copies above. "
        "During a copy: waits that began while a large asynchronous copy ran, from or to pinned memory.",
    )


def _devices(seen: Seen) -> Table:
    return headed_table(
        "GPUs",
        [
            {
                "GPU": ("text", gpu_name(row).removeprefix("GPU ")),
                "kernels": ("count", row["kernels"]),
                "compute busy": ("seconds", row["busy_seconds"]),
                "of the time": ("share", row["busy_seconds"] / seen.seconds if seen.seconds else None),
            }
            for row in seen.devices
        ],
        "The time from the first copy or kernel to the end of the last.",
    )


Text = Annotated[str, AfterValidator(encodable)]
"""Of the program, which need not be UTF-8."""
COMMAND_CHARACTERS = 32_768
"""Of a command that is kept."""


def _shortened(words: tuple[str, ...]) -> tuple[str, ...]:
    """The first words of a command, and how many there are more."""
    room = COMMAND_CHARACTERS
    for place, word in enumerate(words):
        room -= len(word) + 1
        if room < 0:
            return (*words[:place], f"… {len(words) - place:,} more")
    return words


class TraceParams(Inputs):
    """What was traced."""

    program: Annotated[tuple[Text, ...], AfterValidator(_shortened)] = parameter(
        "Program", "A file, or -m and a module, and its arguments.", (), unit="command"
    )
    python: Text | None = parameter("Python of the program", "Its path and version, where it is not PinScope's.", None)
    cupti: Text | None = parameter("Library of CUPTI", "Its path and whose it is, where Python is another.", None)
    stacks: bool = parameter("Lines of Python recorded", "The Python stack of each call was read.", True)
    part: Text | None = parameter("Part", "Name of the part of the program that pinscope.trace recorded.", None)
    attached: tuple[int, ...] = parameter("Attached to", "Processes that ran already.", ())
    start_after: float = parameter("Recorded from", "Seconds after the program's start.", 0.0, unit="seconds")
    for_seconds: float | None = parameter("Recorded for", "Empty: to the end.", None, unit="seconds")
    only_parts: bool = parameter("Parts only", "Recorded only inside the parts that pinscope.trace names.", False)
    children: bool = parameter("Child processes recorded", "Also the Python processes that it starts.", True)
    pinned_h2d: float | None = parameter(
        "Pinned copies to the GPU", "Rate of large ones, for the estimates.", None, unit="bytes/second"
    )
    pinned_d2h: float | None = parameter(
        "Pinned copies from the GPU", "Rate of large ones, for the estimates.", None, unit="bytes/second"
    )
    pageable_h2d: float | None = parameter(
        "Pageable copies to the GPU", "Rate of large ones, for the estimates.", None, unit="bytes/second"
    )
    pinned_from: str | None = parameter("Where these rates come from", "A run of bandwidth.", None)
    gathered_bytes: tuple[int, ...] = parameter("Pieces gathered", "Sizes of the pieces.", (), unit="bytes")
    gathered_h2d: tuple[float, ...] = parameter(
        "Gathered and copied to the GPU", "By one thread, for each of these sizes.", (), unit="bytes/second"
    )
    gathered_d2h: tuple[float, ...] = parameter(
        "Copied from the GPU and spread", "By one thread, for each of these sizes.", (), unit="bytes/second"
    )
    gathered_from: str | None = parameter("Where these rates of gathering come from", "A run of scatter.", None)
    what_if: tuple[str, ...] = parameter("Lines pinned by --what-if", "Their copies came from pinned memory.", ())
    waits: tuple[str, ...] = parameter(
        "Lines waited for by --what-if", "A wait followed each of their asynchronous copies.", ()
    )
    what_if_of: str | None = parameter("Run of the program as it is", "What --what-if compares with.", None)


class Trace:
    """What a program copied and pinned, and the lines that did it."""

    name = "trace"
    title = "Trace"
    question = "Which line of this program copies pageable memory, and what would pinning it save?"
    Params = TraceParams
    Observation = TraceRow


KIND: Kind = Trace()
