"""A row of a trace: what was recorded of a program, added up for each of its lines."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Literal

from pydantic import Field

from pinscope.records.base import Count, Seconds
from pinscope.records.run import Observation

NeedlessKind = Literal["sent_again", "brought_back"]
"""Kinds of rows of copies that need not be: to the GPU, of what had been sent before; to the host, of what a copy had
brought to the same memory of the GPU."""
ChildKind = Literal["fork", "exec", "python", "native", "refused"]
HostMapping = Literal["anonymous", "file", "shared"]
Share = Annotated[float, Field(ge=0, le=1)]
TraceRowKind = Literal[
    "program", "process", "unrecorded", "device", "failed_call", "site", "allocation", "synchronisation", "host_call",
    "size", "migration", "watched", "early_read", "loader", "before", "line_before", "redirected", "waited",
    "difference", NeedlessKind,
]  # fmt: skip
CopyDirection = Literal["h2d", "d2h", "d2d", "h2h", "p2p", "other"]
CopyMemory = Literal["pageable", "pinned", "device", "array", "managed", "unknown"]

LARGE_BYTES = 64 * 1024
"""Pageable copies of more than this are staged and hold the CPU; of smaller ones CUDA keeps the data itself (CUDA
driver API, "API synchronization behavior")."""
WAITS = re.compile(r"(Device|Stream|Event|Thread|Ctx)Synchronize|Memcpy(?!\w*Async)")
"""In the names of CUDA's functions that return when the GPU has done what was asked of it."""
TRACE_NEEDED: Mapping[TraceRowKind, tuple[str, ...]] = {
    "program": ("seconds", "copies", "kernels"),
    "process": ("process", "copies", "kernels"),
    "unrecorded": ("process", "child"),
    "device": ("device", "busy_seconds", "kernels"),
    "failed_call": ("call", "error", "error_name", "count", "file", "line"),
    "site": ("number", "direction", "source", "target", "count", "bytes", "median_bytes", "file", "line"),
    "allocation": ("call", "count", "bytes", "call_seconds", "left_count", "left_bytes", "file", "line"),
    "synchronisation": ("call", "count", "call_seconds", "idle_seconds", "file", "line"),
    "host_call": ("call", "count", "bytes", "call_seconds", "host_seconds", "idle_seconds", "file", "line"),
    "size": ("direction", "most_bytes", "count", "bytes"),
    "migration": ("count", "to_gpu_bytes", "to_host_bytes", "gpu_fault_groups", "cpu_faults", "file", "line"),
    "loader": ("number", "count", "pins_batches", "workers", "file", "line"),
    "sent_again": ("number", "count", "bytes", "sampled_count"),
    "brought_back": ("number", "count", "bytes", "sampled_count", "sent_by"),
    "before": ("seconds", "active_seconds", "count", "bytes", "same_output"),
    "line_before": ("count", "bytes", "call_seconds", "file", "line"),
    "redirected": ("count", "bytes", "gather_seconds", "wait_seconds", "pin_seconds", "pinned_bytes", "file", "line"),
    "watched": ("count", "file", "line"),
    "early_read": ("call", "count", "in_flight_count", "file", "line", "copy_file", "copy_line"),
    "waited": ("count", "bytes", "file", "line"),
    "difference": ("output", "count", "file", "line"),
}
"""Kind of row → fields that each of them has."""


