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

TORCH = """
import ctypes, functools, os
from types import SimpleNamespace
library = ctypes.CDLL(os.environ["FAKE_CUPTI"])
types = ctypes.c_uint64, ctypes.c_uint64, ctypes.c_int, ctypes.c_int
library.fake_copy_of.argtypes = library.fake_copy_in_range.argtypes = library.fake_copy_and_wait.argtypes = types
data = ctypes.create_string_buffer(os.urandom(1 << 20))
dtype, strided = type("dtype", (), {}), "strided"
class Tensor:
    layout, nbytes, is_cpu, is_cuda, _as_parameter_ = strided, len(data), True, False, ctypes.c_uint64(0)
    def data_ptr(self): return ctypes.addressof(data)
    def is_pinned(self): return True
def made_by(copy, size=len(data), source=2): return functools.partial(copy, ctypes.addressof(data), size, source, 3)
Tensor.to = made_by(library.fake_copy_of)
Tensor.cuda = made_by(library.fake_copy_in_range)
Tensor.copy_ = made_by(library.fake_copy_of, 9 * 20_000_000, 1)  # which takes 20 ms
Tensor.cpu = made_by(library.fake_copy_and_wait, 64, 3)
nn, _C = SimpleNamespace(Parameter=Tensor), SimpleNamespace(DisableTorchFunctionSubclass=None)
cuda = SimpleNamespace(Event=type("Event", (), {"query": None}), Stream=type("Stream", (), {"query": None}))
"""
"""A library whose calls run no Python, as PyTorch's."""
SMALL_TORCH = (
    TORCH
    + """
Tensor.nbytes = 64
def giving_tensors(copy):
    copy.restype = lambda _: Tensor()
    return copy
Tensor.to = made_by(giving_tensors(library["fake_copy_of"]), 64, 3)
Tensor.copy_ = made_by(library.fake_copy_of, 64, 1)
Tensor.cuda = made_by(library.fake_under_way)
there = Tensor()
there.is_cpu, there.is_cuda = False, True
"""
)
"""The same with small copies; of ``cpu`` that is one and the wait for it, of ``cuda`` none."""


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
