"""Kernels of this experiment: the one that moves pieces, the one that compares them, and a compute load."""

from __future__ import annotations

import ctypes
from typing import Any

import cupy

from pinscope.lab.cuda_managed import check
from pinscope.lab.cuda_memory import driver_library

THREADS = 512
"""Of a block."""
ROUNDS = 2048
"""Of the compute load, for each item of work: some 20 µs of a multiprocessor."""

SOURCE = r"""
typedef unsigned long long u64;

// Piece p lies at place[p] in the area and at p in the row. Each thread reads four times 16 bytes before it writes:
// what is under way hides the link's latency. Neighbours are side by side, so a warp moves 512 bytes at a time.
extern "C" __global__ void __launch_bounds__(512) move_pieces(
        uint4* area, uint4* row, const int* place, unsigned piece, unsigned count, int gather) {
    unsigned step = gridDim.x * blockDim.x;
    for (unsigned first = blockIdx.x * blockDim.x + threadIdx.x; first < count; first += 4 * step) {
        uint4 words[4];
        size_t there[4];
        #pragma unroll
        for (int k = 0; k < 4; ++k) {
            unsigned i = first + k * step;
            if (i < count) {
                there[k] = (size_t)place[i / piece] * piece + i % piece;
                words[k] = gather ? area[there[k]] : row[i];
            }
        }
        #pragma unroll
        for (int k = 0; k < 4; ++k) {
            unsigned i = first + k * step;
            if (i < count) {
                if (gather) row[i] = words[k];
                else area[there[k]] = words[k];
            }
        }
    }
}

// Words that are not as they should be: those of a chosen piece as in `chosen`, all others as in `rest`.
extern "C" __global__ void count_wrong(
        const u64* words, u64 count, const long long* number, u64 piece, const u64* chosen, const u64* rest,
        u64* wrong) {
    u64 step = (u64)gridDim.x * blockDim.x;
    u64 mine = 0;
    for (u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x; i < count; i += step) {
        long long from = number[i / piece];
        mine += __ldcv(words + i) != (from < 0 ? rest[i] : chosen[(u64)from * piece + i % piece]);
    }
    for (int reach = 16; reach; reach /= 2) mine += __shfl_down_sync(0xffffffff, mine, reach);
    if (mine && threadIdx.x % 32 == 0) atomicAdd(wrong, mine);
}

// One block on each multiprocessor takes items of work until none is left: one that is slowed down takes fewer. Four
// chains a thread keep the arithmetic units busy, and registers stay free for another kernel's block.
extern "C" __global__ void __launch_bounds__(512) busy(unsigned* next, unsigned items, unsigned rounds, float* sink) {
    __shared__ unsigned item;
    float a = threadIdx.x, b = a + 1, c = a + 2, d = a + 3;
    for (;;) {
        if (threadIdx.x == 0) item = atomicAdd(next, 1u);
        __syncthreads();
        unsigned mine = item;
        __syncthreads();
        if (mine >= items) break;
        #pragma unroll 8
        for (unsigned i = 0; i < rounds; ++i) {
            a = fmaf(a, 0.999f, 0.5f); b = fmaf(b, 0.999f, 0.5f); c = fmaf(c, 0.999f, 0.5f); d = fmaf(d, 0.999f, 0.5f);
        }
    }
    if (a + b + c + d == -1.0f) *sink = a;  // never true; keeps the chains from being optimised away
}
"""


def kernels() -> dict[str, Any]:
    """All of them, compiled for the current device."""
    module = cupy.RawModule(code=SOURCE)
    return {name: module.get_function(name) for name in ("move_pieces", "count_wrong", "busy")}


class Launch:
    """A launch with its arguments, made once: as short a call as a program in C++ makes.

    Args:
        kernel: one of :func:`kernels`.
        blocks: of ``THREADS`` threads.
        stream: handle of the stream.
        arguments: as ctypes has them, of the kernel's types.
    """

    def __init__(self, kernel: Any, blocks: int, stream: int, *arguments: Any) -> None:
        self._kept = (kernel, arguments)
        pointers = (ctypes.c_void_p * len(arguments))(*(ctypes.addressof(one) for one in arguments))
        one, none = ctypes.c_uint(1), ctypes.c_uint(0)
        self._arguments = (
            ctypes.c_void_p(kernel.kernel.ptr),
            ctypes.c_uint(blocks),
            one,
            one,
            ctypes.c_uint(THREADS),
            one,
            one,
            none,
            ctypes.c_void_p(stream),
            pointers,
            None,
        )

    def __call__(self) -> None:
        """Queue it."""
        check(driver_library().cuLaunchKernel(*self._arguments))
