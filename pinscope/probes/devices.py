"""GPUs as records: NVML's answers, the NUMA node from sysfs, and the limits of the link."""

from __future__ import annotations

from pinscope.probes.answer import Answer
from pinscope.probes.gpu import C2c, GpuReader
from pinscope.probes.pci import max_payload, sysfs_folder
from pinscope.probes.proc import Proc, count_in_both, ranges
from pinscope.records.environment import Device, Link
from pinscope.records.link import PCIE, PCIE_WIDTHS, c2c_bytes_per_second

UNKNOWN = "unknown"
"""Name or UUID of a GPU that does not tell it; the reason stands in ``Device.missing``."""

_NODES = "/sys/devices/system/node/online"


def read_devices(nvml: GpuReader, proc: Proc) -> Answer[tuple[Device, ...]]:
    """All GPUs that the driver shows, by NVML index (CUDA may count them in another order: compare bus ids)."""
    count = nvml.device_count()
    if count.value is None:
        return Answer(None, count.reason)
    if count.value == 0:
        return Answer.missing("the NVIDIA driver works, but it shows no GPU")
    return Answer(tuple(_device(nvml, proc, index) for index in range(count.value)))


def _device(nvml: GpuReader, proc: Proc, index: int) -> Device:
    missing: dict[str, str] = {}
    name = nvml.name(index).note(missing, "name") or UNKNOWN
    bus_id = nvml.pci_bus_id(index)
    memory = nvml.memory(index)
    return Device(
        index=index,
        uuid=nvml.uuid(index).note(missing, "uuid") or UNKNOWN,
        name=name,
        pci_bus_id=bus_id.note(missing, "pci_bus_id"),
        numa_node=_numa_node(nvml, proc, index, bus_id).note(missing, "numa_node"),
        memory_total_bytes=memory.then(lambda found: found.total, "").note(missing, "memory_total_bytes"),
        memory_free_bytes=memory.then(lambda found: found.free, "").note(missing, "memory_free_bytes"),
        compute_capability=nvml.compute_capability(index)
        .then(lambda pair: f"{pair[0]}.{pair[1]}", "")
        .note(missing, "compute_capability"),
        link=_link(nvml, index, name, _max_payload(proc, bus_id), missing),
        missing=missing,
    )


def _numa_node(nvml: GpuReader, proc: Proc, index: int, bus_id: Answer[str]) -> Answer[int]:
    """The node the GPU's slot hangs on: from sysfs, from NVML, or the only node there is."""
    folder = sysfs_folder(bus_id.value or "")
    if folder is not None:
        node = proc.number(f"{folder}/numa_node")  # -1, no number here: firmware does not say
        if node.value is not None:
            return node
    nodes = proc.line(_NODES).then(ranges, "not a list").value
    if nodes is not None and count_in_both(nodes, nodes) == 1:
        return Answer(nodes[0][0])
    return nvml.numa_node(index)


def _max_payload(proc: Proc, bus_id: Answer[str]) -> Answer[int]:
    folder = bus_id.then(sysfs_folder, f"{bus_id.value} is no PCI address")
    return max_payload(proc, folder.value) if folder.value is not None else Answer(None, folder.reason)


def _link(nvml: GpuReader, index: int, name: str, payload: Answer[int], missing: dict[str, str]) -> Link | None:
    """The host link: NVLink-C2C where the GPU has one, else PCIe; ``None`` if nothing at all is known of it."""
    c2c = nvml.c2c(index)
    if c2c.value is not None:
        return _c2c_link(c2c.value, name, missing)
    link = _pcie_link(nvml, index, payload, missing)
    if all(value is None for key, value in link.model_dump().items() if key != "kind"):
        missing["link"] = missing["link.generation_now"]
        return None
    return link


def _c2c_link(c2c: C2c, name: str, missing: dict[str, str]) -> Link:
    """The driver's figure, else the published one. No packet overhead is published: raw and payload are the same."""
    rate = c2c.bytes_per_second or c2c_bytes_per_second(name)
    for field in ("generation_now", "width_now", "generation_max", "width_max", "max_payload_bytes"):
        missing[f"link.{field}"] = "the GPU is attached by NVLink-C2C, not by PCIe"
    if rate is None:
        reason = f"neither the driver nor a data sheet known to PinScope gives the NVLink-C2C bandwidth of {name}"
        missing["link.limit_bytes_per_second"] = missing["link.raw_bytes_per_second"] = reason
    return Link(
        kind="nvlink-c2c", generation_now=None, width_now=None, generation_max=None, width_max=None,
        limit_bytes_per_second=rate, raw_bytes_per_second=rate,
    )  # fmt: skip


def _pcie_link(nvml: GpuReader, index: int, most: Answer[int], missing: dict[str, str]) -> Link:
    together = nvml.pcie(index, "generation_max")
    alone = nvml.pcie(index, "gpu_generation_max")
    known = [answer.value for answer in (together, alone) if answer.value is not None]
    generation = Answer(min(known)) if known else together
    width = nvml.pcie(index, "width_max")
    raw, payload = _pcie_limits(generation, width, most.value)
    return Link(
        kind="pcie",
        generation_now=nvml.pcie(index, "generation_now").note(missing, "link.generation_now"),
        width_now=nvml.pcie(index, "width_now").note(missing, "link.width_now"),
        generation_max=generation.note(missing, "link.generation_max"),
        width_max=width.note(missing, "link.width_max"),
        limit_bytes_per_second=payload.note(missing, "link.limit_bytes_per_second"),
        raw_bytes_per_second=raw.note(missing, "link.raw_bytes_per_second"),
        max_payload_bytes=most.note(missing, "link.max_payload_bytes"),
    )


def _pcie_limits(
    generation: Answer[int], width: Answer[int], packet_bytes: int | None
) -> tuple[Answer[float], Answer[float]]:
    """(raw, payload) of the link at best."""
    if generation.value is None or width.value is None:
        unknown: Answer[float] = Answer.missing(generation.reason or width.reason or "")
        return unknown, unknown
    rates = PCIE.get(generation.value)
    if rates is None or width.value not in PCIE_WIDTHS:
        unknown = Answer.missing(f"PinScope knows no PCIe {generation.value} link of {width.value} lanes")
        return unknown, unknown
    raw, payload = rates.raw_bytes_per_second(width.value), rates.payload_bytes_per_second(width.value, packet_bytes)
    return Answer(raw), Answer(payload)
