"""Programs that copy under a stand-in for CUPTI: the recorder, its spool and the reading are the real ones.

The library is compiled from ``tracing/fake_cupti.c``; it stands in for the driver as well.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

SOURCE = Path(__file__).parent / "tracing" / "fake_cupti.c"
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


def built(folder: Path, *options: str, cuda: int = 13) -> Path:
    """The library, in this folder where a package of CUDA has it; with options of the compiler."""
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        import pytest  # not everywhere where programs are compared

        pytest.skip("no C compiler here, for a stand-in for CUPTI")
    library = folder / "nvidia" / f"cu{cuda}" / "lib" / f"libcupti.so.{cuda}"
    library.parent.mkdir(parents=True)
    subprocess.run([compiler, "-shared", "-fPIC", "-O1", *options, "-o", library, SOURCE], check=True)
    (library.parent / "libcuda.so.1").symlink_to(library.name)
    return library


def packages(library: Path) -> Path:
    """The folder of packages that a library of :func:`built` lies in."""
    return library.parents[3]


def variables(library: Path | None, **changes: str) -> dict[str, str]:
    """The environment of a process that finds it; without it, it is as without a driver."""
    if library is None:
        return {**os.environ, "PYTHONPATH": str(ROOT), **changes}
    path, driver = f"{ROOT}{os.pathsep}{packages(library)}", str(library.parent)
    return {**os.environ, "PYTHONPATH": path, "LD_LIBRARY_PATH": driver, "FAKE_CUPTI": str(library), **changes}
