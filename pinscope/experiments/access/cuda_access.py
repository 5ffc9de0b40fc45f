"""What a kernel does to data on the host: explicit copies, zero-copy access, managed memory."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Any

import cupy
import numpy as np
from cupy.cuda import runtime

from pinscope.experiments.access.reading import PatternName
from pinscope.lab.cuda import CudaLab
from pinscope.lab.cuda_handles import CudaStream
from pinscope.lab.cuda_memory import (
    DEVICE_LOCATION,
    DEVICE_TO_HOST,
    HOST_TO_DEVICE,
    HostPart,
    Location,
    check,
    driver_library,
    managed_memory,
    prefetch_to_host,
    why_not_managed,
)
from pinscope.lab.protocol import DeviceBuffer, Stream, require_type

BLOCK_WORDS = 512
"""Streaming patterns visit blocks of 4 KiB, a page of the host."""
THREADS = 256
BLOCKS_PER_SM = 8
_BY_ADDRESS = 4
"""cudaMemcpyDefault: the addresses tell where they are."""
_DISCARD = "cuMemDiscardAndPrefetchBatchAsync"
"""Of CUDA 13.0: moves pages without their content, for memory that is written anew."""

SOURCE = r"""
typedef unsigned long long u64;

// A bijection of 0 … 2^bits − 1 without locality: odd factors and xor-shifts are invertible modulo 2^bits.
__device__ __forceinline__ u64 scattered(u64 index, int bits) {
    u64 mask = (1ull << bits) - 1;
    index = (index * 0x9E3779B97F4A7C15ull) & mask;
    index ^= index >> (bits / 2 + 1);
    return (index * 0xD1B54A32D192ED03ull) & mask;
}

// The place of the visit-th word: every spacing-th block of 4 KiB whole, or anywhere.
__device__ __forceinline__ u64 place(u64 visit, int scatter, int bits, u64 spacing) {
    return scatter ? scattered(visit, bits) : visit / 512 * spacing * 512 + visit % 512;
}

extern "C" __global__ void read_words(
        const u64* words, u64 visits, int scatter, int bits, u64 spacing, u64* sum) {
    u64 step = (u64)gridDim.x * blockDim.x;
    u64 mine = 0;
    for (u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x; i < visits; i += step)
        mine += words[place(i, scatter, bits, spacing)];
    for (int reach = 16; reach; reach /= 2) mine += __shfl_down_sync(0xffffffff, mine, reach);
    if (threadIdx.x % 32 == 0) atomicAdd(sum, mine);
}

extern "C" __global__ void write_words(
        u64* words, u64 visits, int scatter, int bits, u64 spacing, u64 key) {
    u64 step = (u64)gridDim.x * blockDim.x;
    for (u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x; i < visits; i += step) {
        u64 at = place(i, scatter, bits, spacing);
        words[at] = at * 0xBF58476D1CE4E5B9ull ^ key;
    }
}

