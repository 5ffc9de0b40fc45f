"""What NVML tells about GPUs, as typed answers.

:mod:`pinscope.probes.devices` turns answers into records.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, Self

from pinscope.probes.answer import Answer

PcieNumber = Literal["generation_now", "width_now", "generation_max", "gpu_generation_max", "width_max"]
"""What may be asked about a PCIe link. ``generation_max`` and ``width_max``: what device and slot can do together."""
PcieFlow = Literal["rx", "tx"]
Clock = Literal["sm", "memory"]
PcieError = Literal["replays", "correctable", "nonfatal", "fatal"]
"""Packets sent again, and errors by how bad they are."""


@dataclass(frozen=True)
class GpuMemory:
    """Memory of one GPU in bytes."""

    total: int
    free: int
    used: int
    reserved: int | None
    """Kept by driver and firmware, not part of ``used``; ``None`` with drivers before 510."""


@dataclass(frozen=True)
class C2c:
    """The NVLink-C2C to the host processor."""

    links: int | None
    """Active links; ``None`` if the driver does not tell."""
    bytes_per_second: float | None
    """All of them together, one direction; ``None`` if the driver does not tell."""


@dataclass(frozen=True)
class Bar1:
    """The window through which the host and other devices reach a GPU's memory, in bytes."""

    total: int
    used: int


@dataclass(frozen=True)
class ProcessOnGpu:
    """A process with a context on a GPU."""

    pid: int
    memory: int | None
    """Bytes of GPU memory; ``None`` where the driver keeps no account, as under Windows' own driver model."""
    gpu_instance: int | None = None
    """In Multi-Instance mode."""


@dataclass(frozen=True)
class Utilization:
    """Share of the last sample period in which kernels ran, and in which device memory was read or written."""

    busy: float
    memory_busy: float


