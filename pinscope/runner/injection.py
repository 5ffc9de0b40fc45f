"""Has a running Python program run a few lines of code, by Python's own means or by ptrace.

Python 3.14 and later take a script (``sys.remote_exec``). Before, the main thread alone is stopped for about a
millisecond and made to call two functions: ``mmap``, for memory that holds the code, and ``Py_AddPendingCall``, which
needs neither the GIL nor memory, so that it may be called wherever the thread stands. The code itself runs where the
thread comes next between two instructions of Python.
"""

from __future__ import annotations

import copy
import ctypes
import errno
import mmap
import os
import platform
import re
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any

from pinscope.errors import BadInput
from pinscope.probes.attachable import Attachable, forbidden
from pinscope.probes.elf import addresses_of

STOP_SECONDS = 30.0
"""So long the main thread may take to stop, as one that waits for a disk."""
CALL_SECONDS = 2.0
"""So long a call may take: one that waits for what its own thread holds is given up, and leaves no trace."""
CODE_BYTES = 64 * 1024
_LOOK_SECONDS = 0.0002
_FUNCTIONS = ("mmap", "Py_AddPendingCall", "PyRun_SimpleString")
_LIBRARIES = re.compile(r"/(libc[.-]|ld-musl|libpython|python)[^/]*$")
_MACHINE = "x86_64"
_RED_ZONE = 128
"""Bytes below the stack's end that a function may use, by the machine's calling convention."""
_DIRECTION = 0x400
"""The flag that string instructions go downwards by; functions expect it unset."""
_CONT, _GETREGS, _SETREGS, _DETACH = 7, 12, 13, 17
_GETREGSET, _SETREGSET, _SEIZE, _INTERRUPT, _GETSIGMASK, _SETSIGMASK = 0x4204, 0x4205, 0x4206, 0x4207, 0x420A, 0x420B
_EVENT_STOP, _ALL_KINDS, _EXTENDED = 128, 0x40000000, 0x202
"""PTRACE_EVENT_STOP, __WALL and NT_X86_XSTATE."""
_NAMES = (
    *("r15", "r14", "r13", "r12", "rbp", "rbx", "r11", "r10", "r9", "r8", "rax", "rcx", "rdx", "rsi", "rdi"),
    *("orig_rax", "rip", "cs", "eflags", "rsp", "ss", "fs_base", "gs_base", "ds", "es", "fs", "gs"),
)
_FAULTS = (signal.SIGSEGV, signal.SIGBUS, signal.SIGILL, signal.SIGFPE, signal.SIGTRAP)
"""What a thread itself gives rise to: blocking these would end the program."""


def takes_scripts(target: Attachable) -> bool:
    """Whether a program's Python takes code from ours, which must be of the same version."""
    return hasattr(sys, "remote_exec") and sys.version_info[:2] == target.version


def check_machine(target: Attachable) -> None:
    """Refuse what cannot be attached to from here.

    Raises:
        BadInput: there is neither of the means.
    """
    if not takes_scripts(target) and platform.machine() != _MACHINE:
        raise BadInput(f"to attach on {platform.machine()}, Python 3.14 or newer is needed, here and in the program")


def hand_over(target: Attachable, folder: Path, code: Callable[[tuple[int, int] | None], str]) -> None:
    """Have the main thread of a program run code. It may come to that later, or never.

    Args:
        target: the program.
        folder: this user's alone; it must stay until the code has run.
        code: from address and bytes of the memory that the code lies in, which it is to give back.

    Raises:
        BadInput: that is not possible; the program is as it was.
    """
    if takes_scripts(target):
        script = folder / f"attach.{target.pid}.py"
        script.write_text(code(None), "utf-8")
        try:
            sys.remote_exec(target.pid, str(script))  # type: ignore[attr-defined] # of Python 3.14
        except (OSError, RuntimeError) as error:
            raise BadInput(f"process {target.pid}: its Python takes no code from another process: {error}") from None
        return
    there = addresses_of(target.pid, _FUNCTIONS, _LIBRARIES)
    if missing := [name for name in _FUNCTIONS if name not in there]:
        raise BadInput(f"process {target.pid}: the file of its Python, or of its C library, is gone ({missing[0]})")
    try:
        with _StoppedThread(target.pid) as thread:
            protection, kind = mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
            address = thread.call(there["mmap"], 0, CODE_BYTES, protection, kind, 2**64 - 1, 0)
            if address % mmap.PAGESIZE:  # an error number below zero
                raise BadInput(f"process {target.pid}: it gets no memory any more")
            thread.write(address, code((address, CODE_BYTES)).encode() + b"\0")
            if thread.call(there["Py_AddPendingCall"], there["PyRun_SimpleString"], address):
                raise BadInput(f"process {target.pid}: its Python has too many calls waiting; try again")
    except OSError as error:
        gone = not target.is_there() or error.errno == errno.ESRCH
        why = "it ended, or became another program, before it could be attached to" if gone else forbidden()
        raise BadInput(f"process {target.pid}: {why}") from None


