"""Probes on the driver's calls that copy, in certain processes only, read by a program that runs in the kernel.

A text line for each call, as for those that pin (``uprobes``), would take PinScope 13 µs. So a few instructions (BPF;
Linux documentation, bpf) put each call's arguments into a ring of memory, which is read as numbers. The kernel sets
such a probe only in the process that was asked for (perf_event_open), and takes it away when its descriptor is closed,
also if PinScope is killed.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import struct
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fcntl import ioctl
from itertools import product
from typing import Literal

from pinscope.probes.host_memory import kernel_call
from pinscope.probes.proc import HERE, Proc
from pinscope.probes.uprobes import ARCHITECTURES

Way = Literal["h2d", "d2h", "by address", "uncounted"]


def _variants(*stems: str, suffixes: Sequence[str] = ("", "_v2")) -> Iterator[str]:
    """Names that the driver exports: ``_ptds`` and ``_ptsz`` are those of programs with a default stream a thread."""
    yield from map("".join, product(stems, suffixes, ("", "_ptds", "_ptsz")))


COPY_CALLS: Mapping[str, Way] = {
    **dict.fromkeys(_variants("cuMemcpyHtoD", "cuMemcpyHtoDAsync", suffixes=("_v2",)), "h2d"),
    **dict.fromkeys(_variants("cuMemcpyDtoH", "cuMemcpyDtoHAsync", suffixes=("_v2",)), "d2h"),
    **dict.fromkeys(_variants("cuMemcpy", "cuMemcpyAsync", suffixes=("",)), "by address"),
    **dict.fromkeys(
        _variants(
            "cuMemcpy2D", "cuMemcpy2DUnaligned", "cuMemcpy2DAsync", "cuMemcpy3D", "cuMemcpy3DAsync",
            "cuMemcpyBatchAsync", "cuMemcpy3DBatchAsync", "cuMemcpyHtoA", "cuMemcpyHtoAAsync", "cuMemcpyAtoH",
            "cuMemcpyAtoHAsync", "cuGraphLaunch",
        ),
        "uncounted",
    ),
}  # fmt: skip
"""Functions of the CUDA driver API → which way they copy. Bytes of the uncounted ones do not stand in their arguments;
others copy on a GPU, or between GPUs."""
_CALLS = tuple(COPY_CALLS)
RING_BYTES = 4 * 2**20
"""Of memory, for all processes: 87 000 calls between two readings."""

_OFFSETS: Mapping[str, int] = {"di": 112, "si": 104, "dx": 96, "x0": 0, "x1": 8, "x2": 16}
"""Of the registers with the arguments, in what the kernel gives to a probe's program (pt_regs)."""
_MAP_CREATE, _MAP_LOOKUP, _PROG_LOAD = 0, 1, 5
_ARRAY, _RING, _PROBE_PROGRAM = 2, 27, 2
_LOOKUP_ELEMENT, _PROCESS, _BOOT_NANOSECONDS, _RING_OUTPUT = 1, 14, 125, 130
_NO_WAKE_UP = 1
_CLOSE_ON_EXEC = 8
_SET_PROGRAM, _ENABLE = 0x40042408, 0x2400
_BUSY = 1 << 31
_RECORD = struct.Struct("<IIQQQQQ")
"""Length and page, by the kernel; then nanoseconds since boot, call and process, and three arguments."""
_WORDS = _RECORD.size // 8
_FRAME = 40
"""Bytes of a record without the kernel's."""


def _call(name: str, *arguments: int) -> int:
    return kernel_call(name, *map(ctypes.c_long, arguments))


def _bpf(command: int, attributes: bytes) -> int:
    memory = ctypes.create_string_buffer(attributes, 128)
    return _call("bpf", command, ctypes.addressof(memory), len(memory))


def _step(code: int, to: int = 0, of: int = 0, offset: int = 0, value: int = 0) -> bytes:
    """One instruction (Linux documentation, bpf/standardization/instruction-set)."""
    return struct.pack("<BBhi", code, of << 4 | to, offset, value)


def _program(number: int, ring: int, lost: int, registers: Sequence[int]) -> bytes:
    """Notes one call.

    Args:
        number: of the call.
        ring: descriptor of the ring.
        lost: descriptor of the number of calls for which the ring had no room.
        registers: offsets of those with the arguments.
    """
    move, put, store, load, add = 0xBF, 0xB7, 0x7B, 0x79, 0x07
    call, leave, wide = 0x85, 0x95, 0x18
    steps = [
        _step(move, 6, 1),
        _step(call, value=_BOOT_NANOSECONDS),
        _step(store, 10, 0, -_FRAME),
        _step(call, value=_PROCESS),
        _step(0x77, 0, value=32),  # the process, without the thread
        _step(put, 1, value=number),
        _step(0x67, 1, value=32),
        _step(0x4F, 0, 1),  # both in one word
        _step(store, 10, 0, 8 - _FRAME),
    ]
    for place, register in enumerate(registers):
        steps += [_step(load, 1, 6, register), _step(store, 10, 1, 16 + 8 * place - _FRAME)]
    steps += [
        _step(wide, 1, 1, value=ring),
        _step(0),
        _step(move, 2, 10),
        _step(add, 2, value=-_FRAME),
        _step(put, 3, value=_FRAME),
        _step(put, 4, value=_NO_WAKE_UP),
        _step(call, value=_RING_OUTPUT),
        _step(0x15, 0, offset=9),  # done; else there was no room
        _step(0x7A, 10, offset=-_FRAME),
        _step(wide, 1, 1, value=lost),
        _step(0),
        _step(move, 2, 10),
        _step(add, 2, value=-_FRAME),
        _step(call, value=_LOOKUP_ELEMENT),
        _step(0x15, 0, offset=2),
        _step(put, 1, value=1),
        _step(0xDB, 0, 1),  # one more, at once
        _step(put, 0),
        _step(leave),
    ]
    return b"".join(steps)


