"""What machine a run or a snapshot was taken on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from pinscope.records.base import Moment, Record

LinkKind = Literal["pcie", "nvlink-c2c"]


class Link(Record):
    """The bus between a GPU and its host, now and at best.

    ``None``: the driver does not tell; ``Device.missing`` says why.
    """

    kind: LinkKind
    generation_now: int | None
    """PCIe generation at the moment of reading; an idle link may train down to save power."""
    width_now: int | None
    generation_max: int | None
    """Best generation that this GPU and this slot can do together."""
    width_max: int | None
    limit_bytes_per_second: float | None
    """Payload limit of the link at best, one direction, after packet overhead."""
    raw_bytes_per_second: float | None
    """Signalling limit of the link at best, one direction."""


class Device(Record):
    """One GPU as NVML describes it."""

    index: int
    uuid: str
    name: str
    pci_bus_id: str | None
    numa_node: int | None
    memory_total_bytes: int | None
    memory_free_bytes: int | None
    compute_capability: str | None
    link: Link | None
    missing: Mapping[str, str] = {}
    """Field name → why it is ``None``."""


class HugePages(Record):
    """Huge-page settings of the host."""

    transparent: str | None
    """The active word of /sys/kernel/mm/transparent_hugepage/enabled: always, madvise or never."""
    hugetlb_page_bytes: int | None
    hugetlb_total_pages: int | None
    hugetlb_free_pages: int | None
    missing: Mapping[str, str] = {}
    """Field name → why it is ``None``."""


class Limits(Record):
    """How much memory may be taken here, in bytes; ``None`` where no such limit exists."""

    host_total_bytes: int
    host_available_bytes: int
    cgroup_headroom_bytes: int | None
    memlock_headroom_bytes: int | None
    """RLIMIT_MEMLOCK less what is locked already; ``None`` if unlimited or the process has CAP_IPC_LOCK."""
    shm_free_bytes: int | None
    cgroup_limit_bytes: int | None = None
    """The limit of the control group that leaves the least."""
    missing: Mapping[str, str] = {}
    """Field name → why it is ``None``."""


class Environment(Record):
    """The machine, its software and its limits at the start of a run."""

    captured_at: Moment
    pinscope_version: str
    pinscope_commit: str | None
    host: str
    """Host name."""
    machine_id: str
    """Opaque and stable for one machine; tells whether two runs may be compared."""
    os: str
    kernel: str
    architecture: str
    cpu: str | None
    cpus: int
    """Processors this process may use."""
    numa_nodes: int | None
    page_bytes: int
    huge_pages: HugePages
    limits: Limits
    virtualization: str | None
    """Container or hypervisor name where one shows itself."""
    python: str
    packages: Mapping[str, str]
    """Versions of the packages that shape a measurement (numpy, cupy …)."""
    driver: str | None
    cuda_driver: str | None
    """CUDA version that the driver supports, such as ``13.0``."""
    devices: tuple[Device, ...]
    missing: Mapping[str, str] = {}
    """Field name → why it is ``None`` or empty."""

    def device(self, index: int) -> Device | None:
        """The GPU of that index, if there is one."""
        return next((device for device in self.devices if device.index == index), None)
