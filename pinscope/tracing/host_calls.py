"""Follows the calls of libraries that move or pin large data of the host: how long each is on the CPU, beside what
CUPTI says of the driver's calls within, and what it did to the data there.

Of PyTorch ``Tensor.to``, ``cuda``, ``cpu``, ``copy_``, ``pin_memory`` and ``numpy``, ``torch.tensor`` and
``as_tensor``, and what a DataLoader's workers send; of CuPy ``asarray``, ``array``, ``ndarray.set`` and ``get``; of JAX
``device_put``, ``device_get``, ``numpy.asarray`` and ``numpy.array``; of Numba copies to and from a device.
"""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from resource import RUSAGE_THREAD, getrusage
from sys import _getframe
from types import ModuleType

from pinscope.tracing.bound import TYPE_CHECKING, _thread, bind, time
from pinscope.tracing.faults import answered, is_of_the_program
from pinscope.tracing.library_calls import WHEN_OVER, change_function, change_method, when_imported
from pinscope.tracing.loader_origins import Loaders, loader_flags
from pinscope.tracing.mapped_file import CONVERTED, GATHERED, LOADS, NEXT, PINNED, PINS, RECEIVE, RECEIVED, STAGED
from pinscope.tracing.recorder import newest_recorder, recorder_here
from pinscope.tracing.watch_reads import WatchedTensors

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    Arguments = tuple[Any, ...]
    IsLarge = Callable[[Arguments], "bool | None"]
    """Of a call with such arguments; ``None``: there is nothing to follow."""
    Describe = Callable[[Arguments, Any], "tuple[int, int, str] | None"]
    """From arguments and result: bytes, flags, and what was done to the data; ``None``: nothing went to or from a GPU
    or into pinned memory."""

bind(globals())

LARGE_BYTES = 64 * 1024
"""``records.trace_row.LARGE_BYTES``, which a program that is traced does without."""
_SMALL_BYTES = LARGE_BYTES // 16
"""A tensor as small is not large in any type."""
_clock = time.time_ns


def follow_host_calls() -> None:
    """From now on, of each library that the program imports, and of those that it has."""
    if _FOLLOWED:
        return
    _FOLLOWED.append(True)
    WHEN_OVER.append(_FOLLOWED.clear)
    for name, change in _CHANGES.items():
        when_imported(name, partial(_change, change))
    if (recorder := recorder_here()) is None or recorder.waits is None:
        when_imported("torch", partial(_change, WatchedTensors))


def _change(change: Callable[[Any], object], module: ModuleType) -> None:
    with suppress(Exception):  # a version that is made otherwise is not followed
        change(module)


_FOLLOWED: list[bool] = []


def _followed(name: str, is_large: IsLarge, describe: Describe) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """What stands in a call's place and follows it; of calls within one another the outermost.

    Args:
        name: of the call.
        is_large: whether its data is worth it, from its arguments. Where it is small only the driver's calls are noted.
        describe: what it did.
    """

    def around(original: Callable[..., Any]) -> Callable[..., Any]:
        def called(*arguments: Any, **named: Any) -> Any:
            try:
                large = is_large(arguments)
            except Exception as error:
                if is_of_the_program(error):
                    raise
                large = None
            if large is None or (thread := _thread.get_ident()) in _INSIDE:
                return original(*arguments, **named)
            recorder = newest_recorder()
            if not large:
                recorder.lanes.open_small(_getframe(1))
                try:
                    return original(*arguments, **named)
                finally:
                    recorder.lanes.close()
            if not recorder.is_on:
                return original(*arguments, **named)
            call: tuple[Any, ...] = ()
            try:
                _INSIDE.add(thread)
                stack = recorder.lanes.open_large(_getframe(1))
                before, begun = getrusage(RUSAGE_THREAD), _clock()
                result = original(*arguments, **named)
                ended, after = _clock(), getrusage(RUSAGE_THREAD)
                if (described := answered(describe, arguments, result)) is not None:
                    if described[1] & CONVERTED and (
                        named.get("non_blocking") or any(each is True for each in arguments)
                    ):
                        described = described[0], described[1] & ~CONVERTED, ""  # then PyTorch converts on the GPU
                    call = name, stack, described, begun, ended, before, after
                return result
            finally:
                _INSIDE.discard(thread)
                recorder.lanes.close(*call)

        return called

    return around


