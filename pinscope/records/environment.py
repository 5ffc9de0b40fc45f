"""What machine a run or a snapshot was taken on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Literal

from pinscope.records.base import Moment, Record
from pinscope.records.figure import Figure

LinkKind = Literal["pcie", "nvlink-c2c"]
Iommu = Literal["off", "passthrough", "translating"]
"""Between a GPU and host memory: none, one that maps each address to itself, or one that translates each."""
KernelModule = Literal["open", "proprietary"]


class Link(Record):
    """The bus between a GPU and its host, now and at best.

    ``None``: the driver does not tell; ``Device.missing`` says why.
    """

    kind: LinkKind
    """``pcie`` or ``nvlink-c2c``."""
    # fmt: off
    generation_now: Annotated[int | None, Figure(
        label="PCIe generation",
        help="PCIe generation at the moment of reading; an idle link may train down to save power.",
        unit="count", column="link_generation", metric="pinscope_gpu_link_generation", timeline=True,
    )]
    width_now: Annotated[int | None, Figure(
        label="PCIe lanes", help="PCIe lanes in use.", unit="count", column="link_width",
        metric="pinscope_gpu_link_lanes", timeline=True,
    )]
    generation_max: Annotated[int | None, Figure(
        label="Best PCIe generation", help="Best PCIe generation that this GPU and this slot can do together.",
        unit="count", column="link_generation_max", metric="pinscope_gpu_link_best_generation", timeline=True,
    )]
    width_max: Annotated[int | None, Figure(
        label="Most PCIe lanes", help="Most PCIe lanes that this GPU and this slot can use together.",
        unit="count", column="link_width_max", metric="pinscope_gpu_link_best_lanes", timeline=True,
    )]
    limit_bytes_per_second: Annotated[float | None, Figure(
        label="Limit of the link", help="Payload limit of the link at best, one direction, after packet overhead.",
        unit="bytes/second", column="link_limit_bytes_per_second", metric="pinscope_gpu_link_limit_bytes_per_second",
        timeline=True,
    )]
    # fmt: on
    raw_bytes_per_second: float | None
    """Signalling limit of the link at best, one direction."""
    max_payload_bytes: int | None = None
    """Most data in one packet (Max_Payload_Size), as the GPU's configuration space tells it; ``None``: the payload
    limit assumes :data:`pinscope.records.environment.PACKET_PAYLOAD_BYTES`."""


class LinkErrors(Record):
    """What was counted of errors on a GPU's PCIe link up to one moment; the counts only grow."""

    replays: int | None
    """Packets sent again, as the GPU counts them."""
    correctable: int | None
    """Errors that the hardware put right, as the kernel counts them (Advanced Error Reporting, AER), else the GPU."""
    nonfatal: int | None
    """Errors that lost a packet; likewise."""
    fatal: int | None
    """Errors that broke the link; likewise."""
    missing: Mapping[str, str] = {}
    """Field name → why it is ``None``."""


class Device(Record):
    """One GPU as NVML describes it."""

    index: int
    """As the driver numbers them."""
    uuid: str
    """Stable name of this very GPU."""
    name: str
    """Its model."""
    pci_bus_id: str | None
    """Its address on the PCI bus."""
    numa_node: int | None
    """The node it is attached to."""
    memory_total_bytes: int | None
    """Memory of the GPU."""
    memory_free_bytes: int | None
    """Free at that moment."""
    compute_capability: str | None
    """Such as ``9.0``."""
    link: Link | None
    """The bus to the host."""
    iommu: Iommu | None = None
    """``off``, ``passthrough`` (each address maps to itself) or ``translating``, as far as this system shows it."""
    bar1_bytes: int | None = None
    """The window through which the host reaches the GPU's memory."""
    bar1_covers_memory: bool | None = None
    """Whether that window is as large as the memory (resizable BAR)."""
    persistence_mode: bool | None = None
    """Whether the driver keeps the GPU ready while nobody uses it."""
    link_errors: LinkErrors | None = None
    """Before the run."""
    link_errors_after: LinkErrors | None = None
    """After the run; ``None`` where nothing was run."""
    missing: Mapping[str, str] = {}
    """Field name → why it is ``None``."""


class NumaNode(Record):
    """Processors and memory that are near each other."""

    number: int
    """As the kernel numbers them."""
    processors: str
    """As the kernel writes it, such as ``0-15,64-79``; empty where it has none."""
    memory_bytes: int
    """0 where it has none."""
    available_bytes: int
    """Free, or in caches that the kernel can drop: an estimate, as the kernel gives none for a node."""


class HugePages(Record):
    """Huge-page settings of the host."""

    transparent: str | None
    """The active word of /sys/kernel/mm/transparent_hugepage/enabled: always, madvise or never."""
    hugetlb_page_bytes: int | None
    """Size of a reserved huge page."""
    hugetlb_total_pages: int | None
    """Reserved, used or not."""
    hugetlb_free_pages: int | None
    """Reserved and not used."""
    defrag: str | None = None
    """The active word of /sys/kernel/mm/transparent_hugepage/defrag: whether a page fault waits while memory is
    compacted."""
    missing: Mapping[str, str] = {}
    """Field name → why it is ``None``."""


