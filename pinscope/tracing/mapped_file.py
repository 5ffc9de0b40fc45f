"""Files of the spool as memory, which outlive the program. None of them stays open."""

from __future__ import annotations

import ctypes
import itertools
import mmap
import struct
from collections.abc import Callable, Iterator
from typing import Any

from pinscope.tracing.bound import _thread, bind, os
from pinscope.tracing.spool_folder import SpoolFolder

bind(globals())

_MAP_FIXED = 0x10


def _memory_calls() -> Any:
    """mmap and munmap of the C library."""
    library = ctypes.CDLL(None, use_errno=True)
    library.mmap.restype = ctypes.c_void_p
    library.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long)
    library.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
    library.mprotect.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    return library


_LIBRARY = _memory_calls()


def map_file(folder: SpoolFolder, name: str, size: int) -> int:
    """A new file as memory; its address. The file is closed again.

    Its blocks are taken now: a full disk must be an error here, not a SIGBUS later.

    Raises:
        OSError: no such file can be made.
    """
    descriptor = folder.open(name, os.O_RDWR | os.O_CREAT | os.O_EXCL)
    try:
        os.posix_fallocate(descriptor, 0, size)
        address = _LIBRARY.mmap(None, size, mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_SHARED, descriptor, 0)
    finally:
        os.close(descriptor)
    return _mapped(address)


def _mapped(address: int | None) -> int:
    """The address that mmap returned."""
    if address is None or address == ctypes.c_void_p(-1).value:
        raise OSError(ctypes.get_errno(), "mmap failed")
    return address


def unmap(address: int, size: int) -> None:
    """Nothing may use the memory any more; the file stays."""
    _LIBRARY.munmap(address, size)


def code_memory(code: bytes, data_bytes: int) -> tuple[int, int]:
    """Code that may run, and behind it zeros that may be written, as memory that stays until the process is gone; their
    addresses.

    Raises:
        OSError: the system forbids a program to make code.
    """
    page = mmap.PAGESIZE
    how = mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    address = _mapped(_LIBRARY.mmap(None, page + data_bytes, *how, -1, 0))
    ctypes.memmove(address, code, len(code))
    if _LIBRARY.mprotect(address, page, mmap.PROT_READ | mmap.PROT_EXEC):
        raise OSError(ctypes.get_errno(), "mprotect failed")
    return address, address + page


def part_from_file(address: int, size: int) -> None:
    """What is written there from now on stays in this process."""
    _LIBRARY.mmap(
        address, size, mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_FIXED, -1, 0
    )


BUFFER_BYTES = 1 << 20
"""Of one; CUPTI takes one for each thread, and new ones as they fill."""


class ActivityBuffers:
    """Those that CUPTI has, in files ``buffer.NUMBER``.

    Args:
        folder: where the files are made.
    """

    def __init__(self, folder: SpoolFolder) -> None:
        self._folder = folder
        self._numbers = itertools.count()
        self._files: dict[int, str] = {}

    def give(self) -> int:
        """Address of a new one.

        Raises:
            OSError: there is no room for it.
        """
        name = f"buffer.{next(self._numbers):06d}"
        address = map_file(self._folder, name, BUFFER_BYTES)
        self._files[address] = name
        return address

    def take_back(self, address: int, valid: int) -> None:
        """CUPTI has written so many bytes, and no more will come; of an unknown one nothing is done."""
        name = self._files.pop(address, None)
        if name is None:
            return
        unmap(address, BUFFER_BYTES)
        descriptor = self._folder.open(name, os.O_WRONLY)
        try:
            os.truncate(descriptor, valid)
        finally:
            os.close(descriptor)
        self._folder.rename(name, f"{name}.done")

    def leave_to_parent(self) -> None:
        """In a forked child: what is written there from now on stays in this process; the files are the parent's."""
        for address in self._files:
            part_from_file(address, BUFFER_BYTES)
        self._files.clear()


