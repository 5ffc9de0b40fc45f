"""A CuPy program: the same array from pageable and from pinned memory, and its result back."""

import sys

import cupy as cp
import numpy as np

ROUNDS = int(sys.argv[1]) if len(sys.argv) > 1 else 20
BYTES = 4 << 20


def from_pageable(device, source):
    device.data.copy_from_host(source.ctypes.data, BYTES)  # pageable up


def from_pinned(device, source):
    device.data.copy_from_host(source.ctypes.data, BYTES)  # pinned up


def back(device):
    return device.get()  # pageable down


def main():
    device = cp.empty(BYTES // 4, np.float32)
    pageable = np.ones(BYTES // 4, np.float32)
    memory = cp.cuda.alloc_pinned_memory(BYTES)
    pinned = np.frombuffer(memory, np.float32, BYTES // 4)
    pinned[:] = 1
    for _ in range(ROUNDS):
        from_pageable(device, pageable)
        device += 1
        from_pinned(device, pinned)
        device += 1
        back(device)
    cp.cuda.Device().synchronize()


main()
