"""What the instructions of ``error_filter`` note of the driver's calls: where one begins, and in lanes all of it.

A library gives Python's lock away while it copies. CUPTI's callbacks would take it where each call of the driver begins
and where it is over, and wait for it each time while another thread works. So a thread in a call of a library has a
lane: the driver's calls are noted there, and entered once the library's call is over, with its stack, as they stand
there: of a small copy Python would take longest. Where Python is needed meanwhile, or a callback has seen another stack
than the library's call has, there is no lane.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

from pinscope.tracing.bound import _thread, bind
from pinscope.tracing.host_data import LARGE_BYTES, HostData
from pinscope.tracing.later import Later

bind(globals())

MOST_BEGINS, MOST_LANES, MOST_CALLS = 256, 64, 8
"""Calls that are under way, by the last byte of their correlation ids; threads that have lanes; calls of the driver in
one. What is more CUPTI calls Python for."""
_WORDS = 9
"""Of eight bytes, of a call: correlation id, function; seconds and nanoseconds when it began and when it was over; its
first three parameters."""
_TOGETHER = 2 * _WORDS
"""Those of the calls in an entry of the log: a copy, and the wait for it."""
_THREAD_BITS = 12
"""Of a thread's number, which do not choose its lane."""
_get_ident = _thread.get_ident
_LAST_LANE = MOST_LANES - 1
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
        ("calls", ctypes.c_uint64 * (MOST_CALLS * _WORDS)),
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


def choose(functions: ctypes.Array[ctypes.c_uint8], number: int, on: bool = True) -> None:
    """Set the bit of a function, or clear it."""
    bit = 1 << number % 8
    functions[number // 8] = functions[number // 8] & ~bit | bit * on


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
        note: takes what is noted, by entries of :data:`mapped_file.LANE_ENTRY`.
        note_call: takes calls of libraries: :meth:`library_log.LibraryLog.note_call`.
        late: takes what the program need not wait for.
        stack: gives the number of the stack above a frame.
        range_now: gives the number of the range that is open.
        caught: takes a fault of ours.

    Attributes:
        last_calls: thread, as calls name it → correlation id of the last one that is over.
        seen: stacks that Python was called with: no other Python ran there within a library's call.
    """

    def __init__(
        self,
        notes: Notes,
        data: HostData,
        note: Callable[..., None],
        note_call: Callable[..., None],
        late: Later,
        stack: Callable[[FrameType | None], int],
        range_now: Callable[[], int],
        caught: Callable[[BaseException], None],
    ) -> None:
        self._notes, self._data, self._late = notes, data, late
        self._note, self._note_call = note, note_call
        self._stack, self._range_now, self._caught = stack, range_now, caught
        self.last_calls: dict[int, int] = {}
        self.seen: set[int] = set()
        self._open: dict[int, tuple[_Lane, int, Any, int, bool]] = {}
        """Thread → its lane, where the entries of that begin, and they as words; the stack of its calls, and whether
        their data may be large."""
        self._lanes: list[tuple[_Lane, int, Any]] = []
        for lane in notes.lanes:
            lane.end = ctypes.addressof(lane) + ctypes.sizeof(lane)
            words: Any = memoryview(lane).cast("B")[_FIRST:].cast("Q")
            self._lanes.append((lane, ctypes.addressof(lane) + _FIRST, words))

    def __bool__(self) -> bool:
        return bool(self._open)

    def open_large(self, caller: FrameType) -> int:
        """A library is called with data that may be large, from this frame: it has a lane, if nothing needs Python. The
        number of the stack; 0 where that failed."""
        try:
            stack = self._stack(caller)
            if stack in self._data.known:
                self._take(stack, True)
            return stack
        except BaseException as error:  # noqa: BLE001 - nothing may reach the program
            self._caught(error)
            return 0

    def open_small(self, caller: FrameType) -> None:
        """It is called with data of which no copy is large, whatever it converts."""
        try:
            if self._notes.is_on and (stack := self._stack(caller)) in self.seen:
                self._take(stack, False)
        except BaseException as error:  # noqa: BLE001 - as above
            self._caught(error)

    def _take(self, stack: int, is_large: bool) -> None:
        thread = _get_ident()
        lane, first, words = self._lanes[thread >> _THREAD_BITS & _LAST_LANE]
        if not lane.thread:  # else it is another thread's
            lane.next = first
            self._open[thread] = lane, first, words, stack, is_large
            lane.thread = thread

    def stop(self) -> None:
        """From now on Python is needed for the calls of this thread."""
        if opened := self._open.get(_thread.get_ident()):
            opened[0].thread = 0

    def close(self, *call: Any) -> None:
        """The library has returned: enter what is in the lane; of large data later, but for samples.

        Args:
            call: what ``note_call`` is given of it, behind thread and range.
        """
        try:
            thread, range_number = _get_ident() & 0xFFFFFFFF, self._range_now()
            if opened := self._open.pop(_get_ident(), None):
                lane, first, words, stack, is_large = opened
                lane.thread = 0
                end = lane.next - first >> 3
                if end:
                    self.last_calls[thread] = words[end - _WORDS]
                    enter = self._put_off if is_large or end > _TOGETHER else self._note
                    enter(thread, stack, range_number, words[:end].tobytes())
            if call:
                self._late.put_off(self._note_call, thread, range_number, *call)
        except BaseException as error:  # noqa: BLE001 - as above
            self._caught(error)

    def _put_off(self, thread: int, stack: int, range_number: int, noted: bytes) -> None:
        data, samples, words = self._data, [], memoryview(noted).cast("Q")
        fetches = False
        for place in range(1, len(words), _WORDS):
            number, size = words[place], words[place + 7]
            is_sent = number in data.to_gpu and size > LARGE_BYTES
            samples.append(data.sample(words[place + 6], size) if is_sent else None)
            fetches |= number in data.to_host
        self._late.put_off(self._enter, thread, stack, range_number, noted, samples)
        if fetches:  # it is sampled by what was sent
            self._late.catch_up()

    def _enter(self, thread: int, stack: int, range_number: int, noted: bytes, samples: list[bytes | None]) -> None:
        for place in range(0, len(noted), 8 * _TOGETHER):
            self._note(thread, stack, range_number, noted[place : place + 8 * _TOGETHER])
        words = memoryview(noted).cast("Q")
        for call, sample in enumerate(samples):
            correlation, number, *_, target, source, size = words[call * _WORDS : (call + 1) * _WORDS]
            self._data.note(number, (target, source, size), correlation, stack, sample)

    def cut(self) -> Iterator[tuple[int, int]]:
        """The recording is over before the library has returned: correlation id and begin of the calls that are not
        entered."""
        for thread in list(self._open):
            lane, first, words, *_ = self._open.pop(thread)
            lane.thread = 0
            are_over = lane.next - first >> 3
            for place in range(0, len(words), _WORDS):
                correlation, _, *times = words[place : place + 6]
                begun, ended = (seconds * 10**9 + times[2 * each + 1] for each, seconds in enumerate(times[::2]))
                if place < are_over or begun > ended:  # else it is of an earlier call of a library
                    yield correlation, begun
