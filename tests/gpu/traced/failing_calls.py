"""Calls that fail: ``failing_calls.py WAY``, through ctypes. Prints a line of JSON for each: comment of its line, the
function, and the error. The ways: arguments, capture, reset, kernel NAME, handed_on, many."""

import ctypes
import json
import mmap
import site
import sys
import time
from pathlib import Path

WAY = sys.argv[1]
folders = [*map(Path, site.getsitepackages()), *map(Path, sys.path)]
places = [place for folder in folders for place in folder.glob("nvidia/*/lib/libcudart.so.1[23]")]
places += Path("/usr/local").glob("cuda*/lib64/libcudart.so.1[23]")
runtime, driver = ctypes.CDLL(str(places[0])), ctypes.CDLL("libcuda.so.1")
pointer, size = ctypes.c_void_p, ctypes.c_size_t
SIZE = 1 << 20
area = mmap.mmap(-1, SIZE)
start = ctypes.addressof(ctypes.c_char.from_buffer(area))
host, device, stream, version = pointer(), pointer(), pointer(), ctypes.c_int()
runtime.cudaRuntimeGetVersion(ctypes.byref(version))


class Attributes(ctypes.Structure):
    """cudaMemcpyAttributes."""

    _fields_ = (
        ("order", ctypes.c_int), ("source", ctypes.c_int * 2), ("target", ctypes.c_int * 2), ("flags", ctypes.c_uint),
    )  # fmt: skip


class Size(ctypes.Structure):
    """dim3."""

    _fields_ = (("x", ctypes.c_uint), ("y", ctypes.c_uint), ("z", ctypes.c_uint))


def said(comment, call, error):
    print(json.dumps([comment, call, error]), flush=True)


register = runtime.cudaHostRegister
register.argtypes = (pointer, size, ctypes.c_uint)
unregister, free_host = runtime.cudaHostUnregister, runtime.cudaFreeHost
unregister.argtypes = free_host.argtypes = (pointer,)
allocate = runtime.cudaMallocHost
allocate.argtypes = (pointer, size)
batch_call = runtime.cudaMemcpyBatchAsync


def batch(count=1, *, source=None, target=None, bytes_=64, order=1, kinds=1, at=None):
    """The arguments of one copy of 64 bytes to the GPU."""
    given = [
        (pointer * 1)(device.value if target is None else target), (pointer * 1)(start if source is None else source),
        (size * 1)(bytes_), size(count), (Attributes * 1)(Attributes(order)), (size * 1)(0), size(kinds),
    ]  # fmt: skip
    return (*given, *([ctypes.byref(size())] if version.value < 13000 else []), stream if at is None else pointer(at))


def begin():
    runtime.cudaStreamCreateWithFlags(ctypes.byref(stream), 1)
    runtime.cudaMalloc(ctypes.byref(device), size(SIZE))


def three():
    """The three functions in a process, or a state, in which none of them can work."""
    said("cannot register", "cudaHostRegister", register(start, SIZE, 0))  # cannot register
    said("cannot pin", "cudaMallocHost", allocate(ctypes.byref(host), SIZE))  # cannot pin
    said("cannot copy", "cudaMemcpyBatchAsync", batch_call(*batch()))  # cannot copy


def arguments():
    begin()
    said("nothing", "cudaHostRegister", register(None, SIZE, 0))  # nothing
    said("too much", "cudaHostRegister", register(start, 1 << 40, 0))  # too much
    said("not the host's", "cudaHostRegister", register(1 << 63, SIZE, 0))  # not the host's
    register(start, SIZE, 0)  # first
    said("twice", "cudaHostRegister", register(start + 4096, 4096, 0))  # twice
    unregister(start)  # released
    said("not registered", "cudaHostUnregister", unregister(start))  # not registered
    allocate(ctypes.byref(host), SIZE)  # pins
    said("is pinned", "cudaHostRegister", register(host.value, SIZE, 0))  # is pinned
    free_host(host)  # frees
    said("freed", "cudaFreeHost", free_host(host))  # freed
    said("no place", "cudaMallocHost", allocate(None, SIZE))  # no place
    said("too large", "cudaMallocHost", allocate(ctypes.byref(host), 1 << 50))  # too large
    said("no copies", "cudaMemcpyBatchAsync", batch_call(*batch(0)))  # no copies
    said("no bytes", "cudaMemcpyBatchAsync", batch_call(*batch(bytes_=0)))  # no bytes
    said("no order", "cudaMemcpyBatchAsync", batch_call(*batch(order=77)))  # no order
    said("legacy stream", "cudaMemcpyBatchAsync", batch_call(*batch(at=0)))  # legacy stream
    said("no device 77", "cudaSetDevice", runtime.cudaSetDevice(77))  # no device 77
    said("no way", "cudaMemcpy", runtime.cudaMemcpy(device, pointer(start), size(64), 99))  # no way


PTX = """.version 7.0
.target sm_70
.address_size 64
.visible .entry addr() { .reg .u64 %a; mov.u64 %a, 16; st.global.u32 [%a], 1; ret; }
.visible .entry misaligned(.param .u64 p) { .reg .u64 %a; ld.param.u64 %a, [p]; add.u64 %a, %a, 1;
    st.global.u32 [%a], 1; ret; }
.visible .entry trapped() { trap; ret; }
.visible .entry space() { .reg .u64 %a; mov.u64 %a, 0xffffffffff; st.shared.u32 [%a], 1; ret; }
"""


def function(name):
    module, found = pointer(), pointer()
    driver.cuModuleLoadData(ctypes.byref(module), PTX.encode())
    driver.cuModuleGetFunction(ctypes.byref(found), module, name.encode())
    return found


def kernel():
    """A kernel of that name, which fails."""
    begin()
    given = ctypes.c_uint64(device.value)
    values = (pointer * 1)(ctypes.addressof(given))
    failing = function(sys.argv[2])
    runtime.cudaMemcpy(device, pointer(start), size(64), 1)  # before
    driver.cuLaunchKernel(failing, 1, 1, 1, 1, 1, 1, 0, stream, values, None)
    said("told", "cudaDeviceSynchronize", runtime.cudaDeviceSynchronize())  # told
    three()


def capture():
    begin()
    runtime.cudaStreamBeginCapture(stream, 0)
    three()


def reset():
    begin()
    runtime.cudaDeviceReset()
    said("old stream", "cudaMemcpyBatchAsync", batch_call(*batch()))  # old stream


def handed_on():
    """A launch with too many threads, and one of no kernel, whose error another line reads."""
    begin()
    found = function("trapped")
    error = driver.cuLaunchKernel(found, 1, 1, 1, 5000, 1, 1, 0, stream, None, None)  # refused
    said("refused", "cuLaunchKernel", error)
    one = Size(1, 1, 1)
    error = runtime.cudaLaunchKernel(None, one, one, None, size(0), stream)  # launched
    said("launched", "cudaLaunchKernel", error)
    runtime.cudaGetLastError()  # met


def many():
    """Seconds of 10,000 calls that fail."""
    begin()
    begun = time.perf_counter()
    for _ in range(10_000):
        register(None, SIZE, 0)  # fails again and again
    print(json.dumps((time.perf_counter() - begun) / 10_000))


globals()[WAY]()
