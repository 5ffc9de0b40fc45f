"""Pinning host memory through CUDA's runtime: the calls that strategies make, CuPy's pool, what CUDA says of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Self

from cupy.cuda import PinnedMemoryPool, runtime

from pinscope.errors import NoDevice
from pinscope.lab.cuda_handles import HOST_TO_DEVICE
from pinscope.lab.cuda_memory import allocate

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
