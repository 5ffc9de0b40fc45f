"""Waits behind the asynchronous copies of chosen lines, inside the program and without editing it.

CUPTI calls back while the driver still copies, and no call of CUDA may wait in there. So the wait is left to Python,
which does what it was asked to as soon as the library has returned to the program's own code: before that can read
what is copied, or write what is copied from. A stream that is captured into a graph is left alone.

Python does so in its main thread. In others, calls of PyTorch that copy wait as they return.

:meth:`Waits.document` says how often each line was waited for, and why not.
"""

from __future__ import annotations

import ctypes
import functools
from contextlib import suppress
from sys import _getframe
from typing import Any

from pinscope.tracing.bound import TYPE_CHECKING, _thread, bind, os
from pinscope.tracing.library_calls import change_method, when_imported
from pinscope.tracing.pending import asking
from pinscope.tracing.stacks import OwnLines

if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import CodeType, FrameType, ModuleType

    from pinscope.tracing.library_calls import Call

bind(globals())

ACCOUNT = "waited.json"
_STREAM_AT = {
    "cuMemcpyHtoDAsync": 24,
    "cuMemcpyDtoHAsync": 24,
    "cuMemcpyAsync": 24,
    "cuMemcpyHtoAAsync": 32,
    "cuMemcpyAtoHAsync": 32,
    "cuMemcpy2DAsync": 8,
    "cuMemcpy3DAsync": 8,
    "cuMemcpyBatchAsync": 64,
    "cuMemcpyBatchAsync_v2": 56,
    "cuMemcpy3DBatchAsync": 32,
    "cuMemcpy3DBatchAsync_v2": 24,
    "cuMemcpyWithAttributesAsync": 32,
    "cuMemcpy3DWithAttributesAsync": 16,
    "cuGraphLaunch": 8,
}
"""Function of the driver → place of the stream among its parameters (cuda.h; each takes eight bytes)."""
_PER_THREAD = ("_ptsz", "_ptds")
"""Ends of the names of functions for which no stream is the thread's own one."""
_OWN_STREAM = 2
"""CU_STREAM_PER_THREAD."""
_RELAXED = 2
"""CU_STREAM_CAPTURE_MODE_RELAXED."""
_CAPTURED = "copies into a graph that is captured"
_NO_ANSWER = "copies whose stream the driver does not wait for"
_ELSEWHERE = "copies in another thread, by a call that cannot be changed"


def of(config: Mapping[str, Any], callbacks: frozenset[CodeType]) -> Waits | None:
    """The waits that are wanted in this process; ``None``: none."""
    if config.get("waits") is None:
        return None
    waits = Waits(config, callbacks)
    when_imported("torch", waits.follow)
    return waits


class Waits:
    """The waits of this process.

    Args:
        config: of the spool; its ``waits`` are the lines.
        callbacks: code that CUPTI calls.
    """

    def __init__(self, config: Mapping[str, Any], callbacks: frozenset[CodeType]) -> None:
        self._own = OwnLines(config["libraries"])
        self._lines = {(file, line): Waited(file, line) for file, line in config["waits"]}
        functions = config["functions"].items()
        self._streams = {int(number): stream for number, name in functions if (stream := _stream_in(name))}
        self._callbacks = callbacks
        self._due: dict[int, list[tuple[Waited, int]]] = {}
        self._ask = asking(self._behind_call)

    def follow(self, torch: ModuleType) -> None:
        """Wait behind PyTorch's calls that copy, in threads that Python cannot be asked in."""
        with suppress(Exception):  # a version that is made otherwise is not followed
            for name in ("to", "cuda", "copy_"):
                change_method(torch.Tensor, name, self._waiting)

    def _waiting(self, call: Call) -> Call:
        def waited(*arguments: Any, **named: Any) -> Any:
            result = call(*arguments, **named)
            self.wait()
            return result

        return waited

    def note(self, number: int, view: tuple[Any, Any, Any], caller: FrameType | None) -> None:
        """A call that is followed begins, or is over.

        Args:
            number: of the function.
            view: whether it is over, its correlation id, and the address of its parameters.
            caller: the frame that called.
        """
        is_over, _, parameters = view
        stream = self._streams.get(number) if is_over.value else None
        frame = None if stream is None else self._own.innermost(caller)
        line = None if frame is None else self._lines.get(self._own.place(frame))
        if stream is None or line is None:
            return
        place, is_own = stream
        handle = ctypes.c_uint64.from_address(parameters.value + place).value
        due = self._due.setdefault(_thread.get_ident(), [])
        due.append((line, handle or (_OWN_STREAM if is_own else 0)))

    def is_due(self) -> bool:
        """Whether :meth:`ask` must follow."""
        return _thread.get_ident() in self._due and _thread.get_native_id() == os.getpid()

    def ask(self) -> None:
        """Have Python wait behind the callback."""
        ask = self._ask
        -ask  # noqa: B018 - see there

    def _behind_call(self) -> bool:
        """Python has come to the program's own code, or to another callback: then its end asks anew."""
        frame: FrameType | None = _getframe(1)
        while frame is not None:
            if frame.f_code in self._callbacks:
                return False
            frame = frame.f_back
        self.wait()
        return False

    def wait(self) -> None:
        """Until the GPU has done the copies that this thread has started."""
        for line, stream in self._due.pop(_thread.get_ident(), ()):
            line.note(_wait_for(stream))

    def document(self) -> list[dict[str, Any]]:
        """What was done for each line."""
        for started in [self._due.pop(thread, ()) for thread in list(self._due)]:
            for line, _ in started:
                line.note(_ELSEWHERE)
        return [dict(vars(line)) for line in self._lines.values()]


class Waited:
    """A chosen line, how often it was waited for, and why not."""

    def __init__(self, file: str, line: int) -> None:
        self.file = file
        self.line = line
        self.waits = 0
        self.left: dict[str, int] = {}

    def note(self, reason: str | None) -> None:
        """One copy more; ``None``: it was waited for."""
        if reason is None:
            self.waits += 1
        else:
            self.left[reason] = self.left.get(reason, 0) + 1


def _stream_in(name: str) -> tuple[int, bool] | None:
    """Place of the stream among a function's parameters, and whether no stream is the thread's own one."""
    plain = name
    for end in _PER_THREAD:
        plain = plain.removesuffix(end)
    place = _STREAM_AT.get(plain) or _STREAM_AT.get(plain.removesuffix("_v2"))
    return None if place is None else (place, plain != name)


def _wait_for(stream: int) -> str | None:
    """Until all is done that this stream was given; why not, if not. What is asked of the driver here is no fault of a
    capture in another stream."""
    driver, handle, status, mode = _driver(), ctypes.c_void_p(stream), ctypes.c_int(), ctypes.c_int(_RELAXED)
    driver.cuThreadExchangeStreamCaptureMode(ctypes.byref(mode))
    try:
        failed = driver.cuStreamIsCapturing(handle, ctypes.byref(status))
        if failed or status.value:
            return _CAPTURED
        return _NO_ANSWER if driver.cuStreamSynchronize(handle) else None
    finally:
        driver.cuThreadExchangeStreamCaptureMode(ctypes.byref(mode))


@functools.cache
def _driver() -> Any:
    """The driver's library, which the program has loaded."""
    return ctypes.CDLL("libcuda.so.1")