class _Registers(ctypes.Structure):
    """``struct user_regs_struct`` of sys/user.h."""

    _fields_ = [(name, ctypes.c_uint64) for name in _NAMES]


class _Vector(ctypes.Structure):
    """``struct iovec``."""

    _fields_ = [("address", ctypes.c_void_p), ("bytes", ctypes.c_size_t)]


class _StoppedThread:
    """The main thread of a process, which calls functions, and goes on afterwards where it was.

    Args:
        pid: the process.

    Raises:
        OSError: the process has ended, or the system does not let us; in ``with``.
        BadInput: somebody stops the program.
    """

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._registers, self._signals = _Registers(), ctypes.c_uint64()
        self._room = ctypes.create_string_buffer(64 * 1024)
        self._extended = _Vector(ctypes.addressof(self._room), len(self._room))

    def __enter__(self) -> _StoppedThread:
        self._ask(_SEIZE)
        self._ask(_INTERRUPT)
        while (status := self._wait(STOP_SECONDS)) >> 16 != _EVENT_STOP:
            self._ask(_CONT, data=os.WSTOPSIG(status))  # a signal that it was about to get
        if os.WSTOPSIG(status) != signal.SIGTRAP:
            self._ask(_DETACH)
            raise BadInput(f"process {self._pid}: it is stopped; let it go on first: kill -CONT {self._pid}")
        self._ask(_GETREGS, data=ctypes.byref(self._registers))
        self._ask(_GETREGSET, _EXTENDED, ctypes.byref(self._extended))
        self._ask(_GETSIGMASK, ctypes.sizeof(self._signals), ctypes.byref(self._signals))
        blocked = ctypes.c_uint64(~sum(1 << number - 1 for number in _FAULTS))
        self._ask(_SETSIGMASK, ctypes.sizeof(blocked), ctypes.byref(blocked))
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._ask(_SETREGSET, _EXTENDED, ctypes.byref(self._extended))
        self._ask(_SETREGS, data=ctypes.byref(self._registers))
        self._ask(_SETSIGMASK, ctypes.sizeof(self._signals), ctypes.byref(self._signals))
        self._ask(_DETACH)

    def call(self, function: int, *arguments: int) -> int:
        """What a function of the program returns. It comes back to address 0, where the thread stops by a fault.

        Raises:
            OSError: the process has ended meanwhile.
            BadInput: it did not come back.
        """
        registers = copy.copy(self._registers)
        registers.rsp = (registers.rsp - _RED_ZONE) // 16 * 16 - 8
        self.write(registers.rsp, bytes(8))
        registers.rip, registers.rax = function, 0
        registers.orig_rax = 2**64 - 1  # no call of the system is to be begun again
        registers.eflags &= ~_DIRECTION
        for name, value in zip(("rdi", "rsi", "rdx", "rcx", "r8", "r9"), arguments, strict=False):
            setattr(registers, name, value)
        self._ask(_SETREGS, data=ctypes.byref(registers))
        self._ask(_CONT)
        try:
            while (status := self._wait(CALL_SECONDS)) >> 16:  # somebody stops the program just now: that comes later
                self._ask(_CONT)
        except BadInput:
            self._ask(_INTERRUPT)
            self._wait(STOP_SECONDS)
            raise
        self._ask(_GETREGS, data=ctypes.byref(registers))
        if os.WSTOPSIG(status) != signal.SIGSEGV or registers.rip:
            raise BadInput(f"process {self._pid}: a call in it failed; it goes on as before")
        return int(registers.rax)

    def write(self, address: int, data: bytes) -> None:
        """Write into the program's memory.

        Raises:
            OSError: the process has ended.
        """
        with Path(f"/proc/{self._pid}/mem").open("r+b", buffering=0) as memory:
            memory.seek(address)
            memory.write(data)

    def _ask(self, request: int, address: int = 0, data: Any = 0) -> None:
        if _ptrace(request, self._pid, address, data) == -1:
            raise OSError(ctypes.get_errno(), "ptrace")

    def _wait(self, seconds: float) -> int:
        """How the thread stands, once it stops.

        Raises:
            OSError: the process has ended.
            BadInput: it does not stop.
        """
        latest = time.monotonic() + seconds
        while time.monotonic() < latest:
            pid, status = os.waitpid(self._pid, os.WNOHANG | _ALL_KINDS)
            if pid and os.WIFSTOPPED(status):
                return status
            if pid:
                raise OSError(errno.ESRCH, "it ended")
            time.sleep(_LOOK_SECONDS)
        raise BadInput(f"process {self._pid}: its main thread did not stop within {seconds:g} s")


def _ptrace(request: int, pid: int, address: int, data: Any) -> int:
    ptrace = ctypes.CDLL(None, use_errno=True).ptrace
    ptrace.argtypes, ptrace.restype = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p], ctypes.c_long
    return int(ptrace(request, pid, address, data))
