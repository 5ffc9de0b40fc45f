"""Batches of which no byte comes twice, from the same memory: ``batches.py LIBRARY``."""

import sys

SIZE, STEPS = 4 << 20, 20


def with_torch():
    import torch

    buffer, on_gpu = torch.empty(SIZE), torch.empty(SIZE, device="cuda")
    for _ in range(STEPS):
        buffer.random_()
        on_gpu.copy_(buffer)  # new each time


def with_cupy():
    import cupy
    import numpy

    numbers, on_gpu = numpy.random.default_rng(0), cupy.empty(SIZE, numpy.float32)
    buffer = numpy.empty(SIZE, numpy.float32)
    for _ in range(STEPS):
        numbers.random(out=buffer, dtype=numpy.float32)
        on_gpu.set(buffer)  # new each time


{"torch": with_torch, "cupy": with_cupy}[sys.argv[1]]()