_INSIDE: set[int] = set()
"""Threads that are in such a call, or of which none is followed."""


# PyTorch


def _crosses(tensor: Any, arguments: Arguments) -> bool:
    """Whether ``to`` is asked for a copy between host and GPU; not where that takes long to tell."""
    place = arguments[1] if len(arguments) > 1 else None
    name = getattr(place, "type", place)
    return isinstance(name, str) and (name[:3] == "cpu") is not tensor.is_cpu


_CROSSES: dict[str, Callable[[Any, Arguments], bool]] = {
    "to": _crosses,
    "cuda": lambda tensor, _: bool(tensor.is_cpu),
    "cpu": lambda tensor, _: bool(tensor.is_cuda),
}
"""Call → the same of it."""


class _Tensors:
    """PyTorch's calls.

    Args:
        torch: the module.
    """

    def __init__(self, torch: Any) -> None:
        self._plain = (torch.Tensor, torch.nn.Parameter)
        self._strided, self._dtype = torch.strided, torch.dtype
        tensor = torch.Tensor
        for name in {"to", "cuda", "cpu", "numpy", "pin_memory"} & set(dir(tensor)):
            describe = self._pinned if name == "pin_memory" else self._moved
            is_large = partial(self._is_large, _CROSSES.get(name, lambda *_: False))
            change_method(tensor, name, _followed(f"Tensor.{name}", is_large, describe))
        change_method(tensor, "copy_", _followed("Tensor.copy_", self._is_large_source, self._copied))
        for name in {"tensor", "as_tensor"} & vars(torch).keys():
            change_function(torch, name, _followed(f"torch.{name}", _has_large_first, self._made))

    def _is_large(self, crosses: Callable[[Any, Arguments], bool], arguments: Arguments) -> bool | None:
        tensor = arguments[0]
        if type(tensor) not in self._plain:
            return None
        size = tensor.nbytes
        if size <= LARGE_BYTES:
            return False if size <= _SMALL_BYTES and crosses(tensor, arguments) else None
        stays = len(arguments) > 1 and isinstance(arguments[1], self._dtype)  # it is only converted
        return None if tensor.layout is not self._strided or (stays and tensor.is_cuda) else True

    def _is_large_source(self, arguments: Arguments) -> bool | None:
        target, source = arguments[:2]
        if type(source) not in self._plain or source.layout is not self._strided:
            return None
        if source.nbytes > LARGE_BYTES:
            return True if source.is_cpu or target.is_cpu else None
        return None if source.is_cpu is target.is_cpu or target.nbytes > LARGE_BYTES else False

    def _moved(self, arguments: Arguments, result: Any) -> tuple[int, int, str] | None:
        return self._between(arguments[0], result)

    def _copied(self, arguments: Arguments, _: Any) -> tuple[int, int, str] | None:
        target, source = arguments[:2]
        if source.is_cpu and target.is_cpu:
            return (source.nbytes, STAGED, "") if target.is_pinned() else None
        return self._between(source, target)

    def _pinned(self, arguments: Arguments, result: Any) -> tuple[int, int, str] | None:
        source = arguments[0]
        return None if result is source or not source.is_cpu else (source.nbytes, STAGED, "")

    def _made(self, arguments: Arguments, result: Any) -> tuple[int, int, str] | None:
        source = arguments[0]
        if type(source) in self._plain:
            return self._between(source, result)
        if not result.is_cuda:
            return None
        flags, detail = _conversion(source.dtype, str(result.dtype).removeprefix("torch."))
        return source.nbytes, flags | STAGED, detail

    def _between(self, source: Any, target: Any) -> tuple[int, int, str] | None:
        """Of a copy between host and GPU."""
        of_host = getattr(source, "is_cpu", True)
        if of_host == getattr(target, "is_cpu", True):
            return None
        flags, detail = 0, ""
        if source.dtype != target.dtype and hasattr(target, "is_cpu"):
            flags, detail = _conversion(*(str(each.dtype).removeprefix("torch.") for each in (source, target)))
        if not of_host:
            return target.nbytes, flags, detail
        if not (source.is_contiguous() and target.is_contiguous()) and source.stride() != target.stride():
            flags |= GATHERED
        if newest_recorder().pinned.has(source):
            flags |= PINNED
        elif _WITH_WORKERS and source.is_shared():
            flags |= RECEIVED
        return source.nbytes, flags | loader_flags(source), detail