PIECE_CALLS = 1 << 15
"""Entries of one file."""
ENTRY = struct.Struct("<5I2q")
"""Correlation id; number of the function; thread; stack, numbered from 1 (0: it was not read); named range, from 1 (0:
none was open); when the call began and ended (0: the place was not used)."""
LANE_ENTRY = struct.Struct("<3I144s")
"""Thread, stack and range of one or two calls of a lane, and they as the instructions have noted them (``lanes``)."""
HOST_ENTRY = struct.Struct("<6I5q")
"""Of a library's call that moves data of the host: number of its name; thread; stack; range; flags; major page faults;
when it began and ended; bytes; nanoseconds of the processor; minor page faults."""
READ_ENTRY = struct.Struct("<3Iq")
"""Of an asynchronous copy that is watched, and of a call that reads what it copied: correlation id of the copy (0: the
program was told that the GPU is done); number of the call's name (0: none reads); stack; when."""
PINNED, CONVERTED, GATHERED, RECEIVED, LOADS, PINS, STAGED = 1, 2, 4, 8, 16, 32, 64
"""Flags of a call: its source is pinned; it converts; it gathers what does not lie as the target does; its source came
from a DataLoader's worker; it is the loop's wait for a batch; of a DataLoader that pins; it copies the data in the
host's memory."""
LOADER = 8
"""Above so many bits of the flags: number of the DataLoader whose batch the source is of, from 1 on."""
RECEIVE, NEXT = "tensors from workers", "DataLoader"
"""Names of what a DataLoader's loop does beside the program."""
CUT = 0
"""Stands for the function of a call that was begun or over while nothing was recorded: nobody knows its line."""


_Piece = tuple["ctypes.Array[ctypes.c_char]", Iterator[int], Iterator[int]]
"""Of a file: its memory; the places of its slots that nobody has taken; and an item for each slot that is not yet
written but for the last one."""


class CallLog:
    """Entries in files ``NAME.NUMBER``.

    Args:
        folder: where the files are made.
        name: of the files.
        entry: their layout.
    """

    def __init__(self, folder: SpoolFolder, name: str = "calls", entry: struct.Struct = ENTRY) -> None:
        self._folder, self._name = folder, name
        self._pack: Callable[..., None] = entry.pack_into
        self._bytes = entry.size
        self._files = itertools.count()
        self._newest: _Piece = (ctypes.create_string_buffer(0), iter(()), iter(()))
        self._adding = _thread.RLock()  # a handler of a signal may make a call in there

    def note(self, *entry: int) -> None:
        """One call that is over; the fields of its layout.

        A thread that has taken a slot may stand still for any time before it writes there. So a piece goes only when
        each of its slots was written: then none of them is anyone's. A slot that is never written, because a handler
        of a signal raised an exception before, keeps its piece mapped.

        Raises:
            OSError: there is no room for a new file.
        """
        piece, slots, unwritten = self._newest
        while (slot := next(slots, None)) is None:
            piece, slots, unwritten = self._add_piece(slots)
        self._pack(*((piece, slot) + entry))  # noqa: RUF005 - a list between would take as long as all the rest
        if next(unwritten, None) is None:
            unmap(ctypes.addressof(piece), len(piece))

    def close(self) -> None:
        """No more calls come. The slots that are left in the last piece are taken, and count as written: so the piece
        goes now, or when the last thread that has a slot there has written."""
        piece, slots, unwritten = self._newest
        for _ in slots:
            if next(unwritten, None) is None:
                unmap(ctypes.addressof(piece), len(piece))

    def _add_piece(self, taken: Iterator[int]) -> _Piece:
        """The newest piece, which is not the one whose slots are all taken; the memory is the file's, so nothing has to
        be written.

        A handler of a signal may make a call or raise an exception at any place here: a file that was made for nothing
        stays empty.
        """
        size = PIECE_CALLS * self._bytes
        with self._adding:
            if self._newest[1] is taken:
                address = map_file(self._folder, f"{self._name}.{next(self._files):06d}", size)
                piece = (ctypes.c_char * size).from_address(address)
                added = piece, iter(range(0, size, self._bytes)), iter(range(PIECE_CALLS - 1))
                if self._newest[1] is taken:
                    self._newest = added
                else:  # a call of a handler has added one
                    unmap(address, size)
            return self._newest
