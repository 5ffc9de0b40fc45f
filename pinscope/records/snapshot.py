"""One frozen live reading of a host: its totals, who holds pinned memory, and what that costs each GPU.

A figure that is ``None`` has its reason in ``missing``, under the field's name. A figure named in ``estimates`` is an
estimate, and what stands there says of what kind and why; every other figure is exact, as of the moment of reading.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Annotated, Any

from pydantic import model_validator

from pinscope.records.base import Record
from pinscope.records.environment import Link
from pinscope.records.figure import Estimated, Figure, at_most
from pinscope.records.registration import Copies, Piece, ProbeState

FORMAT = 1
"""Version of the snapshot's JSON. Additive changes keep it."""
DRIVERS_MANAGED_BYTES = 2 * 2**20
"""Managed memory that the driver itself takes in every CUDA process (seen with driver 580)."""
PINNED_AGAIN = at_most("some of it is pinned more than once, and each pin counts")


class Unreadable(Record):
    """Something that this snapshot could not look at."""

    what: str
    """What it is."""
    reason: str
    """Why it could not be read."""
    advice: str | None = None
    """What would make it readable, where something would."""
    hides_holders: bool = False
    """True if there may be holders that the snapshot does not show, or shows without their figures."""


class Pressure(Record):
    """Time that tasks stalled for lack of memory (PSI, /proc/pressure/memory; Linux documentation, accounting/psi)."""

    some_10s_share: float
    """Share of the last 10 s in which at least one task stalled; likewise below."""
    some_60s_share: float
    """Share of the last 60 s."""
    some_total_seconds: float
    """Since boot."""
    full_10s_share: float
    """Share of the last 10 s in which all tasks stalled at once."""
    full_60s_share: float
    """Share of the last 60 s."""
    full_total_seconds: float
    """Since boot."""


