"""GPUs as records: what they are, the limits of their links, and their memory, processes and load at this moment."""

from __future__ import annotations

from pinscope.probes.answer import Answer, all_of
from pinscope.probes.gpu import C2c, GpuMemory, MigPart, Nvml, PcieError, PcieFlow, ProcessOnGpu
from pinscope.probes.numa import iommu, link_errors, max_payload, sysfs_folder
from pinscope.probes.proc import HERE, Proc, count_in_both, ranges
from pinscope.records.environment import PCIE, PCIE_WIDTHS, Device, Link, LinkErrors, c2c_bytes_per_second
from pinscope.records.snapshot import DeviceFigures, GpuProcess, MigInstance

UNKNOWN = "unknown"
"""Name or UUID of a GPU that does not tell it; the reason stands in ``Device.missing``."""

_NODES = "/sys/devices/system/node/online"


def read_devices(nvml: Nvml, proc: Proc) -> Answer[tuple[Device, ...]]:
    """All GPUs that the driver shows, by NVML index (CUDA may count them in another order: compare bus ids)."""
    return nvml.device_count().then(
        lambda count: tuple(_device(nvml, proc, index) for index in range(count)) or None,
        "the NVIDIA driver works, but it shows no GPU",
    )


def _device(nvml: Nvml, proc: Proc, index: int) -> Device:
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
        memory_total_bytes=memory.then(lambda found: found.total).note(missing, "memory_total_bytes"),
        memory_free_bytes=memory.then(lambda found: found.free).note(missing, "memory_free_bytes"),
        compute_capability=nvml.compute_capability(index)
        .then(lambda pair: f"{pair[0]}.{pair[1]}")
        .note(missing, "compute_capability"),
        link=_link(nvml, index, name, _max_payload(proc, bus_id), missing),
        missing=missing,
    )


def _numa_node(nvml: Nvml, proc: Proc, index: int, bus_id: Answer[str]) -> Answer[int]:
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
    return bus_id.then(sysfs_folder, f"{bus_id.value} is no PCI address").ask(lambda folder: max_payload(proc, folder))


def _link(nvml: Nvml, index: int, name: str, payload: Answer[int], missing: dict[str, str]) -> Link | None:
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
        kind="nvlink-c2c",
        generation_now=None,
        width_now=None,
        generation_max=None,
        width_max=None,
        limit_bytes_per_second=rate,
        raw_bytes_per_second=rate,
    )


def _pcie_link(nvml: Nvml, index: int, most: Answer[int], missing: dict[str, str]) -> Link:
    together = nvml.pcie(index, "generation_max")
    alone = nvml.pcie(index, "gpu_generation_max")
    known = [answer.value for answer in (together, alone) if answer.value is not None]
    generation = Answer(min(known)) if known else together
    width = nvml.pcie(index, "width_max")
    rates = all_of(generation, width).ask(lambda link: _pcie_rates(link, most.value))
    return Link(
        kind="pcie",
        generation_now=nvml.pcie(index, "generation_now").note(missing, "link.generation_now"),
        width_now=nvml.pcie(index, "width_now").note(missing, "link.width_now"),
        generation_max=generation.note(missing, "link.generation_max"),
        width_max=width.note(missing, "link.width_max"),
        limit_bytes_per_second=rates.then(lambda pair: pair[1]).note(missing, "link.limit_bytes_per_second"),
        raw_bytes_per_second=rates.then(lambda pair: pair[0]).note(missing, "link.raw_bytes_per_second"),
        max_payload_bytes=most.note(missing, "link.max_payload_bytes"),
    )


def _pcie_rates(link: tuple[int, ...], packet_bytes: int | None) -> Answer[tuple[float, float]]:
    """(raw, payload) at best of a link of this generation and width."""
    generation, width = link
    rates = PCIE.get(generation)
    if rates is None or width not in PCIE_WIDTHS:
        return Answer.missing(f"PinScope knows no PCIe {generation} link of {width} lanes")
    return Answer((rates.raw_bytes_per_second(width), rates.payload_bytes_per_second(width, packet_bytes)))


