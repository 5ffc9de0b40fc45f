"""What NVML tells about GPUs: typed answers, then records made of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, Self

from pinscope.probes.host_memory import iommu, link_errors, max_payload, sysfs_folder
from pinscope.probes.proc import HERE, Answer, Proc, all_of, ranges
from pinscope.records.environment import PCIE, PCIE_WIDTHS, Device, Link, LinkErrors, c2c_bytes_per_second
from pinscope.records.snapshot import DeviceFigures, GpuProcess, MigInstance

PcieNumber = Literal["generation_now", "width_now", "generation_max", "gpu_generation_max", "width_max"]
"""Of a PCIe link. ``generation_max`` and ``width_max``: what device and slot can do together."""
PcieFlow = Literal["rx", "tx"]
Clock = Literal["sm", "memory"]
PcieError = Literal["replays", "correctable", "nonfatal", "fatal"]  # packets sent again; errors by how bad they are


@dataclass(frozen=True)
class GpuMemory:
    """Memory of one GPU in bytes."""

    total: int
    free: int
    used: int
    reserved: int
    """Kept by driver and firmware, not part of ``used``."""


UNKNOWN = "unknown"
"""Name or UUID of a GPU that does not tell it; the reason stands in ``Device.missing``."""
_NO_C2C = "the GPU has no NVLink-C2C"
_PCIE_FUNCTIONS: dict[PcieNumber, str] = {
    "generation_now": "nvmlDeviceGetCurrPcieLinkGeneration",
    "width_now": "nvmlDeviceGetCurrPcieLinkWidth",
    "generation_max": "nvmlDeviceGetMaxPcieLinkGeneration",
    "gpu_generation_max": "nvmlDeviceGetGpuMaxPcieLinkGeneration",
    "width_max": "nvmlDeviceGetMaxPcieLinkWidth",
}
_PCIE_ERROR_FIELDS: dict[PcieError, str] = {
    "correctable": "NVML_FI_DEV_PCIE_COUNT_CORRECTABLE_ERRORS",
    "nonfatal": "NVML_FI_DEV_PCIE_COUNT_NON_FATAL_ERROR",
    "fatal": "NVML_FI_DEV_PCIE_COUNT_FATAL_ERROR",
}
_INIT_REASONS = {
    "NVML_ERROR_LIBRARY_NOT_FOUND": "no NVIDIA driver is installed here (libnvidia-ml.so.1 was not found)",
    "NVML_ERROR_DRIVER_NOT_LOADED": "the NVIDIA driver is installed, but its kernel module is not loaded",
    "NVML_ERROR_LIB_RM_VERSION_MISMATCH": (
        "the NVIDIA driver's library and kernel module have different versions; restart the machine"
    ),
    "NVML_ERROR_NO_PERMISSION": "this user may not use the NVIDIA driver",
}
_NO_ACCOUNT = "the driver keeps no account of this process's memory"
_NO_INSTANCE = 0xFFFFFFFF
"""NVML's instance id of a process on a GPU that is not in Multi-Instance mode."""
_NODE_MASK_WORDS = 16
"""64-bit words of a NUMA node mask: 1024 nodes, the kernel's maximum."""


