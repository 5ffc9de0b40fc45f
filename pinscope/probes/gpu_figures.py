"""GPUs at this moment as records: memory, processes, BAR1, link, load."""

from __future__ import annotations

from pinscope.probes.answer import Answer, all_of
from pinscope.probes.devices import UNKNOWN, read_devices
from pinscope.probes.gpu import GpuMemory, MigPart, Nvml, PcieFlow, ProcessOnGpu
from pinscope.probes.proc import HERE, Proc
from pinscope.records.environment import Device
from pinscope.records.snapshot import DeviceFigures, GpuProcess, MigInstance

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
        processes=tuple(_process(one) for one in processes.note(missing, "processes") or ()),
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
    amounts = [one.memory for one in processes if one.memory is not None]
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


def _process(one: ProcessOnGpu) -> GpuProcess:
    missing = {} if one.memory is not None else {"memory_bytes": _NO_ACCOUNT}
    return GpuProcess(pid=one.pid, memory_bytes=one.memory, gpu_instance=one.gpu_instance, missing=missing)


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
