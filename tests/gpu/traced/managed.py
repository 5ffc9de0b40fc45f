"""Managed memory that goes back and forth: ``managed.py cupy|numba|bindings|torch|prefetched|threads``.

The CPU writes it, the GPU reads it. Prints the seconds of both, and the bytes that each moves.
"""

import ctypes
import json
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import cupy as cp
import numpy as np

SIZE, ROUNDS = 1 << 28, 5
way = sys.argv[1]


def of_bindings():
    from cuda.bindings import runtime

    _, pointer = runtime.cudaMallocManaged(SIZE, runtime.cudaMemAttachGlobal)
    memory = cp.cuda.UnownedMemory(int(pointer), SIZE, None)
    return cp.ndarray(SIZE // 4, np.uint32, cp.cuda.MemoryPointer(memory, 0))


def of_numba():
    from numba import cuda

    return cp.asarray(cuda.managed_array(SIZE // 4, np.uint32))


ALLOCATOR = """
#include <stddef.h>
extern int cuMemAllocManaged(unsigned long long *, size_t, unsigned), cuMemFree_v2(unsigned long long);
void *take(long size, int device, void *stream) {
    unsigned long long at = 0;
    return cuMemAllocManaged(&at, size, 1) ? 0 : (void *)at;
}
void give(void *at, long size, int device, void *stream) { cuMemFree_v2((unsigned long long)at); }
"""


def of_torch():
    import torch

    with tempfile.TemporaryDirectory() as folder:
        source, library = Path(folder) / "allocator.c", Path(folder) / "allocator.so"
        source.write_text(ALLOCATOR)
        subprocess.run(["gcc", "-shared", "-fPIC", "-o", library, source, "-l:libcuda.so.1"], check=True)
        allocator = torch.cuda.memory.CUDAPluggableAllocator(str(library), "take", "give")
        torch.cuda.memory.change_current_allocator(allocator)
        return torch.empty(SIZE // 4, dtype=torch.int32, device="cuda")


def of_cupy():
    cp.cuda.set_allocator(cp.cuda.MemoryPool(cp.cuda.malloc_managed).malloc)
    return cp.empty(SIZE // 4, np.uint32)


def main():
    cp.zeros(1).sum()
    on_gpu = {"bindings": of_bindings, "numba": of_numba, "torch": of_torch}.get(way, of_cupy)()
    address = on_gpu.data_ptr() if way == "torch" else on_gpu.data.ptr
    on_host = np.ctypeslib.as_array((ctypes.c_uint32 * (SIZE // 4)).from_address(address))
    for _ in range(3 if way == "threads" else 0):
        threading.Thread(target=threading.Event().wait, daemon=True).start()
    on_host[:] = 1
    int(on_gpu.max())
    written = read = 0.0
    for step in range(ROUNDS):
        begun = time.perf_counter()
        on_host[:] = step  # write
        between = time.perf_counter()
        if way == "prefetched":
            cp.cuda.runtime.memPrefetchAsync(address, SIZE, 0, 0)  # ask
        assert int(on_gpu.max()) == step  # read
        written, read = written + between - begun, read + time.perf_counter() - between
    print(json.dumps({"write": written, "read": read, "bytes": SIZE * ROUNDS}))


main()
