"""The Lab: what an experiment may ask of a machine, with or without a GPU.

Two implementations: :mod:`pinscope.lab.cuda` (a GPU, through CuPy) and :mod:`pinscope.lab.hostmodel`
(a model of the mechanism that copies real bytes between host buffers).

Everything that holds memory or a thread comes from a context manager and is released when it closes,
also on errors. All times are seconds, all sizes bytes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Literal, Protocol, Self, TypeVar

from pinscope.errors import MeasurementFailed
from pinscope.lab.pattern import Pattern
from pinscope.lab.placement import HostNodes
from pinscope.records.run import Backing, HostMemory, LabKind

_T = TypeVar("_T")
Copier = Literal["engine", "kernel"]
"""Who moves the bytes: a copy engine, or threads of a kernel that reach host memory through its mapping."""


class DeviceBuffer(Protocol):
    """Memory of the GPU (of the resident arena, on the host model)."""

    @property
    def nbytes(self) -> int: ...
    @property
    def address(self) -> int: ...
    def part(self, offset: int, nbytes: int) -> Self:
        """A view of ``nbytes`` bytes from ``offset`` (both multiples of 8); owns nothing."""
        ...


class HostBuffer(DeviceBuffer, Protocol):
    """Host memory of one kind, page-aligned."""

    @property
    def memory(self) -> HostMemory: ...


class Stream(Protocol):
    """An ordered queue of device work."""

    def synchronize(self) -> None:
        """Hold the calling thread until everything queued so far is done."""
        ...


class Event(Protocol):
    """A mark in a stream that knows the time at which the device reached it."""

    def record(self, stream: Stream) -> None: ...
    def synchronize(self) -> None: ...
    def is_reached(self) -> bool:
        """Whether the device has reached it; returns at once. Raises what :meth:`synchronize` raises."""
        ...


class Counters(Protocol):
    """Device-side counters of words found wrong, one per slot; zero at first."""

    def read(self) -> tuple[int, ...]:
        """The counts; call it when the streams that use them are idle."""
        ...


@dataclass(frozen=True)
class Load:
    """A compute load of known length.

    Attributes:
        seconds: the length asked for.
        amount: what the lab turns it into (loop iterations on a GPU, seconds on the host model).
    """

    seconds: float
    amount: float


@dataclass(frozen=True)
class LoadData:
    """Data that a compute load works on.

    Attributes:
        buffer: the device memory it reads or writes.
        pattern: what it expects there, or writes there.
        action: ``consume`` checks the content when the load *starts* and counts wrong words;
            ``produce`` writes the content when the load *ends*, as a real kernel's results appear.
    """

    buffer: DeviceBuffer
    pattern: Pattern
    action: Literal["consume", "produce"]


@dataclass(frozen=True)
class MemoryState:
    """What memory is taken at one moment, in bytes; ``None`` where ``missing`` says why.

    Attributes:
        device_used_bytes: of the device, by everybody, as CUDA sees it (cudaMemGetInfo).
        nvml_used_bytes: the same as the driver sees it (NVML, without what it reserves for itself).
        pinned_bytes: host memory pinned for devices on the whole host.
        page_table_bytes: page tables that the kernel keeps for this process (VmPTE).
        missing: field name → why it is ``None``.
    """

    device_used_bytes: int | None
    nvml_used_bytes: int | None
    pinned_bytes: int | None
    page_table_bytes: int | None
    missing: Mapping[str, str] = field(default_factory=dict)


class Lab(Protocol):
    """A place to run experiments. Itself a context manager: entering claims the device."""

    @property
    def kind(self) -> LabKind: ...
    @property
    def device(self) -> int: ...
    @property
    def host_nodes(self) -> HostNodes:
        """The account of its host buffers. Memory taken past the lab is shown to it (``look``)."""
        ...

    def __enter__(self) -> Lab: ...
    def __exit__(self, *exception: object) -> None: ...

    def why_not(self, memory: HostMemory, copier: Copier = "engine", backing: Backing = "4k") -> str | None:
        """Why this kind of host memory cannot be had, or be copied by that copier, here; ``None`` if it can.

        ``backing`` counts for ``registered`` memory only.
        """
        ...

    def peers(self) -> Sequence[int]:
        """Indices of all usable devices, this one included."""
        ...

    def peer(self, device: int) -> AbstractContextManager[Lab]:
        """A lab on another device of the same process, for experiments that use several at once."""
        ...

    @property
    def near(self) -> Mapping[int, int]:
        """Device → the NUMA node from which :meth:`peer` takes host buffers; empty where there is nothing to choose."""
        ...

    def host_buffer(
        self, nbytes: int, memory: HostMemory, backing: Backing = "4k"
    ) -> AbstractContextManager[HostBuffer]:
        """Touched host memory; ``backing`` counts for ``registered`` memory only.

        Raises NotEnoughMemory or MeasurementFailed if it cannot be had.
        """
        ...

    def ordinary_memory(
        self, nbytes: int, backing: Backing | None = None, descriptor: int | None = None
    ) -> AbstractContextManager[HostBuffer]:
        """Pageable memory that nobody has touched yet (:func:`pinscope.lab.backing.touch`). Raises NotEnoughMemory.

        With ``descriptor``, memory that several processes share, mapped from its file.
        """
        ...

    def register(self, buffer: HostBuffer, portable: bool = False) -> AbstractContextManager[HostBuffer]:
        """Pageable memory, or a part of it, pinned where it is; pageable again when it closes.

        ``portable``: for all contexts (cudaHostRegisterPortable); the host model has but one.

        Raises NotEnoughMemory or MeasurementFailed.
        """
        ...

    @property
    def device_id(self) -> str:
        """By which another process opens a lab on the same device (:func:`pinscope.lab.harness.open_lab`)."""
        ...

    def device_id_of(self, device: int) -> str:
        """The id of any usable device, which is not opened for it."""
        ...

    def exported_buffer(self, nbytes: int) -> AbstractContextManager[tuple[DeviceBuffer, str]]:
        """Device memory of this process, and a handle by which another one reaches it. Raises NotEnoughMemory."""
        ...

    def imported_buffer(self, handle: str, nbytes: int) -> AbstractContextManager[DeviceBuffer]:
        """Device memory that another process of this host exported and still holds. Raises MeasurementFailed."""
        ...

    def memory_state(self) -> MemoryState:
        """What is taken on this device and this host now."""
        ...

    def device_buffer(self, nbytes: int) -> AbstractContextManager[DeviceBuffer]: ...
    def stream(self) -> AbstractContextManager[Stream]: ...
    def event(self) -> AbstractContextManager[Event]: ...
    def counters(self, count: int) -> AbstractContextManager[Counters]: ...

    def copy_to_device(
        self, target: DeviceBuffer, source: HostBuffer, stream: Stream, copier: Copier = "engine"
    ) -> None:
        """Queue a copy of ``target.nbytes`` bytes (both buffers are that long). Returns when the call returns."""
        ...

    def copy_to_host(self, target: HostBuffer, source: DeviceBuffer, stream: Stream, copier: Copier = "engine") -> None:
        """Queue a copy of ``target.nbytes`` bytes (both buffers are that long). Returns when the call returns."""
        ...

    def copy_on_devices(self, target: DeviceBuffer, source: DeviceBuffer, stream: Stream) -> None:
        """Queue a copy between equally long pieces of device memory, of one device or of two."""
        ...

    def copy_both_ways(
        self,
        to_device: DeviceBuffer,
        from_host: HostBuffer,
        to_host: HostBuffer,
        from_device: DeviceBuffer,
        stream: Stream,
    ) -> None:
        """Queue one kernel that copies both ways at once; all four buffers are equally long."""
        ...

    def calibrate(self, seconds: float) -> Load:
        """A compute load that takes ``seconds`` alone on the device, measured by device events (within 2 %)."""
        ...

    def compute(
        self, stream: Stream, load: Load, data: LoadData | None = None, counters: Counters | None = None, slot: int = 0
    ) -> None:
        """Queue a compute load. With ``data`` that it consumes, wrong words are added to ``counters[slot]``."""
        ...

    def wait(self, stream: Stream, event: Event) -> None:
        """Later work of ``stream`` starts only once ``event`` has been reached."""
        ...

    def hold(self, *streams: Stream) -> AbstractContextManager[None]:
        """While the block lasts nothing that is queued in these streams begins; when it ends, however it ends, all may.

        So the device works through it back to back, however long the calls that queue it take. A call that would wait
        for a held stream raises MeasurementFailed: synchronizing it, or copying pageable memory on it.
        """
        ...

    def elapsed(self, start: Event, end: Event) -> float:
        """Device seconds between two reached events."""
        ...

    def fresh_pattern(self) -> Pattern:
        """A random pattern never used before in this lab."""
        ...

    def fill(self, buffer: HostBuffer | DeviceBuffer, pattern: Pattern) -> None:
        """Lay the pattern into the buffer; complete on return. Not for timed parts."""
        ...

    def wrong_words(self, buffer: HostBuffer | DeviceBuffer, pattern: Pattern) -> int:
        """How many 8-byte words differ from the pattern. Not for timed parts."""
        ...


def require_type(thing: object, kind: type[_T]) -> _T:
    """A lab, or what it handed out, as the type that the caller works with.

    Raises:
        TypeError: it is another lab's.
    """
    if not isinstance(thing, kind):
        raise TypeError(f"{type(thing).__name__} belongs to another lab")
    return thing


def never_ends(what: str) -> MeasurementFailed:
    """The error of a call that would wait for a stream while the thread that calls holds it."""
    return MeasurementFailed(f"{what} in a held stream would never end")
