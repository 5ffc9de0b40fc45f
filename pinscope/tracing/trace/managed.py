"""What managed memory costs a program: pages that moved because a line touched them, or that nobody followed."""

from __future__ import annotations

from collections.abc import Iterator
from operator import itemgetter

from pinscope.analysis.read_rows import Row
from pinscope.analysis.texts import Text, Texts, say
from pinscope.records.run import Table, costing, quantity
from pinscope.tracing.sites import WORTH, Seen, line_name, table_of_lines
from pinscope.tracing.trace.costs import Cost, saves, told
from pinscope.units import format_about, format_bytes, format_share

NO_PINNED_RATE = "no run of bandwidth says the rate of pinned copies"
TEXTS: Texts = {
    "managed-memory": Text(
        "page faults of a line move managed memory, which takes a hundredth of the time",
        "{line}: page faults moved {moved:bytes} of managed memory, for which {who} {spent:seconds}, {share:share} of "
        "the time",
        "{where} {to_gpu_bytes:bytes} moved to the GPU, in {gpu_fault_groups:,} groups of its page faults, and "
        "{to_host_bytes:bytes} to the host, in {cpu_faults:,} of the CPU's[; as copies from pinned memory that takes "
        "about {copied:seconds}].",
        "Prefetch the data before it is touched (cudaMemPrefetchAsync), or make it in pinned memory and copy it.",
    )
}
PREFETCH_CODE = """\
# Before the kernel, on its stream. CuPy:
cupy.cuda.runtime.memPrefetchAsync(array.data.ptr, array.nbytes, device_id, stream.ptr)

# Or in place of managed memory: an array in pinned memory, filled in place and copied
array = cupyx.empty_pinned(shape, dtype)
device.set(array, stream=stream)
"""


def managed_words(seen: Seen) -> str:
    """That managed memory is not followed, as a sentence; empty where none is known to be used, or it was."""
    program = seen.program
    if program["migrations_recorded"]:
        return ""
    size = f", {format_bytes(program['managed_bytes'])}" if program["managed_bytes"] else ""
    is_refused = program["migrations_recorded"] is False
    if not (size or is_refused or any("managed" in (site.row["source"], site.row["target"]) for site in seen.sites)):
        return ""
    why = " The driver gives no counters of it." if is_refused else ""
    return f"The program uses managed memory{size}: how its pages move between host and GPU is not followed.{why}"


def faulted_bytes(row: Row) -> int:
    """What moved at a line without being asked for."""
    return int(max(row["to_gpu_bytes"] + row["to_host_bytes"] - (row["prefetched_bytes"] or 0), 0))


def faulted_words(row: Row) -> str:
    """The same in words. Under many page faults of the GPU the driver loses records of what they moved."""
    return f"{'at least ' if row['to_gpu_bytes'] else ''}{format_bytes(faulted_bytes(row))}"


def spent_seconds(row: Row) -> float:
    """How long the kernels of a line ran while pages came, or the CPU stood at it, whichever is longer."""
    return float(max(row["kernel_seconds"] or 0.0, row["cpu_seconds"] or 0.0))


def accused(seen: Seen) -> list[Row]:
    """Lines whose page faults take a part of the time, the longest first."""
    least = WORTH * seen.seconds
    lines = [row for row in seen.migrations if faulted_bytes(row) and spent_seconds(row) >= least]
    return sorted(lines, key=spent_seconds, reverse=True)


def managed(seen: Seen) -> Iterator[Cost]:
    """Page faults of a line that move managed memory."""
    for row in accused(seen):
        spent, moved = spent_seconds(row), faulted_bytes(row)
        copied = moved / seen.pinned_h2d if seen.pinned_h2d else None  # the same bytes, from pinned memory
        share = min(spent / seen.seconds, 1.0) if seen.seconds else 0.0
        saved = 0.0 if copied is None else max(spent - copied, 0.0)
        is_of_kernels = spent == row["kernel_seconds"]
        finding = say(
            TEXTS,
            "managed-memory",
            quantity("Moved to the GPU", row["to_gpu_bytes"], "bytes"),
            quantity("Moved to the host", row["to_host_bytes"], "bytes"),
            quantity("Of it prefetched", row["prefetched_bytes"], "bytes"),
            quantity("Groups of page faults of the GPU", row["gpu_fault_groups"], "count"),
            quantity("Page faults of the CPU", row["cpu_faults"], "count"),
            quantity("Kernels that waited for pages", row["kernel_seconds"], "seconds"),
            quantity("CPU at the line while pages came", row["cpu_seconds"], "seconds"),
            quantity("Copied from pinned memory (about)", copied, "seconds", reason=NO_PINNED_RATE),
            severity=costing(seen.seconds / (seen.seconds - saved) if 0 < saved < seen.seconds else 1.0),
            code=PREFETCH_CODE,
            moved=moved,
            who="its kernels ran" if is_of_kernels else "the CPU stood there",
            spent=spent,
            share=share,
            copied=copied,
            **told(row),
        )
        # Where the CPU stood at the line, what it does there itself is part of that time.
        known = None if copied is None or not is_of_kernels else saved
        took = f"page faults of managed memory took {format_about(spent)} ({format_share(share)})"
        gain = took if known is None else saves(seen, row, known)
        advice = f"Prefetch or copy the managed memory that {line_name(row)} touches: {gain}."
        yield Cost(row, "managed-memory", spent, known, "prefetch managed memory, or copy it", advice, finding)


def managed_table(seen: Seen) -> Table:
    """All lines that moved some."""
    return table_of_lines(
        "Managed memory by line",
        sorted(seen.migrations, key=itemgetter("to_gpu_bytes", "to_host_bytes"), reverse=True),
        {
            "to the GPU": ("bytes", "to_gpu_bytes"),
            "to the host": ("bytes", "to_host_bytes"),
            "prefetched": ("bytes", "prefetched_bytes"),
            "GPU's fault groups": ("count", "gpu_fault_groups"),
            "CPU's faults": ("count", "cpu_faults"),
            "transfers": ("seconds", "copy_seconds"),
            "kernels ran": ("seconds", "kernel_seconds"),
            "CPU held": ("seconds", "cpu_seconds"),
            "source": ("text", "source_line"),
        },
        "What the GPU touched counts at the line that launched the kernel. What the CPU touched counts where the "
        "program stood then: that was noted every 5 ms. Kernels ran: those that waited for pages, with what they "
        "computed. CPU held: from the first fault to the last, each time that it stood at the line.",
    )
