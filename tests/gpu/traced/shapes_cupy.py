"""The same with CuPy: ``shapes_cupy.py pageable|pinned|kept STEPS FILE``; see ``shapes.py``.

``kept`` fills its buffers with eight threads, as PyTorch does: one takes longer than the pageable copy would.
"""

import hashlib
import itertools
import json
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import cupy as cp
import cupyx
import numpy as np

work = cp.ElementwiseKernel(
    "float32 x, int32 turns", "float32 y", "float z = x; for (int i = 0; i < turns; i++) z = z * 0.999f + 0.1f; y += z",
    "work",
)  # fmt: skip


class Kept:
    """Two pinned buffers in turn."""

    threads = ThreadPoolExecutor(8)

    def __init__(self, like):
        begun = time.perf_counter()
        buffers = [cupyx.empty_pinned(like.shape, like.dtype) for _ in range(2)]
        self.pinned_in = time.perf_counter() - begun
        self.turns = itertools.cycle([(buffer, cp.cuda.Event(disable_timing=True)) for buffer in buffers])

    def copy(self, device, source):
        buffer, copied = next(self.turns)
        copied.synchronize()
        list(self.threads.map(np.copyto, np.array_split(buffer, 8), np.array_split(source, 8)))
        device.set(buffer)
        copied.record()


def compute(copy, source, arrays, turns, steps):
    device, total = arrays
    for _ in range(steps):
        copy(device, source)
        work(device, turns, total)
    cp.cuda.Device().synchronize()


def copy_bound(device, source):
    device.set(source)  # copy-bound


def balanced(device, source):
    device.set(source)  # balanced


def compute_bound(device, source):
    device.set(source)  # compute-bound


def main(memory, steps, file):
    took = {}
    for copy, turns in ((copy_bound, 500), (balanced, 6000), (compute_bound, 20000)):
        source = np.random.default_rng(0).standard_normal(1 << 24).astype(np.float32)
        if memory == "pinned":
            pinned = cupyx.empty_pinned(source.shape, source.dtype)
            pinned[:] = source
            source = pinned
        arrays = cp.zeros(source.shape, np.float32), cp.zeros(source.shape, np.float32)
        compute(lambda *_: None, source, arrays, turns, 5)  # warm-up
        begun = time.perf_counter()
        kept = Kept(source) if memory == "kept" else None
        compute(kept.copy if kept else copy, source, arrays, turns, steps)
        took[copy.__name__] = time.perf_counter() - begun
        took[f"{copy.__name__} pinning"] = kept.pinned_in if kept else 0.0
        print(copy.__name__, hashlib.sha256(arrays[1].get().tobytes()).hexdigest())
    with Path(file).open("a") as times:
        print(json.dumps(took), file=times)


main(sys.argv[1], int(sys.argv[2]), sys.argv[3])
