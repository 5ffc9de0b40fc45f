"""Training steps from one tensor in host memory: ``shapes.py pageable|pinned STEPS FILE``.

Three shapes: the copy takes most of a step, about half, or a small part. FILE gets a line with the seconds of each
shape's blocks of steps, stdout what the gradients are. ``pinned``: the tensor was pinned before. ``pageable``: block by
block in turn with the same edited by hand (``kept``): each step copies the tensor into one of two pinned buffers that
are kept, as one edits a program whose batches come in pageable memory. The first block pins them, for all of the
program's time. Half of a machine's sixteen processors fill the buffers: if all did, each that the host takes away for a
moment would hold up the copy.
"""

import hashlib
import itertools
import json
import sys
import time
from pathlib import Path

import torch
from torch import nn

BLOCKS, THREADS = 20, 8


class Kept:
    """Two pinned buffers in turn, made at the first copy."""

    turns = None

    def copy(self, source):
        if self.turns is None:
            buffers = [torch.empty(source.shape, dtype=source.dtype, pin_memory=True) for _ in range(2)]
            self.turns = itertools.cycle([(buffer, torch.cuda.Event()) for buffer in buffers])
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


def gradients(model):
    return torch.cat([each.grad.flatten() for each in model.parameters()]).view(torch.int32)


def main(memory, steps, file):
    took, ways = {}, {}
    torch.set_num_threads(THREADS)
    for copy, rows, layers in ((copy_bound, 8192, 1), (balanced, 2048, 2), (compute_bound, 2048, 8)):
        torch.manual_seed(0)
        model = nn.Sequential(*(nn.Linear(2048, 2048) for _ in range(layers))).cuda()
        source = torch.randn(rows, 2048)
        if memory == "pinned":
            source = source.pin_memory()
        on_gpu = source.to("cuda")
        train(model, lambda _, on_gpu=on_gpu: on_gpu, source, 5)  # warm-up
        ways[copy.__name__] = copy
        if memory == "pageable":
            ways[f"{copy.__name__} kept"] = Kept().copy
        first, same = None, True
        for block in range(BLOCKS):
            names = [name for name in ways if name.startswith(copy.__name__)]
            for name in names if block % 2 else reversed(names):
                model.zero_grad()
                begun = time.perf_counter()
                train(model, ways[name], source, steps // BLOCKS)
                took.setdefault(name, []).append(time.perf_counter() - begun)
                first = gradients(model) if first is None else first
                same &= torch.equal(gradients(model), first)
        print(copy.__name__, same, hashlib.sha256(first.cpu().numpy()).hexdigest())
    with Path(file).open("a") as times:
        print(json.dumps(took), file=times)


main(sys.argv[1], int(sys.argv[2]), sys.argv[3])
