"""Processes that make whoever looks at them read without end: ``python hostile_process.py KIND [BYTES or COUNT]``.

Each says "ready" and waits until its input ends. Kinds:

- ``command``: a command line of so many bytes (prctl(2), PR_SET_MM_MAP).
- ``maps``: so many mappings of files with paths of about 4000 characters, beside a false /dev/nvidia-uvm.
- ``pieces``: so many mappings of shared memory that lie as cudaHostAlloc's do, each of another size, beside the same.
- ``files``: so many open files, and gigabytes of address space.

A false device file needs a mount namespace of its own, which the process makes: as root, or in a user namespace.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import resource
import sys
from pathlib import Path

_LIBC = ctypes.CDLL(None, use_errno=True)
_LIBC.mmap.restype = ctypes.c_void_p
_LIBC.mmap.argtypes = [
    ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long
]  # fmt: skip
_NEW_MOUNTS, _NEW_USER = 0x00020000, 0x10000000
_PRIVATE, _RECURSIVE = 0x40000, 0x4000
_SET_MM, _SET_MM_MAP = 35, 14
_FIXED, _NO_RESERVE = 0x10, 0x4000
_PAGE = mmap.PAGESIZE


class _Map(ctypes.Structure):
    """struct prctl_mm_map of linux/prctl.h."""

    _fields_ = [
        (name, ctypes.c_uint64)
        for name in (
            "start_code", "end_code", "start_data", "end_data", "start_brk", "brk", "start_stack", "arg_start",
            "arg_end", "env_start", "env_end",
        )
    ] + [("auxv", ctypes.c_void_p), ("auxv_size", ctypes.c_uint32), ("exe_fd", ctypes.c_uint32)]  # fmt: skip


def _address_space(size: int, protection: int = 0) -> int:
    return int(_LIBC.mmap(None, size, protection, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _NO_RESERVE, -1, 0))


def _command(size: int) -> None:
    """Nothing but its beginning is ever written, so it takes no memory: the kernel shows the same page of zeros."""
    begin = _address_space(size, mmap.PROT_READ | mmap.PROT_WRITE)
    ctypes.memset(begin, ord("x"), 2**17)
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    numbers = [int(fields[number - 3]) for number in (26, 27, 45, 46, 47, 28)]
    start_code, end_code, start_data, end_data, start_brk, start_stack = numbers
    asked = _Map(
        start_code, end_code, start_data, end_data, start_brk, max(_brk(), start_brk), start_stack, begin, begin + size,
        begin + size, begin + size, None, 0, 2**32 - 1,
    )  # fmt: skip
    if _LIBC.prctl(_SET_MM, _SET_MM_MAP, ctypes.byref(asked), ctypes.c_ulong(ctypes.sizeof(asked)), 0):
        sys.exit(f"prctl: {os.strerror(ctypes.get_errno())}")
    if _LIBC.mlock(ctypes.c_void_p(id(asked)), 1):  # so that it is a holder
        sys.exit(f"mlock: {os.strerror(ctypes.get_errno())}")


def _brk() -> int:
    _LIBC.sbrk.restype = ctypes.c_void_p
    return int(_LIBC.sbrk(0))


def _false_device() -> None:
    if _LIBC.unshare(_NEW_MOUNTS) and _LIBC.unshare(_NEW_USER | _NEW_MOUNTS):
        sys.exit(f"unshare: {os.strerror(ctypes.get_errno())}")
    _LIBC.mount(b"none", b"/", None, _PRIVATE | _RECURSIVE, None)
    if _LIBC.mount(b"tmpfs", b"/dev", b"tmpfs", 0, None):
        sys.exit(f"mount: {os.strerror(ctypes.get_errno())}")
    os.open("/dev/nvidia-uvm", os.O_RDWR | os.O_CREAT)


def _maps(count: int) -> None:
    """The same file under a long name; neighbours with another offset are mappings of their own."""
    _false_device()
    folder = os.open("/dev", os.O_RDONLY)
    for _ in range(15):
        os.mkdir("n" * 250, dir_fd=folder)
        folder = os.open("n" * 250, os.O_RDONLY, dir_fd=folder)
    descriptor = os.open("nvidia0" + "é" * 100, os.O_RDWR | os.O_CREAT, dir_fd=folder)
    os.ftruncate(descriptor, 2 * _PAGE)
    begin = _address_space(2**30 + count * _PAGE)
    for number in range(count):
        _LIBC.mmap(
            begin + number * _PAGE, _PAGE, mmap.PROT_READ, mmap.MAP_SHARED | _FIXED, descriptor, number % 2 * 2 * _PAGE
        )


def _pieces(count: int) -> None:
    """Nothing is touched, so they take no memory."""
    _false_device()
    step = 2 * 2**20
    begin = -(-_address_space(2**30 + (count + 1) * step) // step) * step
    for number in range(count):
        size = _PAGE * (1 + number % 500)
        shared = mmap.MAP_SHARED | mmap.MAP_ANONYMOUS | _FIXED | _NO_RESERVE
        _LIBC.mmap(begin + number * step, size, mmap.PROT_READ, shared, -1, 0)


def _files(count: int) -> None:
    _address_space(2**30)
    with contextlib.suppress(ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (count + 100, max(count + 100, resource.getrlimit(7)[1])))
    descriptor = os.open("/dev/null", os.O_RDONLY)
    for _ in range(count):
        os.dup(descriptor)


if __name__ == "__main__":
    {"command": _command, "maps": _maps, "pieces": _pieces, "files": _files}[sys.argv[1]](int(sys.argv[2]))
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    sys.stdin.read()
