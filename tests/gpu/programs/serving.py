"""A serving program as PinScope meets it: a pool of pinned KV-cache blocks on the host, to which requests swap out.

    python serving.py SECONDS

It needs PyTorch and a GPU. The pool is one pinned tensor a layer, as vLLM's swap space is; PyTorch rounds 72 MiB up to
128 MiB. Requests copy blocks between it and the GPU's cache. A cache of finished prefixes grows by a pinned tensor of
64 MiB every three seconds, up to 16 of them.
"""

from __future__ import annotations

import random
import sys
import time

import torch

LAYERS, BLOCKS, BLOCK_WORDS = 32, 72, 2**18
PREFIX_WORDS, PREFIX_SECONDS, MOST_PREFIXES = 2**24, 3.0, 16


def serve(seconds: float) -> None:
    """Answer requests for so long."""
    chance = random.Random(0)
    weights = torch.randn(4096, 4096, device="cuda", dtype=torch.float16)
    on_gpu = [torch.zeros(BLOCKS, BLOCK_WORDS, device="cuda") for _ in range(LAYERS)]
    on_host = [torch.empty(BLOCKS, BLOCK_WORDS, pin_memory=True) for _ in range(LAYERS)]
    prefixes: list[torch.Tensor] = []
    begun = time.monotonic()
    while (passed := time.monotonic() - begun) < seconds:
        state = torch.randn(8, 4096, device="cuda", dtype=torch.float16)
        for _ in range(chance.randint(8, 64)):
            state = torch.tanh(state @ weights)
        block = chance.randrange(BLOCKS)
        for gpu, host in zip(on_gpu, on_host, strict=True):
            host[block].copy_(gpu[block], non_blocking=True)
            gpu[block].copy_(host[block], non_blocking=True)
        torch.cuda.synchronize()
        if passed > PREFIX_SECONDS * (1 + len(prefixes)) and len(prefixes) < MOST_PREFIXES:
            prefixes.append(torch.zeros(PREFIX_WORDS, dtype=torch.float32, pin_memory=True))
        time.sleep(chance.expovariate(20.0))


if __name__ == "__main__":
    serve(float(sys.argv[1]))
