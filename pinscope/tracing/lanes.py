"""What the instructions of ``error_filter`` note of the driver's calls: where one begins, and in lanes all of it.

A library gives Python's lock away while it copies. CUPTI's callbacks would take it where each call of the driver begins
and where it is over, and wait for it each time while another thread works. So a thread in a call of a library has a
lane: the driver's calls are noted there, and entered once the library's call is over, with its stack. Where Python is
needed meanwhile, or a callback has seen another stack than the library's call has, there is no lane.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable, Iterator

from pinscope.tracing.bound import _thread, bind
from pinscope.tracing.host_data import HostData

bind(globals())

MOST_BEGINS, MOST_LANES, MOST_CALLS = 256, 64, 8
"""Calls that are under way, by the last byte of their correlation ids; threads that have lanes; calls of the driver in
one. What is more CUPTI calls Python for."""
_CALL = struct.Struct("<2Q4q3Q")
"""Correlation id, function; seconds and nanoseconds when it began and when it was over; its first three parameters."""
_THREAD_BITS = 12
"""Of a thread's number, which do not choose its lane."""
_Functions = ctypes.c_uint8 * 128
"""A bit for each function of the driver."""


class _Begin(ctypes.Structure):
    """A call that is under way: its correlation id, 0 where the place is free, and when it began."""

    _fields_ = (("call", ctypes.c_uint64), ("seconds", ctypes.c_int64), ("nanoseconds", ctypes.c_int64))


class _Lane(ctypes.Structure):
    """That of a thread: address of its next entry, and behind the last."""

    _fields_ = (
        ("thread", ctypes.c_uint64),
        ("next", ctypes.c_uint64),
        ("end", ctypes.c_uint64),
        ("calls", ctypes.c_char * (MOST_CALLS * _CALL.size)),
    )


_FIRST = _Lane.calls.offset


class Notes(ctypes.Structure):
    """Functions that are followed; those that are noted in lanes; those that copy, whose third parameter is a size;
    whether begins are noted; the notes."""

    _fields_ = (
        ("followed", _Functions),
        ("in_lanes", _Functions),
        ("copying", _Functions),
        ("is_on", ctypes.c_uint64),
        ("begins", _Begin * MOST_BEGINS),
        ("lanes", _Lane * MOST_LANES),
    )


def choose(functions: ctypes.Array[ctypes.c_uint8], number: int) -> None:
    """Set the bit of a function."""
    functions[number // 8] |= 1 << number % 8


class Begins:
    """When calls that are under way began.

    Args:
        notes: what the instructions note.
    """

    def __init__(self, notes: Notes) -> None:
        self._noted = tuple(notes.begins)
        self._kept: dict[int, int] = {}
        """Correlation id → the same of those that Python was called for."""

    def __bool__(self) -> bool:
        return bool(self._kept) or any(each.call for each in self._noted)

    def keep(self, correlation: int, now: int) -> None:
        """A call begins."""
        self._kept[correlation] = now

    def take(self, correlation: int) -> int | None:
        """It is over. ``None``: it was not noted."""
        noted = self._noted[correlation & 255]
        if noted.call != correlation:
            return self._kept.pop(correlation, None)
        begun: int = noted.seconds * 1_000_000_000 + noted.nanoseconds
        noted.call = 0
        return begun

    def take_all(self) -> Iterator[tuple[int, int]]:
        """Correlation id and begin of all, whose ends will not be seen."""
        for correlation in (*self._kept, *(each.call for each in self._noted if each.call)):
            begun = self.take(correlation)
            if begun is not None:  # else it was over meanwhile
                yield correlation, begun


class Lanes:
    """Those of one process.

    Args:
        notes: what the instructions note.
        data: looks at the memory of copies, and at what they carry.
        enter: takes a call that is over: correlation id, function, stack, begin and end.
    """

    def __init__(self, notes: Notes, data: HostData, enter: Callable[[int, int, int, int, int], None]) -> None:
        self._lanes, self._data, self._enter = tuple(notes.lanes), data, enter
        self._open: dict[int, tuple[_Lane, int]] = {}
        """Thread → its lane, and the stack of its calls."""
        for lane in self._lanes:
            lane.end = ctypes.addressof(lane) + ctypes.sizeof(lane)

    def __bool__(self) -> bool:
        return bool(self._open)

    def open(self, stack: int) -> None:
        """A library is called in this thread: it has a lane, if nothing needs Python."""
        if not self._data.knows(stack):
            return
        thread = _thread.get_ident()
        lane = self._lanes[thread >> _THREAD_BITS & MOST_LANES - 1]
        if not lane.thread:  # else it is another thread's
            lane.next = ctypes.addressof(lane) + _FIRST
            self._open[thread] = lane, stack
            lane.thread = thread

    def stop(self) -> None:
        """From now on Python is needed for the calls of this thread."""
        if opened := self._open.get(_thread.get_ident()):
            opened[0].thread = 0

    def close(self) -> None:
        """The library has returned: enter what is in the lane."""
        if (opened := self._open.pop(_thread.get_ident(), None)) is None:
            return
        lane, stack = opened
        lane.thread = 0
        for correlation, number, begun, ended, copied in _calls(lane, lane.next):
            self._data.note(number, copied, correlation, stack)
            self._enter(correlation, number, stack, begun, ended)

    def cut(self) -> Iterator[tuple[int, int]]:
        """The recording is over before the library has returned: correlation id and begin of the calls that are not
        entered."""
        for thread in list(self._open):
            lane, _ = self._open.pop(thread)
            lane.thread = 0
            are_over = (lane.next - ctypes.addressof(lane) - _FIRST) // _CALL.size
            for place, (correlation, _, begun, ended, _) in enumerate(_calls(lane, lane.end)):
                if place < are_over or begun > ended:  # else it is of an earlier call of a library
                    yield correlation, begun


def _calls(lane: _Lane, end: int) -> Iterator[tuple[int, int, int, int, tuple[int, int, int]]]:
    """Correlation id, function, begin, end and parameters of the calls before an address."""
    for place in range(_FIRST, end - ctypes.addressof(lane), _CALL.size):
        call = _CALL.unpack_from(lane, place)
        yield call[0], call[1], call[2] * 10**9 + call[3], call[4] * 10**9 + call[5], call[6:]
