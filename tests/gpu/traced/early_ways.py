"""Results that are read too early, by other ways to copy: ``early_ways.py WAY``, the name of a function."""

import ctypes
import sys
import threading
from pathlib import Path

import pinscope

COUNT = 1 << 20


def lines():
    import torch

    first, second = (torch.empty(COUNT, pin_memory=True) for _ in range(2))
    value = torch.empty(COUNT, device="cuda")
    for number in range(5):
        first.fill_(number + 1)
        value.copy_(first, non_blocking=True)  # in time
        torch.cuda._sleep(60_000_000)
        second.copy_(value, non_blocking=True)  # mark: copy
        print(second[-1].item())
        torch.cuda.synchronize()


def thread():
    def work():
        import torch

        value, host = torch.empty(COUNT, device="cuda"), torch.empty(COUNT, pin_memory=True)
        for number in range(5):
            value.fill_(number + 1)
            torch.cuda._sleep(60_000_000)
            host.copy_(value, non_blocking=True)  # mark: copy
            print(host[-1].item())
            torch.cuda.synchronize()

    worker = threading.Thread(target=work)
    worker.start()
    worker.join()


def graph():
    import torch

    value, host = torch.zeros(COUNT, device="cuda"), torch.zeros(COUNT, pin_memory=True)
    captured = torch.cuda.CUDAGraph()
    with torch.cuda.graph(captured):
        value += 1
        host.copy_(value, non_blocking=True)  # captured
    for _ in range(5):
        torch.cuda._sleep(60_000_000)
        captured.replay()  # mark: copy
        print(host[-1].item())
        torch.cuda.synchronize()


def by_ctypes():
    import torch

    maps = Path("/proc/self/maps").read_text().splitlines()
    runtime = ctypes.CDLL(next(line.split()[-1] for line in maps if "libcudart.so" in line))
    value, host = torch.empty(COUNT, device="cuda"), torch.empty(COUNT, pin_memory=True)
    for number in range(5):
        value.fill_(number + 1)
        torch.cuda._sleep(60_000_000)
        source, target = ctypes.c_void_p(value.data_ptr()), ctypes.c_void_p(host.data_ptr())
        runtime.cudaMemcpyAsync(target, source, ctypes.c_size_t(4 * COUNT), 2, None)  # mark: copy
        print(host[-1].item())
        torch.cuda.synchronize()


def by_numba():
    import numpy as np
    from numba import cuda

    @cuda.jit
    def spin(values, number, turns):
        total = 0.0
        for turn in range(turns):
            total += turn * 1e-30
        values[cuda.grid(1)] = number + total * 0

    stream = cuda.stream()
    host, value = cuda.pinned_array(256, np.float32), cuda.device_array(256, np.float32)
    spin[1, 256, stream](value, 0, 1)
    stream.synchronize()
    for number in range(5):
        spin[1, 256, stream](value, number + 1, 4_000_000)
        value.copy_to_host(host, stream=stream)  # mark: copy
        print(host[-1])
        stream.synchronize()


def bindings():
    import torch
    from cuda.bindings import runtime

    value, host = torch.empty(COUNT, device="cuda"), torch.empty(COUNT, pin_memory=True)
    kind = runtime.cudaMemcpyKind.cudaMemcpyDeviceToHost
    for number in range(5):
        value.fill_(number + 1)
        torch.cuda._sleep(60_000_000)
        runtime.cudaMemcpyAsync(host.data_ptr(), value.data_ptr(), 4 * COUNT, kind, 0)  # mark: copy
        print(host[-1].item())
        torch.cuda.synchronize()


way = sys.argv[1]
globals()[way]()
pinscope.check("end", [0])