def with_details(nvml: Nvml, proc: Proc, device: Device) -> Device:
    """The same GPU with its IOMMU, its BAR1, its persistence mode and the errors that its link has had."""
    missing = {**device.missing, "link_errors_after": "nothing was run"}
    bar1 = nvml.bar1(device.index).then(lambda window: window.total)
    whole = bar1.then(
        lambda window: window >= device.memory_total_bytes if device.memory_total_bytes else None,
        missing.get("memory_total_bytes", "its memory is not known"),
    )
    return device.model_copy(
        update={
            "iommu": _folder(device).ask(lambda folder: iommu(proc, folder)).note(missing, "iommu"),
            "bar1_bytes": bar1.note(missing, "bar1_bytes"),
            "bar1_covers_memory": whole.note(missing, "bar1_covers_memory"),
            "persistence_mode": nvml.persistence_mode(device.index).note(missing, "persistence_mode"),
            "link_errors": read_link_errors(nvml, proc, device),
            "missing": missing,
        }
    )


def read_link_errors(nvml: Nvml, proc: Proc, device: Device) -> LinkErrors:
    """The errors that were counted on the GPU's link until now."""
    missing: dict[str, str] = {}
    folder = _folder(device)

    def counted(kind: PcieError) -> int | None:
        by_kernel = folder.ask(lambda place: link_errors(proc, place, kind)).value
        return by_kernel if by_kernel is not None else nvml.pcie_errors(device.index, kind).note(missing, kind)

    return LinkErrors(
        replays=nvml.pcie_errors(device.index, "replays").note(missing, "replays"),
        correctable=counted("correctable"),
        nonfatal=counted("nonfatal"),
        fatal=counted("fatal"),
        missing=missing,
    )


def _folder(device: Device) -> Answer[str]:
    if device.pci_bus_id is None:
        return Answer.missing(device.missing.get("pci_bus_id", "its PCI address is not known"))
    folder = sysfs_folder(device.pci_bus_id)
    return Answer(folder) if folder else Answer.missing(f"{device.pci_bus_id} is no PCI address")


NOT_SAMPLED = "not asked for: the driver takes 20 ms to sample it"
NOT_JOINED = "the processes have not been looked at"
_NO_ACCOUNT = "the driver keeps no account of this process's memory"


def read_gpus(gpus: Nvml, proc: Proc = HERE, rates: bool = False) -> Answer[tuple[DeviceFigures, ...]]:
    """All GPUs that the driver shows. Page tables are added where the holders are known.

    Args:
        gpus: an open reader.
        proc: where /sys is read.
        rates: also sample what goes over PCIe, which takes 20 ms for each GPU and direction.
    """
    return read_devices(gpus, proc).then(
        lambda devices: tuple(_figures(gpus, device, rates) for device in devices), "the driver shows no GPU"
    )


