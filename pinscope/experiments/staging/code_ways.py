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

# part: ring_two
from concurrent.futures import ThreadPoolExecutor

import cupy
import numpy as np
from cupy.cuda import Event, Stream, runtime
from cupyx import empty_pinned


class Drain:
    """Brings arrays from the GPU to ordinary memory through rings of pinned buffers. Keep it: it pins {pinned}."""

    def __init__(self, threads={threads}, slots={slots}, chunk={chunk}):
        self.chunk = chunk
        self.rings = [self._ring(slots) for _ in range(threads)]
        device = runtime.getDevice()  # each thread has a GPU of its own, at first the first one
        self.pool = ThreadPoolExecutor(threads, initializer=runtime.setDevice, initargs=(device,))

    def _ring(self, slots):
        """A stream, pinned buffers, and an event for each: it is full. A thread that waits sleeps."""
        buffers = [empty_pinned(self.chunk, np.uint8) for _ in range(slots)]
        return Stream(non_blocking=True), buffers, [Event(block=True, disable_timing=True) for _ in range(slots)]

    def to_host(self, array, kept):
        """Copy an array from the GPU into one that was written before; complete on return."""
        array = cupy.ascontiguousarray(array)
        cupy.cuda.get_current_stream().synchronize()  # the kernels that make the data are done
        target = kept.reshape(-1).view(np.uint8)
        share = max(-(-target.size // len(self.rings)), 1)
        parts = [target[at : at + share] for at in range(0, target.size, share)]
        sources = range(array.data.ptr, array.data.ptr + target.size, share)
        list(self.pool.map(self._drain, self.rings, sources, parts))
        return kept

    def _drain(self, ring, source, part):
        stream, buffers, full = ring
        pieces = [part[at : at + self.chunk] for at in range(0, part.size, self.chunk)]

        def fetch(number):
            slot, at = number % len(buffers), number * self.chunk
            size = pieces[number].size
            runtime.memcpyAsync(buffers[slot].ctypes.data, source + at, size, 2, stream.ptr)  # 2: device to host
            full[slot].record(stream)

        for number in range(min(len(buffers), len(pieces))):
            fetch(number)
        for number, piece in enumerate(pieces):
            slot = number % len(buffers)
            full[slot].synchronize()
            piece[:] = buffers[slot][: piece.size]  # or use the results where they lie
            if number + len(buffers) < len(pieces):
                fetch(number + len(buffers))


drain = Drain()
on_gpu = cupy.arange(2**20)
on_host = drain.to_host(on_gpu, np.zeros(on_gpu.shape, on_gpu.dtype))