class HostTotals(Estimated):
    """The host's memory."""

    # fmt: off
    total_bytes: Annotated[int, Figure(
        label="Memory", help="Memory of the host.", metric="pinscope_host_memory_bytes", timeline=True, report=None,
    )]
    cgroup_limit_bytes: Annotated[int | None, Figure(
        label="Limit of the control group",
        help="Limit of the control group, around the reading process, that leaves the least.",
        metric="pinscope_host_cgroup_limit_bytes", timeline=True, report=None,
    )]
    cgroup_headroom_bytes: Annotated[int | None, Figure(
        label="Left in the control group",
        help="What the control group around the reading process that leaves the least still leaves.",
        metric="pinscope_host_cgroup_headroom_bytes", timeline=True, report=None,
    )]
    pinned_bytes: Annotated[int | None, Figure(
        label="Pinned, whole host",
        help="Pinned for device access (DMA): by CUDA, RDMA, VFIO, io_uring … Memory that is pinned twice counts "
        "twice, up to what is in use; driver memory does not count.",
        page="shown", metric="pinscope_host_pinned_bytes", timeline=True, report=None,
    )]
    pins_bytes: Annotated[int | None, Figure(
        label="Pins", help="Pages that are pinned for device access, as often as they are pinned.",
        metric="pinscope_host_pins_bytes", timeline=True, report=None,
    )] = None
    pinned_least_bytes: Annotated[int | None, Figure(
        label="Pinned, at least",
        help="What is pinned for certain: as if processes that share memory had all pinned the same of it.",
        metric="pinscope_host_pinned_least_bytes",
    )] = None
    mapped_file_bytes: int = 0
    """Files in memory that programs have mapped: they count as available, and may be pinned."""
    explained_bytes: Annotated[int | None, Figure(
        label="Pinned, process known",
        help="The part of the pinned memory that the holders explain: their cudaHostAlloc memory, what the driver "
        "pinned for their contexts, VmPin and, while the probe runs or where they say so, what they registered.",
        short="by holders", page="shown", metric="pinscope_host_pinned_explained_bytes", timeline=True, report=None,
    )]
    other_pinned_bytes: Annotated[int | None, Figure(
        label="Pinned, process unknown",
        help="The rest of the pinned memory: registered memory (cudaHostRegister), which leaves no mark (--probe finds "
        "it), and pins that are not CUDA's.",
        short="registered or other", page="shown", metric="pinscope_host_pinned_other_bytes", timeline=True,
        report=None,
    )]
    driver_memory_bytes: Annotated[int | None, Figure(
        label="Driver memory",
        help="Memory that none of the kernel's accounts has: write-combined memory, cuMemCreate on the host, host "
        "pools, the driver's own, other drivers' and the kernel's own. Always an estimate.",
        short="driver memory", page="shown", metric="pinscope_host_driver_memory_bytes", timeline=True,
    )] = None
    mlocked_bytes: Annotated[int | None, Figure(
        label="Locked (mlock)", help="Locked with mlock: it stays in memory, but is not pinned for CUDA.",
        short="mlocked", page="shown", metric="pinscope_host_mlocked_bytes", timeline=True, report=None,
    )]
    available_bytes: Annotated[int, Figure(
        label="Available", help="What programs can still get without swapping (MemAvailable).", page="shown",
        metric="pinscope_host_memory_available_bytes", timeline=True, report=None,
    )]
    unevictable_bytes: Annotated[int | None, Figure(
        label="Unevictable", help="Memory that the kernel cannot reclaim.", metric="pinscope_host_unevictable_bytes",
    )]
    shmem_bytes: Annotated[int | None, Figure(
        label="Shared memory", help="Shared memory of all kinds; cudaHostAlloc memory is part of it.",
        short="shared", metric="pinscope_host_shmem_bytes",
    )]
    hugetlb_pool_bytes: Annotated[int | None, Figure(
        label="Huge pages, reserved", help="Reserved for huge pages, used or not.",
        metric="pinscope_host_hugetlb_pool_bytes", report=None,
    )]
    hugetlb_used_bytes: Annotated[int | None, Figure(
        label="Huge pages, used", help="Huge pages in use.", metric="pinscope_host_hugetlb_used_bytes", report=None,
    )]
    pressure: Pressure | None
    """Time that tasks stalled for lack of memory."""
    # fmt: on

    @model_validator(mode="before")
    @classmethod
    def _cap_pinned(cls, data: Any) -> Any:
        """There may be more pins than memory in use; no more memory than that is pinned."""
        if not isinstance(data, Mapping) or data.get("pinned_bytes") is None or data.get("pins_bytes") is not None:
            return data
        pins, used = data["pinned_bytes"], data["total_bytes"] - data["available_bytes"]
        used += data.get("mapped_file_bytes", 0)
        if not 0 < used < pins:  # some containers show a host without memory
            return {**data, "pins_bytes": pins}
        estimates = {**data.get("estimates", {}), "pinned_bytes": PINNED_AGAIN}
        return {**data, "pins_bytes": pins, "pinned_bytes": used, "estimates": estimates}


class Allocations(Record):
    """cudaHostAlloc mappings of one size."""

    size_bytes: int
    """Of each."""
    count: int
    """How many there are."""
    power_of_two: bool
    """The size is a power of two and more than the driver's own chunks: where an allocator rounded up (PyTorch's
    does), up to half of it is waste."""


class GpuUse(Estimated):
    """What a holder has on one GPU on which it has a context."""

    # fmt: off
    index: int
    """Index of the GPU."""
    memory_bytes: Annotated[int | None, Figure(
        label="GPU memory", column="gpu_memory_bytes",
        help="GPU memory of the process as NVML counts it: with the context, without page tables of pinned memory.",
        short="GPU memory", terminal="room", page="shown", metric="pinscope_holder_gpu_memory_bytes",
    )]
    page_table_bytes: Annotated[int | None, Figure(
        label="Page tables",
        help="GPU memory for the page tables of the process's cudaHostAlloc and driver memory; registered memory "
        "comes on top, or is in it while the probe runs.",
        short="page tables", page="shown", metric="pinscope_holder_page_table_bytes",
    )]
    # fmt: on


