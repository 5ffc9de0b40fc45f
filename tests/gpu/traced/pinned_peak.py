"""Pinned memory that comes and goes, and copies of three sizes: ``pinned_peak.py``."""

import cupy
import numpy

MIB = 1 << 20
H2D, D2H = cupy.cuda.runtime.memcpyHostToDevice, cupy.cuda.runtime.memcpyDeviceToHost


def main():
    runtime = cupy.cuda.runtime
    on_gpu, data = runtime.malloc(4 * MIB), numpy.ones(4 * MIB, numpy.uint8)
    first = runtime.hostAlloc(64 * MIB, 0)  # first
    second = runtime.hostAlloc(32 * MIB, 0)  # second
    runtime.freeHost(first)
    third = runtime.hostAlloc(16 * MIB, 0)  # third
    for _ in range(10):
        runtime.memcpy(on_gpu, data.ctypes.data, 4 * MIB, H2D)
    for _ in range(100):
        runtime.memcpy(on_gpu, data.ctypes.data, 4096, H2D)
    for _ in range(5):
        runtime.memcpy(second, on_gpu, MIB, D2H)
    runtime.freeHost(second)
    runtime.freeHost(third)
    print("end")


main()