def _figures(gpus: Nvml, device: Device, rates: bool) -> DeviceFigures:
    index = device.index
    missing = {key: reason for key, reason in device.missing.items() if key in ("name", "uuid") or "link" in key}
    missing |= dict.fromkeys(("page_table_bytes", "context_overhead_bytes"), NOT_JOINED)
    memory = gpus.memory(index)
    reserved = memory.then(lambda found: found.reserved, "drivers before 510 count it as used memory")
    processes = gpus.processes(index)
    attributed = processes.then(_sum, _NO_ACCOUNT)
    bar1 = gpus.bar1(index)
    load = gpus.utilization(index)
    rx, tx = (_rate(gpus, device, flow, rates) for flow in ("rx", "tx"))
    limit = _limit(device)
    return DeviceFigures(
        index=index,
        minor=gpus.minor(index).note(missing, "minor"),
        uuid=device.uuid,
        name=device.name,
        memory_total_bytes=memory.then(lambda found: found.total).note(missing, "memory_total_bytes"),
        memory_free_bytes=memory.then(lambda found: found.free).note(missing, "memory_free_bytes"),
        memory_used_bytes=memory.then(lambda found: found.used).note(missing, "memory_used_bytes"),
        memory_reserved_bytes=reserved.note(missing, "memory_reserved_bytes"),
        processes=tuple(_process(process) for process in processes.note(missing, "processes") or ()),
        processes_bytes=attributed.note(missing, "processes_bytes"),
        unattributed_bytes=_unattributed(memory, reserved, attributed).note(missing, "unattributed_bytes"),
        page_table_bytes=None,
        context_overhead_bytes=None,
        bar1_total_bytes=bar1.then(lambda found: found.total).note(missing, "bar1_total_bytes"),
        bar1_used_bytes=bar1.then(lambda found: found.used).note(missing, "bar1_used_bytes"),
        link=device.link,
        rx_bytes_per_second=rx.note(missing, "rx_bytes_per_second"),
        tx_bytes_per_second=tx.note(missing, "tx_bytes_per_second"),
        rx_share=_share(rx, limit).note(missing, "rx_share"),
        tx_share=_share(tx, limit).note(missing, "tx_share"),
        busy_share=load.then(lambda found: found.busy).note(missing, "busy_share"),
        memory_busy_share=load.then(lambda found: found.memory_busy).note(missing, "memory_busy_share"),
        copy_engines=gpus.copy_engines(index).note(missing, "copy_engines"),
        sm_clock_hertz=gpus.clock(index, "sm").note(missing, "sm_clock_hertz"),
        memory_clock_hertz=gpus.clock(index, "memory").note(missing, "memory_clock_hertz"),
        temperature_celsius=gpus.temperature(index).note(missing, "temperature_celsius"),
        mig=tuple(_mig(part) for part in gpus.mig(index).note(missing, "mig") or ()),
        missing=missing,
    )


def _sum(processes: tuple[ProcessOnGpu, ...]) -> int | None:
    amounts = [process.memory for process in processes if process.memory is not None]
    return sum(amounts) if len(amounts) == len(processes) else None


def _unattributed(memory: Answer[GpuMemory], reserved: Answer[int], attributed: Answer[int]) -> Answer[int]:
    """Used memory of no process. Without knowing what is reserved, used memory contains it and tells nothing."""
    amounts = all_of(memory.then(lambda found: found.used), reserved, attributed)
    return amounts.then(
        lambda used: used[0] - used[2] if used[2] <= used[0] else None,
        "the driver attributes more memory to processes than it says is used",
    )


def _rate(gpus: Nvml, device: Device, flow: PcieFlow, wanted: bool) -> Answer[float]:
    if not wanted:
        return Answer.missing(NOT_SAMPLED)
    return gpus.pcie_rate(device.index, flow)


def _limit(device: Device) -> Answer[float]:
    """What the link carries at best; NVML's counters are those of PCIe."""
    if device.link is not None and device.link.kind != "pcie":
        return Answer.missing("the GPU is attached by NVLink-C2C, and the driver counts what goes over PCIe")
    limit = device.link.limit_bytes_per_second if device.link is not None else None
    reason = device.missing.get("link.limit_bytes_per_second") or device.missing.get("link")
    return Answer(limit) if limit else Answer.missing(reason or "the limit of the link is not known")


def _share(rate: Answer[float], limit: Answer[float]) -> Answer[float]:
    return all_of(rate, limit).then(lambda pair: pair[0] / pair[1])


def _process(process: ProcessOnGpu) -> GpuProcess:
    missing = {} if process.memory is not None else {"memory_bytes": _NO_ACCOUNT}
    return GpuProcess(pid=process.pid, memory_bytes=process.memory, gpu_instance=process.gpu_instance, missing=missing)


def _mig(part: MigPart) -> MigInstance:
    missing: dict[str, str] = {}
    return MigInstance(
        uuid=part.uuid.note(missing, "uuid") or UNKNOWN,
        gpu_instance=part.gpu_instance.note(missing, "gpu_instance"),
        memory_total_bytes=part.memory.then(lambda found: found.total).note(missing, "memory_total_bytes"),
        memory_used_bytes=part.memory.then(lambda found: found.used).note(missing, "memory_used_bytes"),
        copy_engines=part.copy_engines.note(missing, "copy_engines"),
        missing=missing,
    )