@dataclass(frozen=True)
class MigPart:
    """One instance of a GPU in Multi-Instance mode."""

    uuid: Answer[str]
    gpu_instance: Answer[int]
    memory: Answer[GpuMemory]
    copy_engines: Answer[int]


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
        return state.then(lambda found: bool(found.ccFeature))

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
        second = self._chosen(index, "nvmlDeviceGetMemoryInfo", "nvmlMemory_v2")
        return (second if second.value is not None else self._of(index, "nvmlDeviceGetMemoryInfo")).then(_memory)

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

    def c2c(self, index: int) -> Answer[C2c]:
        """The NVLink-C2C link; missing where the GPU is attached by PCIe."""
        rates = self._c2c_rates(index)
        if rates:
            return Answer(C2c(len(rates), sum(rates)))
        mode = self._of(index, "nvmlDeviceGetC2cModeInfoV")
        return mode.then(lambda info: C2c(None, None) if info.isC2cEnabled else None, _NO_C2C)

    def processes(self, index: int) -> Answer[tuple[ProcessOnGpu, ...]]:
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
            by_process[info.pid, instance] = ProcessOnGpu(info.pid, info.usedGpuMemory, instance)
        return Answer(tuple(by_process.values()))

    def bar1(self, index: int) -> Answer[Bar1]:
        return self._of(index, "nvmlDeviceGetBAR1MemoryInfo").then(
            lambda info: Bar1(info.bar1Total, info.bar1Used) if info.bar1Total else None, "the GPU has no BAR1"
        )

    def pcie_rate(self, index: int, flow: PcieFlow) -> Answer[float]:
        """Bytes/second over the last 20 ms, for which the call waits. ``rx``: received by the GPU."""
        # NVML's counters are the GPU's: it receives what is copied to it. "KB/s" in its documentation: 1000 bytes.
        rate = self._chosen(index, "nvmlDeviceGetPcieThroughput", f"NVML_PCIE_UTIL_{flow.upper()}_BYTES")
        return rate.then(lambda kilobytes: kilobytes * 1e3)

    def utilization(self, index: int) -> Answer[Utilization]:
        rates = self._of(index, "nvmlDeviceGetUtilizationRates")
        return rates.then(lambda info: Utilization(info.gpu / 100, info.memory / 100))

    def clock(self, index: int, clock: Clock) -> Answer[float]:
        """Hertz, now."""
        now = self._chosen(index, "nvmlDeviceGetClockInfo", "NVML_CLOCK_SM" if clock == "sm" else "NVML_CLOCK_MEM")
        return now.then(lambda megahertz: megahertz * 1e6)

    def temperature(self, index: int) -> Answer[float]:
        """Degrees Celsius."""
        return self._chosen(index, "nvmlDeviceGetTemperature", "NVML_TEMPERATURE_GPU").then(float)

    def copy_engines(self, index: int) -> Answer[int]:
        attributes = self._of(index, "nvmlDeviceGetAttributes_v2")
        return attributes.then(lambda found: found.sharedCopyEngineCount or None, "NVML tells of no copy engine")

    def persistence_mode(self, index: int) -> Answer[bool]:
        """Whether the driver keeps the GPU ready while nobody uses it."""
        return self._of(index, "nvmlDeviceGetPersistenceMode").then(bool)

    def pcie_errors(self, index: int, kind: PcieError) -> Answer[int]:
        """Errors that the GPU counted on its link since the driver was loaded."""
        if kind == "replays":
            return self._of(index, "nvmlDeviceGetPcieReplayCounter")
        return self._field(index, _PCIE_ERROR_FIELDS[kind], 0)

    def mig(self, index: int) -> Answer[tuple[MigPart, ...]]:
        """The instances; none where the GPU is whole, or cannot be parted."""
        mode = self._of(index, "nvmlDeviceGetMigMode")
        if mode.value is None:
            # NVML refuses the question where a GPU has no such mode: then it is whole.
            unsupported = mode.reason is not None and "Not Supported" in mode.reason
            return Answer(()) if unsupported else Answer(None, mode.reason)
        if mode.value[0] != getattr(self._library, "NVML_DEVICE_MIG_ENABLE", 1):
            return Answer(())
        return self._of(index, "nvmlDeviceGetMaxMigDeviceCount").then(lambda most: self._mig_parts(index, most))

    def _mig_parts(self, index: int, most: int) -> tuple[MigPart, ...]:
        parts = (self._of(index, "nvmlDeviceGetMigDeviceHandleByIndex", number) for number in range(most))
        return tuple(self._mig_part(part.value) for part in parts if part.value is not None)

    def _mig_part(self, handle: Any) -> MigPart:
        attributes = self._ask("nvmlDeviceGetAttributes_v2", handle)
        return MigPart(
            uuid=_text(self._ask("nvmlDeviceGetUUID", handle)),
            gpu_instance=self._ask("nvmlDeviceGetGpuInstanceId", handle),
            memory=self._ask("nvmlDeviceGetMemoryInfo", handle).then(_memory),
            copy_engines=attributes.then(lambda found: found.sharedCopyEngineCount),
        )

    def _constant(self, name: str) -> Answer[int]:
        value = getattr(self._library, name, None)
        return Answer.missing(f"the installed nvidia-ml-py has no {name}") if value is None else Answer(value)

    def _c2c_rates(self, index: int) -> list[float]:
        """Bytes/second of each active C2C link; none if the driver does not tell."""
        count = self._field(index, "NVML_FI_DEV_C2C_LINK_COUNT", 0).value or 0
        rates = []
        for link in range(min(count, 64)):
            if self._field(index, "NVML_FI_DEV_C2C_LINK_GET_STATUS", link).value == 1:
                megabytes = self._field(index, "NVML_FI_DEV_C2C_LINK_GET_MAX_BW", link).value
                if megabytes:
                    rates.append(megabytes * 1e6)
        return rates

    def _field(self, index: int, name: str, scope: int) -> Answer[int]:
        """One of NVML's numbered field values."""
        values = self._constant(name).ask(lambda field: self._of(index, "nvmlDeviceGetFieldValues", [(field, scope)]))
        return values.then(lambda found: found[0].value.uiVal if found[0].nvmlReturn == 0 else None, f"no {name}")

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


def _memory(info: Any) -> GpuMemory:
    """The first form of the driver's answer has no reserved memory."""
    return GpuMemory(info.total, info.free, info.used, getattr(info, "reserved", None))


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
