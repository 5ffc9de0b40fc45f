# Code to paste, a part for each way, then what uses any of them. Places in braces or capitals are filled with what was measured.

# part: batch
# All copies by one call: cudaMemcpyBatchAsync (CUDA 12.8), as the driver has it. It takes a stream of its own. Into
# an idle stream pieces of some KiB go to the GPU more slowly than behind other work of the stream.
import ctypes

import cupy
import numpy as np

driver = ctypes.CDLL("libcuda.so.1")


class Attributes(ctypes.Structure):
    """CUmemcpyAttributes; the places of ordinary memory need no hint."""

    _fields_ = [("source_access_order", ctypes.c_int), ("hints", ctypes.c_int * 4), ("flags", ctypes.c_uint)]


def mover(area, row, places, to_gpu, stream):
    """A function that queues all copies by one call."""
    piece = area.shape[1]
    host = area.ctypes.data + places * piece
    device = row.data.ptr + np.arange(len(places)) * piece
    targets, sources = (device, host) if to_gpu else (host, device)
    lists = [np.ascontiguousarray(each, np.uint64) for each in (targets, sources, np.full(len(places), piece))]
    in_stream_order, first, failed = Attributes(1), ctypes.c_size_t(0), ctypes.c_size_t(0)
    newer = hasattr(driver, "cuMemcpyBatchAsync_v2")  # CUDA 13: without the number of the copy that failed
    call = driver.cuMemcpyBatchAsync_v2 if newer else driver.cuMemcpyBatchAsync

    def move():
        status = call(
            *(ctypes.c_void_p(each.ctypes.data) for each in lists), ctypes.c_size_t(len(places)),
            ctypes.byref(in_stream_order), ctypes.byref(first), ctypes.c_size_t(1),
            *([] if newer else [ctypes.byref(failed)]), ctypes.c_void_p(stream.ptr),
        )
        if status:
            raise cupy.cuda.driver.CUDADriverError(status)

    return move

# part: copy_2d
# Every other piece by one cudaMemcpy2DAsync: rows of one piece, two pieces apart.
import cupy
import numpy as np
from cupy.cuda import runtime


def mover(area, row, places, to_gpu, stream):
    """A function that queues the copy; the places are evenly spaced."""
    piece, pitch = area.shape[1], int(places[1] - places[0]) * area.shape[1]
    host, device = (area[places[0] :].ctypes.data, pitch), (row.data.ptr, piece)
    ends = (*device, *host) if to_gpu else (*host, *device)
    direction = 1 if to_gpu else 2  # cudaMemcpyHostToDevice, cudaMemcpyDeviceToHost
    return lambda: runtime.memcpy2DAsync(*ends, piece, len(places), direction, stream.ptr)

# part: kernel
# One kernel moves all pieces over the link, by BLOCKS blocks, each on a multiprocessor. Pieces of 16 bytes times N.
import cupy
import numpy as np

kernel = cupy.RawKernel(r"""
MOVE_PIECES""", "move_pieces")


def mover(area, row, places, to_gpu, stream, blocks=BLOCKS):
    """A function that launches the kernel."""
    places = cupy.asarray(places, np.int32)
    words = area.shape[1] // 16
    arguments = (
        np.uint64(area.ctypes.data), np.uint64(row.data.ptr), places, np.uint32(words),
        np.uint32(len(places) * words), np.int32(to_gpu),
    )
    cupy.cuda.get_current_stream().synchronize()  # the places are there

    def move():
        with stream:
            kernel((blocks,), (512,), arguments)

    return move

# part: example
piece, pieces = {piece}, {pieces}
memory = cupy.cuda.alloc_pinned_memory(2 * pieces * piece)
area = np.frombuffer(memory, np.uint8, 2 * pieces * piece).reshape(-1, piece)  # pinned: pieces with others between
places = {places}
row = cupy.empty((pieces, piece), np.uint8)  # on the GPU, side by side
stream = cupy.cuda.Stream(non_blocking=True)

area[:] = np.arange(len(area), dtype=np.uint32)[:, None] % 251
gather = mover(area, row, places, to_gpu=True, stream=stream)
gather()  # may be called again and again
stream.synchronize()
assert (row.get() == area[places]).all()

row[:] = 7
cupy.cuda.get_current_stream().synchronize()
scatter = mover(area, row, places, to_gpu=False, stream=stream)
scatter()
stream.synchronize()
assert (area[places] == 7).all()
