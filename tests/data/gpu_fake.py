"""An NVML that answers only what it was given."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self, get_args

from pinscope.probes.gpu import Clock, GpuMemory, Nvml, PcieError, PcieFlow, PcieNumber
from pinscope.probes.proc import Answer
from pinscope.records.snapshot import GpuProcess, MigInstance


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
    c2c: Answer[float] | None = None
    pcie: dict[PcieNumber, Answer[int]] = field(default_factory=dict)
    processes: Answer[tuple[GpuProcess, ...]] | None = None
    bar1: Answer[tuple[int, int]] | None = None
    pcie_rate: dict[PcieFlow, Answer[float]] = field(default_factory=dict)
    utilization: Answer[tuple[float, float]] | None = None
    clock: dict[Clock, Answer[float]] = field(default_factory=dict)
    temperature: Answer[float] | None = None
    copy_engines: Answer[int] | None = None
    persistence_mode: Answer[bool] = field(default_factory=lambda: Answer(True))
    pcie_errors: dict[PcieError, Answer[int]] = field(
        default_factory=lambda: dict.fromkeys(get_args(PcieError), Answer(0))
    )
    mig: Answer[tuple[MigInstance, ...]] | None = None


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
        self._of_all = {
            "driver_version": driver_version,
            "cuda_version": cuda_version,
            "confidential_computing": confidential_computing,
            "device_count": Answer(len(gpus)),
        }
        self._gpus = tuple(gpus)
        self._absent = absent
        self.open = False

    def __enter__(self) -> Self:
        self.open = True
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.open = False

    def answer(self, question: str, index: int | None = None, part: str | None = None) -> Answer[Any]:
        """What was given to a question of this name, about a GPU if there is an index, or about a part of it."""
        if not self.open:
            raise NotGivenError(f"the fake was asked for {question} while it was not open")
        if self._absent is not None:
            return Answer.missing(self._absent)
        if index is not None and not 0 <= index < len(self._gpus):
            raise NotGivenError(f"the fake has {len(self._gpus)} GPUs and was asked for number {index}")
        given = self._of_all[question] if index is None else getattr(self._gpus[index], question)
        given = given if part is None else given.get(part)
        if given is None:
            raise NotGivenError(f"the fake was asked for {question} {part or ''}, which it was not given")
        return given


def _asks(question: str) -> Callable[..., Answer[Any]]:
    return lambda nvml, *of: nvml.answer(question, *of)


for _question in ("driver_version", "cuda_version", "confidential_computing", "device_count", *FakeGpu.__annotations__):
    setattr(FakeNvml, _question, _asks(_question))
