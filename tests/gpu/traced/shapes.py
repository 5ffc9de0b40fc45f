"""Training steps from one tensor in host memory: ``shapes.py pageable|pinned|kept STEPS FILE``.

Three shapes: the copy takes most of a step, about half, or a small part. FILE gets a line with each shape's seconds
(and how many of them its buffers were pinned in), stdout what the gradients are. ``pinned``: the tensor was pinned
before. ``kept``: each step copies it into one of two pinned buffers that are kept, as one edits a program whose batches
come in pageable memory.
"""

import hashlib
import itertools
import json
import sys
import time
from pathlib import Path

import torch
from torch import nn


class Kept:
    """Two pinned buffers in turn."""

    def __init__(self, like):
        begun = time.perf_counter()
        buffers = [torch.empty(like.shape, dtype=like.dtype, pin_memory=True) for _ in range(2)]
        self.pinned_in = time.perf_counter() - begun
        self.turns = itertools.cycle([(buffer, torch.cuda.Event()) for buffer in buffers])

    def copy(self, source):
        buffer, copied = next(self.turns)
        copied.synchronize()
        buffer.copy_(source)
        on_gpu = buffer.to("cuda", non_blocking=True)
        copied.record()
        return on_gpu


def train(model, copy, source, steps):
    for _ in range(steps):
        model(copy(source)).square().mean().backward()
    torch.cuda.synchronize()


def copy_bound(source):
    return source.to("cuda", non_blocking=True)  # copy-bound


def balanced(source):
    return source.to("cuda", non_blocking=True)  # balanced


def compute_bound(source):
    return source.to("cuda", non_blocking=True)  # compute-bound


def main(memory, steps, file):
    took = {}
    for copy, rows, layers in ((copy_bound, 8192, 1), (balanced, 2048, 2), (compute_bound, 2048, 8)):
        torch.manual_seed(0)
        model = nn.Sequential(*(nn.Linear(2048, 2048) for _ in range(layers))).cuda()
        source = torch.randn(rows, 2048)
        if memory == "pinned":
            source = source.pin_memory()
        on_gpu = source.to("cuda")
        train(model, lambda _, on_gpu=on_gpu: on_gpu, source, 5)  # warm-up
        begun = time.perf_counter()
        kept = Kept(source) if memory == "kept" else None
        train(model, kept.copy if kept else copy, source, steps)
        took[copy.__name__] = time.perf_counter() - begun
        took[f"{copy.__name__} pinning"] = kept.pinned_in if kept else 0.0
        gradients = b"".join(each.grad.cpu().numpy().tobytes() for each in model.parameters())
        print(copy.__name__, hashlib.sha256(gradients).hexdigest())
    with Path(file).open("a") as times:
        print(json.dumps(took), file=times)


main(sys.argv[1], int(sys.argv[2]), sys.argv[3])
