"""One frozen live reading of a host: its totals, who holds pinned memory, and what that costs each GPU.

A figure that is ``None`` has its reason in ``missing``, under the field's name. A figure named in ``estimates`` is an
estimate, and what stands there says of what kind and why; every other figure is exact, as of the moment of reading.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

from pinscope.records.base import Record
from pinscope.records.bound import Estimated
from pinscope.records.environment import Link
from pinscope.records.registration import Piece, ProbeState

FORMAT = 1
"""Version of the snapshot's JSON. Additive changes keep it."""


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
    """The same of the last 60 s."""
    some_total_seconds: float
    """Since boot."""
    full_10s_share: float
    """Share of the last 10 s in which all tasks stalled at once."""
    full_60s_share: float
    """The same of the last 60 s."""
    full_total_seconds: float
    """Since boot."""


class HostTotals(Estimated):
    """The host's memory."""

    total_bytes: int
    """Memory of the host."""
    available_bytes: int
    """What programs can still get without swapping (MemAvailable)."""
    cgroup_limit_bytes: int | None
    """The limit of the control group, around the reading process, that leaves the least."""
    cgroup_headroom_bytes: int | None
    """What that control group leaves."""
    pinned_bytes: int | None
    """Pinned for device access (DMA) on the whole host: by CUDA, RDMA, VFIO, io_uring … Pinned twice counts twice.
    Driver memory is not in it (measured on H100 and H200 hosts)."""
    explained_bytes: int | None
    """The part of it that the holders explain: their cudaHostAlloc memory, what the driver pinned for their contexts,
    what the kernel accounts as VmPin and, while the probe runs, the pages that they registered."""
    other_pinned_bytes: int | None
    """The rest: registered memory (cudaHostRegister), which leaves no mark, as far as no probe followed it, and pins
    that are not CUDA's."""
    driver_memory_bytes: int | None = None
    """Memory that none of the kernel's accounts has: the driver's (write-combined memory, ``cuMemCreate`` on the host,
    host pools and what it takes for itself), other drivers' and the kernel's own. Always an estimate."""
    mlocked_bytes: int | None
    """Locked with mlock, which CUDA does not take for pinned."""
    unevictable_bytes: int | None
    """Memory that the kernel cannot reclaim."""
    hugetlb_pool_bytes: int | None
    """Reserved for huge pages, used or not."""
    hugetlb_used_bytes: int | None
    """Huge pages in use."""
    shmem_bytes: int | None
    """Shared memory of all kinds; cudaHostAlloc memory is part of it."""
    pressure: Pressure | None
    """Time that tasks stalled for lack of memory."""


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

    index: int
    """Index of the GPU."""
    memory_bytes: int | None
    """As NVML gives it: with the context, without page tables of pinned memory."""
    page_table_bytes: int | None
    """GPU memory that the page table of its cudaHostAlloc and driver memory takes; registered memory comes on top, or
    is in it while the probe runs."""