@dataclass(frozen=True)
class CopyCalls:
    """Calls in the order in which the kernel noted them, a column each."""

    nanoseconds: Sequence[int]
    """Since boot."""
    calls: Sequence[tuple[int, int, int, int]]
    """Of each, which process made it with which call (:func:`pid_and_call`), and its three arguments."""


def pid_and_call(word: int) -> tuple[int, str]:
    """The process, and what it called."""
    return word & 0xFFFFFFFF, _CALLS[word >> 32]


def parse_ring(content: bytes) -> CopyCalls:
    """What stands in a part of the ring; not the calls from one on that is being written."""
    lengths = memoryview(content).cast("I")[:: 2 * _WORDS].tolist()
    whole = next((place for place, length in enumerate(lengths) if length & _BUSY), len(lengths))
    words = memoryview(content).cast("Q")[: whole * _WORDS]
    return CopyCalls(
        words[1::_WORDS].tolist(), list(zip(*(words[place::_WORDS] for place in range(2, 6)), strict=True))
    )


class CopyProbe:
    """Notes the copies of certain processes, from :meth:`add` on.

    ``ring_bytes``, of memory for calls that are not read yet, are a power of two.

    Raises:
        OSError: this kernel cannot.
    """

    def __init__(self, pids: Collection[int], proc: Proc = HERE, ring_bytes: int = RING_BYTES) -> None:
        kind = proc.line("/sys/bus/event_source/devices/uprobe/type").value
        if kind is None:
            raise OSError(errno.EOPNOTSUPP, "it has no probes for single processes (perf_event_open)")
        self._kind, self._pids, self._ring_bytes = int(kind), tuple(pids), ring_bytes
        self._programs: dict[str, int] = {}
        self._open: list[int] = []
        self._memory: list[mmap.mmap] = []
        self._read = 0
        try:
            self._ring = self._kept(_bpf(_MAP_CREATE, struct.pack("<IIII", _RING, 0, 0, ring_bytes)))
            self._lost = self._kept(_bpf(_MAP_CREATE, struct.pack("<IIII", _ARRAY, 4, 8, 1)))
            page = mmap.PAGESIZE
            self._memory = [
                mmap.mmap(self._ring, page),  # how far it was read
                mmap.mmap(self._ring, page + 2 * ring_bytes, prot=mmap.PROT_READ, offset=page),  # the ring twice
            ]
        except BaseException:
            self.close()
            raise

    def _kept(self, descriptor: int) -> int:
        self._open.append(descriptor)
        return descriptor

    def add(self, place: str, offsets: Mapping[str, int]) -> None:
        """Set the probes in every process that is there, at the functions' offsets in the library's file.

        Raises:
            OSError: the kernel refuses.
        """
        path = ctypes.create_string_buffer(place.encode())
        for pid, (call, offset) in product(self._pids, offsets.items()):
            # Disabled, for the kernel, means only that nothing is sampled besides.
            attributes = struct.pack(
                "<IIQQQQQIIQQ", self._kind, 128, 0, 0, 0, 0, 1, 0, 0, ctypes.addressof(path), offset
            ).ljust(128, b"\0")
            memory = ctypes.create_string_buffer(attributes, 128)
            try:
                event = _call("perf_event_open", ctypes.addressof(memory), pid, -1, -1, _CLOSE_ON_EXEC)
            except ProcessLookupError:
                continue
            self._kept(event)
            ioctl(event, _SET_PROGRAM, self._loaded(call))
            ioctl(event, _ENABLE, 0)

    def _loaded(self, call: str) -> int:
        """The descriptor of the program for a call."""
        if call not in self._programs:
            machine = ARCHITECTURES[os.uname().machine]
            registers = [_OFFSETS[name] for name in machine.arguments]
            code = ctypes.create_string_buffer(_program(_CALLS.index(call), self._ring, self._lost, registers))
            licence = ctypes.create_string_buffer(b"Apache-2.0")
            attributes = struct.pack(
                "<IIQQ", _PROBE_PROGRAM, len(code) // 8, ctypes.addressof(code), ctypes.addressof(licence)
            )
            self._programs[call] = self._kept(_bpf(_PROG_LOAD, attributes))
        return self._programs[call]

    def read(self) -> CopyCalls:
        """Calls since the last time."""
        counter, ring = self._memory
        written = int.from_bytes(ring[:8], "little")
        begin = mmap.PAGESIZE + self._read % self._ring_bytes
        copies = parse_ring(ring[begin : begin + written - self._read])
        self._read += len(copies.calls) * _RECORD.size
        counter[:8] = self._read.to_bytes(8, "little")
        return copies

    def lost_calls(self) -> int:
        """Calls for which the ring had no room."""
        key, count = ctypes.c_uint32(0), ctypes.c_uint64(0)
        places = ctypes.addressof(key), ctypes.addressof(count)
        _bpf(_MAP_LOOKUP, struct.pack("<I4xQQQ", self._lost, *places, 0))
        return count.value

    def close(self) -> None:
        """Take the probes away; does nothing where there are none."""
        for memory in self._memory:
            memory.close()
        for descriptor in reversed(self._open):
            os.close(descriptor)
        self._memory, self._open, self._programs = [], [], {}
