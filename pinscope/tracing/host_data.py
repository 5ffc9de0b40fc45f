"""What copies carry: whether data goes to the GPU that had gone there before, or comes back as it had gone.

Runs inside the traced program, as the recorder does. Data is known by samples: some pieces of the host's memory, spread
over what is copied, read by the kernel once the copy's call is over. So an address that is not there is no fault of the
program, and pages that the copy touched first are its own. What a sample says is looked at later.

What it takes is bounded: samples together by :data:`SPARE_NS` and a thousandth of the time (:data:`SHARE`).
"""

from __future__ import annotations

import ctypes
import re
import struct

from pinscope.tracing.bound import TYPE_CHECKING, _thread, bind, os, time
from pinscope.tracing.later import Later
from pinscope.tracing.mapped_file import CallLog

if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import FrameType
    from typing import Any

    from pinscope.tracing.source_memory import SourceMemory
    from pinscope.tracing.spool_folder import SpoolFolder

    Place = tuple[int, int]
    """Address and bytes."""

bind(globals())


DATA = struct.Struct("<3I")
"""Correlation id of a copy's call; a kind, below; correlation id of the copy that it is compared with."""
FIRST, AGAIN, PARTLY, BACK, BACK_PARTLY, BACK_OTHER, LATER, LATER_PARTLY, LATER_OTHER = range(1, 10)
"""To the GPU: the first with its data; as the other one was; mostly as the last one from its memory, and changed in
places. To the host, compared with what had been sent to the same memory of the GPU: the same, changed in places, or
another; likewise as it is when the host sends it, where the call of a copy may return before the data is there."""
LARGE_BYTES = 64 << 10
"""Of smaller copies no sample is read."""
PIECES, PIECE_BYTES = 8, 64
"""Of one sample."""
LEAST_DIFFERENT = 4
"""Pieces of a sample, else it says too little: all may be zeros, or two values."""
SPARE_NS, SHARE = 10_000_000, 1000
"""So long samples may take in any program, and which part of the time since the first of them beside that."""
RESERVE_NS = 50_000
"""What must be left of that for a copy to the GPU, so that one back is sampled, too."""
MOST_ADDRESSES = 1000
"""Of parameters, whose sizes are read without looking them up; of memory whose pieces are known."""
MOST_PLACES = 20_000
"""That are kept in mind; a program may copy from ever new ones."""
_TO_GPU = re.compile(r"cuMemcpyHtoD(Async)?(_v2)?(_ptsz|_ptds)?")
_TO_HOST = re.compile(r"cuMemcpyDtoH(Async)?(_v2)?(_ptsz|_ptds)?")
_PARAMETERS = struct.Struct("<3Q")
"""Of all these functions: target, source, bytes."""
_Parameters = ctypes.c_char * _PARAMETERS.size
_BYTES_AT = 16