class Holder(Estimated):
    """A process that holds pinned or locked memory, or may: one with a CUDA context can have registered memory."""

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
    cgroup_limit_bytes: int | None = None
    """Of the control group, around this process, that leaves the least."""
    cgroup_headroom_bytes: int | None = None
    """What that control group leaves."""
    started_at: datetime | None
    """When the process started."""
    cuda: bool | None
    """It holds the device file of CUDA's memory manager, or NVML names it."""
    host_alloc_bytes: int | None
    """cudaHostAlloc memory that it owns: each piece counts once on the host, in the process that owns it.
    Write-combined memory is driver memory."""
    context_pinned_bytes: int | None = None
    """What the driver itself pinned for its contexts; small pieces of cudaHostAlloc memory lie in it as well."""
    driver_memory_bytes: int | None = None
    """Driver memory that it asked for and has mapped: write-combined memory, ``cuMemCreate`` on the host, host pools.
    The kernel counts it neither as pinned nor in any other account."""
    allocations: tuple[Allocations, ...]
    """The same by size, most bytes first."""
    registered_bytes: int | None = None
    """cudaHostRegister memory, to the byte; known only while the probe runs, and from its start on."""
    registrations: int | None = None
    """Pieces of it."""
    oldest_pieces: tuple[Piece, ...] = ()
    """Registered and allocated memory that the probe saw being pinned and that is held still: the ten oldest pieces,
    oldest first. What stays in front while others come and go is what a leak looks like."""
    rounding_bytes: int | None
    """At most so much of it is waste, if an allocator rounded all powers of two up from just above the half."""
    inherited_bytes: int | None
    """cudaHostAlloc memory of another holder that it has mapped, as a forked worker does."""
    inherited_from: tuple[int, ...]
    """Pids of the holders that own that memory."""
    inherited_by: tuple[int, ...]
    """Pids of the processes that have memory of this one mapped."""
    managed_bytes: int | None
    """Address space of managed memory."""
    locked_bytes: int | None
    """mlock'ed (VmLck). Not pinned for CUDA."""
    vm_pin_bytes: int | None
    """Pinned as the kernel accounts it (VmPin): RDMA, io_uring. CUDA's memory is not in it."""
    hugetlb_bytes: int | None
    """Huge pages that it uses."""
    rss_bytes: int | None
    """Resident memory (VmRSS)."""
    rss_anon_bytes: int | None
    """Resident anonymous memory."""
    rss_file_bytes: int | None
    """Resident pages of files."""
    rss_shmem_bytes: int | None
    """Holds its cudaHostAlloc memory."""
    gpus: tuple[GpuUse, ...]
    """GPUs on which it has a context; empty with a reason in ``missing`` where that is not known."""


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

    index: int
    """As the driver numbers them."""
    minor: int | None = None
    """Number of its device file, /dev/nvidiaN."""
    uuid: str
    """Stable name of this very GPU."""
    name: str
    """Its model."""
    memory_total_bytes: int | None
    """Memory of the GPU."""
    memory_free_bytes: int | None
    """Free."""
    memory_used_bytes: int | None
    """Without what driver and firmware reserve."""
    memory_reserved_bytes: int | None
    """Reserved by driver and firmware."""
    processes: tuple[GpuProcess, ...]
    """Processes that NVML names on it."""
    processes_bytes: int | None
    """Sum over the processes."""
    unattributed_bytes: int | None
    """Used, but of no process: page tables of pinned memory, managed memory that lies on the GPU (measured on H200s:
    NVML charges it to nobody), and the driver's own."""
    page_table_bytes: int | None
    """Page tables that the holders' cudaHostAlloc and driver memory implies; registered memory comes on top, or is in
    it while the probe runs."""
    context_overhead_bytes: int | None = None
    """What the driver takes beside that for the contexts and charges to no process: an estimate from H200s."""
    bar1_total_bytes: int | None
    """Size of the BAR1 window, through which the host reaches the GPU's memory."""
    bar1_used_bytes: int | None
    """Used of that window."""
    link: Link | None
    """The bus to the host."""
    rx_bytes_per_second: float | None
    """Received by the GPU over PCIe: copies to the device, and what it reads from host memory."""
    tx_bytes_per_second: float | None
    """Sent by the GPU over PCIe: copies to the host, and what it writes to host memory."""
    rx_share: float | None
    """Of the payload limit of the link at best."""
    tx_share: float | None
    """The same of what it sends."""
    busy_share: float | None
    """Share of the driver's last sample period in which a kernel ran."""
    memory_busy_share: float | None
    """The same for reading or writing device memory."""
    copy_engines: int | None
    """How many the GPU has."""
    sm_clock_hertz: float | None
    """Clock of the multiprocessors."""
    memory_clock_hertz: float | None
    """Clock of the memory."""
    temperature_celsius: float | None
    """Temperature of the GPU."""
    mig: tuple[MigInstance, ...]
    """Empty where the GPU is not in Multi-Instance mode."""


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
    own_pids: bool = False
    """Taken in a container with process ids of its own: number 1 is then the container's first process."""
    probe: ProbeState | None = None
    """How registered memory was followed; ``None``: it was not."""
    cpu_seconds: float
    """Processor time that taking this snapshot took."""
