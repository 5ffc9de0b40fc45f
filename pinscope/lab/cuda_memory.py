"""Host memory on a GPU: each kind of CUDA's runtime, the driver's own calls, pinning, and what all of it takes."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, Self, TypeVar

import numpy as np
from cupy.cuda import PinnedMemoryPool, driver, runtime

from pinscope.errors import MeasurementFailed, NoDevice, NotEnoughMemory, NotPossible
from pinscope.lab.backing import PAGE
from pinscope.lab.protocol import HostBuffer, MemoryState
from pinscope.probes.gpu import Nvml
from pinscope.probes.host_memory import page_table_bytes, pinned_bytes
from pinscope.probes.proc import Answer
from pinscope.records.run import DriverMemory, HostMemory
from pinscope.units import format_bytes

ALLOC_FLAGS = {"pinned": 0, "mapped": 2, "write_combined": 4}
"""cudaHostAllocDefault, cudaHostAllocMapped, cudaHostAllocWriteCombined."""
REGISTER_PORTABLE = 1
"""cudaHostRegisterPortable; the default is cudaHostRegisterDefault, 0."""
OUT_OF_MEMORY = 2
HOST_TO_DEVICE, DEVICE_TO_HOST, DEVICE_TO_DEVICE = 1, 2, 3
"""cudaMemcpyKind."""
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
            bus_id = self._nvml.pci_bus_id(index).value
            if bus_id is not None and _place(bus_id) == _place(self._bus_id):
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


MEMORY_TYPE_HOST = 1
"""cudaMemoryTypeHost: what CUDA calls pinned memory."""
_INVALID_VALUE = 1
_HOST_REGISTER_SUPPORTED, _USES_HOST_PAGE_TABLES = 99, 100
"""cudaDevAttrHostRegisterSupported, cudaDevAttrPageableMemoryAccessUsesHostPageTables."""


@dataclass(frozen=True)
class CudaCalls:
    """cudaHostAlloc, cudaHostRegister and their opposites on one GPU, from any thread.

    Attributes:
        ordinal: CUDA's number of the GPU.
    """

    ordinal: int

    @classmethod
    def here(cls) -> Self:
        """On the GPU that the calling thread uses now."""
        return cls(int(runtime.getDevice()))

    @classmethod
    def on(cls, ordinal: int | None) -> Self:
        """On this GPU (``None``: the calling thread's own); makes its context, where there is none yet.

        Raises:
            NoDevice: no driver, or no such GPU.
        """
        try:
            calls = cls(int(runtime.getDevice()) if ordinal is None else ordinal)
            calls._guarded(lambda: runtime.free(0))
        except runtime.CUDARuntimeError as error:
            which = "the GPU" if ordinal is None else f"GPU {ordinal}"
            raise NoDevice(f"{which} cannot be used: {error}") from None
        return calls

    @property
    def can_register(self) -> bool:
        """False where cudaHostRegister does not exist (error 801) or does not page-lock (one page table for both)."""
        supported = runtime.deviceGetAttribute(_HOST_REGISTER_SUPPORTED, self.ordinal)
        shared = runtime.deviceGetAttribute(_USES_HOST_PAGE_TABLES, self.ordinal)
        return bool(supported) and not shared

    def allocate(self, nbytes: int) -> int:
        return int(self._guarded(lambda: allocate(lambda: runtime.hostAlloc(nbytes, 0), nbytes, "pinned")))

    def free(self, address: int) -> None:
        self._guarded(lambda: runtime.freeHost(address))

    def register(self, address: int, nbytes: int) -> None:
        self._guarded(lambda: allocate(lambda: runtime.hostRegister(address, nbytes, 0), nbytes, "registered"))

    def unregister(self, address: int) -> None:
        self._guarded(lambda: runtime.hostUnregister(address))

    def synchronize(self) -> None:
        """Wait until the GPU has done all that was queued on it."""
        self._guarded(runtime.deviceSynchronize)

    def _guarded(self, call: Callable[[], Any]) -> Any:
        """Call on this GPU and leave the thread's current GPU as it was."""
        before = runtime.getDevice()
        if before == self.ordinal:
            return call()
        runtime.setDevice(self.ordinal)
        try:
            return call()
        finally:
            runtime.setDevice(before)


def bus_id_here() -> str:
    """PCI bus id of the GPU that the calling thread uses."""
    return str(runtime.deviceGetPCIBusId(runtime.getDevice()))


def is_pinned(address: int) -> bool:
    """What CUDA says of this host memory."""
    return bool(runtime.pointerGetAttributes(address).type == MEMORY_TYPE_HOST)


def takes_copy(target: int, source: int, nbytes: int) -> bool:
    """Copy host memory to the device and say whether CUDA took it; False where it calls the range invalid.

    Raises:
        CUDARuntimeError: another failure.
    """
    try:
        runtime.memcpy(target, source, nbytes, HOST_TO_DEVICE)
    except runtime.CUDARuntimeError as error:
        if error.status == _INVALID_VALUE:
            return False
        raise
    return True


class CupyPool:
    """CuPy's pool of pinned memory, one of its own."""

    def __init__(self) -> None:
        self._pool = PinnedMemoryPool()
        self._held: Any = None

    def get(self, nbytes: int) -> None:
        """Take a buffer."""
        self._held = self._pool.malloc(nbytes)

    def give_back(self) -> None:
        """Return it to the pool."""
        self._held = None

    def close(self) -> None:
        """Free what the pool keeps."""
        self._held = None
        self._pool.free_all_blocks()


HOST_NUMA_LOCATION = 3
"""CU_MEM_LOCATION_TYPE_HOST_NUMA."""
_PINNED = 1
"""CU_MEM_ALLOCATION_TYPE_PINNED."""
_READ_WRITE = 3
"""CU_MEM_ACCESS_FLAGS_PROT_READWRITE."""
_MINIMUM, _RECOMMENDED = 0, 1
"""CU_MEM_ALLOC_GRANULARITY_MINIMUM, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED."""
_RELEASE_THRESHOLD = 4
"""CU_MEMPOOL_ATTR_RELEASE_THRESHOLD: bytes that a pool keeps when all is given back."""
_DEFAULT_STREAM = ctypes.c_void_p(None)
_LIBC = ctypes.CDLL(None)

Take = Callable[[int], AbstractContextManager[HostPart]]


class _AllocationProperties(ctypes.Structure):
    """CUmemAllocationProp."""

    _fields_ = (
        ("type", ctypes.c_int),
        ("handle_types", ctypes.c_int),
        ("location", Location),
        ("metadata", ctypes.c_void_p),
        ("compression", ctypes.c_ubyte),
        ("rdma", ctypes.c_ubyte),
        ("usage", ctypes.c_ushort),
        ("reserved", ctypes.c_ubyte * 4),
    )


class _PoolProperties(ctypes.Structure):
    """CUmemPoolProps."""

    _fields_ = (
        ("type", ctypes.c_int),
        ("handle_types", ctypes.c_int),
        ("location", Location),
        ("security", ctypes.c_void_p),
        ("most_bytes", ctypes.c_size_t),
        ("usage", ctypes.c_ushort),
        ("reserved", ctypes.c_ubyte * 54),
    )


class _Access(ctypes.Structure):
    """CUmemAccessDesc."""

    _fields_ = (("location", Location), ("flags", ctypes.c_int))


@contextmanager
def driver_memory(kind: DriverMemory, *, kept: bool = False) -> Iterator[Take]:
    """Where host memory of one kind comes from, for the current GPU: a function that gives some, until it closes.

    ``kept``: a pool keeps what is given back.

    Raises:
        NotEnoughMemory, MeasurementFailed, NotPossible: as the driver refuses; the function raises the same.
    """
    if kind in ("pool", "pool_granted"):
        with _host_pool(granted=kind == "pool_granted", kept=kept) as take:
            yield take
    else:
        yield lambda nbytes: _created(nbytes, in_pieces=kind == "created_pieces")


@contextmanager
def _host_pool(*, granted: bool, kept: bool) -> Iterator[Take]:
    """What takes memory from a pool of host memory, on the NUMA node of the thread that makes it.

    Args:
        granted: whether the current GPU gets access to what is taken from it.
        kept: whether the pool keeps what is given back; else it goes back to the system.
    """
    pool, properties = ctypes.c_void_p(None), _PoolProperties(type=_PINNED, location=_here())
    _do("cuMemPoolCreate", ctypes.byref(pool), ctypes.byref(properties))
    try:
        if granted:
            access = _Access(_device(), _READ_WRITE)
            _do("cuMemPoolSetAccess", pool, ctypes.byref(access), ctypes.c_size_t(1))
        if kept:
            everything = ctypes.c_uint64(2**64 - 1)
            _do("cuMemPoolSetAttribute", pool, ctypes.c_int(_RELEASE_THRESHOLD), ctypes.byref(everything))
        yield functools.partial(_from_pool, pool)
    finally:
        _do("cuMemPoolDestroy", pool)


@contextmanager
def _from_pool(pool: ctypes.c_void_p, nbytes: int) -> Iterator[HostPart]:
    """So many bytes; back in the pool when it closes."""
    address, length = ctypes.c_uint64(), ctypes.c_size_t(nbytes)
    _do("cuMemAllocFromPoolAsync", ctypes.byref(address), length, pool, _DEFAULT_STREAM, nbytes=nbytes)
    runtime.deviceSynchronize()
    try:
        yield HostPart(address.value, nbytes, "pinned")
    finally:
        _do("cuMemFreeAsync", address, _DEFAULT_STREAM)
        runtime.deviceSynchronize()


@contextmanager
def _created(nbytes: int, *, in_pieces: bool) -> Iterator[HostPart]:
    """Memory of cuMemCreate, for CPU and GPU: one handle, or one for each piece of the least granularity."""
    properties = _properties()
    step = _granularity(properties, _MINIMUM if in_pieces else _RECOMMENDED)
    whole = -(-nbytes // step) * step
    piece = step if in_pieces else whole
    with ExitStack() as stack:
        place, nothing = ctypes.c_uint64(), ctypes.c_uint64(0)
        length = ctypes.c_size_t(whole)
        _do("cuMemAddressReserve", ctypes.byref(place), length, ctypes.c_size_t(0), nothing, nothing, nbytes=whole)
        stack.callback(_do, "cuMemAddressFree", place, length)
        for at in range(0, whole, piece):
            _map_piece(stack, ctypes.c_uint64(place.value + at), ctypes.c_size_t(piece), properties)
        access = (_Access * 2)(_Access(properties.location, _READ_WRITE), _Access(_device(), _READ_WRITE))
        _do("cuMemSetAccess", place, length, access, ctypes.c_size_t(len(access)), nbytes=whole)
        yield HostPart(place.value, nbytes, "pinned")


def _map_piece(
    stack: ExitStack, place: ctypes.c_uint64, length: ctypes.c_size_t, properties: _AllocationProperties
) -> None:
    handle, nothing = ctypes.c_uint64(), ctypes.c_uint64(0)
    _do("cuMemCreate", ctypes.byref(handle), length, ctypes.byref(properties), nothing, nbytes=length.value)
    stack.callback(_do, "cuMemRelease", handle)
    _do("cuMemMap", place, length, ctypes.c_size_t(0), handle, nothing, nbytes=length.value)
    stack.callback(_do, "cuMemUnmap", place, length)


def _properties() -> _AllocationProperties:
    return _AllocationProperties(type=_PINNED, location=_here())


def _granularity(properties: _AllocationProperties, option: int) -> int:
    step = ctypes.c_size_t()
    _do("cuMemGetAllocationGranularity", ctypes.byref(step), ctypes.byref(properties), ctypes.c_int(option))
    return step.value


def _here() -> Location:
    """The NUMA node on which this thread runs: a run's threads are bound to its node."""
    node = ctypes.c_uint(0)
    if hasattr(_LIBC, "getcpu"):  # glibc 2.29
        _LIBC.getcpu(None, ctypes.byref(node))
    return Location(HOST_NUMA_LOCATION, node.value)


def _device() -> Location:
    return Location(DEVICE_LOCATION, runtime.getDevice())


def _do(call: str, *arguments: object, nbytes: int | None = None) -> None:
    """One call of the driver; its refusal as one line.

    Raises:
        NotPossible: this driver has no such call.
        NotEnoughMemory: memory is short.
        MeasurementFailed: any other refusal.
    """
    library = driver_library()
    if not hasattr(library, call):
        raise NotPossible(f"this driver has no {call}; update it")
    status = getattr(library, call)(*arguments)
    if not status:
        return
    amount = "" if nbytes is None else f" of {format_bytes(nbytes)}"
    message = f"{call}{amount} was refused: {driver.CUDADriverError(status)}"
    if status == OUT_OF_MEMORY:
        raise NotEnoughMemory(f"{message}; free memory or take less")
    raise MeasurementFailed(message)