class HostData:
    """That of one process's copies.

    Args:
        folder: of the spool.
        functions: number of each function of the driver that is followed → its name.
        memory: looks at the memory of large ones.
        late: does what samples need no more of the program for.

    Attributes:
        functions: numbers of those that copy; those of them ``to_gpu`` and ``to_host``.
        sizes: address of the parameters of a copy that was seen before → its bytes; at the same depth of the program
            the next copy has its parameters there.
        due: correlation id of each copy that is to be sampled when its call is over → where its data stands.
        known: stacks of whose large copies enough is known: :meth:`note` takes them once they are over, and
            :meth:`begins` is not needed.
    """

    def __init__(self, folder: SpoolFolder, functions: Mapping[str, str], memory: SourceMemory, late: Later) -> None:
        self.to_gpu = frozenset(int(number) for number, name in functions.items() if _TO_GPU.fullmatch(name))
        self.to_host = frozenset(int(number) for number, name in functions.items() if _TO_HOST.fullmatch(name))
        self.functions = self.to_gpu | self.to_host | memory.functions.keys()
        self.due: dict[int, tuple[bool, int, int, int]] = {}
        self.known = memory.known
        self._memory, self._late = memory, late
        self._log = CallLog(folder, "data", DATA)
        self._sampler = _Sampler()
        self.sizes: dict[int, ctypes.c_uint64] = {}
        self._since = self._spent = 0
        self._sent: dict[Place, int] = {}
        """Sample and bytes → correlation id of the last copy to the GPU with it."""
        self._lies: dict[Place, int] = {}
        """In the host's memory → sample of the last copy from there."""
        self._on_gpu: dict[Place, tuple[int, int]] = {}
        """In the GPU's memory → sample and correlation id of the last copy to there."""
        self._brought: dict[Place, tuple[int, int, int]] = {}
        """In the host's memory → what a copy that brought it had to bring to be the same, its correlation id, and that
        of the copy that had sent it."""

    def begins(self, number: int, parameters: int, correlation: int, caller: FrameType | None) -> bool:
        """A copy begins. Whether that took time, by a look at its memory, or at samples of earlier ones.

        Args:
            number: of its function, one of :attr:`functions`.
            parameters: where those of the call stand.
            correlation: id of the call.
            caller: innermost frame of its stack.
        """
        if len(self.sizes) >= MOST_ADDRESSES:
            self.sizes.clear()
        self.sizes[parameters] = ctypes.c_uint64.from_address(parameters + _BYTES_AT)
        copied = _PARAMETERS.unpack(_Parameters.from_address(parameters))
        if copied[2] <= LARGE_BYTES:
            return False
        waited = self._expect(number, copied, correlation)
        looks = number in self._memory.functions
        return (looks and self._memory.look(number, copied, correlation, caller)) or waited

    def note(
        self, number: int, copied: tuple[int, int, int], correlation: int, stack: int, sample: bytes | None
    ) -> None:
        """A call from such a stack is over.

        Args:
            number: of its function.
            copied: its first three parameters.
            correlation, stack: of the call.
            sample: of what it has sent, of a function of :attr:`to_gpu`.
        """
        if number not in self.functions or copied[2] <= LARGE_BYTES:
            return
        if (stack, number) not in self._memory.known_sites:
            self.known.discard(stack)
        if number in self.to_gpu:
            target, source, size = copied
            self._note_sent(correlation, (source, size), (target, size), sample)
        else:
            self._expect(number, copied, correlation)
            if correlation in self.due:
                self.is_over(correlation)

    def _expect(self, number: int, copied: tuple[int, int, int], correlation: int) -> bool:
        """A copy is to be sampled when it is over, if it can be. Whether samples of earlier ones waited for it."""
        target, source, size = copied
        waited = number in self.to_host and self._late.catch_up()
        if number in self.to_gpu:
            self.due[correlation] = False, source, target, size
        elif number in self.to_host and (source, size) in self._on_gpu:
            self.due[correlation] = True, target, source, size
        return waited

    def is_over(self, correlation: int) -> None:
        """The call of a copy that is due is over."""
        is_back, host, device, size = self.due.pop(correlation)
        if is_back:
            sample = self.sample(host, size, 0)
            if sample is not None:
                self._note_back(correlation, (host, size), (device, size), sample)
        else:
            self._late.put_off(self._note_sent, correlation, (host, size), (device, size), self.sample(host, size))

    def sample(self, address: int, size: int, spare: int = RESERVE_NS) -> bytes | None:
        """Of what a large copy has carried; ``None`` where no time is left for that.

        Args:
            address: of its memory.
            size: its bytes.
            spare: nanoseconds that must be left.
        """
        begun = time.time_ns()
        self._since = self._since or begun
        if SPARE_NS + (begun - self._since) // SHARE - self._spent <= spare:
            return None
        sample = self._sampler.read(address, size)
        self._spent += time.time_ns() - begun
        return sample

    def close(self) -> None:
        """No more copies come."""
        self._log.close()
        self.due.clear()
        self.sizes.clear()
        for table in self._tables:
            table.clear()

    @property
    def _tables(self) -> tuple[dict[Place, Any], ...]:
        return self._sent, self._lies, self._on_gpu, self._brought

    def _note_sent(self, correlation: int, host: Place, device: Place, content: bytes | None) -> None:
        if content is None:  # nobody knows what is there now
            self._on_gpu.pop(device, None)
            self._brought.pop(host, None)
            return
        sample = _told_by(content)
        sent, sender, up = self._brought.pop(host, (0, 0, 0))
        if sample and sent:
            kind = LATER if sample == sent else LATER_PARTLY if _is_changed_in_places(sample, sent) else LATER_OTHER
            self._log.note(sender, kind, up)
        before, other = self._lies.get(host, 0), self._sent.get((sample, host[1]), 0)
        kind = FIRST
        if sample and before and _is_changed_in_places(sample, before):
            kind = PARTLY
        elif sample and other:
            kind = AGAIN
        self._log.note(correlation, kind, other)
        for table in self._tables:
            if len(table) >= MOST_PLACES:
                table.clear()
        if sample:
            self._sent[sample, host[1]], self._lies[host] = correlation, sample
            self._on_gpu[device] = sample, correlation
        else:
            self._on_gpu.pop(device, None)

    def _note_back(self, correlation: int, host: Place, device: Place, content: bytes) -> None:
        known = self._on_gpu.get(device)
        if known is None:  # another thread has sent something else meanwhile
            return
        sent, sender = known
        sample = _told_by(content)
        kind = BACK if sample == sent else BACK_PARTLY if _is_changed_in_places(sample, sent) else BACK_OTHER
        self._log.note(correlation, kind, sender)
        self._brought[host] = sent, correlation, sender


