"""Host memory by the driver's own calls: cuMemCreate with the location HOST_NUMA, and host memory pools.

CuPy has none of them. Constants and structures are those of cuda.h (CUDA driver API, CUDA 12.2 and later).
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager

from cupy.cuda import driver, runtime

from pinscope.errors import MeasurementFailed, NotEnoughMemory, NotPossible
from pinscope.lab.cuda_memory import DEVICE_LOCATION, OUT_OF_MEMORY, HostPart, Location, driver_library
from pinscope.records.run import DriverMemory
from pinscope.units import format_bytes

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
        with HostPool(granted=kind == "pool_granted", kept=kept) as pool:
            yield pool.memory
    else:
        yield lambda nbytes: _created(nbytes, in_pieces=kind == "created_pieces")


def granularities() -> tuple[int, int]:
    """Of what size cuMemCreate's host memory is a multiple: at least, and as the driver recommends. Raises likewise."""
    properties = _properties()
    return _granularity(properties, _MINIMUM), _granularity(properties, _RECOMMENDED)


class HostPool:
    """A pool of host memory, on the NUMA node of the thread that makes it.

    Args:
        granted: whether the current GPU gets access to what is taken from it.
        kept: whether the pool keeps what is given back; else it goes back to the system.
    """

    def __init__(self, *, granted: bool, kept: bool = False) -> None:
        self._granted, self._kept = granted, kept
        self._pool = ctypes.c_void_p(None)

    def __enter__(self) -> HostPool:
        """Make it. Raises as :func:`driver_memory`."""
        properties = _PoolProperties(type=_PINNED, location=_here())
        _do("cuMemPoolCreate", ctypes.byref(self._pool), ctypes.byref(properties))
        try:
            if self._granted:
                access = _Access(_device(), _READ_WRITE)
                _do("cuMemPoolSetAccess", self._pool, ctypes.byref(access), ctypes.c_size_t(1))
            if self._kept:
                everything = ctypes.c_uint64(2**64 - 1)
                _do("cuMemPoolSetAttribute", self._pool, ctypes.c_int(_RELEASE_THRESHOLD), ctypes.byref(everything))
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *exception: object) -> None:
        _do("cuMemPoolDestroy", self._pool)

    def take(self, nbytes: int) -> int:
        """The address of so many bytes. Raises likewise."""
        address = ctypes.c_uint64()
        _do(
            "cuMemAllocFromPoolAsync",
            ctypes.byref(address),
            ctypes.c_size_t(nbytes),
            self._pool,
            _DEFAULT_STREAM,
            nbytes=nbytes,
        )
        runtime.deviceSynchronize()
        return address.value

    def give_back(self, address: int) -> None:
        """Back to the pool."""
        _do("cuMemFreeAsync", ctypes.c_uint64(address), _DEFAULT_STREAM)
        runtime.deviceSynchronize()

    @contextmanager
    def memory(self, nbytes: int) -> Iterator[HostPart]:
        """So many bytes; back in the pool when it closes."""
        address = self.take(nbytes)
        try:
            yield HostPart(address, nbytes, "pinned")
        finally:
            self.give_back(address)


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
    found = ctypes.c_size_t()
    _do("cuMemGetAllocationGranularity", ctypes.byref(found), ctypes.byref(properties), ctypes.c_int(option))
    return found.value


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