class Limits(Record):
    """How much memory may be taken here, in bytes; ``None`` where no such limit exists."""

    host_total_bytes: int
    """Memory of the host."""
    host_available_bytes: int
    """What programs can still get without swapping (MemAvailable)."""
    cgroup_headroom_bytes: int | None
    """What the tightest control group leaves."""
    memlock_headroom_bytes: int | None
    """RLIMIT_MEMLOCK less what is locked already; ``None`` if unlimited or the process has CAP_IPC_LOCK."""
    shm_free_bytes: int | None
    """Free in /dev/shm."""
    cgroup_limit_bytes: int | None = None
    """The limit of the control group that leaves the least."""
    node: int | None = None
    """The only NUMA node from which memory may be taken: total and available are its own then."""
    missing: Mapping[str, str] = {}
    """Field name → why it is ``None``."""

    def on_node(self, node: NumaNode) -> Limits:
        """These limits for a process whose memory is bound to one NUMA node."""
        total, available = min(self.host_total_bytes, node.memory_bytes), self.host_available_bytes
        changes = {"host_total_bytes": total, "host_available_bytes": min(available, node.available_bytes)}
        missing = {name: reason for name, reason in self.missing.items() if name != "node"}
        return self.model_copy(update={**changes, "node": node.number, "missing": missing})


class Environment(Record):
    """The machine, its software and its limits at the start of a run."""

    captured_at: Moment
    """When this was read."""
    pinscope_version: str
    """Version of PinScope."""
    pinscope_commit: str | None
    """Its git commit; ``-dirty`` follows where files were changed."""
    host: str
    """Host name."""
    machine_id: str
    """Opaque and stable for one machine; tells whether two runs may be compared."""
    os: str
    """Name and version of the distribution."""
    kernel: str
    """Release of the Linux kernel."""
    architecture: str
    """Of the processor, such as ``x86_64``."""
    cpu: str | None
    """Model of the processor."""
    cpus: int
    """Processors this process may use."""
    numa_nodes: int | None
    """How many the host has."""
    page_bytes: int
    """Size of an ordinary page."""
    huge_pages: HugePages
    """How huge pages are set up."""
    limits: Limits
    """How much memory may be taken."""
    virtualization: str | None
    """Container or hypervisor name where one shows itself."""
    python: str
    """Version of Python."""
    packages: Mapping[str, str]
    """Versions of the packages that shape a measurement (numpy, cupy …)."""
    driver: str | None
    """Version of the NVIDIA driver."""
    cuda_driver: str | None
    """CUDA version that the driver supports, such as ``13.0``."""
    devices: tuple[Device, ...]
    """The GPUs."""
    nodes: tuple[NumaNode, ...] = ()
    """The host's NUMA nodes."""
    kernel_module: KernelModule | None = None
    """Which of NVIDIA's two kernel modules is loaded."""
    mps: bool | None = None
    """Whether CUDA's Multi-Process Service would serve a program that is started here."""
    confidential_computing: bool | None = None
    """Whether the GPUs' confidential-computing feature is on."""
    missing: Mapping[str, str] = {}
    """Field name → why it is ``None`` or empty."""

    def device(self, index: int) -> Device | None:
        """The GPU of that index, if there is one."""
        return next((device for device in self.devices if device.index == index), None)


PACKET_PAYLOAD_BYTES = 256
"""Data in one packet (Max_Payload_Size) that the payload limit assumes where it cannot be read: what GPUs and root
ports commonly agree on."""


@dataclass(frozen=True)
class PcieGeneration:
    """One generation of PCI Express."""

    transfers_per_second: float
    """Per lane; one transfer carries one bit."""
    coding: tuple[int, int]
    """(bits or bytes that carry packets, those on the wire): 8b/10b, 128b/130b, or 242 of 256 bytes of a FLIT."""
    transaction_share: float
    """Share of the coded bytes that transaction layer packets (TLPs) may use: 1 before FLIT mode, 236/242 in it."""
    packet_overhead_bytes: int
    """What a TLP carries beside its data: framing, sequence number, header, checksum."""

    def raw_bytes_per_second(self, width: int) -> float:
        """The link after line coding, before packets."""
        useful, wire = self.coding
        return width * self.transfers_per_second / 8 * useful / wire

    def payload_bytes_per_second(self, width: int, payload_bytes: int | None = None) -> float:
        """The link after packet overhead, with so much data in a packet (by default what is assumed)."""
        payload = payload_bytes or PACKET_PAYLOAD_BYTES
        packet = payload + self.packet_overhead_bytes
        return self.raw_bytes_per_second(width) * self.transaction_share * payload / packet


PCIE: Mapping[int, PcieGeneration] = {
    # 24 bytes up to generation 5: a 4-doubleword header (16), LCRC (4), and 4 for framing and sequence number
    # (STP 1 + sequence 2 + END 1 up to generation 2, an STP token that holds the sequence from generation 3).
    1: PcieGeneration(2.5e9, (8, 10), 1.0, 24),
    2: PcieGeneration(5e9, (8, 10), 1.0, 24),
    3: PcieGeneration(8e9, (128, 130), 1.0, 24),
    4: PcieGeneration(16e9, (128, 130), 1.0, 24),
    5: PcieGeneration(32e9, (128, 130), 1.0, 24),
    # A FLIT is 256 bytes: 236 for TLPs, 6 for the data link layer, 8 CRC, 6 error correction. Framing, sequence
    # number and LCRC are gone, so a TLP has its 16-byte header alone.
    6: PcieGeneration(64e9, (242, 256), 236 / 242, 16),
}
"""Generations that a GPU's host link can have, by number."""

PCIE_WIDTHS = (1, 2, 4, 8, 12, 16, 32)
"""Lanes that a link can have."""

NVLINK_C2C: Mapping[str, float] = {"GH200": 450e9, "GB200": 450e9}
"""Word in the GPU's name → bytes/second in one direction. NVIDIA publishes 900 GB/s for both directions together
of the link between a Grace CPU and its GPUs (Grace Hopper and Grace Blackwell Superchip data sheets)."""


def c2c_bytes_per_second(name: str) -> float | None:
    """Published NVLink-C2C bandwidth, one direction, of the GPU called ``name``; ``None`` for other GPUs."""
    return next((rate for word, rate in NVLINK_C2C.items() if word in name.upper()), None)
