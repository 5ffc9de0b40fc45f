"""The same with CuPy: ``shapes_cupy.py pageable|pinned STEPS FILE``; see ``shapes.py``.

``kept`` fills its buffers with eight threads, as PyTorch does: one takes longer than the pageable copy would.
"""

import hashlib
import itertools
import json
import sys
import threading
import time
from pathlib import Path
from queue import SimpleQueue

import cupy as cp
import cupyx
import numpy as np

BLOCKS, THREADS = 20, 8
parts, filled = SimpleQueue(), SimpleQueue()
work = cp.ElementwiseKernel(
    "float32 x, int32 turns", "float32 y", "float z = x; for (int i = 0; i < turns; i++) z = z * 0.999f + 0.1f; y += z",
    "work",
)  # fmt: skip


class Kept:
    """Two pinned buffers in turn, made at the first copy."""

    turns = None

    def copy(self, device, source):
        if self.turns is None:
            buffers = [cupyx.empty_pinned(source.shape, source.dtype) for _ in range(2)]
            self.turns = itertools.cycle([(buffer, cp.cuda.Event(disable_timing=True)) for buffer in buffers])
        buffer, copied = next(self.turns)
        copied.synchronize()
        first, *others = zip(np.array_split(buffer, THREADS), np.array_split(source, THREADS), strict=True)
        for part in others:
            parts.put(part)
        np.copyto(*first)
        for _ in others:
            filled.get()
        device.set(buffer)
        copied.record()


def fill():
    while True:
        np.copyto(*parts.get())
        filled.put(None)


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
    took, ways = {}, {}
    for _ in range(THREADS - 1):
        threading.Thread(target=fill, daemon=True).start()
    for copy, turns in ((copy_bound, 500), (balanced, 6000), (compute_bound, 20000)):
        source = np.random.default_rng(0).standard_normal(1 << 24).astype(np.float32)
        if memory == "pinned":
            pinned = cupyx.empty_pinned(source.shape, source.dtype)
            pinned[:] = source
            source = pinned
        arrays = cp.zeros(source.shape, np.float32), cp.zeros(source.shape, np.float32)
        compute(lambda *_: None, source, arrays, turns, 5)  # warm-up
        ways[copy.__name__] = copy
        if memory == "pageable":
            ways[f"{copy.__name__} kept"] = Kept().copy
        first, same = None, True
        for block in range(BLOCKS):
            names = [name for name in ways if name.startswith(copy.__name__)]
            for name in names if block % 2 else reversed(names):
                arrays[1].fill(0)
                cp.cuda.Device().synchronize()
                begun = time.perf_counter()
                compute(ways[name], source, arrays, turns, steps // BLOCKS)
                took.setdefault(name, []).append(time.perf_counter() - begun)
                first = arrays[1].copy() if first is None else first
                same &= bool((arrays[1].view(np.int32) == first.view(np.int32)).all())
        print(copy.__name__, same, hashlib.sha256(first.get()).hexdigest())
    with Path(file).open("a") as times:
        print(json.dumps(took), file=times)


main(sys.argv[1], int(sys.argv[2]), sys.argv[3])
