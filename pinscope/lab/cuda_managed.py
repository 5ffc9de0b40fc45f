"""Managed memory on the current GPU: whether it migrates, and how it is moved by a call."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager

from cupy.cuda import driver, runtime

from pinscope.lab.cuda_memory import HostPart, allocate, driver_library

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