def _conversion(before: Any, after: Any) -> tuple[int, str]:
    """Flags and words of one type made another."""
    return (0, "") if str(before) == str(after) else (CONVERTED, f"{before} → {after}")


_WITH_WORKERS: list[bool] = []
"""Whether a DataLoader's workers have sent something."""


def _follow_loaders(module: Any) -> None:
    """The loop's wait for each batch, in which what its workers send is received."""
    loaders = Loaders(module, _has_large_first)

    def around(original: Callable[[Any], Any]) -> Callable[[Any], Any]:
        def following(self: Any) -> Any:
            recorder = newest_recorder()
            if not recorder.is_on:
                return original(self)
            thread = _thread.get_ident()
            _RECEIVED[thread] = received = [0, 0, 0]
            try:
                before, begun = getrusage(RUSAGE_THREAD), _clock()
                batch = original(self)
                ended, after = _clock(), getrusage(RUSAGE_THREAD)
            finally:
                _RECEIVED.pop(thread, None)
            flags = LOADS | PINS * bool(getattr(self, "_pin_memory", False))
            stack = answered(recorder.stack_here) or 0
            recorder.lanes.close(NEXT, stack, (0, flags, ""), begun, ended, before, after)
            size, took, used = received
            if size:
                _WITH_WORKERS[:] = [True]
                of_processor = (used / 1e9, *_NOTHING[1:])
                recorder.lanes.close(RECEIVE, stack, (size, RECEIVED, ""), ended - took, ended, _NOTHING, of_processor)
            loaders.note(self, batch)
            return batch

        return following

    change_function(module._BaseDataLoaderIter, "__next__", around)
    change_function(module._utils.pin_memory, "_pin_memory_loop", _not_followed)


def _not_followed(loop: Callable[..., None]) -> Callable[..., None]:
    """What a thread of PyTorch's own runs belongs to no line; it would only keep Python's lock from the program's."""

    def looping(*arguments: Any) -> None:
        _INSIDE.add(thread := _thread.get_ident())
        try:
            loop(*arguments)
        finally:
            _INSIDE.discard(thread)

    return looping


_RECEIVED: dict[int, list[int]] = {}
"""Thread that waits for a batch → bytes, nanoseconds and nanoseconds of the processor of what it has received so far.
A batch may have many tensors."""
_NOTHING = (0,) * 8


def _follow_workers(module: ModuleType) -> None:
    """What a worker sends lies in shared memory, which is opened and mapped here."""

    def around(original: Callable[..., Any]) -> Callable[..., Any]:
        def receiving(*arguments: Any, **named: Any) -> Any:
            received = _RECEIVED.get(_thread.get_ident())
            if received is None:
                return original(*arguments, **named)
            begun, used = _clock(), time.thread_time_ns()
            storage = original(*arguments, **named)
            received[0] += storage.nbytes()
            received[1] += _clock() - begun
            received[2] += time.thread_time_ns() - used
            return storage

        return receiving

    for name in ("rebuild_storage_fd", "rebuild_storage_filename"):
        change_function(module, name, around)


# Arrays