class Holder(Estimated):
    """A process that holds pinned or locked memory, or may: one with a CUDA context can have registered memory."""

    # fmt: off
    pid: int
    """Process id."""
    parent_pid: int | None
    """Process id of its parent."""
    user: str | None
    """Whose process it is."""
    name: str
    """The kernel's short name."""
    command: str | None
    """The command line."""
    cgroup: str | None
    """Path of its control group."""
    container: str | None
    """Engine and short id, such as ``docker 0123456789ab``."""
    cgroup_limit_bytes: Annotated[int | None, Figure(
        label="Limit of its control group",
        help="Limit of the control group, around the process, that leaves the least.",
        metric="pinscope_holder_cgroup_limit_bytes", adds_up=None, report=None,
    )] = None
    cgroup_headroom_bytes: Annotated[int | None, Figure(
        label="Left in its control group",
        help="What the control group around the process that leaves the least still leaves.",
        metric="pinscope_holder_cgroup_headroom_bytes", adds_up=None, report=None,
    )] = None
    started_at: datetime | None
    """When the process started."""
    cuda: bool | None
    """It holds the device file of CUDA's memory manager, or NVML names it."""
    host_alloc_bytes: Annotated[int | None, Figure(
        label="cudaHostAlloc",
        help="cudaHostAlloc memory that the process owns: each piece counts once on the host, in the process that owns "
        "it. Write-combined memory is driver memory.",
        short="cudaHostAlloc", terminal="always", page="shown", metric="pinscope_holder_host_alloc_bytes",
        timeline=True, event=True,
    )]
    rounding_bytes: Annotated[int | None, Figure(
        label="Possible rounding waste",
        help="cudaHostAlloc memory that may be waste, at most: if an allocator rounded sizes up to powers of two.",
        metric="pinscope_holder_rounding_bytes", report="some",
    )]
    allocations: tuple[Allocations, ...]
    """Its cudaHostAlloc memory by size, most bytes first."""
    driver_memory_bytes: Annotated[int | None, Figure(
        label="Driver memory",
        help="Driver memory that the process asked for and has mapped: write-combined memory, cuMemCreate on the "
        "host, host pools. The kernel counts it neither as pinned nor in any other account.",
        short="driver memory", page="shown", metric="pinscope_holder_driver_memory_bytes",
        timeline=True, event=True,
    )] = None
    registered_bytes: Annotated[int | None, Figure(
        label="Registered",
        help="cudaHostRegister memory, to the byte; known only while the probe runs, and from its start on, or where "
        "the process says it (pinscope.report_host_memory).",
        short="registered", probed=True, page="shown", metric="pinscope_holder_registered_bytes",
        timeline=True, event=True,
    )] = None
    registrations: int | None = None
    """Pieces of it that are registered now, known only while the probe runs."""
    kept_bytes: Annotated[int | None, Figure(
        label="Kept by allocators",
        help="Pinned memory that PyTorch's or CuPy's allocator keeps for later requests and that nothing uses: exact "
        "where the process says it (pinscope.report_host_memory), else at most what it holds.",
        metric="pinscope_holder_kept_bytes", report="some",
    )] = None
    kept_by: Mapping[str, int] = {}
    """Allocator → what it keeps, where the process says so."""
    allocators: tuple[str, ...] = ()
    """Those of these libraries that the process has loaded."""
    python: bool | None = None
    """A Python interpreter runs in it, so that it can be traced line by line; ``None`` where that cannot be seen."""
    said_at: datetime | None = None
    """When the process itself said what it has registered and what its allocators keep."""
    oldest_pieces: tuple[Piece, ...] = ()
    """Registered and allocated memory that the probe saw being pinned and that is held still: the ten oldest pieces,
    oldest first. What stays in front while others come and go is what a leak looks like."""
    copies: Copies | None = None
    """What it copied between host and GPUs since the probe started; ``None``: nobody counted."""
    locked_bytes: Annotated[int | None, Figure(
        label="Locked (VmLck)", help="Locked, as with mlock. Not pinned for CUDA.",
        short="locked", page="shown", metric="pinscope_holder_locked_bytes", timeline=True, event=True,
    )]
    vm_pin_bytes: Annotated[int | None, Figure(
        label="Pinned (VmPin)",
        help="Pinned as the kernel accounts it: RDMA, io_uring, and a virtual machine's memory for its devices (VFIO), "
        "which stands in VmLck. CUDA's memory is not in it.",
        short="VmPin", page="hidden", metric="pinscope_holder_vm_pin_bytes", timeline=True,
    )]
    managed_bytes: Annotated[int | None, Figure(
        label="Managed", help="Address space of managed memory.",
        short="managed", terminal="room", common=DRIVERS_MANAGED_BYTES, page="hidden",
    )]
    inherited_bytes: Annotated[int | None, Figure(
        label="Inherited",
        help="cudaHostAlloc memory of another holder that the process has mapped, as a forked worker does.",
        short="inherited", page="shown", metric="pinscope_holder_inherited_bytes",
    )]
    inherited_from: tuple[int, ...]
    """Pids of the holders that own that memory."""
    inherited_by: tuple[int, ...]
    """Pids of the processes that have memory of this one mapped."""
    context_pinned_bytes: Annotated[int | None, Figure(
        label="Pinned by the driver itself",
        help="What the driver itself pinned for the process's contexts; small pieces of cudaHostAlloc memory lie in it "
        "as well.",
        page="hidden", metric="pinscope_holder_context_pinned_bytes",
    )] = None
    hugetlb_bytes: Annotated[int | None, Figure(label="Huge pages", help="Huge pages that the process uses.")]
    rss_bytes: Annotated[int | None, Figure(
        label="Resident", help="All memory of the process that is in RAM (VmRSS).", page="shown",
        metric="pinscope_holder_resident_bytes",
    )]
    rss_anon_bytes: int | None
    """Resident anonymous memory."""
    rss_file_bytes: int | None
    """Resident pages of files."""
    rss_shmem_bytes: int | None
    """Holds its cudaHostAlloc memory."""
    gpus: tuple[GpuUse, ...]
    """GPUs on which it has a context; empty with a reason in ``missing`` where that is not known."""
    # fmt: on


