"""Changes PyTorch and CuPy when the program imports them, so that chosen copies come from kept pinned buffers.

Of PyTorch ``Tensor.to``, ``.cuda`` and ``.copy_``, and DataLoaders, which pin their batches; of CuPy ``ndarray.set``:
``cupy.asarray`` copies from pinned memory of its own.
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from types import FrameType, ModuleType
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary, WeakValueDictionary

from pinscope.tracing.library_calls import change_method, when_imported
from pinscope.tracing.redirect import Buffer, Line, Redirect, Ring
from pinscope.tracing.spool_folder import SpoolFolder

_Call = Callable[..., Any]


class _Tensors:
    """The copies of tensors in one process.

    Args:
        redirect: what is chosen.
        torch: the module.
    """

    def __init__(self, redirect: Redirect, torch: Any) -> None:
        self._redirect = redirect
        self._torch = torch
        self._large = redirect.large_bytes
        self._plain = (torch.Tensor, torch.nn.Parameter)
        self._copy: _Call = torch.Tensor.copy_
        self._rings: dict[tuple[str, int, int], Ring] = {}
        self._has_streams = False

    def change(self) -> None:
        """Put the changed methods in place."""
        tensor = self._torch.Tensor
        change_method(tensor, "to", self._moving)
        change_method(tensor, "cuda", functools.partial(self._moving, default="cuda"))
        change_method(tensor, "copy_", self._copying)
        stream = self._torch.cuda.Stream
        new: _Call = stream.__new__

        @functools.wraps(new)
        def counted(*arguments: Any, **named: Any) -> Any:
            self._has_streams = True
            return new(*arguments, **named)

        stream.__new__ = counted

    def _moving(self, move: _Call, default: str | None = None) -> _Call:
        """``to`` or ``cuda``, through pinned memory where that is chosen."""

        def moved(self: Any, *arguments: Any, **named: Any) -> Any:
            if not tensors._is_large(self):
                return move(self, *arguments, **named)

            def call(staged: Any) -> Any:
                if staged is None:
                    return move(self, *arguments, **named)
                given, by_name = _without_waiting(arguments, named)
                return move(staged, *given, **by_name)

            goal = tensors._goal(self, arguments, named, default)
            line = tensors._redirect.chosen() if goal is not None else None
            return call(None) if goal is None or line is None else tensors._through(line, self, goal, call)

        tensors = self
        return moved

    def _copying(self, copy: _Call) -> _Call:
        """``copy_``, likewise."""

        def copied(self: Any, other: Any, non_blocking: bool = False) -> Any:  # named as PyTorch's
            if not tensors._is_large(other) or not self.is_cuda:
                return copy(self, other, non_blocking)

            def call(staged: Any) -> Any:
                return copy(self, other, non_blocking) if staged is None else copy(self, staged, True)

            line = tensors._redirect.chosen()
            if line is None:
                return call(None)
            if self.requires_grad and tensors._torch.is_grad_enabled():
                line.leave(_GRADIENT, other.nbytes)
                return call(None)
            goal = _Goal(self.device.index, self.dtype, self, not non_blocking)
            return tensors._through(line, other, goal, call)

        tensors = self
        return copied

    def _is_large(self, source: Any) -> bool:
        """A dense tensor on the host whose copies are worth it. Others may not even be asked for their bytes."""
        if type(source) not in self._plain or source.layout is not self._torch.strided:
            return False
        return bool(source.is_cpu and source.nbytes > self._large)

    def _goal(self, source: Any, arguments: Sequence[Any], named: Any, default: str | None) -> _Goal | None:
        """What a call of ``to`` or ``cuda`` asks for; ``None`` if the data stays on the host."""
        torch = self._torch
        first = arguments[0] if arguments else named.get("device", named.get("other"))
        dtype = next((value for value in (*arguments, named.get("dtype")) if isinstance(value, torch.dtype)), None)
        first = default if first is None else first
        if isinstance(first, torch.Tensor):
            device, dtype = first.device, dtype or first.dtype
        elif isinstance(first, str | int | torch.device):
            device = torch.device("cuda", first) if isinstance(first, int) else torch.device(first)
        else:
            return None
        if device.type != "cuda":
            return None
        index = torch.cuda.current_device() if device.index is None else device.index
        return _Goal(index, dtype or source.dtype, source, not _is_async(arguments, named))

    def _through(self, line: Line, source: Any, goal: _Goal, call: Callable[[Any], Any]) -> Any:
        """Gather, let the call copy from pinned memory, and note where its copy ends.

        Args:
            line: that copies.
            source: what it copies.
            goal: what the device gets.
            call: the program's, with the tensor to copy from; with ``None`` as the program made it.
        """
        if reason := self._unfit(source):
            if reason != _PINNED or (reason := _temporary_of(source, goal)):
                line.leave(reason, source.nbytes)
            return call(None)
        ring = self._ring(line, goal.device)
        taken = ring.stage(goal.bytes, source.nbytes, lambda buffer: self._gathered(buffer, source, goal))
        if taken is None:
            return call(None)
        buffer, staged = taken
        try:
            return call(staged)
        finally:
            buffer.event = buffer.event or self._torch.cuda.Event()
            buffer.event.record(self._torch.cuda.current_stream(goal.device))
            if goal.waits and self._has_streams:  # another stream may use the result without waiting for it
                buffer.event.synchronize()
            ring.give(buffer, source.nbytes)

    def _unfit(self, source: Any) -> str | None:
        """Why a tensor cannot be copied from a buffer."""
        torch = self._torch
        if source.requires_grad and torch.is_grad_enabled():
            return _GRADIENT
        if source.is_quantized or source.is_conj() or source.is_neg():
            return "a tensor that is quantized, or a view that negates"
        if self._redirect.is_pinned(source):
            return _PINNED
        return "captured into a graph" if torch.cuda.is_current_stream_capturing() else None

    def _ring(self, line: Line, device: int) -> Ring:
        ring = Ring(
            line, self._redirect.budget, self._pinned, lambda event: event.query(), lambda event: event.synchronize()
        )
        return self._rings.setdefault((line.file, line.line, device), ring)

    def _pinned(self, size: int) -> Any:
        with self._torch.inference_mode(False):  # a buffer made in inference could not be written afterwards
            return self._torch.empty(size, dtype=self._torch.uint8, device="cpu", pin_memory=True)

    def _gathered(self, buffer: Buffer, source: Any, goal: _Goal) -> Any:
        """The source in pinned memory; types are converted here, as PyTorch does before it copies pageable memory."""
        shaped = goal.shaped
        key = (shaped.shape, None if shaped.is_contiguous() else shaped.stride(), goal.dtype)
        if buffer.key != key:
            with self._torch.inference_mode(False), self._torch.no_grad():
                strides = (shaped if key[1] is None else self._torch.empty_like(shaped, device="meta")).stride()
                flat = buffer.memory[: goal.bytes].view(goal.dtype)
                buffer.view, buffer.key = flat.as_strided(shaped.shape, strides), key
        self._copy(buffer.view, source.detach())
        return buffer.view


def _temporary_of(source: Any, goal: _Goal) -> str:
    """Why a copy of pinned memory is pageable; empty where it is not."""
    if source.dtype != goal.dtype:
        return f"its source is pinned, and converted on the CPU first: {source.dtype} → {goal.dtype}"
    lies_alike = source.is_contiguous() and goal.shaped.is_contiguous()
    return "" if lies_alike or source.stride() == goal.shaped.stride() else f"{_PINNED}, but not contiguous"


_PINNED = "its source is pinned"
_GRADIENT = "a gradient is needed"


class _Goal(NamedTuple):
    """What a device gets.

    Attributes:
        device: its index.
        dtype: type of the elements.
        shaped: a tensor of the shape and layout.
        waits: the program's call returns when the copy is over.
    """

    device: int
    dtype: Any
    shaped: Any
    waits: bool

    @property
    def bytes(self) -> int:
        """Of the data."""
        return int(self.shaped.numel() * self.dtype.itemsize)


def _is_async(arguments: Sequence[Any], named: dict[str, Any]) -> bool:
    """``non_blocking``: in all forms of ``to`` and ``cuda`` the first argument that is true or false."""
    given = next((value for value in arguments if isinstance(value, bool)), named.get("non_blocking"))
    return bool(given)


def _without_waiting(arguments: Sequence[Any], named: dict[str, Any]) -> tuple[Sequence[Any], dict[str, Any]]:
    """A call with ``non_blocking``."""
    for place, value in enumerate(arguments):
        if isinstance(value, bool):
            return (*arguments[:place], True, *arguments[place + 1 :]), named
    return arguments, {**named, "non_blocking": True}


def _change_loaders(redirect: Redirect, module: Any) -> None:
    """A DataLoader that a chosen line makes, or whose batches it may copy, pins them."""
    loader = module.DataLoader
    make, iterate = loader.__init__, loader.__iter__
    made_here: WeakValueDictionary[int, Any] = WeakValueDictionary()
    pinning: WeakKeyDictionary[Any, Line] = WeakKeyDictionary()

    @functools.wraps(make)
    def made(self: Any, *arguments: Any, **named: Any) -> None:
        frame = redirect.own_frame()
        make(self, *arguments, **named)
        if frame is not None and redirect.line_of(frame) is not None:
            made_here[id(self)] = self

    @functools.wraps(iterate)
    def iterated(self: Any) -> Any:
        frame = redirect.own_frame()
        if frame is None or self.pin_memory or not is_chosen(self, frame):
            return iterate(self)
        self.pin_memory = True
        try:
            iterator = iterate(self)
        finally:
            self.pin_memory = False
        place = redirect.place(frame)
        line = redirect.loaders.setdefault(place, Line(*place))
        for owner in (iterator, getattr(iterator, "_pin_memory_thread", None)):
            if owner is not None:
                pinning[owner] = line
        return iterator

    def is_chosen(self: Any, frame: FrameType) -> bool:
        return redirect.all_loaders or id(self) in made_here or redirect.holds_chosen(frame.f_code)

    loader.__init__, loader.__iter__ = made, iterated
    _leave_what_cannot_be_pinned(module._utils.pin_memory, pinning)


def _leave_what_cannot_be_pinned(module: Any, pinning: Mapping[Any, Line]) -> None:
    """Data that cannot be pinned, such as that of a GPU, stays as it is.

    Args:
        module: that pins batches.
        pinning: iterators over DataLoaders that pin because of us, and their threads → account.
    """
    pin: _Call = module.pin_memory

    @functools.wraps(pin)
    def pinned(data: Any, *arguments: Any, **named: Any) -> Any:
        try:
            return pin(data, *arguments, **named)
        except Exception as error:
            if (line := _account_of(sys._getframe(1), pinning)) is None:
                raise
            line.leave(f"{type(error).__name__}: {error}"[:200], 0)
            return data

    module.pin_memory = pinned


def _account_of(frame: FrameType | None, pinning: Mapping[Any, Line]) -> Line | None:
    """Of the iterator or thread whose method calls."""
    while frame is not None:
        with suppress(TypeError):  # of what cannot be looked up
            if (line := pinning.get(frame.f_locals.get("self"))) is not None:
                return line
        frame = frame.f_back
    return None


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
        change_method(self._cupy.ndarray, "set", self._setting)

    def _setting(self, set_: _Call) -> _Call:
        """``set``, through pinned memory where that is chosen."""

        def changed(self: Any, arr: Any, stream: Any = None) -> Any:
            if type(arr) is not arrays._numpy.ndarray or arr.nbytes <= arrays._redirect.large_bytes:
                return set_(self, arr, stream)
            line = arrays._redirect.chosen()
            if line is None:
                return set_(self, arr, stream)
            return arrays._through(line, self, arr, stream, set_)

        arrays = self
        return changed

    def _through(self, line: Line, target: Any, source: Any, stream: Any, set_: Callable[..., Any]) -> Any:
        """Gather, copy from pinned memory, and note where the copy ends."""
        flags = target.flags
        fits = source.dtype == target.dtype and source.shape == target.shape
        if not fits or not (flags.c_contiguous or flags.f_contiguous) or self._is_pinned(source):
            return set_(target, source, stream)  # an error, or as it should be
        device, order = target.device, "C" if flags.c_contiguous else "F"
        ring = self._ring(line, device.id)
        with device:
            taken = ring.stage(source.nbytes, source.nbytes, lambda buffer: self._gathered(buffer, source, order))
        if taken is None:
            return set_(target, source, stream)
        buffer, staged = taken
        with device:
            used = self._cupy.cuda.get_current_stream() if stream is None else stream
            try:
                return set_(target, staged, used)
            finally:
                buffer.event = buffer.event or self._cupy.cuda.Event(disable_timing=True)
                buffer.event.record(used)
                ring.give(buffer, source.nbytes)

    def _is_pinned(self, source: Any) -> bool:
        return bool(self._cupy.cuda.runtime.pointerGetAttributes(source.ctypes.data).type == _PINNED_MEMORY)

    def _ring(self, line: Line, device: int) -> Ring:
        ring = Ring(
            line,
            self._redirect.budget,
            self._cupy.cuda.alloc_pinned_memory,
            lambda event: event.done,
            lambda event: event.synchronize(),
        )
        return self._rings.setdefault((line.file, line.line, device), ring)

    def _gathered(self, buffer: Buffer, source: Any, order: str) -> Any:
        """The source in pinned memory."""
        key = (source.shape, source.dtype, order)
        if buffer.key != key:
            flat = self._numpy.frombuffer(buffer.memory, source.dtype, source.size)
            buffer.view, buffer.key = flat.reshape(source.shape, order=order), key
        self._copies.copy(buffer.view, source)
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

    def copy(self, target: Any, source: Any) -> None:
        """Copy an array of the same shape."""
        parts = min(self._most, source.nbytes // self.LEAST_BYTES)
        if target.flags.f_contiguous and not target.flags.c_contiguous:
            target, source = target.T, source.T
        parts = min(parts, len(source)) if source.ndim else 0
        if parts < 2 or os.getpid() != self._process:  # a child has no threads
            self._numpy.copyto(target, source)
            return
        rows = -(-len(source) // parts)
        pieces = [slice(begin, begin + rows) for begin in range(0, len(source), rows)]
        list(self._threads.map(lambda piece: self._numpy.copyto(target[piece], source[piece]), pieces))

    @functools.cached_property
    def _threads(self) -> Any:
        from concurrent.futures import ThreadPoolExecutor  # noqa: PLC0415 - as the program imports it

        return ThreadPoolExecutor(self._most)


_CHANGES: dict[str, Callable[[Redirect, ModuleType], None]] = {
    "torch": lambda redirect, torch: _Tensors(redirect, torch).change(),
    "torch.utils.data.dataloader": _change_loaders,
    "cupy": lambda redirect, cupy: _Arrays(redirect, cupy).change(),
}
"""Module → what is changed when the program has imported it."""


def start_redirecting(folder: SpoolFolder, plan: Mapping[str, Any], is_pinned: Callable[[Any], bool]) -> None:
    """Redirect what the plan says.

    Args:
        folder: of the spool.
        plan: the lines, and how much may be pinned.
        is_pinned: whether a tensor lies in pinned memory.
    """
    redirect = Redirect(folder, plan, is_pinned)
    redirect.write_at_end()
    for name, change in _CHANGES.items():
        when_imported(name, functools.partial(change, redirect))
