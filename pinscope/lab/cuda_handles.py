"""What the cuda lab hands out and launches: streams, events, counters, holds, and its kernels."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from cupy.cuda import driver, runtime

from pinscope.errors import MeasurementFailed
from pinscope.lab.backing import PAGE
from pinscope.lab.cuda_memory import ALLOC_FLAGS, DEVICE_TO_HOST, driver_library
from pinscope.lab.protocol import Stream, never_ends, require_type

NOT_READY = 600
"""cudaErrorNotReady: an event that is not reached yet."""


@dataclass(frozen=True)
class DevicePart:
    address: int
    nbytes: int

    def part(self, offset: int, nbytes: int) -> Self:
        return type(self)(self.address + offset, nbytes)


@dataclass
class CudaStream:
    queue: Any
    """CuPy's stream, which launches kernels."""
    handle: int
    """CUDA's handle of the stream."""
    held: bool = False
    """Whether what is queued has to wait for the end of a hold."""

    def synchronize(self) -> None:
        if self.held:
            raise never_ends("waiting for it")
        runtime.streamSynchronize(self.handle)


@dataclass(frozen=True)
class CudaEvent:
    handle: int

    def record(self, stream: Stream) -> None:
        runtime.eventRecord(self.handle, require_type(stream, CudaStream).handle)

    def synchronize(self) -> None:
        runtime.eventSynchronize(self.handle)

    def is_reached(self) -> bool:
        status = runtime.eventQuery(self.handle)
        if status not in (0, NOT_READY):
            raise runtime.CUDARuntimeError(status)
        return not status


@dataclass(frozen=True)
class CudaCounters:
    address: int
    count: int

    def read(self) -> tuple[int, ...]:
        values = np.zeros(self.count, dtype=np.uint64)
        runtime.memcpy(values.ctypes.data, self.address, values.nbytes, DEVICE_TO_HOST)
        return tuple(int(value) for value in values)


_AT_LEAST = 0
"""CU_STREAM_WAIT_VALUE_GEQ: until the word is the value or a later one."""
_NOT_SUPPORTED = 801


class Gate:
    """A word of pinned memory that streams wait for; one hold at a time. Enter it in the device's context."""

    def __init__(self) -> None:
        self.address = 0
        """Where the word is, once entered."""
        self._holds = 0
        self._closed = False

    def __enter__(self) -> Self:
        self.address = int(runtime.hostAlloc(PAGE, ALLOC_FLAGS["mapped"]))
        self._word = ctypes.c_uint32.from_address(self.address)
        self._word.value = 0
        return self

    def __exit__(self, *exception: object) -> None:
        runtime.freeHost(self.address)

    @contextmanager
    def hold(self, streams: Sequence[CudaStream], launch: Callable[[CudaStream, int, int], None]) -> Iterator[None]:
        """Hold the streams while the block lasts; they go on when it ends, however it ends.

        Args:
            streams: of the current device.
            launch: queues a kernel that waits until the word at an address is a value: (stream, address, value).

        Raises:
            MeasurementFailed: within another hold of the same gate, or the driver refuses.
        """
        if self._closed:
            raise MeasurementFailed("streams are held already, and both holds would end with the inner one")
        self._closed = True
        self._holds += 1
        try:
            for stream in streams:
                if not self._wait_by_driver(stream.handle):
                    launch(stream, self.address, self._holds)
                stream.held = True
            yield
        finally:
            for stream in streams:
                stream.held = False
            self._word.value = self._holds
            self._closed = False

    def _wait_by_driver(self, handle: int) -> bool:
        """Queue the wait; false where the driver has no such operation."""
        status = driver_library().cuStreamWaitValue32_v2(
            ctypes.c_void_p(handle),
            ctypes.c_uint64(self.address),
            ctypes.c_uint32(self._holds),
            ctypes.c_uint(_AT_LEAST),
        )
        if status not in (0, _NOT_SUPPORTED):
            raise MeasurementFailed(f"the driver does not hold a stream: {driver.CUDADriverError(status)}")
        return not status


SOURCE = r"""
typedef unsigned long long u64;

extern "C" __device__ __forceinline__ u64 expected(const u64* block, u64 length, u64 index, u64 offset, u64 key) {
    return block[(index + offset) % length] ^ key;
}

extern "C" __device__ __forceinline__ void lay(
        u64* words, u64 count, const u64* block, u64 length, u64 offset, u64 key) {
    u64 step = (u64)gridDim.x * blockDim.x;
    for (u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x; i < count; i += step)
        words[i] = expected(block, length, i, offset, key);
}

extern "C" __device__ __forceinline__ void check(
        const u64* words, u64 count, const u64* block, u64 length, u64 offset, u64 key, u64* wrong) {
    u64 step = (u64)gridDim.x * blockDim.x;
    u64 mine = 0;
    for (u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x; i < count; i += step)
        mine += __ldcv(words + i) != expected(block, length, i, offset, key);
    for (int reach = 16; reach; reach /= 2) mine += __shfl_down_sync(0xffffffff, mine, reach);
    if (mine && threadIdx.x % 32 == 0) atomicAdd(wrong, mine);  // one a warp: wrong data must not slow the kernel
}

// 16 bytes a thread and turn, neighbours side by side; the tail of 8 bytes goes to one thread.
extern "C" __global__ void copy_words(u64* target, const u64* source, u64 count) {
    ulonglong2* wide_target = (ulonglong2*)target;
    const ulonglong2* wide_source = (const ulonglong2*)source;
    u64 step = (u64)gridDim.x * blockDim.x;
    u64 first = (u64)blockIdx.x * blockDim.x + threadIdx.x;
    for (u64 i = first; i < count / 2; i += step) wide_target[i] = wide_source[i];
    if (first == 0 && count % 2) target[count - 1] = source[count - 1];
}

// Both ways at once: even warps copy to the device, odd ones to the host, 16 bytes a thread. So reads and writes over
// the link stay in step; as two kernels, the writes, which wait for no answer, crowd the requests of the reads out.
extern "C" __global__ void copy_both_ways(
        u64* to_device, const u64* from_host, u64* to_host, const u64* from_device, u64 count) {
    u64 thread = (u64)blockIdx.x * blockDim.x + threadIdx.x;
    bool out = thread / 32 % 2;
    u64 i = thread / 64 * 32 + thread % 32;
    u64* target = out ? to_host : to_device;
    const u64* source = out ? from_device : from_host;
    if (i < count / 2) ((ulonglong2*)target)[i] = ((const ulonglong2*)source)[i];
    if (i == 0 && count % 2) target[count - 1] = source[count - 1];
}

// Holds its stream until the word in host memory is the value or a later one.
extern "C" __global__ void wait_for_word(volatile unsigned* word, unsigned value) {
    if (threadIdx.x == 0) while ((int)(*word - value) < 0) {}
}

// action: 0 none, 1 consume (check when the load starts), 2 produce (write when the load ends).
extern "C" __global__ void compute_load(
        u64 iterations, int action, u64* words, u64 count,
        const u64* block, u64 length, u64 offset, u64 key, u64* wrong, float* sink) {
    if (action == 1) check(words, count, block, length, offset, key, wrong);
    float value = threadIdx.x;
    for (u64 i = 0; i < iterations; ++i) value = fmaf(value, 0.999f, 0.5f);  // one chain: its length is its time
    if (value == -1.0f) *sink = value;  // never true; keeps the chain from being optimised away
    if (action == 2) lay(words, count, block, length, offset, key);
}
"""