class Nvml:
    """Asks the driver about the GPUs of this host, by NVML index. A context manager.

    Nothing here raises: without a driver every answer is missing, with the reason.
    """

    def __init__(self) -> None:
        self._library: Any = None
        self._closed_reason: str | None = "NVML has not been opened"
        self._handles: dict[int, Answer[Any]] = {}

    def __enter__(self) -> Self:
        import pynvml  # noqa: PLC0415 - most processes of PinScope do not ask the driver

        self._library = pynvml
        try:
            pynvml.nvmlInit()
        except pynvml.NVMLError as error:
            self._closed_reason = _init_reason(error, pynvml)
        else:
            self._closed_reason = None
        return self

    def __exit__(self, *error: object) -> None:
        if self._closed_reason is None:
            self._ask("nvmlShutdown")
        self._closed_reason = "NVML has been closed"
        self._handles.clear()

    def driver_version(self) -> Answer[str]:
        return _text(self._ask("nvmlSystemGetDriverVersion"))

    def cuda_version(self) -> Answer[tuple[int, int]]:
        """(major, minor) of the newest CUDA that the driver supports."""
        # 13000 is 13.0, 12040 is 12.4.
        version = self._ask("nvmlSystemGetCudaDriverVersion_v2")
        return version.then(lambda number: (number // 1000, number % 1000 // 10))

    def confidential_computing(self) -> Answer[bool]:
        """Whether the GPUs' confidential-computing feature is on."""
        state = self._ask("nvmlSystemGetConfComputeState")
        if state.value is None and "Not Supported" in (state.reason or ""):
            return Answer(False)  # these GPUs have no such feature
        return state.then(lambda info: bool(info.ccFeature))

    def device_count(self) -> Answer[int]:
        return self._ask("nvmlDeviceGetCount")

    def name(self, index: int) -> Answer[str]:
        return _text(self._of(index, "nvmlDeviceGetName"))

    def uuid(self, index: int) -> Answer[str]:
        return _text(self._of(index, "nvmlDeviceGetUUID"))

    def pci_bus_id(self, index: int) -> Answer[str]:
        return _text(self._of(index, "nvmlDeviceGetPciInfo").then(lambda info: info.busId, "NVML gives no bus id"))

    def minor(self, index: int) -> Answer[int]:
        """Number of its device file, /dev/nvidiaN."""
        return self._of(index, "nvmlDeviceGetMinorNumber")

    def memory(self, index: int) -> Answer[GpuMemory]:
        info = self._chosen(index, "nvmlDeviceGetMemoryInfo", "nvmlMemory_v2")
        return info.then(lambda info: GpuMemory(info.total, info.free, info.used, info.reserved))

    def compute_capability(self, index: int) -> Answer[tuple[int, int]]:
        return self._of(index, "nvmlDeviceGetCudaComputeCapability").then(lambda pair: (pair[0], pair[1]))

    def numa_node(self, index: int) -> Answer[int]:
        """The host's NUMA node nearest to the GPU."""
        # Not nvmlDeviceGetNumaNodeId: that is the node that the GPU's own memory forms, on coherent systems.
        scope = getattr(self._library, "NVML_AFFINITY_SCOPE_NODE", 0)
        mask = self._of(index, "nvmlDeviceGetMemoryAffinity", _NODE_MASK_WORDS, scope)
        return mask.then(_only_bit, "NVML names no single NUMA node")

    def pcie(self, index: int, number: PcieNumber) -> Answer[int]:
        # NVML gives 0 for a link it knows nothing about.
        return self._of(index, _PCIE_FUNCTIONS[number]).then(lambda value: value or None, "NVML gives 0")

    def c2c(self, index: int) -> Answer[float]:
        """Bytes/second, one direction, of the NVLink-C2C to the host processor, of all its active links together.

        0 if the driver does not tell; missing where the GPU is attached by PCIe.
        """
        links = range(min(self._field(index, "NVML_FI_DEV_C2C_LINK_COUNT", 0).value or 0, 64))
        active = [link for link in links if self._field(index, "NVML_FI_DEV_C2C_LINK_GET_STATUS", link).value == 1]
        rates = [self._field(index, "NVML_FI_DEV_C2C_LINK_GET_MAX_BW", link).value or 0 for link in active]
        if any(rates):
            return Answer(sum(rates) * 1e6)
        return self._of(index, "nvmlDeviceGetC2cModeInfoV").then(
            lambda info: 0.0 if info.isC2cEnabled else None, _NO_C2C
        )

    def processes(self, index: int) -> Answer[tuple[GpuProcess, ...]]:
        """Processes with a compute or graphics context, one entry for each process and MIG instance."""
        compute = self._of(index, "nvmlDeviceGetComputeRunningProcesses")
        if compute.value is None:
            return Answer(None, compute.reason)
        # A GPU without display has no graphics processes to tell of: no reason to know nothing.
        graphics = self._of(index, "nvmlDeviceGetGraphicsRunningProcesses").value or []
        by_process = {}
        for info in (*graphics, *compute.value):  # of a process in both lists, the compute entry counts
            instance = getattr(info, "gpuInstanceId", None)
            instance = None if instance in (None, _NO_INSTANCE) else instance
            by_process[info.pid, instance] = process_on_gpu(info.pid, info.usedGpuMemory, instance)
        return Answer(tuple(by_process.values()))

    def bar1(self, index: int) -> Answer[tuple[int, int]]:
        """(all, used) bytes of the window through which the host and other devices reach the GPU's memory."""
        return self._of(index, "nvmlDeviceGetBAR1MemoryInfo").then(
            lambda info: (info.bar1Total, info.bar1Used) if info.bar1Total else None, "the GPU has no BAR1"
        )

    def pcie_rate(self, index: int, flow: PcieFlow) -> Answer[float]:
        """Bytes/second over the last 20 ms, for which the call waits. ``rx``: received by the GPU."""
        # NVML's counters are the GPU's: it receives what is copied to it. "KB/s" in its documentation: 1000 bytes.
        rate = self._chosen(index, "nvmlDeviceGetPcieThroughput", f"NVML_PCIE_UTIL_{flow.upper()}_BYTES")
        return rate.then(lambda kilobytes: kilobytes * 1e3)

    def utilization(self, index: int) -> Answer[tuple[float, float]]:
        """Shares of the last sample period in which kernels ran, and in which device memory was read or written."""
        rates = self._of(index, "nvmlDeviceGetUtilizationRates")
        return rates.then(lambda info: (info.gpu / 100, info.memory / 100))

    def clock(self, index: int, clock: Clock) -> Answer[float]:
        """Hertz, now."""
        now = self._chosen(index, "nvmlDeviceGetClockInfo", "NVML_CLOCK_SM" if clock == "sm" else "NVML_CLOCK_MEM")
        return now.then(lambda megahertz: megahertz * 1e6)

    def temperature(self, index: int) -> Answer[float]:
        """Degrees Celsius."""
        return self._chosen(index, "nvmlDeviceGetTemperature", "NVML_TEMPERATURE_GPU").then(float)

    def copy_engines(self, index: int) -> Answer[int]:
        attributes = self._of(index, "nvmlDeviceGetAttributes_v2")
        return attributes.then(lambda info: info.sharedCopyEngineCount or None, "NVML tells of no copy engine")

    def persistence_mode(self, index: int) -> Answer[bool]:
        """Whether the driver keeps the GPU ready while nobody uses it."""
        return self._of(index, "nvmlDeviceGetPersistenceMode").then(bool)

    def pcie_errors(self, index: int, kind: PcieError) -> Answer[int]:
        """Errors that the GPU counted on its link since the driver was loaded."""
        if kind == "replays":
            return self._of(index, "nvmlDeviceGetPcieReplayCounter")
        return self._field(index, _PCIE_ERROR_FIELDS[kind], 0)

    def mig(self, index: int) -> Answer[tuple[MigInstance, ...]]:
        """The instances; none where the GPU is whole, or cannot be parted."""
        mode = self._of(index, "nvmlDeviceGetMigMode")
        if mode.value is None:
            # NVML refuses the question where a GPU has no such mode: then it is whole.
            unsupported = mode.reason is not None and "Not Supported" in mode.reason
            return Answer(()) if unsupported else Answer(None, mode.reason)
        if mode.value[0] != getattr(self._library, "NVML_DEVICE_MIG_ENABLE", 1):
            return Answer(())
        most = self._of(index, "nvmlDeviceGetMaxMigDeviceCount")
        parts = (self._of(index, "nvmlDeviceGetMigDeviceHandleByIndex", number) for number in range(most.value or 0))
        return most.then(lambda _: tuple(self._mig_part(part.value) for part in parts if part.value is not None))

    def _mig_part(self, handle: Any) -> MigInstance:
        missing: dict[str, str] = {}
        attributes = self._ask("nvmlDeviceGetAttributes_v2", handle)
        memory = self._ask("nvmlDeviceGetMemoryInfo", handle)
        return MigInstance(
            uuid=_text(self._ask("nvmlDeviceGetUUID", handle)).note(missing, "uuid") or UNKNOWN,
            gpu_instance=self._ask("nvmlDeviceGetGpuInstanceId", handle).note(missing, "gpu_instance"),
            memory_total_bytes=memory.then(lambda amounts: amounts.total).note(missing, "memory_total_bytes"),
            memory_used_bytes=memory.then(lambda amounts: amounts.used).note(missing, "memory_used_bytes"),
            copy_engines=attributes.then(lambda info: info.sharedCopyEngineCount).note(missing, "copy_engines"),
            missing=missing,
        )

    def _constant(self, name: str) -> Answer[int]:
        value = getattr(self._library, name, None)
        return Answer.missing(f"the installed nvidia-ml-py has no {name}") if value is None else Answer(value)

    def _field(self, index: int, name: str, scope: int) -> Answer[int]:
        """One of NVML's numbered field values."""
        values = self._constant(name).ask(lambda field: self._of(index, "nvmlDeviceGetFieldValues", [(field, scope)]))
        return values.then(lambda of: of[0].value.uiVal if of[0].nvmlReturn == 0 else None, f"no {name}")

    def _chosen(self, index: int, function: str, constant: str) -> Answer[Any]:
        """Ask about one GPU what one of NVML's constants stands for."""
        return self._constant(constant).ask(lambda value: self._of(index, function, value))

    def _of(self, index: int, function: str, *arguments: Any) -> Answer[Any]:
        """Ask about one GPU."""
        if index not in self._handles:
            self._handles[index] = self._ask("nvmlDeviceGetHandleByIndex", index)
        return self._handles[index].ask(lambda handle: self._ask(function, handle, *arguments))

    def _ask(self, function: str, *arguments: Any) -> Answer[Any]:
        """Call an NVML function; a missing function, a refusal or nothing is a reason."""
        if self._closed_reason is not None:
            return Answer.missing(self._closed_reason)
        call: Callable[..., Any] | None = getattr(self._library, function, None)
        if call is None:
            return Answer.missing(f"the installed nvidia-ml-py has no {function}")
        try:
            value = call(*arguments)
        except self._library.NVMLError as error:
            return Answer.missing(f"{function}: {error}")
        return Answer.missing(f"{function} gave nothing") if value is None else Answer(value)


def _init_reason(error: Exception, library: Any) -> str:
    for name, reason in _INIT_REASONS.items():
        if getattr(error, "value", None) == getattr(library, name, object()):
            return reason
    return f"NVML could not be opened: {error}"


def process_on_gpu(pid: int, memory_bytes: int | None, instance: int | None = None) -> GpuProcess:
    """A process with a context; ``None`` bytes where the driver keeps no account, as under Windows' driver model."""
    missing = {} if memory_bytes is not None else {"memory_bytes": _NO_ACCOUNT}
    return GpuProcess(pid=pid, memory_bytes=memory_bytes, gpu_instance=instance, missing=missing)


def _text(answer: Answer[Any]) -> Answer[str]:
    """Older nvidia-ml-py gives bytes."""
    return answer.then(
        lambda value: (value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)) or None,
        "NVML gives an empty text",
    )


def _only_bit(words: Any) -> int | None:
    """The number of the one bit that is set in a mask of 64-bit words, lowest first."""
    mask = sum(int(word) << (64 * position) for position, word in enumerate(words))
    return mask.bit_length() - 1 if mask.bit_count() == 1 else None


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
    folder = bus_id.then(sysfs_folder, f"{bus_id.value} is no PCI address")
    memory = nvml.memory(index)
    capability = nvml.compute_capability(index).then(lambda pair: f"{pair[0]}.{pair[1]}")
    return Device(
        index=index,
        uuid=nvml.uuid(index).note(missing, "uuid") or UNKNOWN,
        name=name,
        pci_bus_id=bus_id.note(missing, "pci_bus_id"),
        numa_node=_numa_node(nvml, proc, index, bus_id).note(missing, "numa_node"),
        memory_total_bytes=memory.then(lambda amounts: amounts.total).note(missing, "memory_total_bytes"),
        memory_free_bytes=memory.then(lambda amounts: amounts.free).note(missing, "memory_free_bytes"),
        compute_capability=capability.note(missing, "compute_capability"),
        link=_link(nvml, index, name, folder.ask(lambda path: max_payload(proc, path)), missing),
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
    if nodes is not None and nodes[0][0] == nodes[-1][1]:
        return Answer(nodes[0][0])
    return nvml.numa_node(index)


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


def _c2c_link(driver_rate: float, name: str, missing: dict[str, str]) -> Link:
    """The driver's figure, else the published one. No packet overhead is published: raw and payload are the same."""
    rate = driver_rate or c2c_bytes_per_second(name)
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
    """The GPU with its IOMMU, its BAR1, its persistence mode and the errors that its link has had."""
    missing = {**device.missing, "link_errors_after": "nothing was run"}
    bar1 = nvml.bar1(device.index).then(lambda window: window[0])
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


def read_gpus(gpus: Nvml, proc: Proc = HERE) -> Answer[tuple[DeviceFigures, ...]]:
    """All GPUs that the driver shows; 40 ms for each. Page tables are added where the holders are known."""
    return read_devices(gpus, proc).then(
        lambda devices: tuple(_figures(gpus, device) for device in devices), "the driver shows no GPU"
    )


def _figures(gpus: Nvml, device: Device) -> DeviceFigures:
    index = device.index
    missing = {key: reason for key, reason in device.missing.items() if key in ("name", "uuid") or "link" in key}
    memory = gpus.memory(index)
    reserved = memory.then(lambda amounts: amounts.reserved)
    processes = gpus.processes(index)
    attributed = processes.then(_sum, _NO_ACCOUNT)
    bar1 = gpus.bar1(index)
    load = gpus.utilization(index)
    rx, tx = gpus.pcie_rate(index, "rx"), gpus.pcie_rate(index, "tx")
    limit = _limit(device)
    return DeviceFigures(
        index=index,
        minor=gpus.minor(index).note(missing, "minor"),
        uuid=device.uuid,
        name=device.name,
        memory_total_bytes=memory.then(lambda amounts: amounts.total).note(missing, "memory_total_bytes"),
        memory_free_bytes=memory.then(lambda amounts: amounts.free).note(missing, "memory_free_bytes"),
        memory_used_bytes=memory.then(lambda amounts: amounts.used).note(missing, "memory_used_bytes"),
        memory_reserved_bytes=reserved.note(missing, "memory_reserved_bytes"),
        processes=processes.note(missing, "processes") or (),
        processes_bytes=attributed.note(missing, "processes_bytes"),
        unattributed_bytes=_unattributed(memory, reserved, attributed).note(missing, "unattributed_bytes"),
        page_table_bytes=None,
        context_overhead_bytes=None,
        bar1_total_bytes=bar1.then(lambda window: window[0]).note(missing, "bar1_total_bytes"),
        bar1_used_bytes=bar1.then(lambda window: window[1]).note(missing, "bar1_used_bytes"),
        link=device.link,
        rx_bytes_per_second=rx.note(missing, "rx_bytes_per_second"),
        tx_bytes_per_second=tx.note(missing, "tx_bytes_per_second"),
        rx_share=_share(rx, limit).note(missing, "rx_share"),
        tx_share=_share(tx, limit).note(missing, "tx_share"),
        busy_share=load.then(lambda shares: shares[0]).note(missing, "busy_share"),
        memory_busy_share=load.then(lambda shares: shares[1]).note(missing, "memory_busy_share"),
        copy_engines=gpus.copy_engines(index).note(missing, "copy_engines"),
        sm_clock_hertz=gpus.clock(index, "sm").note(missing, "sm_clock_hertz"),
        memory_clock_hertz=gpus.clock(index, "memory").note(missing, "memory_clock_hertz"),
        temperature_celsius=gpus.temperature(index).note(missing, "temperature_celsius"),
        mig=gpus.mig(index).note(missing, "mig") or (),
        missing=missing,
    )


def _sum(processes: tuple[GpuProcess, ...]) -> int | None:
    amounts = [process.memory_bytes for process in processes if process.memory_bytes is not None]
    return sum(amounts) if len(amounts) == len(processes) else None


def _unattributed(memory: Answer[GpuMemory], reserved: Answer[int], attributed: Answer[int]) -> Answer[int]:
    """Used memory of no process. Without knowing what is reserved, used memory contains it and tells nothing."""
    amounts = all_of(memory.then(lambda amounts: amounts.used), reserved, attributed)
    return amounts.then(
        lambda used: used[0] - used[2] if used[2] <= used[0] else None,
        "the driver attributes more memory to processes than it says is used",
    )


def _limit(device: Device) -> Answer[float]:
    """What the link carries at best; NVML's counters are those of PCIe."""
    if device.link is not None and device.link.kind != "pcie":
        return Answer.missing("the GPU is attached by NVLink-C2C, and the driver counts what goes over PCIe")
    limit = device.link.limit_bytes_per_second if device.link is not None else None
    reason = device.missing.get("link.limit_bytes_per_second") or device.missing.get("link")
    return Answer(limit) if limit else Answer.missing(reason or "the limit of the link is not known")


def _share(rate: Answer[float], limit: Answer[float]) -> Answer[float]:
    return all_of(rate, limit).then(lambda pair: pair[0] / pair[1])
