"""The calls that are followed, noted in mapped files: one entry each, from any thread, without a lock."""

from __future__ import annotations

import ctypes
import itertools
import struct
from collections.abc import Iterator

from pinscope.tracing.bound import _thread, bind
from pinscope.tracing.mapped_file import map_file, unmap
from pinscope.tracing.spool_folder import SpoolFolder

bind(globals())


PIECE_CALLS = 1 << 15
"""Entries of one file."""
ENTRY = struct.Struct("<5I2q")
"""Correlation id; number of the function; thread; stack, numbered from 1 (0: it was not read); named range, from 1 (0:
none was open); when the call began and ended (0: the place was not used)."""
CUT = 0
"""Stands for the function of a call that was begun or over while nothing was recorded: nobody knows its line."""


class CallLog:
    """Entries in files ``calls.NUMBER``.

    Args:
        folder: where the files are made.
    """

    def __init__(self, folder: SpoolFolder) -> None:
        self._folder = folder
        self._slots = itertools.count()
        self._files = itertools.count()
        self._pieces: list[tuple[ctypes.Array[ctypes.c_char], Iterator[int]]] = []
        self._adding = _thread.RLock()  # a handler of a signal may make a call in there

    def note(self, *entry: int) -> None:
        """One call that is over; the fields of :data:`ENTRY`.

        A thread that has taken a slot may stand still for any time before it writes there. So a piece goes only when
        each of its slots was written: then none of them is anyone's. A slot that is never written, because a handler
        of a signal raised an exception before, keeps its piece mapped.

        Raises:
            OSError: there is no room for a new file.
        """
        slot = next(self._slots)
        number = slot // PIECE_CALLS
        if number >= len(self._pieces):
            self._add_pieces(number)
        piece, written = self._pieces[number]
        ENTRY.pack_into(piece, slot % PIECE_CALLS * ENTRY.size, *entry)
        if next(written) == PIECE_CALLS - 1:
            unmap(ctypes.addressof(piece), len(piece))

    def close(self) -> None:
        """No more calls come. The slots that are left in the last piece are taken, and count as written: so the piece
        goes now, or when the last thread that has a slot there has written."""
        for slot in self._slots:
            number = slot // PIECE_CALLS
            if number >= len(self._pieces):
                return
            piece, written = self._pieces[number]
            if next(written) == PIECE_CALLS - 1:
                unmap(ctypes.addressof(piece), len(piece))
            if slot % PIECE_CALLS == PIECE_CALLS - 1:
                return

    def _add_pieces(self, number: int) -> None:
        """Files up to this one; the memory is the file's, so nothing has to be written.

        A handler of a signal may raise an exception at any place here: a file that was made for nothing stays empty.
        """
        size = PIECE_CALLS * ENTRY.size
        with self._adding:
            while number >= len(self._pieces):
                address = map_file(self._folder, f"calls.{next(self._files):06d}", size)
                self._pieces.append(((ctypes.c_char * size).from_address(address), itertools.count()))
