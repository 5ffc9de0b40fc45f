"""CuPy: ``ndarray.set`` through kept pinned buffers. ``cupy.asarray`` copies from pinned memory of its own."""

from __future__ import annotations

import functools
import sys
import time
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
            staged = self._gathered(line, buffer, source, "C" if flags.c_contiguous else "F")
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
                line, self._redirect.budget, self._cupy.cuda.alloc_pinned_memory, lambda event: event.done,
                lambda event: event.synchronize(),
            )  # fmt: skip
        return ring

    def _gathered(self, line: Line, buffer: Any, source: Any, order: str) -> Any:
        """The source in pinned memory."""
        begun = time.perf_counter_ns()
        key = (source.shape, source.dtype, order)
        if buffer.key != key:
            flat = self._numpy.frombuffer(buffer.memory, source.dtype, source.size)
            buffer.view, buffer.key = flat.reshape(source.shape, order=order), key
        self._numpy.copyto(buffer.view, source)
        line.gather_ns += time.perf_counter_ns() - begun
        return buffer.view


def _change_arrays(redirect: Redirect, cupy: ModuleType) -> None:
    _Arrays(redirect, cupy).change()


PATCHES: dict[str, Callable[[Redirect, ModuleType], None]] = {"cupy": _change_arrays}
"""Module → what is changed when the program has imported it."""
