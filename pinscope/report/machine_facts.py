"""The machine in words: its processor, its limits, its software, and how each GPU hangs on it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from pinscope.analysis.link_errors import KINDS
from pinscope.records.environment import Device, Environment, HugePages, Iommu, Limits, Link, LinkErrors
from pinscope.records.link import PACKET_PAYLOAD_BYTES
from pinscope.units import format_bandwidth, format_bytes

Fact = tuple[str, str]
"""A name, and what is said of it."""

IOMMU_WORDS: Mapping[Iommu, str] = {
    "off": "none visible to this system",
    "passthrough": "passes addresses through",
    "translating": "translates each address",
}
_SWITCH = {True: "on", False: "off"}
_BAR1_COVERS = {True: ", covers all of the memory", False: ", covers a part of the memory", None: ""}


def environment_facts(environment: Environment) -> list[Fact]:
    """The machine, its software and its limits; what is missing says why."""
    huge, limits = environment.huge_pages, environment.limits
    packages = ", ".join(f"{name} {version}" for name, version in environment.packages.items())
    return [
        ("Host", environment.host),
        ("System", f"{environment.os}, kernel {environment.kernel}, {environment.architecture}"),
        ("Processor", f"{_known(environment, 'cpu')}; {environment.cpus} usable"),
        ("NUMA nodes", _numa(environment)),
        ("Virtualization", _known(environment, "virtualization", unknown="none seen")),
        ("Page size", format_bytes(environment.page_bytes)),
        ("Transparent huge pages", _known(huge, "transparent")),
        ("Huge page pool", _known(huge, "hugetlb_total_pages", lambda pages: _huge_pool(huge, pages))),
        ("Memory", f"{format_bytes(limits.host_available_bytes)} available of {format_bytes(limits.host_total_bytes)}"),
        ("Control group headroom", _limit(limits, "cgroup_headroom_bytes")),
        ("Lockable memory", _limit(limits, "memlock_headroom_bytes")),
        ("Shared memory free", _limit(limits, "shm_free_bytes", "n/a")),
        ("Driver", _known(environment, "driver")),
        ("CUDA version of the driver", _known(environment, "cuda_driver")),
        *_if_recorded(environment, "Kernel module", "kernel_module"),
        *_if_recorded(environment, "Multi-Process Service", "mps", _SWITCH.__getitem__),
        *_if_recorded(environment, "Confidential computing", "confidential_computing", _SWITCH.__getitem__),
        ("Python", f"{environment.python}; {packages}" if packages else environment.python),
        *(fact for device in environment.devices for fact in _gpu(device)),
    ]


def version_text(environment: Environment) -> str:
    """PinScope's version and commit."""
    return f"{environment.pinscope_version}, commit {_known(environment, 'pinscope_commit')}"


def gpu_facts(device: Device) -> list[Fact]:
    """A GPU, one fact a line."""
    return [
        ("Link now", _known(device, "link", _link_now)),
        ("Memory", _memory(device)),
        ("NUMA node", _known(device, "numa_node")),
        ("Compute capability", _known(device, "compute_capability")),
        ("PCI address", _known(device, "pci_bus_id")),
        *bus_facts(device),
    ]


def bus_facts(device: Device) -> list[Fact]:
    """Packets, IOMMU, BAR1, persistence mode, link errors; without what a run of an older version lacks."""
    before = "Link errors before the run" if device.link_errors_after else "Link errors"
    return [
        *_packet(device),
        *_if_recorded(device, "IOMMU", "iommu", IOMMU_WORDS.__getitem__),
        *_if_recorded(device, "BAR1 (resizable BAR)", "bar1_bytes", lambda size: _bar1(device, size)),
        *_if_recorded(device, "Persistence mode", "persistence_mode", _SWITCH.__getitem__),
        *((before, _errors(errors)) for errors in [device.link_errors] if errors),
        *(("Link errors after the run", _errors(errors)) for errors in [device.link_errors_after] if errors),
    ]


def link_text(link: Link | None, *, at_best: bool = False) -> str:
    """``PCIe Gen5 x16`` as the link is trained now, or as it can be at best; ``n/a`` where that is not known."""
    if link is None:
        return "n/a"
    if link.kind == "nvlink-c2c":
        return "NVLink-C2C"
    trained = (link.generation_max, link.width_max) if at_best else (link.generation_now, link.width_now)
    generation, width = ("?" if part is None else part for part in trained)
    return "n/a" if trained == (None, None) else f"PCIe Gen{generation} x{width}"