class GpuProcess(Record):
    """A process that NVML names on a GPU."""

    pid: int
    """As NVML gives it. In a container of its own this need not be a pid that /proc knows."""
    memory_bytes: int | None
    """GPU memory as NVML gives it."""
    gpu_instance: int | None = None
    """MIG instance it runs on."""
    missing: Mapping[str, str] = {}


class MigInstance(Record):
    """A part of a GPU in Multi-Instance mode."""

    uuid: str
    """Stable name of the part."""
    gpu_instance: int | None
    """Number of the GPU instance."""
    memory_total_bytes: int | None
    """Its memory."""
    memory_used_bytes: int | None
    """Used of it."""
    copy_engines: int | None
    """How many it has."""
    missing: Mapping[str, str] = {}


class DeviceFigures(Estimated):
    """One GPU at the moment of reading."""

    # fmt: off
    index: int
    """As the driver numbers them."""
    minor: int | None = None
    """Number of its device file, /dev/nvidiaN."""
    uuid: str
    """Stable name of this very GPU."""
    name: str
    """Its model."""
    memory_total_bytes: Annotated[int | None, Figure(
        label="Memory", help="Memory of the GPU.", short="memory", terminal="room",
        metric="pinscope_gpu_memory_bytes", timeline=True, report=None,
    )]
    memory_free_bytes: int | None
    """Free."""
    memory_used_bytes: Annotated[int | None, Figure(
        label="Used", help="Used memory of the GPU, without what driver and firmware reserve.", short="used",
        metric="pinscope_gpu_memory_used_bytes", timeline=True, report=None,
    )]
    memory_reserved_bytes: Annotated[int | None, Figure(
        label="Reserved", help="Memory of the GPU that driver and firmware reserve.",
        metric="pinscope_gpu_memory_reserved_bytes", report=None,
    )]
    processes: tuple[GpuProcess, ...]
    """Processes that NVML names on it."""
    processes_bytes: Annotated[int | None, Figure(
        label="Of processes", help="What NVML charges to processes, in all.",
    )]
    unattributed_bytes: Annotated[int | None, Figure(
        label="Unattributed",
        help="Used, but of no process: page tables of pinned memory, managed memory that lies on the GPU (NVML charges "
        "it to no process), and the driver's own. Not exported of a GPU with MIG instances.",
        short="by no process", page="shown", metric="pinscope_gpu_memory_unattributed_bytes", timeline=True,
        report=None,
    )]
    page_table_bytes: Annotated[int | None, Figure(
        label="Page tables",
        help="Page tables that the holders' cudaHostAlloc and driver memory implies; registered memory comes on top, "
        "or is in it while the probe runs.",
        short="page tables", page="shown", metric="pinscope_gpu_page_table_bytes", timeline=True, report=None,
    )]
    context_overhead_bytes: Annotated[int | None, Figure(
        label="The driver's for contexts",
        help="GPU memory that the driver takes for contexts and charges to no process: an estimate from H200s.",
        metric="pinscope_gpu_context_overhead_bytes",
    )] = None
    bar1_total_bytes: Annotated[int | None, Figure(
        label="BAR1", help="Size of the BAR1 window, through which the host reaches the GPU's memory.",
        metric="pinscope_gpu_bar1_bytes", report=None,
    )]
    bar1_used_bytes: Annotated[int | None, Figure(
        label="BAR1, used", help="Used of the BAR1 window.", metric="pinscope_gpu_bar1_used_bytes", report=None,
    )]
    link: Link | None
    """The bus to the host."""
    rx_bytes_per_second: Annotated[float | None, Figure(
        label="Received over PCIe",
        help="Received by the GPU over PCIe: copies to the GPU, and what it reads from host memory.",
        unit="bytes/second", short="to GPU", page="shown", metric="pinscope_gpu_receive_bytes_per_second",
        timeline=True, report=None,
    )]
    tx_bytes_per_second: Annotated[float | None, Figure(
        label="Sent over PCIe",
        help="Sent by the GPU over PCIe: copies from the GPU, and what it writes to host memory.",
        unit="bytes/second", short="from GPU", page="shown", metric="pinscope_gpu_transmit_bytes_per_second",
        timeline=True, report=None,
    )]
    rx_share: float | None
    """Of the payload limit of the link at best."""
    tx_share: float | None
    """Of the payload limit, what it sends."""
    busy_share: Annotated[float | None, Figure(
        label="Busy", help="Share of the driver's last sample period in which a kernel ran.", unit="share",
        short="busy", metric="pinscope_gpu_busy_ratio", timeline=True, report=None,
    )]
    memory_busy_share: float | None
    """Share of that period in which device memory was read or written."""
    copy_engines: Annotated[int | None, Figure(
        label="Copy engines", help="How many copy engines the GPU has.", unit="count",
    )]
    sm_clock_hertz: float | None
    """Clock of the multiprocessors."""
    memory_clock_hertz: float | None
    """Clock of the memory."""
    temperature_celsius: Annotated[float | None, Figure(
        label="Temperature", help="Temperature of the GPU.", unit="celsius", metric="pinscope_gpu_temperature_celsius",
    )]
    mig: tuple[MigInstance, ...]
    """Empty where the GPU is not in Multi-Instance mode."""
    # fmt: on


class LeftFile(Record):
    """A file that is memory (in /dev/shm, or of huge pages), and that no process has open or mapped."""

    path: str
    """Where it lies."""
    bytes: int
    """Memory that it takes."""
    modified_at: datetime
    """When its content was last written through the file system; a write to a mapping need not count."""


class Snapshot(Record):
    """Who holds pinned memory on this host, at one moment."""

    format: int = FORMAT
    """Version of the document."""
    taken_at: datetime
    """When it was taken."""
    host: HostTotals
    """Totals of the host."""
    holders: tuple[Holder, ...]
    """Most bytes first."""
    devices: tuple[DeviceFigures, ...]
    """The GPUs."""
    unreadable: tuple[Unreadable, ...]
    """What could not be looked at."""
    left_files: tuple[LeftFile, ...] = ()
    """Files of 1 GiB and more that are memory and that nobody has open, the largest first; looked for every 30 s."""
    kernel: str = ""
    """Release of the kernel."""
    own_pids: bool = False
    """Taken in a container with process ids of its own: number 1 is then the container's first process."""
    probe: ProbeState | None = None
    """How registered memory was followed; ``None``: it was not."""
    cpu_seconds: float
    """Processor time that taking this snapshot took."""
