"""What copies carry: where their data stands on the host and on the GPU, and samples of it.

Runs inside the traced program, as the recorder does. A sample is some pieces of the host's memory, spread over what is
copied, read by the kernel: an address that is not there is no fault of the program then.
"""

from __future__ import annotations

import ctypes
import re
import struct

from pinscope.tracing.bound import TYPE_CHECKING, _thread, bind, os
from pinscope.tracing.mapped_file import CallLog

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from pinscope.tracing.mapped_file import SpoolFolder

bind(globals())


DATA = struct.Struct("<2I3Q")
"""Of a large copy: correlation id of its call; whether its sample says something: :data:`VARIED`, :data:`UNIFORM`, 0
without one; addresses on the host and on the GPU; the sample. Of small ones that are pieces of one block: that of the
first; :data:`PIECES_OF_ONE`; their bytes, how many they are, 0."""
PIECES_OF_ONE = 3
LEAST_PIECES = 8
"""Of one block that are worth an entry."""
VARIED, UNIFORM = 1, 2
"""What was read differs from place to place; it is the same eight bytes everywhere: all was set to one value."""
LARGE_BYTES = 64 << 10
"""Of smaller copies no sample is read."""
PIECES, PIECE_BYTES = 8, 64
"""Of one sample. 8 take 5 µs on an H100's host."""
FIRST = 16
"""So many copies of the same bytes are sampled one after the other, then one in as many sixteenths as there were."""
MOST_PLACES = 20_000
"""That are sampled; a program may copy from ever new ones."""
_TO_GPU = re.compile(r"cuMemcpyHtoD(Async)?(_v2)?(_ptsz|_ptds)?")
_TO_HOST = re.compile(r"cuMemcpyDtoH(Async)?(_v2)?(_ptsz|_ptds)?")
_PARAMETERS = struct.Struct("<3Q")
"""Of all these functions: target, source, bytes."""


class HostData:
    """That of one process's copies.

    Args:
        folder: of the spool.
        functions: number of each function of the driver that is followed → its name.
    """

    def __init__(self, folder: SpoolFolder, functions: Mapping[str, str]) -> None:
        self.to_gpu = frozenset(int(number) for number, name in functions.items() if _TO_GPU.fullmatch(name))
        """Functions of which :meth:`note` is called when they begin."""
        self.to_host = frozenset(int(number) for number, name in functions.items() if _TO_HOST.fullmatch(name))
        """Functions of which it is called when they return: data that is in pageable memory is there by then."""
        self._log = CallLog(folder, "data", DATA)
        self._views: dict[int, Any] = {}
        self._copied: dict[tuple[int, int], list[int]] = {}
        """Address and bytes → how many copies there were, and with which the next sample is due."""
        self._sampler = _Sampler()
        self._run = _Run(self._log)

    def note(self, correlation: int, number: int, parameters: int) -> bool:
        """A copy. Whether that took time, by a sample.

        Args:
            correlation: id of its call.
            number: of the function.
            parameters: where those of the call stand.
        """
        if not parameters:
            return False
        target, source, size = _PARAMETERS.unpack(self._views.get(parameters) or self._view(parameters))
        if size <= LARGE_BYTES:
            self._run.add(correlation, target, source, size)
            return False
        host, device = (target, source) if number in self.to_host else (source, target)
        kind = sample = 0
        if self._is_due(device if number in self.to_host else host, size):
            kind, sample = self._sampler.read(host, size)
        self._log.note(correlation, kind, host, device, sample)
        return kind > 0

    def close(self) -> None:
        """No more copies come."""
        self._run.end()
        self._log.close()
        self._copied.clear()
        self._views.clear()

    def _view(self, parameters: int) -> Any:
        if len(self._views) >= MOST_PLACES:
            self._views.clear()
        return self._views.setdefault(parameters, (ctypes.c_char * _PARAMETERS.size).from_address(parameters))

    def _is_due(self, address: int, size: int) -> bool:
        """Whether to take a sample of this copy: the more there were of the same bytes, the fewer."""
        copied = self._copied.get((address, size))
        if copied is None:
            if len(self._copied) >= MOST_PLACES:
                return False
            copied = self._copied.setdefault((address, size), [0, 1])
        copied[0] += 1
        if copied[0] < copied[1]:
            return False
        copied[1] = copied[0] + 1 + (copied[0] // FIRST if copied[0] > FIRST else 0)
        return True


class _Run:
    """Small copies that begin, on both sides, where the one before ended."""

    def __init__(self, log: CallLog) -> None:
        self._log = log
        self._first = self._count = self._bytes = 0
        self._target = self._source = 0
        """Where the last one ended."""

    def add(self, correlation: int, target: int, source: int, size: int) -> None:
        """One more, or the first of others."""
        if source == self._source and target == self._target:
            self._count += 1
            self._bytes += size
        else:
            if self._count >= LEAST_PIECES:
                self.end()
            self._first, self._count, self._bytes = correlation, 1, size
        self._target, self._source = target + size, source + size

    def end(self) -> None:
        """Write down what there is."""
        if self._count >= LEAST_PIECES:
            self._log.note(self._first, PIECES_OF_ONE, self._bytes, self._count, 0)
        self._count = 0


class _Sampler:
    """Reads samples of this process's memory through the kernel."""

    def __init__(self) -> None:
        self._process = os.getpid()
        self._lock = _thread.allocate_lock()
        self._read = ctypes.CDLL(None).process_vm_readv
        self._read.argtypes = (ctypes.c_int, *(ctypes.c_void_p, ctypes.c_ulong) * 2, ctypes.c_ulong)
        self._read.restype = ctypes.c_ssize_t
        self._content = (ctypes.c_char * (PIECES * PIECE_BYTES))()
        self._whole = (ctypes.c_uint64 * 2)(ctypes.addressof(self._content), PIECES * PIECE_BYTES)
        self._places = (ctypes.c_uint64 * (2 * PIECES))(*[PIECE_BYTES] * (2 * PIECES))

    def read(self, address: int, size: int) -> tuple[int, int]:
        """Kind and sample, as in :data:`DATA`; zeros where the memory cannot be read, or another thread reads now."""
        if not self._lock.acquire(False):
            return 0, 0
        try:
            step = (size - PIECE_BYTES) // (PIECES - 1)
            self._places[::2] = [*range(address, address + step * (PIECES - 2) + 1, step), address + size - PIECE_BYTES]
            count = self._read(self._process, self._whole, 1, self._places, PIECES, 0)
            content = self._content.raw
        finally:
            self._lock.release()
        if count != len(content):
            return 0, 0
        is_uniform = content == content[:8] * (len(content) // 8)
        return UNIFORM if is_uniform else VARIED, hash(content) & 0xFFFF_FFFF_FFFF_FFFF