def _known(
    record: Environment | Device | HugePages | Limits,
    field: str,
    words: Callable[[Any], str] = str,
    unknown: str = "n/a",
) -> str:
    """A field in words, or that it is unknown and why."""
    value = getattr(record, field)
    if value is not None:
        return words(value)
    return f"{unknown} ({record.missing[field]})" if record.missing.get(field) else unknown


def _if_recorded(record: Environment | Device, name: str, field: str, words: Callable[[Any], str] = str) -> list[Fact]:
    """The fact; nothing where a run of an older version did not record it."""
    is_recorded = getattr(record, field) is not None or field in record.missing
    return [(name, _known(record, field, words))] if is_recorded else []


def _limit(limits: Limits, field: str, unknown: str = "no limit") -> str:
    """A limit in bytes; where there is none, the reason says more than the word."""
    value = getattr(limits, field)
    return limits.missing.get(field, unknown) if value is None else format_bytes(value)


def _numa(environment: Environment) -> str:
    if not environment.nodes:
        return _known(environment, "numa_nodes")
    nodes = (
        f"node {node.number}: processors {node.processors or 'none'}, "
        f"{format_bytes(node.available_bytes)} available of {format_bytes(node.memory_bytes)}"
        for node in environment.nodes
    )
    return f"{len(environment.nodes)}; {'; '.join(nodes)}"


def _huge_pool(huge: HugePages, pages: int) -> str:
    free = "n/a" if huge.hugetlb_free_pages is None else f"{huge.hugetlb_free_pages:,}"
    return f"{free} free of {pages:,} pages of {format_bytes(huge.hugetlb_page_bytes)}"


def _gpu(device: Device) -> list[Fact]:
    """A GPU in a line, and its bus in another."""
    words = (
        device.name,
        _memory(device),
        f"compute capability {_known(device, 'compute_capability')}",
        f"NUMA node {_known(device, 'numa_node')}",
        f"PCI {_known(device, 'pci_bus_id')}",
        _link(device.link) if device.link else f"link {_known(device, 'link')}",
    )
    bus = "; ".join(f"{name}: {text}" for name, text in bus_facts(device))
    name = f"GPU {device.index}"
    return [(name, "; ".join(words)), *([(f"{name} on its bus", bus)] if bus else [])]


def _memory(device: Device) -> str:
    return f"{format_bytes(device.memory_free_bytes)} free of {format_bytes(device.memory_total_bytes)}"


def _link(link: Link) -> str:
    """``PCIe Gen5 x16 now, Gen5 x16 at best, at most 57.6 GB/s of payload each way``."""
    limit = f"at most {format_bandwidth(link.limit_bytes_per_second)} of payload each way"
    if link.kind == "nvlink-c2c":
        return f"{link_text(link)}, {limit}"
    return f"{link_text(link)} now, {link_text(link, at_best=True).removeprefix('PCIe ')} at best, {limit}"


def _link_now(link: Link) -> str:
    now = link_text(link)
    return now if now in ("n/a", link_text(link, at_best=True)) else f"{now} (an idle link slows down to save power)"


def _packet(device: Device) -> list[Fact]:
    if device.link is None or device.link.kind != "pcie":
        return []
    size = device.link.max_payload_bytes
    reason = device.missing.get("link.max_payload_bytes")
    assumed = f"{format_bytes(PACKET_PAYLOAD_BYTES)}, assumed" + (f" ({reason})" if reason else "")
    return [("Largest packet payload", assumed if size is None else f"{format_bytes(size)}, as the GPU is set")]


def _bar1(device: Device, size: int) -> str:
    return format_bytes(size) + _BAR1_COVERS[device.bar1_covers_memory]


def _errors(errors: LinkErrors) -> str:
    """Counts; kinds that are not known for the same reason share it."""
    counts = [
        f"{getattr(errors, kind):,} {words}" for kind, words in KINDS.items() if getattr(errors, kind) is not None
    ]
    unknown: dict[str, list[str]] = {}
    for kind, reason in errors.missing.items():
        unknown.setdefault(reason, []).append(KINDS[kind])
    return "; ".join([*counts, *(f"n/a: {', '.join(kinds)} ({reason})" for reason, kinds in unknown.items())])
