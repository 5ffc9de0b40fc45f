"""A loop that runs until a file is there, and then says what came out and when each step was over: WAY STOP.

Ways: a library, with steps of a millisecond; ``server``, with PyTorch and steps of ten; ``graph``, PyTorch's.
"""

import functools
import json
import os
import sys
import time
from pathlib import Path

import numpy as np

WAY, STOP = sys.argv[1:]
LEAST, BYTES, HELD = 2000, 4 << 20, 64 << 20
SERVER_LAYERS = 28
RANK = os.environ.get("RANK", "")


def torch_step(layers=1):
    import torch

    torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")) % torch.cuda.device_count())
    batch, weights = torch.ones(BYTES // 4), torch.ones(2048, 2048, device="cuda")
    held = torch.ones(HELD, dtype=torch.uint8, pin_memory=True)
    total = torch.zeros((), dtype=torch.float64, device="cuda")

    def step():
        there = batch.to("cuda")  # the batch
        for _ in range(layers):
            torch.mm(weights, weights)
        total.add_(there.sum(dtype=torch.float64))
        torch.cuda.synchronize()

    return step, total.item, held


def graph_step():
    import torch

    batch, there = torch.ones(BYTES // 4).pin_memory(), torch.zeros(BYTES // 4, device="cuda")
    total = torch.zeros((), dtype=torch.float64, device="cuda")
    there.copy_(batch, non_blocking=True)
    there.sum(dtype=torch.float64)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        there.copy_(batch, non_blocking=True)
        total.add_(there.sum(dtype=torch.float64))

    def step():
        graph.replay()  # the graph
        torch.cuda.synchronize()

    return step, total.item, batch


def cupy_step():
    import cupy as cp

    batch, there = np.ones(BYTES // 4, np.float32), cp.empty(BYTES // 4, np.float32)
    held = cp.cuda.alloc_pinned_memory(HELD)
    weights, total = cp.ones((2048, 2048), np.float32), cp.zeros((), np.float64)

    def step():
        there.set(batch)  # the batch
        weights @ weights
        cp.add(total, there.sum(dtype=np.float64), out=total)
        cp.cuda.Device().synchronize()

    return step, total.item, held


def main():
    ways = {
        "torch": torch_step,
        "server": functools.partial(torch_step, SERVER_LAYERS),
        "graph": graph_step,
        "cupy": cupy_step,
    }
    step, total, held = ways[WAY]()
    least, moments = LEAST // 10 if WAY == "server" else LEAST, []
    while len(moments) < least or not Path(STOP).exists():
        step()
        moments.append(time.time_ns())
        if len(moments) == least:
            print("runs", flush=True)
    del held
    result = {"steps": len(moments), "total": total(), "moments": moments}
    Path(f"{STOP}.result{RANK}").write_text(json.dumps(result))


main()
