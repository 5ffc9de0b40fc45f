"""What all ways to move pieces share: memory with its right content beside it, a stream, kernels that compare."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from contextlib import ExitStack
from time import perf_counter
from typing import Any

import numpy as np
from cupy.cuda import runtime
from numpy.typing import NDArray

from pinscope.experiments.scatter.cuda_kernels import Launch, kernels
from pinscope.lab.cuda import CudaLab
from pinscope.lab.cuda_handles import DEVICE_TO_HOST, HOST_TO_DEVICE, CudaStream
from pinscope.lab.protocol import DeviceBuffer, HostBuffer, own

Clock = Callable[[], float]


class Bench:
    """What all ways share: the area on the host, what lies in it, pieces on the GPU, a stream and kernels.

    Args:
        lab: an open lab.
        area_bytes: length of the area.
        most_bytes: of all pieces, at most.
        stack: holds the memory.
        clock: seconds.
    """

    def __init__(
        self, lab: CudaLab, area_bytes: int, most_bytes: int, stack: ExitStack, clock: Clock = perf_counter
    ) -> None:
        self.lab, self.clock = lab, clock
        self.kernels = kernels()
        self.ordinal = int(runtime.getDevice())
        self.sms = int(runtime.getDeviceProperties(self.ordinal)["multiProcessorCount"])
        self.stream = own(stack.enter_context(lab.stream()), CudaStream)
        self.start, self.end = stack.enter_context(lab.event()), stack.enter_context(lab.event())
        self.area: HostBuffer = stack.enter_context(lab.host_buffer(area_bytes, "mapped"))
        self.right: DeviceBuffer = stack.enter_context(lab.device_buffer(area_bytes))
        self.row: DeviceBuffer = stack.enter_context(lab.device_buffer(most_bytes))
        self._most, self._stack = most_bytes, stack
        self._staging: HostBuffer | None = None
        self._counter = stack.enter_context(lab.device_buffer(8))
        lab.fill(self.right, lab.fresh_pattern())
        self.restore()

    @property
    def staging(self) -> HostBuffer:
        """A pinned buffer for all pieces; taken when it is first asked for."""
        if self._staging is None:
            self._staging = self._stack.enter_context(self.lab.host_buffer(self._most, "pinned"))
        return self._staging

    def restore(self) -> None:
        """The area as it was: its content stands beside it on the GPU, where it stays right."""
        self.lab.copy_to_host(self.area, self.right, self.stream)
        self.stream.synchronize()

    def numbers(self, values: NDArray[Any], held: ExitStack) -> int:
        """The address of such numbers on the GPU."""
        buffer = held.enter_context(self.lab.device_buffer(values.nbytes))
        runtime.memcpy(buffer.address, values.ctypes.data, values.nbytes, HOST_TO_DEVICE)
        runtime.deviceSynchronize()  # from pageable memory it returns once the driver has staged it
        return buffer.address

    def wrong(self, words: tuple[int, int], numbers: int, piece_bytes: int, chosen: int, rest: int) -> int:
        """Of so many 8-byte words at an address those that are not right; complete on return (see ``count_wrong``)."""
        runtime.memsetAsync(self._counter.address, 0, 8, self.stream.handle)
        Launch(
            self.kernels["count_wrong"],
            4 * self.sms,
            self.stream.handle,
            *map(ctypes.c_uint64, (*words, numbers, piece_bytes // 8, chosen, rest, self._counter.address)),
        )()
        self.stream.synchronize()
        value = np.zeros(1, dtype=np.uint64)
        runtime.memcpy(value.ctypes.data, self._counter.address, 8, DEVICE_TO_HOST)
        return int(value[0])
