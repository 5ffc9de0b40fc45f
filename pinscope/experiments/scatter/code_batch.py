# All copies by one call: cudaMemcpyBatchAsync (CUDA 12.8), as the driver has it. It takes a stream of its own.
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
