# Code to paste, a part for each way. Places in braces are filled with what was measured.

# part: two_buffers
from concurrent.futures import ThreadPoolExecutor

import cupy
import numpy as np
from cupy.cuda import Event, Stream, runtime
from cupyx import empty_pinned


class Stager:
    """Brings NumPy arrays from ordinary memory to the GPU. Make one and keep it: it pins {pinned}."""

    def __init__(self, threads={threads}, chunk={chunk}):
        self.chunk = chunk
        self.lanes = [self._lane() for _ in range(threads)]
        device = runtime.getDevice()  # each thread has a GPU of its own, at first the first one
        self.pool = ThreadPoolExecutor(threads, initializer=runtime.setDevice, initargs=(device,))

    def _lane(self):
        """A stream, two pinned buffers, and an event for each: its copy is over. A thread that waits sleeps."""
        buffers = [empty_pinned(self.chunk, np.uint8) for _ in range(2)]
        return Stream(non_blocking=True), buffers, [Event(block=True, disable_timing=True) for _ in range(2)]

    def to_gpu(self, array):
        """A copy of the array on the GPU, complete on return."""
        array = np.ascontiguousarray(array)
        result = cupy.empty(array.shape, array.dtype)
        cupy.cuda.get_current_stream().synchronize()  # kernels queued before may still use this memory
        source = array.reshape(-1).view(np.uint8)
        share = max(-(-source.size // len(self.lanes)), 1)
        parts = [source[at : at + share] for at in range(0, source.size, share)]
        targets = range(result.data.ptr, result.data.ptr + source.size, share)
        list(self.pool.map(self._bring, self.lanes, parts, targets))
        return result

    def _bring(self, lane, part, target):
        stream, buffers, copied = lane
        for number, at in enumerate(range(0, part.size, self.chunk)):
            buffer, event, piece = buffers[number % 2], copied[number % 2], part[at : at + self.chunk]
            event.synchronize()  # the copy from this buffer is over
            buffer[: piece.size] = piece  # NumPy lets the other threads run
            runtime.memcpyAsync(target + at, buffer.ctypes.data, piece.size, 1, stream.ptr)  # 1: host to device
            event.record(stream)
        for event in copied:
            event.synchronize()


stager = Stager()
on_gpu = stager.to_gpu(np.arange(2**20))

# part: in_place
import cupy
import numpy as np
from cupyx import empty_pinned

pinned = empty_pinned(2**20, np.float32)  # once; it stays
on_gpu = cupy.empty(pinned.shape, pinned.dtype)
stream = cupy.cuda.Stream(non_blocking=True)
copied = cupy.cuda.Event(block=True, disable_timing=True)  # a thread that waits for it sleeps

for step in range(3):
    copied.synchronize()  # the copy of the last step is over, so its data may be overwritten
    pinned[:] = step  # make the data here, instead of making it elsewhere and copying it
    on_gpu.set(pinned, stream=stream)  # returns at once
    copied.record(stream)
    # other work of the CPU; kernels that use on_gpu belong on the same stream
copied.synchronize()

# part: register
import cupy
import numpy as np

data = np.arange(2**20)
on_gpu = cupy.empty(data.shape, data.dtype)
cupy.cuda.runtime.hostRegister(data.ctypes.data, data.nbytes, 0)
try:
    on_gpu.set(data)
    cupy.cuda.get_current_stream().synchronize()  # before it is unpinned
finally:
    cupy.cuda.runtime.hostUnregister(data.ctypes.data)
