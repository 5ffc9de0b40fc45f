"""What a serving program asks of the GPU in each round: a kernel, a copy, a look at an event, a wait for both."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping
from contextlib import ExitStack

import cupy
import numpy as np

from pinscope.lab.cuda import CudaLab
from pinscope.lab.cuda_handles import CudaEvent, CudaStream
from pinscope.lab.cuda_memory import check, driver_library
from pinscope.lab.protocol import require_type

_SOURCE = r"""
extern "C" __global__ void work(unsigned long long nanoseconds) {
    unsigned long long begun, now;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(begun));
    do asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now)); while (now - begun < nanoseconds);
}
"""


def serving_calls(
    lab: CudaLab, kernel_seconds: float, copy_bytes: int, stack: ExitStack
) -> Mapping[str, Callable[[], object]]:
    """The calls of a round, in their order.

    Args:
        lab: an open lab.
        kernel_seconds: length of the kernel.
        copy_bytes: length of the copy to the device, from pinned memory.
        stack: holds what they need.
    """
    stream = require_type(stack.enter_context(lab.stream()), CudaStream)
    event = require_type(stack.enter_context(lab.event()), CudaEvent)
    source = stack.enter_context(lab.host_buffer(copy_bytes, "pinned"))
    target = stack.enter_context(lab.device_buffer(copy_bytes))
    kernel, arguments = cupy.RawKernel(_SOURCE, "work"), (np.uint64(kernel_seconds * 1e9),)

    def launch() -> None:
        with stream.queue:
            kernel((1,), (1,), arguments)

    driver, mark, queue = driver_library(), ctypes.c_void_p(event.handle), ctypes.c_void_p(stream.handle)

    def query() -> None:  # CuPy's calls of these two let no other thread of Python run
        check(driver.cuEventRecord(mark, queue))
        driver.cuEventQuery(mark)

    calls = {
        "launch": launch,
        "copy": lambda: lab.copy_to_device(target, source, stream),
        "query": query,
        "synchronize": stream.synchronize,
    }
    for call in calls.values():  # the first launch loads the kernel
        call()
    return calls
