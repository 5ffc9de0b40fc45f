"""An NVML that answers only what it was given."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self, TypeVar, get_args

from pinscope.probes.answer import Answer
from pinscope.probes.gpu import (
    Bar1,
    C2c,
    Clock,
    GpuMemory,
    MigPart,
    Nvml,
    PcieError,
    PcieFlow,
    PcieNumber,
    ProcessOnGpu,
    Utilization,
)

T = TypeVar("T")


class NotGivenError(AssertionError):
    """The fake was asked for something that the test did not give it."""


@dataclass(frozen=True)
class FakeGpu:
    """What one GPU answers; ``None`` for what it is not given. Unless told otherwise its link has had no errors."""

    name: Answer[str] | None = None
    uuid: Answer[str] | None = None
    pci_bus_id: Answer[str] | None = None
    minor: Answer[int] | None = None
    memory: Answer[GpuMemory] | None = None
    compute_capability: Answer[tuple[int, int]] | None = None
    numa_node: Answer[int] | None = None
    c2c: Answer[C2c] | None = None
    pcie: dict[PcieNumber, Answer[int]] = field(default_factory=dict)
    processes: Answer[tuple[ProcessOnGpu, ...]] | None = None
    bar1: Answer[Bar1] | None = None
    pcie_rates: dict[PcieFlow, Answer[float]] = field(default_factory=dict)
    utilization: Answer[Utilization] | None = None
    clocks: dict[Clock, Answer[float]] = field(default_factory=dict)
    temperature: Answer[float] | None = None
    copy_engines: Answer[int] | None = None
    persistence_mode: Answer[bool] = field(default_factory=lambda: Answer(True))
    pcie_errors: dict[PcieError, Answer[int]] = field(
        default_factory=lambda: dict.fromkeys(get_args(PcieError), Answer(0))
    )
    mig: Answer[tuple[MigPart, ...]] | None = None


class FakeNvml(Nvml):
    """Answers as the given driver and GPUs would; :class:`NotGivenError` for everything else.

    Args:
        driver_version: such as ``580.159``.
        cuda_version: (major, minor).
        confidential_computing: whether that is on.
        gpus: what each GPU answers, by index.
        absent: why NVML cannot be opened; then every answer is missing for this reason.
    """

    def __init__(
        self,
        driver_version: Answer[str] | None = None,
        cuda_version: Answer[tuple[int, int]] | None = None,
        gpus: Sequence[FakeGpu] = (),
        confidential_computing: Answer[bool] = Answer(False),  # noqa: B008 - frozen
        absent: str | None = None,
    ) -> None:
        super().__init__()
        self._driver_version = driver_version
        self._cuda_version = cuda_version
        self._gpus = tuple(gpus)
        self._confidential_computing = confidential_computing
        self._absent = absent
        self.open = False

    def __enter__(self) -> Self:
        self.open = True
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.open = False

    def driver_version(self) -> Answer[str]:
        return self._answer("driver_version", self._driver_version)

    def cuda_version(self) -> Answer[tuple[int, int]]:
        return self._answer("cuda_version", self._cuda_version)

    def confidential_computing(self) -> Answer[bool]:
        return self._answer("confidential_computing", self._confidential_computing)

    def device_count(self) -> Answer[int]:
        return self._answer("device_count", Answer(len(self._gpus)))

    def name(self, index: int) -> Answer[str]:
        return self._answer("name", self._gpu(index).name)

    def uuid(self, index: int) -> Answer[str]:
        return self._answer("uuid", self._gpu(index).uuid)

    def pci_bus_id(self, index: int) -> Answer[str]:
        return self._answer("pci_bus_id", self._gpu(index).pci_bus_id)

    def minor(self, index: int) -> Answer[int]:
        return self._answer("minor", self._gpu(index).minor)

    def memory(self, index: int) -> Answer[GpuMemory]:
        return self._answer("memory", self._gpu(index).memory)

    def compute_capability(self, index: int) -> Answer[tuple[int, int]]:
        return self._answer("compute_capability", self._gpu(index).compute_capability)

    def numa_node(self, index: int) -> Answer[int]:
        return self._answer("numa_node", self._gpu(index).numa_node)

    def pcie(self, index: int, number: PcieNumber) -> Answer[int]:
        return self._answer(f"pcie {number}", self._gpu(index).pcie.get(number))

    def c2c(self, index: int) -> Answer[C2c]:
        return self._answer("c2c", self._gpu(index).c2c)

    def processes(self, index: int) -> Answer[tuple[ProcessOnGpu, ...]]:
        return self._answer("processes", self._gpu(index).processes)

    def bar1(self, index: int) -> Answer[Bar1]:
        return self._answer("bar1", self._gpu(index).bar1)

    def pcie_rate(self, index: int, flow: PcieFlow) -> Answer[float]:
        return self._answer(f"pcie_rate {flow}", self._gpu(index).pcie_rates.get(flow))

    def utilization(self, index: int) -> Answer[Utilization]:
        return self._answer("utilization", self._gpu(index).utilization)

    def clock(self, index: int, clock: Clock) -> Answer[float]:
        return self._answer(f"clock {clock}", self._gpu(index).clocks.get(clock))

    def temperature(self, index: int) -> Answer[float]:
        return self._answer("temperature", self._gpu(index).temperature)

    def copy_engines(self, index: int) -> Answer[int]:
        return self._answer("copy_engines", self._gpu(index).copy_engines)

    def persistence_mode(self, index: int) -> Answer[bool]:
        return self._answer("persistence_mode", self._gpu(index).persistence_mode)

    def pcie_errors(self, index: int, kind: PcieError) -> Answer[int]:
        return self._answer(f"pcie_errors {kind}", self._gpu(index).pcie_errors.get(kind))

    def mig(self, index: int) -> Answer[tuple[MigPart, ...]]:
        return self._answer("mig", self._gpu(index).mig)

    def _gpu(self, index: int) -> FakeGpu:
        if not 0 <= index < len(self._gpus):
            raise NotGivenError(f"the fake has {len(self._gpus)} GPUs and was asked for number {index}")
        return self._gpus[index]

    def _answer(self, question: str, given: Answer[T] | None) -> Answer[T]:
        if not self.open:
            raise NotGivenError(f"the fake was asked for {question} while it was not open")
        if self._absent is not None:
            return Answer.missing(self._absent)
        if given is None:
            raise NotGivenError(f"the fake was asked for {question}, which it was not given")
        return given
