"""Copies from every kind of pageable memory: ``memory.py torch|cupy FILE``. FILE's pages are dropped first."""

import mmap
import os
import sys
from pathlib import Path

import numpy as np

SIZE, HUGE = 64 << 20, 2 << 20
library, path = sys.argv[1:3]


def aligned():
    memory = mmap.mmap(-1, SIZE + HUGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory.madvise(mmap.MADV_HUGEPAGE)
    array = np.frombuffer(memory, np.uint8)
    start = -array.ctypes.data % HUGE
    array[:] = 1
    return array[start : start + SIZE]


def with_torch():
    import torch

    target = torch.empty(SIZE, dtype=torch.uint8, device="cuda")
    touched, shared = torch.ones(SIZE, dtype=torch.uint8), torch.ones(SIZE, dtype=torch.uint8).share_memory_()
    for _ in range(3):
        target.copy_(touched)  # touched
        target.copy_(torch.empty(SIZE, dtype=torch.uint8))  # new
        target.copy_(torch.from_file(path, shared=False, size=SIZE, dtype=torch.uint8))  # file
        target.copy_(shared)  # shared
        target.copy_(torch.from_numpy(aligned()))  # huge
        target.cpu()  # new to host


def with_cupy():
    import cupy as cp

    target, touched = cp.empty(SIZE, np.uint8), np.ones(SIZE, np.uint8)
    for _ in range(3):
        target.set(touched)  # touched
        target.set(np.empty(SIZE, np.uint8))  # new
        target.set(np.memmap(path, np.uint8, "r"))  # file
        target.set(np.frombuffer(mmap.mmap(-1, SIZE), np.uint8))  # shared
        target.set(aligned())  # huge
        target.get()  # new to host


Path(path).write_bytes(bytes(SIZE))
descriptor = os.open(path, os.O_RDONLY)
os.fsync(descriptor)
os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
{"torch": with_torch, "cupy": with_cupy}[library]()
