"""What the recorder asks of CUPTI's library, through ctypes."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterable
from typing import Any

from pinscope.tracing.bound import bind
from pinscope.tracing.error_filter import error_filter
from pinscope.tracing.lanes import Notes, choose

bind(globals())


DRIVER, RUNTIME, NVTX = 1, 2, 5
"""CUPTI's domains of callbacks."""
_INVALID_PARAMETER = 1
"""CUPTI's error."""
_FORCED = 1
_FUNCTIONS = (
    "cuptiSubscribe",
    "cuptiUnsubscribe",
    "cuptiEnableCallback",
    "cuptiActivityRegisterCallbacks",
    "cuptiActivityEnable",
    "cuptiActivityDisable",
    "cuptiActivityFlushAll",
    "cuptiActivityConfigureUnifiedMemoryCounter",
)
_ALL_DEVICES, _TO_GPU, _TO_HOST, _CPU_FAULTS, _GPU_FAULTS = 2, 1, 2, 3, 4
"""Scope and kinds of counters of managed memory."""

_Callback = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_uint32, ctypes.c_uint32, ctypes.c_void_p)
_Request = ctypes.CFUNCTYPE(
    None, ctypes.POINTER(ctypes.c_void_p), ctypes.POINTER(ctypes.c_size_t), ctypes.POINTER(ctypes.c_size_t)
)
_Complete = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_uint32, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t)


class Refused(Exception):  # noqa: N818 - an answer of CUPTI, not a fault
    """CUPTI gives no subscription; the argument is its error's number."""


class CuptiLibrary:
    """A subscription to CUPTI, of which a process has one at a time.

    Args:
        callback: called where a followed function begins and ends, with user data, domain, function and the address
            of CUPTI's structure.
        failed: called likewise where any function of runtime or driver has returned an error.
        request: called for a buffer, with pointers to its address, its size and the most records that it may have.
        complete: called with a buffer that is given back: context, stream, address, size, valid bytes.

    CUPTI may call what it was given until the process is gone: the owner keeps this object.

    Attributes:
        notes: what stands in for Python notes there; nothing, where calls are noted by Python alone.
    """

    def __init__(
        self,
        callback: Callable[[int, int, int, int], None],
        failed: Callable[[int, int, int, int], None],
        request: Callable[[Any, Any, Any], None],
        complete: Callable[[int, int, int, int, int], None],
    ) -> None:
        self._kept = (_Callback(callback), _Callback(failed), _Request(request), _Complete(complete))
        self._filter = error_filter(*self._kept[:2])
        self.notes = Notes() if self._filter is None else self._filter.notes
        self._library: Any = None
        self._subscriber = ctypes.c_void_p()
        self._functions: list[int] = []

    @property
    def notices_errors(self) -> bool:
        """Whether calls that return an error are reported."""
        return self._filter is not None

    @property
    def is_subscribed(self) -> bool:
        """Whether it was given a subscription."""
        return bool(self._subscriber)

    def load(self, path: str) -> None:
        """Load the library.

        Raises:
            OSError: it cannot be loaded.
        """
        self._library = ctypes.CDLL(path)
        for name in _FUNCTIONS:  # now: an audit hook of the program would see it later
            getattr(self._library, name)

    def subscribe(self) -> None:
        """Take the subscription.

        Raises:
            Refused: another profiler has it, or CUPTI does not work here.
        """
        callback = self._kept[0] if self._filter is None else self._filter.address
        _require(self._library.cuptiSubscribe(ctypes.byref(self._subscriber), callback, None))

    def take_records(self) -> None:
        """Have the buffers asked for and given back.

        Raises:
            Refused: CUPTI does not work here.
        """
        _require(self._library.cuptiActivityRegisterCallbacks(*self._kept[2:]))

    def choose(self, functions: Iterable[int], watched: Iterable[tuple[int, int]]) -> None:
        """Follow those of these functions of the driver that it has: a CUPTI newer than the driver knows more, which no
        program can call here.

        Args:
            functions: their numbers.
            watched: domain and number of the functions whose errors are reported.

        Raises:
            Refused: it has none of them.
        """
        self.follow_also(functions, False)
        if not self._functions:
            raise Refused(_INVALID_PARAMETER)
        for domain, number in watched if self._filter is not None else ():
            self._enable(domain, number)

    def follow(self, on: bool) -> None:
        """Note the chosen functions, or not.

        CUPTI goes on calling for them all the while. Were it told to call no more while a thread is in a callback where
        a call begins, it would take that call for one that never ends, and give all later ones of the thread its
        correlation id (seen with CUPTI 13.0).
        """
        for number in self._functions:
            choose(self.notes.followed, number, on)

    def follow_ranges(self, functions: Iterable[int]) -> None:
        """Call back at these functions of NVTX, as far as CUPTI has them."""
        for number in functions:
            self._enable(NVTX, number)

    def record(self, kinds: Iterable[int], on: bool) -> None:
        """Keep records of these kinds of activity, or not.

        Raises:
            Refused: CUPTI does not work here.
        """
        switch = self._library.cuptiActivityEnable if on else self._library.cuptiActivityDisable
        for kind in kinds:
            _require(switch(kind))

    def follow_also(self, functions: Iterable[int], on: bool) -> None:
        """With the chosen ones these, too, as far as the driver has them; ``on``: from now on."""
        there = [number for number in functions if self._enable(DRIVER, number)]
        self._functions += there
        for number in there:
            choose(self.notes.followed, number, on)

    def always_follow(self, functions: Iterable[int]) -> None:
        """Call back at these functions of the driver, whether the chosen ones are followed or not."""
        for number in functions:
            self._enable(DRIVER, number)
            choose(self.notes.followed, number, True)

    def count_migrations(self) -> None:
        """Let there be records of the pages of managed memory that move, and of the page faults for which they do.

        Raises:
            Refused: the driver does not give them here.
        """
        counters = [(_ALL_DEVICES, which, 0, 1) for which in (_TO_GPU, _TO_HOST, _CPU_FAULTS, _GPU_FAULTS)]
        asked = (ctypes.c_uint32 * 16)(*(number for counter in counters for number in counter))
        _require(self._library.cuptiActivityConfigureUnifiedMemoryCounter(asked, len(counters)))

    def flush(self) -> None:
        """Have buffers given back of which all records are complete."""
        self._library.cuptiActivityFlushAll(0)

    def flush_all(self) -> None:
        """Have all buffers given back, also with records that are not complete."""
        self.flush()
        self._library.cuptiActivityFlushAll(_FORCED)

    def record_no_more(self, kinds: Iterable[int]) -> None:
        """Switch records of these kinds off, whatever CUPTI answers."""
        for kind in kinds:
            self._library.cuptiActivityDisable(kind)

    def unsubscribe(self) -> None:
        """Give the subscription back."""
        self._library.cuptiUnsubscribe(self._subscriber)

    def _enable(self, domain: int, number: int) -> bool:
        """Have CUPTI call at a function; whether there is such a one."""
        return not self._library.cuptiEnableCallback(1, self._subscriber, domain, number)


def _require(result: int) -> None:
    if result:
        raise Refused(result)
