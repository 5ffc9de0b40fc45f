"""Training steps from one tensor in host memory: ``shapes.py pageable|pinned STEPS`` prints each shape's seconds.

Three shapes: the copy takes most of a step, about half, or a small part.
"""

import json
import sys
import time

import torch
from torch import nn

MIB = 1 << 20


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


def main(memory, steps):
    took = {}
    for copy, rows, layers in ((copy_bound, 8192, 1), (balanced, 2048, 2), (compute_bound, 2048, 8)):
        torch.manual_seed(0)
        model = nn.Sequential(*(nn.Linear(2048, 2048) for _ in range(layers))).cuda()
        source = torch.randn(rows, 2048)
        if memory == "pinned":
            source = source.pin_memory()
        train(model, lambda x: x.to("cuda"), source, 5)  # warm-up
        begun = time.perf_counter()
        train(model, copy, source, steps)
        took[copy.__name__] = time.perf_counter() - begun
    print(json.dumps(took))


main(sys.argv[1], int(sys.argv[2]))
