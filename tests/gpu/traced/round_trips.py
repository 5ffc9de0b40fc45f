"""Weights that go to the GPU for their turn and come back: ``round_trips.py LIBRARY unchanged|trained|"in places"``.

Changed in places: an eighth of a block, another one each time.
"""

import sys

LIBRARY, WHAT = sys.argv[1:]
BLOCKS, SIZE, ROUNDS = 4, 4 << 20, 10  # of 16 MiB each


def with_torch():
    import torch

    torch.manual_seed(0)
    weights = [torch.randn(SIZE) for _ in range(BLOCKS)]
    for turn in range(ROUNDS):
        for number in range(BLOCKS):
            on_gpu = weights[number].to("cuda")
            if WHAT == "trained":
                on_gpu *= 0.999
            if WHAT == "in places":
                on_gpu.view(8, -1)[turn % 8] *= 0.999
            float(on_gpu[:8].sum())
            weights[number] = on_gpu.cpu()  # torch, back


def with_cupy():
    import cupy
    import numpy

    weights = [numpy.random.default_rng(number).random(SIZE, numpy.float32) for number in range(BLOCKS)]
    on_gpu = cupy.empty(SIZE, numpy.float32)
    for turn in range(ROUNDS):
        for number in range(BLOCKS):
            on_gpu.set(weights[number])
            if WHAT == "trained":
                on_gpu *= 0.999
            if WHAT == "in places":
                on_gpu.reshape(8, -1)[turn % 8] *= 0.999
            on_gpu[:8].sum()
            weights[number] = on_gpu.get()  # cupy, back


{"torch": with_torch, "cupy": with_cupy}[LIBRARY]()
