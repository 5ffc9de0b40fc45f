"""Batches of which no byte comes twice, from the same memory: ``batches.py LIBRARY``; and one block in small pieces."""

import sys

SIZE, STEPS, PIECES = 4 << 20, 20, 2000


def with_torch():
    import torch

    buffer, on_gpu = torch.empty(SIZE), torch.empty(SIZE, device="cuda")
    for _ in range(STEPS):
        buffer.random_()
        on_gpu.copy_(buffer)  # new each time
    rows, there = torch.randn(PIECES, 4096), torch.empty(PIECES, 4096, device="cuda")
    for _ in range(3):
        for number in range(PIECES):
            there[number].copy_(rows[number])  # row by row


def with_cupy():
    import cupy
    import numpy

    numbers, on_gpu = numpy.random.default_rng(0), cupy.empty(SIZE, numpy.float32)
    buffer = numpy.empty(SIZE, numpy.float32)
    for _ in range(STEPS):
        numbers.random(out=buffer, dtype=numpy.float32)
        on_gpu.set(buffer)  # new each time
    rows, there = numpy.ones((PIECES, 4096), numpy.float32), cupy.empty((PIECES, 4096), numpy.float32)
    for _ in range(3):
        for number in range(PIECES):
            there[number].set(rows[number])  # row by row


{"torch": with_torch, "cupy": with_cupy}[sys.argv[1]]()