class TraceRow(Observation):
    """What was recorded of one program, added up for each line of it; the single events lie in the attachments.
    ``repeat`` counts the rows of a kind, ``warmup`` is always false."""

    kind: TraceRowKind
    """``program``, ``process`` (of several recorded ones), ``unrecorded``, ``device`` (a GPU, as one sees it),
    ``failed_call`` (calls on one line that returned the same error, the earliest first), ``site`` (copies of one line
    between the same kinds of memory), ``allocation`` (pinned memory that a line allocated or registered),
    ``synchronisation`` (waits of a line, in calls that wait for the GPU and in copies that are not asynchronous),
    ``host_call`` (calls of a library that move or pin data of the host), ``migration`` (pages of managed memory that
    moved because a line touched them), ``size`` (copies of one size), ``watched`` (asynchronous copies of a line to the
    host whose tensors were watched), ``early_read`` (those of them that a line read before a wait), ``loader`` (a
    DataLoader, and a site that copies its batches), or copies of a site that need not be: ``sent_again`` and
    ``brought_back``. In a second run with lines pinned by ``--what-if`` also ``before`` (the first
    run, and the copies of these lines in it), ``line_before`` (those of one of the lines) and ``redirected`` (copies of
    a line that went through pinned buffers); with ``--what-if wait`` also ``waited`` (waits behind the copies of a
    line) and ``difference`` (of its output from the first run's)."""
    # A second run, with lines pinned by --what-if:
    estimated_seconds: Seconds | None = None
    """What pinning was expected to save, by the first run."""
    same_output: bool | None = None
    """Whether both runs wrote the same to stdout."""
    gather_seconds: Seconds | None = None
    """How long the CPU copied into pinned buffers."""
    wait_seconds: Seconds | None = None
    """How long the CPU waited for the GPU to have read a buffer that it needed again; of a DataLoader, how long the
    loop waited for its batches, beside receiving them: by the median one."""
    pin_seconds: Seconds | None = None
    """How long pinning the buffers took."""
    pinned_bytes: Count | None = None
    """Of the buffers."""
    reason: str | None = None
    """Why copies of the line were left as they were, or what was pinned instead; of large copies and calls of libraries
    what was done to the data on the CPU."""
    # With a wait behind asynchronous copies:
    needed: bool | None = None
    """Whether the output differs where this line alone is not waited for; not there where that was not tried."""
    output: str | None = None
    """What differs: ``stdout``, ``the exit code``, the name of a ``pinscope.check``, or the function that saved;
    ``count`` is the number of the first such array that differs, 0 where their number does."""
    same_twice: bool | None = None
    """Whether two runs with waits gave the same."""
    arrays: Count | None = None
    """How many lines of the first run saved or named arrays."""
    # Libraries, and copies that need not be:
    library_file: str | None = None
    """Of the library that the line called and that made the call, or had PyTorch, CuPy or JAX make it."""
    library_line: Count | None = None
    """The line in it. Rows of one line of the program differ by it."""
    by_order_count: Count | None = None
    """Copies that threads of a library made after the call had returned: their line is about that of the call, by bytes
    and order."""
    # Copies that need not be:
    sampled_count: Count | None = None
    """Copies whose data was looked at; ``count`` and ``bytes`` are so many times what they show."""
    sent_by: Count | None = None
    """``number`` of the site that had brought most of the data to the GPU."""
    # DataLoaders:
    workers: Count | None = None
    """Processes that make its batches."""
    # Calls that failed:
    failed_calls: Count | None = None
    """Of the program's row: calls that returned an error; not there where they were not noticed."""
    error: Count | None = None
    """CUDA's code, which runtime and driver share."""
    error_name: str | None = None
    """Its name, such as ``cudaErrorHostMemoryAlreadyRegistered``; of functions of the driver ``CUDA_ERROR_…``."""
    is_elsewhere: bool | None = None
    """The thread that made the call runs no Python: the line is where the main thread stood meanwhile."""
    follows_lost_context: bool | None = None
    """A kernel had failed before, so that each call of the process failed."""
    earlier: Literal["taken", "released", "before"] | None = None
    """What stood at the earlier line: ``taken`` (the range was allocated or registered there, and still was),
    ``released`` (it had been given back there) or ``before`` (the last call that was recorded before: of an error by a
    kernel, which was launched between the two lines, of one that an unnoticed call left, and of calls without a
    line)."""
    earlier_file: str | None = None
    """Its file."""
    earlier_line: Count | None = None
    """The line."""
    noticed_file: str | None = None
    """File of the first other line whose thread read the error that the call had left behind, and took it for its
    own."""
    noticed_line: Count | None = None
    """That line."""
    noticed_count: Count | None = None
    """How often it read it."""
    # Processes that the program started and that are not recorded:
    unrecorded: Count | None = None
    """Of the program: processes that it started, that used CUDA and were not recorded; a row of kind ``unrecorded``
    each."""
    unseen: Count | None = None
    """Of the program: processes that it started and that ended before PinScope could look at them."""
    child: ChildKind | None = None
    """What an unrecorded process is: a ``fork``, a recorded one that became another program (``exec``), a ``python``
    that did not let the recorder in, a ``native`` program, or one in which CUPTI ``refused``."""
    executable: str | None = None
    """Of an unrecorded process: name of its program's file."""
    # Copies by size, and the moment at which most memory was pinned:
    peak_at_seconds: Seconds | None = None
    """Of the program: when it had most pinned memory, from its start on."""
    before_bytes: Count | None = None
    """Of a program that was attached to: pinned memory that it had before, as the live view shows it; no line of the
    trace is known to have pinned it."""
    at_peak_bytes: Count | None = None
    """Of pinned memory: how much of the line's was there then."""
    most_bytes: Count | None = None
    """Of copies of one size, over the link in one direction: the largest that counts as such; the others are above a
    quarter of it."""
    # Managed memory of the program:
    managed_bytes: Count | None = None
    """Managed memory that was allocated."""
    migrations_recorded: bool | None = None
    """Whether it was recorded how pages of managed memory moved between host and GPU; not there where none was seen."""
    # Copies:
    mapping: HostMapping | None = None
    """What pageable memory large copies use: ``anonymous`` (the program's own), ``file`` (a mapped one) or ``shared``.
    This and what follows was looked up at the first copy and the fourth, before they began."""
    mapped_file: str | None = None
    """Which."""
    untouched_share: Share | None = None
    """Of its pages, how many the program had no memory for yet: each is a page fault."""
    uncached_share: Share | None = None
    """Of a file's pages, how many were not in memory: the disk is read. Not known where another user owns the file."""
    huge_share: Share | None = None
    """Of its bytes, how many lay in huge pages. Not known before Linux 6.7."""
    # Managed memory:
    to_gpu_bytes: Count | None = None
    """Pages that moved to a GPU."""
    to_host_bytes: Count | None = None
    """Pages that moved to the host."""
    prefetched_bytes: Count | None = None
    """Of both, those for which the program had asked, as by cudaMemPrefetchAsync."""
    gpu_fault_groups: Count | None = None
    """Groups of page faults of GPUs."""
    cpu_faults: Count | None = None
    """Page faults of CPUs."""
    kernel_seconds: Seconds | None = None
    """How long the kernels ran that waited for pages, together with what they computed."""
    cpu_seconds: Seconds | None = None
    """How long the CPU stood at the line while its pages came."""
    # Calls of libraries that move or pin data of the host, and sites what is known by these calls:
    host_seconds: Seconds | None = None
    """How long they were on the CPU beside the driver's calls within them: converting, gathering, copying."""
    processor_seconds: Seconds | None = None
    """Time of the processor that their threads used, also in the driver; those that a library starts are not in it."""
    minor_faults: Count | None = None
    """Page faults of these threads that read nothing from a disk."""
    major_faults: Count | None = None
    """Those that read from a disk."""
    converted_bytes: Count | None = None
    """Of data whose type was made another."""
    gathered_bytes: Count | None = None
    """Of data that was made contiguous first."""
    staged_bytes: Count | None = None
    """Of data that was copied in the host's memory."""
    newly_pinned_count: Count | None = None
    """How often pinned memory was taken from the driver; else what the library had kept was used again."""
    newly_pinned_bytes: Count | None = None
    """Of it."""
    pins_batches: bool | None = None
    """Of a DataLoader: whether it pins."""
    # These, and copies of a line:
    pinned_source_count: Count | None = None
    """Of how many the source is pinned, though the driver may get other memory."""
    received_count: Count | None = None
    """Of how many large copies the source was sent by a DataLoader's worker."""
    # The program:
    seconds: Seconds | None = None
    """From its start, with the recorder in it, to its end; of a process that was killed: not known."""
    active_seconds: Seconds | None = None
    """From the beginning of the first copy or kernel to the end of the last: without imports and set-up."""
    recorded_seconds: Seconds | None = None
    """How long of it was recorded, where a part of it was asked for."""
    exit_code: int | None = None
    """With which it ended; below 0: the signal that killed it. Not there where it was a part of a program."""
    copies: Count | None = None
    """How many were recorded."""
    unfinished: Count | None = None
    """Copies of them whose end was not recorded: they ran when the program died."""
    lost_bytes: Count | None = None
    """Of CUPTI's records, which could not be read."""
    sites_left_out: Count | None = None
    """How many sites have no row: there are more than are kept."""
    # Of all rows but the program's, where several processes were recorded:
    process: Count | None = None
    """Its id."""
    rank: Count | None = None
    """Among the processes of a job: RANK, or LOCAL_RANK, of its environment."""
    # A device, and the program:
    device: int | None = None
    """Index of the GPU, as the program sees it."""
    kernels: Count | None = None
    """How many ran."""
    busy_seconds: Seconds | None = None
    """In which at least one kernel ran."""
    # A line of the program:
    file: str | None = None
    """File of the innermost frame of the program's own code; empty: a native thread made the call."""
    line: Count | None = None
    """Its line."""
    function: str | None = None
    """Its function."""
    source_line: str | None = None
    """Text of the line, as the file had it when the line first made a call."""
    stack: str | None = None
    """The frames of the first such call, innermost first, one on each line."""
    call: str | None = None
    """Function of CUDA's driver that was called, mostly by one of the runtime."""
    ranges: str | None = None
    """Names of the ranges, of NVTX or pinscope.trace, that were innermost at the calls: those of the most bytes or
    calls, at most three."""
    count: Count | None = None
    """Copies, allocations, waits, calls or moves of pages."""
    call_seconds: Seconds | None = None
    """How long the calls held the CPU, together. Where graphs copy, the launches are the calls."""
    idle_seconds: Seconds | None = None
    """Of copies: how long the GPU's compute stood idle while they were issued and ran. Of waits: from their end until
    the next kernel began, without what counts for copies. Of calls of libraries: how long all GPUs stood idle beside
    the driver's calls within. No moment is counted twice."""
    first_seconds: Seconds | None = None
    """When the first of them began, from the first copy or kernel of its process on; of a first run, that of the lines
    that were pinned in the second."""
    # Copies:
    launch_idle_seconds: Seconds | None = None
    """Of large pageable ones: idle compute behind them while the next kernels were issued, which the program could have
    done during the copy; at most as long as compute was busy while the calls held the CPU."""
    number: Count | None = None
    """Of the site, as the attachments name it."""
    direction: CopyDirection | None = None
    """``h2d``, ``d2h``, ``d2d``, ``h2h``, ``p2p`` or ``other``."""
    source: CopyMemory | None = None
    """Kind of memory that is read, as CUPTI says it: registered memory is ``pinned``."""
    target: CopyMemory | None = None
    """Kind of memory that is written."""
    bytes: Count | None = None
    """Copied, or allocated, together."""
    median_bytes: Seconds | None = None
    """Of one copy."""
    largest_bytes: Count | None = None
    """Of one copy."""
    large_count: Count | None = None
    """Copies of more than :data:`LARGE_BYTES`."""
    copy_seconds: Seconds | None = None
    """How long the transfers took, together."""
    # Allocations:
    left_count: Count | None = None
    """How many were still there at the end."""
    left_bytes: Count | None = None
    """How much was still there at the end."""
    held_bytes: Count | None = None
    """Of the pages that the allocations reach into, together: memory is locked in whole pages."""
    peak_bytes: Count | None = None
    """The most that was there at once; of the program, of all pinned memory together."""
    # Waits:
    longest_idle_seconds: Seconds | None = None
    """The longest time for which compute stood idle behind one of them."""
    after_async_count: Count | None = None
    """Waits that began while an asynchronous copy still ran, which they held the CPU for."""
    # Copies to the host that were read before a wait:
    in_flight_count: Count | None = None
    """Reads while the copy still ran; the others came when it happened to be done."""
    copy_file: str | None = None
    """File of the line that copied."""
    copy_line: Count | None = None
    """That line."""

    def needs(self) -> tuple[str, Iterable[str]]:
        """What rows of its kind have."""
        return f"a row of kind {self.kind}", TRACE_NEEDED[self.kind]


def copies_large_from_or_to(row: TraceRow | Mapping[str, Any], memory: CopyMemory) -> bool:
    """Whether a site has large copies between a GPU and this kind of host memory."""
    if isinstance(row, TraceRow):
        row = row.model_dump(include={"direction", "source", "target", "large_count"})
    over_the_link = row["direction"] in ("h2d", "d2h")
    return bool(over_the_link and memory in (row["source"], row["target"]) and row["large_count"])
