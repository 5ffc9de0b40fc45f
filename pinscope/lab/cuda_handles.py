"""What CUDA hands out, as the lab passes it on: device memory, streams, events, counters."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from cupy.cuda import runtime

from pinscope.lab.protocol import Stream, never_ends, own

HOST_TO_DEVICE, DEVICE_TO_HOST, DEVICE_TO_DEVICE = 1, 2, 3
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
    """The same stream as CUDA knows it."""
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
        runtime.eventRecord(self.handle, own(stream, CudaStream).handle)

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