def _has_large_first(arguments: Arguments) -> bool | None:
    """Whether the first argument is a large array of NumPy, or a large tensor."""
    return (bool(arguments) and getattr(arguments[0], "nbytes", 0) > LARGE_BYTES) or None


def _follow_cupy(cupy: Any) -> None:
    import numpy  # noqa: PLC0415 - CuPy has

    def is_pinned(array: Any) -> bool:
        return bool(cupy.cuda.runtime.pointerGetAttributes(array.ctypes.data).type == 1)

    def up(source: Any, target: Any, stages: bool = True) -> tuple[int, int, str] | None:
        if type(source) is not numpy.ndarray or type(target) is not cupy.ndarray:
            return None
        flags, detail = _conversion(source.dtype, target.dtype)
        flags |= 0 if source.flags.forc else GATHERED
        return source.nbytes, flags | (PINNED if is_pinned(source) else STAGED * stages), detail

    for name in {"array", "asarray"} & vars(cupy).keys():
        described = _followed(f"cupy.{name}", _has_large_first, lambda arguments, result: up(arguments[0], result))
        change_function(cupy, name, described)
    change_method(
        cupy.ndarray,
        "set",
        _followed("ndarray.set", _has_large_second, lambda arguments, _: up(arguments[1], arguments[0], False)),
    )
    change_method(
        cupy.ndarray, "get", _followed("ndarray.get", _has_large_first, lambda _, result: (result.nbytes, 0, ""))
    )


def _has_large_second(arguments: Arguments) -> bool | None:
    return _has_large_first(arguments[1:])


def _follow_jax(jax: Any) -> None:
    import numpy  # noqa: PLC0415 - JAX has

    def host_bytes(data: Any) -> int:
        """Of arrays of NumPy, also within lists and dictionaries."""
        return sum(each.nbytes for each in jax.tree_util.tree_leaves(data) if isinstance(each, numpy.ndarray))

    def put(arguments: Arguments, result: Any) -> tuple[int, int, str]:
        """Of what arrives: JAX makes numbers of 64 bits shorter."""
        pairs = zip(*map(jax.tree_util.tree_leaves, (arguments[0], result)))
        return sum(there.nbytes for here, there in pairs if isinstance(here, numpy.ndarray)), STAGED, ""

    def got(arguments: Arguments, result: Any) -> tuple[int, int, str]:
        del arguments
        return host_bytes(result), 0, ""

    def puts_large(arguments: Arguments) -> bool | None:
        return host_bytes(arguments[0]) > LARGE_BYTES or None

    def gets_large(arguments: Arguments) -> bool | None:
        leaves = jax.tree_util.tree_leaves(arguments[0])
        return any(each.nbytes > LARGE_BYTES and not isinstance(each, numpy.ndarray) for each in leaves) or None

    change_function(jax, "device_put", _followed("jax.device_put", puts_large, put))
    change_function(jax, "device_get", _followed("jax.device_get", gets_large, got))
    for name in {"array", "asarray"} & vars(jax.numpy).keys():
        change_function(jax.numpy, name, _followed(f"jax.numpy.{name}", puts_large, put))


def _follow_numba(module: Any) -> None:
    array = module.DeviceNDArray

    def sent(arguments: Arguments, result: Any) -> tuple[int, int, str]:
        del result
        return arguments[1].nbytes, 0, ""

    def fetched(arguments: Arguments, result: Any) -> tuple[int, int, str]:
        del result
        return arguments[0].nbytes, 0, ""

    change_method(array, "copy_to_device", _followed("copy_to_device", _has_large_second, sent))
    change_method(array, "copy_to_host", _followed("copy_to_host", _has_large_first, fetched))


_CHANGES: dict[str, Callable[[Any], object]] = {
    "torch": _Tensors,
    "torch.utils.data.dataloader": _follow_loaders,
    "torch.multiprocessing.reductions": _follow_workers,
    "cupy": _follow_cupy,
    "jax": _follow_jax,
    "numba.cuda.cudadrv.devicearray": _follow_numba,
}
"""Module → what is followed of it."""
