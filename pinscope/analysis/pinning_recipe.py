"""A pinning strategy as code that can be pasted into a program."""

from __future__ import annotations

from pinscope.analysis.pinning_strategy import StrategyCell
from pinscope.units import format_bytes

_HOST_ALLOC = """\
import numpy as np
from cupy.cuda import alloc_pinned_memory  # cudaHostAlloc


def pinned_buffer(nbytes):
    return np.frombuffer(alloc_pinned_memory(nbytes), np.uint8, nbytes)
"""

_REGISTER = '''\
import mmap
import weakref
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from cupy.cuda import runtime

HUGE, PART = 2**21, 2**26


def pinned_buffer(nbytes, threads={threads}, chunk={chunk}):
    """A pinned NumPy array of bytes; unpinned with the last array that uses it."""
    memory = mmap.mmap(-1, nbytes + HUGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory.madvise(mmap.{advice})
    whole = np.frombuffer(memory, np.uint8)
    start = -whole.ctypes.data % HUGE
    array = whole[start : start + nbytes]

    def touch(at):
        array[at : min(at + PART, nbytes) : 4096] = 0  # one byte a page; NumPy lets other threads run

    with ThreadPoolExecutor(threads) as pool:
        touched = [pool.submit(touch, at) for at in range(0, nbytes, PART)]
        step = chunk or nbytes
        for at in range(0, nbytes, step):
            end = min(at + step, nbytes)
            for one in touched[at // PART : -(-end // PART)]:
                one.result()
            runtime.hostRegister(array.ctypes.data + at, end - at, 0)
            weakref.finalize(whole, runtime.hostUnregister, array.ctypes.data + at).atexit = False
    return array
'''

_CHUNK_NOTE = """\
# No copy may cross a multiple of chunk ({chunk}): CUDA answers cudaErrorInvalidValue. chunk=None allows every copy.
"""


def recipe(cell: StrategyCell) -> str:
    """Python code that pins as this strategy did, with its threads and chunk; needs NumPy and CuPy."""
    if cell.strategy.startswith("host_alloc"):
        return _HOST_ALLOC
    advice = "MADV_HUGEPAGE" if cell.strategy.startswith("thp") else "MADV_NOHUGEPAGE"
    code = _REGISTER.format(threads=cell.threads, chunk=cell.chunk_bytes, advice=advice)
    if cell.chunk_bytes is not None:
        code = _CHUNK_NOTE.format(chunk=format_bytes(cell.chunk_bytes)) + code
    return code
