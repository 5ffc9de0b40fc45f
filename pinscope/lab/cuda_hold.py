"""Holding streams: what is queued in them may begin only when the host says so.

A stream waits by the driver's own operation (cuStreamWaitValue32), which needs no engine: what is queued behind it
begins as it does on an idle stream. A kernel that waits would put a change from the compute engine to a copy engine
into what is measured. It is used only where the driver has no such operation.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Self

from cupy.cuda import driver, runtime

from pinscope.errors import MeasurementFailed
from pinscope.lab.cuda_handles import CudaStream
from pinscope.lab.cuda_memory import ALLOC_FLAGS, PAGE, driver_library

_AT_LEAST = 0
"""CU_STREAM_WAIT_VALUE_GEQ: until the word is the value or a later one."""
_NOT_SUPPORTED = 801


class Gate:
    """A word of pinned memory that streams wait for; one hold at a time. Enter it in the device's context."""

    def __init__(self) -> None:
        self.address = 0
        """Of the word, once entered."""
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
