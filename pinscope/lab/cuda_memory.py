"""Host memory of each kind through CUDA's runtime, and what all of it takes on the GPU and on the host."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Self, TypeVar

import numpy as np
from cupy.cuda import driver, runtime

from pinscope.errors import MeasurementFailed, NotEnoughMemory
from pinscope.lab.protocol import HostBuffer, MemoryState
from pinscope.probes.answer import Answer
from pinscope.probes.gpu import Nvml
from pinscope.probes.host_memory import page_table_bytes, pinned_bytes
from pinscope.records.run import HostMemory
from pinscope.units import format_bytes

ALLOC_FLAGS = {"pinned": 0, "mapped": 2, "write_combined": 4}
"""cudaHostAllocDefault, cudaHostAllocMapped, cudaHostAllocWriteCombined."""
REGISTER_PORTABLE = 1
"""cudaHostRegisterPortable; the default is cudaHostRegisterDefault, 0."""
OUT_OF_MEMORY = 2
PAGE = 4096
_Result = TypeVar("_Result")


@dataclass(frozen=True)
class HostPart:
    """A stretch of host memory of one kind."""

    address: int
    nbytes: int
    memory: HostMemory

    def part(self, offset: int, nbytes: int) -> Self:
        """A view of a part; owns nothing."""
        return type(self)(self.address + offset, nbytes, self.memory)


@contextmanager
def host_memory(nbytes: int, memory: HostMemory) -> Iterator[HostPart]:
    """Touched memory of any kind but ``registered`` and ``managed``, on the current device.

    Raises:
        NotEnoughMemory: it cannot be had.
        MeasurementFailed: CUDA refuses it for another reason.
    """
    if memory in ALLOC_FLAGS:
        address = allocate(lambda: runtime.hostAlloc(nbytes, ALLOC_FLAGS[memory]), nbytes, memory)
        try:
            yield HostPart(address, nbytes, memory)
        finally:
            runtime.freeHost(address)
        return
    # NumPy's own memory is what users copy from; it starts at a page as the other kinds do.
    storage = np.empty(nbytes + PAGE, dtype=np.uint8)
    storage[:] = 1
    yield HostPart(storage.ctypes.data + -storage.ctypes.data % PAGE, nbytes, memory)


@contextmanager
def registered_memory(buffer: HostBuffer, portable: bool = False) -> Iterator[HostPart]:
    """Ordinary memory, pinned where it is. Raises as :func:`host_memory`."""
    flags = REGISTER_PORTABLE if portable else 0
    allocate(lambda: runtime.hostRegister(buffer.address, buffer.nbytes, flags), buffer.nbytes, "registered")
    try:
        yield HostPart(buffer.address, buffer.nbytes, "registered")
    finally:
        runtime.hostUnregister(buffer.address)


def allocate(call: Callable[[], _Result], nbytes: int, what: str) -> _Result:
    """The call's result; its failure as one line.

    CUDA keeps a failed registration's error for an innocent later call; CuPy clears it (``check_status`` in its
    runtime module).

    Raises:
        NotEnoughMemory: CUDA says that memory is short.
        MeasurementFailed: any other refusal.
    """
    try:
        return call()
    except runtime.CUDARuntimeError as error:
        message = f"{format_bytes(nbytes)} of {what} could not be had: {error}"
        if error.status == OUT_OF_MEMORY:
            raise NotEnoughMemory(f"{message}; free memory or take less") from None
        raise MeasurementFailed(message) from None


class MemoryMeter:
    """Reads what is taken on one GPU and on this host.

    Args:
        bus_id: PCI bus id of the GPU as CUDA writes it; NVML numbers GPUs in an order of its own.
    """

    def __init__(self, bus_id: str) -> None:
        self._bus_id = bus_id
        self._nvml = Nvml()
        self._open = ExitStack()
        self._index: int | None = None

    def __enter__(self) -> Self:
        self._open.enter_context(self._nvml)
        for index in range(self._nvml.device_count().value or 0):
            found = self._nvml.pci_bus_id(index).value
            if found is not None and _place(found) == _place(self._bus_id):
                self._index = index
        return self

    def __exit__(self, *exception: object) -> None:
        self._open.close()

    def read(self) -> MemoryState:
        """What is taken now; the current device must be the meter's."""
        missing: dict[str, str] = {}
        free, total = runtime.memGetInfo()
        return MemoryState(
            device_used_bytes=total - free,
            nvml_used_bytes=self._used().note(missing, "nvml_used_bytes"),
            pinned_bytes=pinned_bytes().note(missing, "pinned_bytes"),
            page_table_bytes=page_table_bytes().note(missing, "page_table_bytes"),
            missing=missing,
        )

    def _used(self) -> Answer[int]:
        if self._index is None:
            return Answer.missing(self._nvml.device_count().reason or f"NVML shows no GPU {self._bus_id}")
        return self._nvml.memory(self._index).then(lambda memory: memory.used, "")


@functools.cache
def driver_library() -> ctypes.CDLL:
    """The driver's own interface, for calls that CuPy has not."""
    return ctypes.CDLL("libcuda.so.1")


def _place(bus_id: str) -> tuple[int, str]:
    """Domain and the rest of a PCI address: CUDA writes the domain with four digits, NVML with eight."""
    domain, _, rest = bus_id.partition(":")
    return int(domain, 16), rest.lower()


_CONCURRENT_MANAGED_ACCESS = 89
"""cudaDevAttrConcurrentManagedAccess: without it managed memory does not migrate on demand."""
DEVICE_LOCATION, HOST_LOCATION = 1, 2
"""CU_MEM_LOCATION_TYPE_DEVICE, CU_MEM_LOCATION_TYPE_HOST."""


class Location(ctypes.Structure):
    """CUmemLocation of the driver API."""

    _fields_ = (("type", ctypes.c_int), ("id", ctypes.c_int))


def why_not_managed(ordinal: int) -> str | None:
    """Why managed memory does not migrate on that GPU, or cannot be moved back; ``None`` if it does and can."""
    if not runtime.deviceGetAttribute(_CONCURRENT_MANAGED_ACCESS, ordinal):
        return "managed memory does not migrate on demand here (cudaDevAttrConcurrentManagedAccess is 0)"
    if not hasattr(driver_library(), "cuMemPrefetchAsync_v2"):
        return "managed memory can be moved back to the host from CUDA 12.2 on; update the driver"
    return None


@contextmanager
def managed_memory(nbytes: int) -> Iterator[HostPart]:
    """Managed memory; raises NotEnoughMemory."""
    address = allocate(lambda: runtime.mallocManaged(nbytes), nbytes, "managed memory")
    try:
        yield HostPart(address, nbytes, "managed")
    finally:
        runtime.deviceSynchronize()
        runtime.free(address)


def prefetch_to_host(address: int, nbytes: int, stream_handle: int) -> None:
    """By the driver's own call, of CUDA 12.2: CuPy 14.2 on CUDA 13 takes the CPU's number (-1) for a GPU's."""
    location = Location(HOST_LOCATION, 0)
    status = driver_library().cuMemPrefetchAsync_v2(
        ctypes.c_uint64(address), ctypes.c_size_t(nbytes), location, ctypes.c_uint(0), ctypes.c_void_p(stream_handle)
    )
    check(status)


def check(status: int) -> None:
    """Raises CuPy's own error where the driver's call failed."""
    if status:
        raise driver.CUDADriverError(status)
