"""What all ways to move pieces share: kernels, memory with its right content beside it, and a stream."""

from __future__ import annotations

import ctypes
from contextlib import ExitStack
from importlib.resources import files
from time import perf_counter
from typing import Any

import cupy
import numpy as np
from cupy.cuda import runtime
from numpy.typing import NDArray

from pinscope.experiments.scatter.code_to_move import MOVE_PIECES
from pinscope.lab.cuda import CudaLab
from pinscope.lab.cuda_handles import DEVICE_TO_HOST, HOST_TO_DEVICE, CudaStream
from pinscope.lab.cuda_managed import check
from pinscope.lab.cuda_memory import driver_library
from pinscope.lab.harness import Clock
from pinscope.lab.protocol import DeviceBuffer, HostBuffer, own

THREADS = 512
"""Of a block."""
ROUNDS = 2048
"""Of the compute load, for each item of work: some 20 µs of a multiprocessor."""


def kernels() -> dict[str, Any]:
    """All of them, compiled for the current device."""
    others = files("pinscope.experiments.scatter").joinpath("code_check.cu").read_text("utf-8")
    module = cupy.RawModule(code=MOVE_PIECES + others)
    return {name: module.get_function(name) for name in ("move_pieces", "count_wrong", "busy")}


class Launch:
    """A launch with its arguments, made once: as short a call as a program in C++ makes.

    Args:
        kernel: one of :func:`kernels`.
        blocks: of ``THREADS`` threads.
        stream: handle of the stream.
        arguments: as ctypes has them, of the kernel's types.
    """

    def __init__(self, kernel: Any, blocks: int, stream: int, *arguments: Any) -> None:
        self._kept = (kernel, arguments)
        pointers = (ctypes.c_void_p * len(arguments))(*map(ctypes.addressof, arguments))
        single, function = ctypes.c_uint(1), ctypes.c_void_p(kernel.kernel.ptr)
        grid, block = (ctypes.c_uint(blocks), single, single), (ctypes.c_uint(THREADS), single, single)
        self._arguments = (function, *grid, *block, ctypes.c_uint(0), ctypes.c_void_p(stream), pointers, None)

    def __call__(self) -> None:
        """Queue it."""
        check(driver_library().cuLaunchKernel(*self._arguments))


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
