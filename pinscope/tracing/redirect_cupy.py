"""CuPy: ``ndarray.set`` through kept pinned buffers. ``cupy.asarray`` copies from pinned memory of its own."""

from __future__ import annotations

import _thread
import functools
import os
import sys
import time
from _queue import SimpleQueue
from collections.abc import Callable
from types import ModuleType
from typing import Any

from pinscope.tracing.redirect import Line, Redirect, Ring

_PINNED_MEMORY = 1
"""cudaMemoryTypeHost."""


class _Arrays:
    """The copies of arrays in one process.

    Args:
        redirect: what is chosen.
        cupy: the module.
    """

    def __init__(self, redirect: Redirect, cupy: Any) -> None:
        self._redirect = redirect
        self._cupy = cupy
        self._numpy: Any = sys.modules["numpy"]
        self._copies = _Copies(self._numpy)
        self._rings: dict[tuple[str, int, int], Ring] = {}

    def change(self) -> None:
        """Put the changed method in place."""
        arrays, set_ = self, self._cupy.ndarray.set

        @functools.wraps(set_)
        def changed(self: Any, arr: Any, stream: Any = None) -> Any:
            if type(arr) is not arrays._numpy.ndarray or arr.nbytes <= arrays._redirect.large_bytes:
                return set_(self, arr, stream)
            line = arrays._redirect.chosen()
            if line is None:
                return set_(self, arr, stream)
            return arrays._through(line, self, arr, stream, set_)

        self._cupy.ndarray.set = changed

    def _through(self, line: Line, target: Any, source: Any, stream: Any, set_: Callable[..., Any]) -> Any:
        """Gather, copy from pinned memory, and note where the copy ends."""
        flags = target.flags
        fits = source.dtype == target.dtype and source.shape == target.shape
        if not fits or not (flags.c_contiguous or flags.f_contiguous) or self._is_pinned(source):
            return set_(target, source, stream)  # an error, or as it should be
        device = target.device
        try:
            ring = self._ring(line, device.id)
            with device:
                buffer = ring.take(source.nbytes)
            if buffer is None:
                line.leave("more would be pinned than may be", source.nbytes)
                return set_(target, source, stream)
            order = "C" if flags.c_contiguous else "F"
            staged = ring.fill(buffer, lambda taken: self._gathered(line, taken, source, order))
        except Exception as error:  # noqa: BLE001 - the program's own copy is still possible
            line.leave(f"{type(error).__name__}: {error}"[:200], source.nbytes)
            return set_(target, source, stream)
        with device:
            used = self._cupy.cuda.get_current_stream() if stream is None else stream
            try:
                return set_(target, staged, used)
            finally:
                buffer.event = buffer.event or self._cupy.cuda.Event(disable_timing=True)
                buffer.event.record(used)
                line.copies += 1
                line.bytes += source.nbytes
                ring.give(buffer)

    def _is_pinned(self, source: Any) -> bool:
        return bool(self._cupy.cuda.runtime.pointerGetAttributes(source.ctypes.data).type == _PINNED_MEMORY)

    def _ring(self, line: Line, device: int) -> Ring:
        key = (line.file, line.line, device)
        ring = self._rings.get(key)
        if ring is None:
            ring = self._rings[key] = Ring(
                line,
                self._redirect.budget,
                self._cupy.cuda.alloc_pinned_memory,
                lambda event: event.done,
                lambda event: event.synchronize(),
            )
        return ring

    def _gathered(self, line: Line, buffer: Any, source: Any, order: str) -> Any:
        """The source in pinned memory."""
        begun = time.perf_counter_ns()
        key = (source.shape, source.dtype, order)
        if buffer.key != key:
            flat = self._numpy.frombuffer(buffer.memory, source.dtype, source.size)
            buffer.view, buffer.key = flat.reshape(source.shape, order=order), key
        self._copies.copy(buffer.view, source)
        line.gather_ns += time.perf_counter_ns() - begun
        return buffer.view


class _Copies:
    """Copies large arrays with several threads, as PyTorch does: one alone is slower than the GPU's link.

    Args:
        numpy: the module.
    """

    MOST_THREADS = 8
    LEAST_BYTES = 4 << 20
    """For each thread."""

    def __init__(self, numpy: Any) -> None:
        self._numpy = numpy
        self._most = min(len(os.sched_getaffinity(0)), self.MOST_THREADS)
        self._process = os.getpid()
        self._threads = 0
        self._work: SimpleQueue[Any] = SimpleQueue()

    def copy(self, target: Any, source: Any) -> None:
        """Copy an array of the same shape."""
        parts = min(self._most, source.nbytes // self.LEAST_BYTES)
        if target.flags.f_contiguous and not target.flags.c_contiguous:
            target, source = target.T, source.T
        parts = min(parts, len(source)) if source.ndim else 0
        if parts < 2 or os.getpid() != self._process:  # a child has no threads
            self._numpy.copyto(target, source)
            return
        while self._threads < parts - 1:
            self._threads += 1
            _thread.start_new_thread(self._take, ())
        done: SimpleQueue[Exception | None] = SimpleQueue()
        rows = -(-len(source) // parts)
        for begin in range(rows, len(source), rows):
            self._work.put((target[begin : begin + rows], source[begin : begin + rows], done))
        self._numpy.copyto(target[:rows], source[:rows])
        for error in [done.get() for _ in range(rows, len(source), rows)]:
            if error is not None:
                raise error

    def _take(self) -> None:
        while True:
            target, source, done = self._work.get()
            try:
                self._numpy.copyto(target, source)
                done.put(None)
            except Exception as error:  # noqa: BLE001 - it belongs to the one who waits
                done.put(error)
            del target, source, done


def _change_arrays(redirect: Redirect, cupy: ModuleType) -> None:
    _Arrays(redirect, cupy).change()


PATCHES: dict[str, Callable[[Redirect, ModuleType], None]] = {"cupy": _change_arrays}
"""Module → what is changed when the program has imported it."""