extern "C" __global__ void count_different(const u64* one, const u64* other, u64 count, u64* different) {
    u64 step = (u64)gridDim.x * blockDim.x;
    u64 mine = 0;
    for (u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x; i < count; i += step)
        mine += __ldcv(one + i) != other[i];
    for (int reach = 16; reach; reach /= 2) mine += __shfl_down_sync(0xffffffff, mine, reach);
    if (mine && threadIdx.x % 32 == 0) atomicAdd(different, mine);
}
"""


@dataclass(frozen=True)
class Visit:
    """Which words of some data one use touches, and how.

    Attributes:
        pattern: reads or writes, in blocks of 4 KiB or word by word anywhere.
        nbytes: length of the data; a power of two, at least 4 KiB times ``spacing``.
        spacing: one block, or one word, of so many is touched.
    """

    pattern: PatternName
    nbytes: int
    spacing: int

    @property
    def writes(self) -> bool:
        return self.pattern.endswith("write")

    @property
    def visits(self) -> int:
        """Words touched by one use."""
        return self.nbytes // 8 // self.spacing

    @property
    def overwrites_all(self) -> bool:
        """Whether nothing of what was there before is left: nobody has to bring it to the GPU."""
        return self.writes and self.spacing == 1

    def arguments(self) -> tuple[Any, ...]:
        """As the kernels take them."""
        scatter = self.pattern in ("random_read", "scatter_write")
        bits = (self.nbytes // 8).bit_length() - 1
        return np.uint64(self.visits), np.int32(scatter), np.int32(bits), np.uint64(self.spacing)


class Accessor:
    """Kernels that use data wherever it is, and managed memory, on the GPU of a lab.

    Args:
        lab: an open lab.
    """

    def __init__(self, lab: CudaLab) -> None:
        module = cupy.RawModule(code=SOURCE)
        self._kernels = {name: module.get_function(name) for name in ("read_words", "write_words", "count_different")}
        self._ordinal = int(runtime.getDevice())
        self._blocks = int(runtime.getDeviceProperties(self._ordinal)["multiProcessorCount"]) * BLOCKS_PER_SM
        self._lab = lab

    def why_not_managed(self) -> str | None:
        """Why managed memory does not migrate here, or cannot be moved back; ``None`` if it does and can."""
        return why_not_managed(self._ordinal)

    def why_not_discard(self) -> str | None:
        """Why managed memory cannot go to the GPU without its content; ``None`` if it can."""
        if not hasattr(driver_library(), _DISCARD):
            return f"the driver has no {_DISCARD} (CUDA 13.0, driver 580), so what is overwritten would be copied first"
        return None

    def free_bytes(self) -> int:
        """Memory of the GPU that nobody has taken."""
        return int(runtime.memGetInfo()[0])

    managed = staticmethod(managed_memory)
    """Managed memory; raises NotEnoughMemory."""

    def lay(self, data: HostPart, source: DeviceBuffer) -> None:
        """Copy device memory into managed memory; complete on return."""
        runtime.memcpy(data.address, source.address, data.nbytes, _BY_ADDRESS)

    def prefetch(self, data: HostPart, stream: Stream, to_host: bool) -> None:
        """Queue the move of managed memory."""
        handle = require_type(stream, CudaStream).handle
        if to_host:
            prefetch_to_host(data.address, data.nbytes, handle)
        else:
            runtime.memPrefetchAsync(data.address, data.nbytes, self._ordinal, handle)

    def discard_and_prefetch(self, data: HostPart, stream: Stream) -> None:
        """Queue the move of managed memory to the GPU, without its content."""
        address, nbytes = ctypes.c_uint64(data.address), ctypes.c_size_t(data.nbytes)
        place, first = Location(DEVICE_LOCATION, self._ordinal), ctypes.c_size_t(0)
        call = getattr(driver_library(), _DISCARD)
        check(
            call(
                ctypes.byref(address),
                ctypes.byref(nbytes),
                ctypes.c_size_t(1),
                ctypes.byref(place),
                ctypes.byref(first),
                ctypes.c_size_t(1),
                ctypes.c_ulonglong(0),
                ctypes.c_void_p(require_type(stream, CudaStream).handle),
            )
        )

    def copy_part(self, target: int, source: int, visit: Visit, stream: Stream, to_host: bool) -> None:
        """Queue a 2D copy of the blocks that a streaming visit touches, to the same places (cudaMemcpy2DAsync).

        ``target`` and ``source`` are the addresses at which the data begins on either side.
        """
        width, pitch = 8 * BLOCK_WORDS, 8 * BLOCK_WORDS * visit.spacing
        kind = DEVICE_TO_HOST if to_host else HOST_TO_DEVICE
        handle = require_type(stream, CudaStream).handle
        runtime.memcpy2DAsync(target, pitch, source, pitch, width, visit.nbytes // pitch, kind, handle)

    def read_pages(self, data: HostPart) -> int:
        """The CPU reads one word of every page; managed pages come to the host for it."""
        words = np.ctypeslib.as_array((ctypes.c_uint64 * (data.nbytes // 8)).from_address(data.address))
        return int(np.bitwise_xor.reduce(words[::BLOCK_WORDS]))

    def use(self, address: int, visit: Visit, stream: Stream, key: int, sum_address: int) -> None:
        """Queue one use: add what is read to the sum, or write words made from their place and ``key``."""
        if visit.writes:
            self._launch("write_words", (np.uint64(address), *visit.arguments(), np.uint64(key)), stream)
        else:
            self._launch("read_words", (np.uint64(address), *visit.arguments(), np.uint64(sum_address)), stream)

    def different_words(self, first: int, second: int, nbytes: int, stream: Stream) -> int:
        """8-byte words that differ between two places that the GPU reaches."""
        with self._lab.device_buffer(8) as counter:
            self.clear(counter.address, stream)
            arguments = (np.uint64(first), np.uint64(second), np.uint64(nbytes // 8), np.uint64(counter.address))
            self._launch("count_different", arguments, stream)
            stream.synchronize()
            return self.word(counter.address)

    @staticmethod
    def word(address: int) -> int:
        """An 8-byte word of the device; complete on return."""
        value = np.zeros(1, dtype=np.uint64)
        runtime.memcpy(value.ctypes.data, address, 8, DEVICE_TO_HOST)
        return int(value[0])

    @staticmethod
    def clear(address: int, stream: Stream) -> None:
        """Queue: set an 8-byte word of the device to zero."""
        runtime.memsetAsync(address, 0, 8, require_type(stream, CudaStream).handle)

    def _launch(self, name: str, arguments: tuple[Any, ...], stream: Stream) -> None:
        with require_type(stream, CudaStream).queue:
            self._kernels[name]((self._blocks,), (THREADS,), arguments)
