"""Programs that copy under a stand-in for CUPTI: the recorder, its spool and the reading are the real ones.

The library is compiled from ``tracing/fake_cupti/fake_cupti.c``; beside it lies a stand-in for cupti-python.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

FOLDER = Path(__file__).parent / "tracing" / "fake_cupti"
ROOT = Path(__file__).parents[2]
PRELUDE = """\
import ctypes, functools, os, signal, sys, threading, time
cuda = ctypes.CDLL(os.environ["FAKE_CUPTI"])
copy, kernel, pinned, wait = cuda.fake_copy, cuda.fake_kernel, cuda.fake_pinned, cuda.fake_wait
copy.argtypes = (ctypes.c_uint64, ctypes.c_int, ctypes.c_int)
kernel.argtypes = wait.argtypes = (ctypes.c_uint64,)
copy_of = cuda.fake_copy_of
copy_of.argtypes = (ctypes.c_uint64, ctypes.c_uint64, ctypes.c_int, ctypes.c_int)
copies = cuda.fake_copies
copies.argtypes = (ctypes.c_uint64,)
pinned.argtypes = (ctypes.c_uint32, ctypes.c_uint64, ctypes.c_uint64)
push, pop, push_in, pop_in = cuda.fake_push, cuda.fake_pop, cuda.fake_push_in, cuda.fake_pop_in
push.argtypes, push_in.argtypes = (ctypes.c_char_p,), (ctypes.c_uint64, ctypes.c_char_p)
pop_in.argtypes = (ctypes.c_uint64,)
late, done = cuda.fake_late, cuda.cuStreamSynchronize
late.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint64, ctypes.c_uint64, ctypes.c_int)
done.argtypes = (ctypes.c_uint64,)
PAGEABLE, PINNED, DEVICE = 1, 2, 3
call = cuda.fake_call
call.argtypes = (ctypes.c_uint32, ctypes.c_char_p) * 2 + (ctypes.c_int, ctypes.c_uint64, ctypes.c_uint64)
register = functools.partial(call, 152, b"cudaHostRegister_v4000", 0, b"")
last_error = functools.partial(call, 10, b"cudaGetLastError_v3020", 0, b"")
managed, prefetch, counter = cuda.fake_managed, cuda.fake_prefetch, cuda.fake_counter
managed.argtypes = (ctypes.c_uint64,)
counter.argtypes = (ctypes.c_uint32, ctypes.c_uint64, ctypes.c_uint32, ctypes.c_uint64)
TO_GPU, TO_HOST, CPU_FAULT, GPU_FAULT = 1, 2, 3, 4
"""
"""What a program begins with."""
FIRST_LINE = PRELUDE.count("\n") + 1


def built(folder: Path, *options: str) -> Path:
    """The library, in this folder; with options of the compiler."""
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        import pytest  # not everywhere where programs are compared

        pytest.skip("no C compiler here, for a stand-in for CUPTI")
    library = folder / "libcupti.so"
    subprocess.run([compiler, "-shared", "-fPIC", "-O1", *options, "-o", library, FOLDER / "fake_cupti.c"], check=True)
    return library


def variables(library: Path | None, **changes: str) -> dict[str, str]:
    """The environment of a process that finds both; without the library it is as without a driver."""
    there = {} if library is None else {"FAKE_CUPTI": str(library)}
    return {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{FOLDER}", **there, **changes}
