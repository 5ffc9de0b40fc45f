"""Lines that keep the CPU for copies, each as it is and edited: ``cpu_work.py FILE``, which gets seconds of both.

``mark: NAME`` stands on each line as it is.
"""

import json
import pathlib
import sys
import time

import cupy
import cupyx
import numpy as np
import torch

SIDE, ROUNDS = 4096, 20  # 64 MiB of float32
took = {}
host = torch.ones(SIDE, SIDE)
pinned = host.pin_memory()
kept = torch.empty(SIDE, SIDE, pin_memory=True)
on_gpu = torch.zeros(SIDE, SIDE, device="cuda")
half = torch.zeros(SIDE, SIDE, dtype=torch.float16, device="cuda")
array = np.ones((4, SIDE, SIDE), np.float32)
array_pinned = cupyx.zeros_pinned((4, SIDE, SIDE), np.float32)
array_kept = cupyx.zeros_pinned((SIDE, SIDE), np.float32)
array_on_gpu = cupy.zeros((SIDE, SIDE), np.float32)


def pin():
    begun = time.perf_counter()
    source = host.pin_memory()  # mark: pin
    took["pin_memory"] = took.get("pin_memory", 0.0) + time.perf_counter() - begun
    on_gpu.copy_(source, non_blocking=True)
    on_gpu.add_(1)


def pin_edited():
    on_gpu.copy_(pinned, non_blocking=True)
    on_gpu.add_(1)


def convert():
    half.copy_(pinned)  # mark: convert
    half.add_(1)


def convert_edited():
    half.copy_(pinned.to("cuda", non_blocking=True))
    half.add_(1)


def gather():
    moved = pinned[:, ::2].to("cuda")  # mark: gather
    moved.add_(1)


def gather_edited():
    moved = pinned.to("cuda", non_blocking=True)[:, ::2].contiguous()
    moved.add_(1)


def fetch():
    on_gpu.add_(1)
    on_gpu.cpu().pin_memory()  # mark: fetch


def fetch_edited():
    on_gpu.add_(1)
    kept.copy_(on_gpu, non_blocking=True)
    torch.cuda.current_stream().synchronize()


def asarray(step):
    moved = cupy.asarray(array[step % 4])  # mark: asarray
    moved += 1


def asarray_edited(step):
    array_on_gpu.set(array_pinned[step % 4])
    array_on_gpu.__iadd__(1)


def get():
    array_on_gpu.__iadd__(1)
    array_on_gpu.get()  # mark: get


def get_edited():
    array_on_gpu.__iadd__(1)
    array_on_gpu.get(out=array_kept)


def timed(do, *numbered):
    torch.cuda.synchronize()
    begun = time.perf_counter()
    for step in range(ROUNDS):
        do(*([step] if numbered else []))
    torch.cuda.synchronize()
    took[do.__name__] = time.perf_counter() - begun


for each in (on_gpu, half, array_on_gpu):
    each += 1  # compiled and loaded
for each in (pin, pin_edited, convert, convert_edited, gather, gather_edited, fetch, fetch_edited, get, get_edited):
    timed(each)
timed(asarray, True)
timed(asarray_edited, True)
pathlib.Path(sys.argv[1]).write_text(json.dumps(took))
