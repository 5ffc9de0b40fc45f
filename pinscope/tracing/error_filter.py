"""What CUPTI calls at every function of runtime and driver: a few instructions of the processor, before Python.

Python there takes microseconds of each call, and waits for its lock as long as another thread likes. So it is called
where a call has returned an error, and where one of a followed function is over. When that began the instructions note
themselves, but of a large copy, whose memory is looked at; in a thread that has a lane (``lanes``) they note all of it.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable, Mapping
from typing import Any

from pinscope.tracing.bound import as_json, bind, os
from pinscope.tracing.lanes import Notes
from pinscope.tracing.mapped_file import CallLog, code_memory

bind(globals())

_CODE = bytes.fromhex(
    "8b01"  #                   mov eax, [rcx]          the site: 0 the call begins, 1 it is over
    "83fe02 0f8441010000"  #    esi = RUNTIME           → watched
    "83fe01 0f852c010000"  #    esi ≠ DRIVER            → Python, as of NVTX
    "4c8d15e50f0000"  #         lea r10, [4096]         behind the code a bit for each that is followed
    "410fa312 0f8327010000"  #  bt [r10], edx           not set → watched
    "83f801 7533"  #            the call begins         → followed
    "4c8b5118 4d85d2 742a"  #   mov r10, [rcx + 24]     no answer → followed
    "418b02 85c0 7423"  #       mov eax, [r10]          success → followed
    "3d58020000 741c"  #        not ready               → followed
    "57 56 52 51 4883ec08"  #   keep the arguments
    "48b82222222222222222 ffd0"  # call failed
    "4883c408 59 5a 5e 5f"
    "4c8d159c0f0000"  #         followed: lea r10, [4096]
    "410fa39280000000 0f8382000000"  # bt [r10 + 128], edx  not for a lane → without
    "644c8b1c2500000000"  #     mov r11, fs:[0]         this thread, as pthread_self gives it
    "4489d8 c1e80c 83e03f"  #   eax = its place: (thread >> 12) & 63
    "69c058020000 4d8d8c0288190000"  # r9 = that lane, of 600 bytes
    "4d3919 755d"  #            the lane is not this thread's → without
    "4d8b4108 4d3b4110 7353"  # r8 = its next entry     none is left → without
    "8b4140 833900 7515"  #     eax = correlation id    the call is over → over
    "498900 498d7010"  #        keep it; rsi = where the begin is kept
    "31ff 48b84444444444444444 ffe0"  # now: jump to clock_gettime(CLOCK_REALTIME, rsi)
    "493900 757d"  #            over: it is not the call that has begun → Python
    "89d0 49894008"  #          keep the function
    "488b4110 4885c0 7417"  #   mov rax, [rcx + 16]     no parameters → counted
    "4c8b18 4d895830 4c8b5808 4d895838 4c8b5810 4d895840"  # keep the first three
    "4983410848"  #             counted: the next entry is 72 bytes on
    "498d7020 ebbc"  #          rsi = where the end is kept → now
    "833900 7547"  #            without: the call is over → Python
    "4180ba8001000000 743d"  #  nothing is noted now    → Python
    "410fa39200010000 730e"  #  bt [r10 + 256], edx     no copy → small
    "488b4110 48817810000001007725"  # more than 64 KiB → Python
    "448b4140 410fb6c0 8d0440"  # small: r8 = correlation id, eax = its last byte * 3
    "4d8d9cc288010000"  #       r11 = that place
    "31c0 f04d0fb103 7509"  #   lock cmpxchg [r11], r8  another call has it → Python
    "498d7308 e970ffffff"  #    rsi = where the begin is kept → now
    "48b83333333333333333 ffe0"  # Python: jump to it
    "83f801 7523"  #            watched: the call begins → nothing
    "4c8b5118 4d85d2 741a"  #   no answer → nothing
    "418b02 85c0 7413"  #       success → nothing
    "3d58020000 740c"  #        not ready → nothing
    "48b82222222222222222 ffe0"  # jump to failed
    "c3"  #                     nothing
)
"""Of x86-64, as the C library calls functions there: user in rdi, domain in esi, function in edx, CUPTI's structure in
rcx. *Not ready* (600) is no error but an answer to a question (driver_types.h)."""
_MACHINE = "x86_64"
_uint32 = ctypes.c_uint32.from_address


class _CallbackData(ctypes.Structure):
    """``CUpti_CallbackData``, which has been so since CUDA 4."""

    _fields_ = (
        ("site", ctypes.c_int),
        ("name", ctypes.c_char_p),
        ("parameters", ctypes.c_void_p),
        ("result", ctypes.c_void_p),
        ("symbol", ctypes.c_char_p),
        ("context", ctypes.c_void_p),
        ("context_id", ctypes.c_uint32),
        ("correlation_data", ctypes.c_void_p),
        ("correlation_id", ctypes.c_uint32),
    )


_callback_data, _two_words = _CallbackData.from_address, (ctypes.c_uint64 * 2).from_address


class ErrorFilter:
    """What CUPTI is given to call.

    Args:
        followed: called where a call of a followed function is over, and at each of NVTX; also where it begins, as far
            as the notes leave that to it.
        failed: called where any function of runtime or driver has returned an error, before ``followed``.

    Attributes:
        notes: what the instructions go by, and what they note.
    """

    def __init__(self, followed: Any, failed: Any) -> None:
        code, clock = _CODE, ctypes.CDLL(None).clock_gettime
        for place, function in ((b"\x22", failed), (b"\x33", followed), (b"\x44", clock)):
            code = code.replace(place * 8, struct.pack("<Q", ctypes.cast(function, ctypes.c_void_p).value or 0))
        address, data = code_memory(code, ctypes.sizeof(Notes))
        self.notes = Notes.from_address(data)
        self.address = ctypes.c_void_p(address)


def error_filter(followed: Any, failed: Any) -> ErrorFilter | None:
    """One, where this machine can have it: of x86-64, and where the system lets a program make code."""
    try:
        return ErrorFilter(followed, failed) if os.uname().machine == _MACHINE else None
    except OSError:
        return None


FAILED_ENTRY = struct.Struct("<7I2Qq")
"""Domain of CUPTI × 65,536 + number of the function; the error; thread; stack; 1 where the stack is that of the main
thread, because the one of the call runs no Python; how many calls it stands for, and
of the last of them: correlation id; address and bytes that were asked for, of functions
that take host memory or give it back; when the call was over (0: the place was not used)."""
TOGETHER = 64
"""Calls with the same error from the same stack of a thread are kept one by one up to here, then in such groups."""
_ARGUMENTS: Mapping[str, tuple[bool, bool]] = {
    "HostRegister": (True, True),
    "HostUnregister": (True, False),
    "FreeHost": (True, False),
    "Malloc": (False, True),
    "Alloc": (False, True),
}
"""In a function's name → whether its first argument is an address, and its second a number of bytes."""