def _is_changed_in_places(sample: int, before: int) -> bool:
    """Whether most pieces are as they were and some are not: there may be changes that a sample does not see."""
    same = (sample ^ before).to_bytes(PIECES, "little").count(0)
    return PIECES / 2 <= same < PIECES


class _Sampler:
    """Reads samples of this process's memory through the kernel."""

    def __init__(self) -> None:
        self._process = os.getpid()
        self._lock = _thread.allocate_lock()
        self._read = ctypes.PyDLL(None).process_vm_readv  # it keeps Python's lock, for which it would wait
        self._read.argtypes = (ctypes.c_int, *(ctypes.c_void_p, ctypes.c_ulong) * 2, ctypes.c_ulong)
        self._read.restype = ctypes.c_ssize_t
        self._content = (ctypes.c_char * (PIECES * PIECE_BYTES))()
        self._whole = (ctypes.c_uint64 * 2)(ctypes.addressof(self._content), PIECES * PIECE_BYTES)
        self._places: dict[Place, ctypes.Array[ctypes.c_uint64]] = {}
        """Of a memory its pieces: a program mostly copies from the same."""

    def read(self, address: int, size: int) -> bytes:
        """The pieces; empty where the memory cannot be read, or another thread reads now."""
        if not self._lock.acquire(False):
            return b""
        try:
            places = self._places.get((address, size)) or self._add_places(address, size)
            count = self._read(self._process, self._whole, 1, places, PIECES, 0)
            content: bytes = self._content.raw
            return content if count == len(content) else b""
        finally:
            self._lock.release()

    def _add_places(self, address: int, size: int) -> ctypes.Array[ctypes.c_uint64]:
        step = (size - PIECE_BYTES) // (PIECES - 1) // PIECE_BYTES * PIECE_BYTES  # equal values alike
        places = (ctypes.c_uint64 * (2 * PIECES))(*[PIECE_BYTES] * (2 * PIECES))
        places[::2] = [*range(address, address + step * (PIECES - 2) + 1, step), address + size - PIECE_BYTES]
        if len(self._places) >= MOST_ADDRESSES:
            self._places.clear()
        self._places[address, size] = places
        return places


def _told_by(content: bytes) -> int:
    """A byte for each piece; 0 where they say too little."""
    pieces = [content[place : place + PIECE_BYTES] for place in range(0, len(content), PIECE_BYTES)]
    if len({*pieces}) < LEAST_DIFFERENT:
        return 0
    return int.from_bytes(bytes([hash(piece) & 0xFF for piece in pieces]), "little")