class FailedCalls:
    """Entries in files ``failed.NUMBER``, and the names of functions in ``failed_functions``, a line of JSON each.

    Args:
        log: takes the entries.
        keep: writes a line.
    """

    def __init__(self, log: CallLog, keep: Callable[[bytes], None]) -> None:
        self._log, self._keep = log, keep
        self._arguments: dict[int, tuple[bool, bool]] = {}
        self._seen: dict[tuple[int, int, int, int], int] = {}
        """Function, error, thread and stack → how many calls there were."""
        self._waiting: dict[tuple[int, int, int, int], tuple[int, ...]] = {}
        """The same → the rest of the entry that would stand for those of a group that is not whole."""

    def note(self, domain: int, number: int, data: int, thread: int, stack: int, elsewhere: bool, now: int) -> None:
        """One call that has returned an error.

        Args:
            domain, number: of the function.
            data: address of CUPTI's structure.
            thread, stack: where it was called.
            elsewhere: the stack is that of the main thread.
            now: when.
        """
        function, call = domain << 16 | number, _callback_data(data)
        kind = function, _uint32(call.result).value, thread, stack
        seen = self._seen[kind] = self._seen.get(kind, 0) + 1
        if seen > TOGETHER and seen % TOGETHER:
            self._waiting[kind] = elsewhere, seen % TOGETHER, call.correlation_id, 0, 0, now
            return
        self._waiting.pop(kind, None)
        arguments = self._arguments.get(function)
        if arguments is None:
            arguments = self._add(function, call.name.decode())
        address, size = _two_words(call.parameters) if any(arguments) else (0, 0)
        given = address if arguments[0] else 0, size if arguments[1] else 0
        count = TOGETHER if seen > TOGETHER else 1
        self._log.note(*kind, elsewhere, count, call.correlation_id, *given, now)

    def _add(self, function: int, name: str) -> tuple[bool, bool]:
        self._keep(as_json([function, name]) + b"\n")
        arguments = next((known for word, known in _ARGUMENTS.items() if word in name), (False, False))
        return self._arguments.setdefault(function, arguments)

    def close(self) -> None:
        """No more come."""
        for kind, rest in self._waiting.items():
            self._log.note(*kind, *rest)
        self._waiting, self._seen = {}, {}
        self._log.close()
