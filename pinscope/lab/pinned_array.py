"""``pinscope.pinned_empty``: a NumPy array over memory that was pinned as ``pinning_strategy`` recommends."""

from __future__ import annotations

import ctypes
import math
import os
import warnings
import weakref
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from operator import index
from typing import Any, Self, SupportsIndex, cast

import numpy as np
from numpy.typing import DTypeLike, NDArray

from pinscope.analysis.pinning_strategy import DEFAULT_SHARED, default_strategy
from pinscope.errors import InvalidParameter, NotEnoughMemory, NotPossible
from pinscope.lab.backing import PAGE, OwnMemory, Segment, SharedMemory, why_not_backing
from pinscope.lab.harness import binding_limit, safe_pinned_bytes
from pinscope.lab.pinning import (
    SPARE_PROCESSORS,
    GentlePinner,
    OnRelease,
    Pieces,
    Pinner,
    PinningCalls,
    default_threads,
    read_pages,
    touch_all,
    touch_pages,
)
from pinscope.probes.environment import install_command
from pinscope.probes.host_memory import read_limits
from pinscope.records.registration import SHARED_STRATEGIES, STRATEGIES, SharedStrategyName, Strategy, StrategyName
from pinscope.records.run import Backing
from pinscope.text import quoted
from pinscope.units import format_bytes, format_seconds, parse_bytes

AUTO = "auto"
"""The chunk whose length is measured."""
LONGEST_WAIT = 0.02
"""Seconds that a call may have to wait where nothing else is said: a frame, a request of a server."""


_PINS = weakref.WeakSet["_Pin"]()
"""All of this process."""


def registered_bytes() -> int:
    """What :func:`pinned_empty` has registered in this process and not released yet."""
    return sum(pin.registered_bytes for pin in list(_PINS) if pin.process == os.getpid())


class _Pin:
    """The pinning of one stretch of memory; undone once, by hand or when nothing uses the memory any more."""

    def __init__(self, calls: PinningCalls) -> None:
        self.undo = ExitStack()
        """Takes what undoes the pinning."""
        self.registered_bytes = 0
        self._calls = calls
        self.process = os.getpid()
        _PINS.add(self)

    def release(self) -> None:
        """Wait for the GPU, then unpin. In a forked child nothing: the pinning is its parent's."""
        undo, self.registered_bytes = self.undo.pop_all(), 0
        if os.getpid() != self.process:
            undo.pop_all()
            return
        with undo:
            self._calls.synchronize()  # a copy may still be under way

    def free(self, address: int) -> None:
        """Give memory of cudaHostAlloc back, which cannot be unpinned without losing it. Not in a forked child."""
        if os.getpid() == self.process:
            self._calls.free(address)

    def end(self, give_back: Callable[[], None]) -> None:
        """Release, and give the memory back, also where the GPU's driver has failed."""
        try:
            self.release()
        finally:
            give_back()


class PinnedArray(np.ndarray[Any, Any]):
    """What :func:`pinned_empty` returns: a NumPy array, and a context manager that unpins its memory.

    Leaving the ``with`` block unpins: the array stays, as ordinary memory. The memory itself goes back to the system
    with the last array that uses it, views included, and so does its pinning if no block was left before.
    """

    chunk: int | None = None
    """Bytes: a copy must not cross a multiple of it from the beginning of the array. ``None``: any copy may use it."""
    longest_call: float | None = None
    """Seconds of the longest call that pinned a piece, with ``chunk="auto"``: other calls waited so long."""
    _pin: _Pin | None = None

    def __enter__(self) -> Self:
        if self._pin is None:
            raise TypeError("only the array that pinned_empty returned can be used in 'with', not a view or a copy")
        return self

    def __exit__(self, *exception: object) -> None:
        if self._pin is not None:
            self._pin.release()

    def __array_wrap__(
        self, array: NDArray[Any], context: object = None, return_scalar: bool = False
    ) -> Any:  # results of arithmetic are new, ordinary memory
        if array is self:  # unless they were to go into this very array: array += 1
            return self
        plain = np.asarray(array)
        return plain[()] if return_scalar else plain


def pinned_empty(
    nbytes: int | str | None = None,
    *,
    dtype: DTypeLike = np.uint8,
    shape: SupportsIndex | Sequence[int] | None = None,
    device: int | None = None,
    chunk: int | str | None = None,
    longest_wait: float | None = None,
    threads: int | None = None,
    strategy: StrategyName | SharedStrategyName | None = None,
    shared: str | None = None,
    calls: PinningCalls | None = None,
) -> PinnedArray:
    """An array over memory that is pinned for the GPU; its content is undefined.

    Unless a strategy is named, this is what the experiment ``pinning_strategy`` recommends on the recorded H200:
    several threads touch huge pages (4 KiB pages where the host gives no huge ones), then the memory is registered
    with CUDA. It is in one piece, so that any copy may use it, unless ``chunk`` is given. Where memory cannot be
    registered (confidential computing, GPUs that share the host's page tables) cudaHostAlloc is taken after all.

    Args:
        nbytes: how much, in bytes or as text such as ``16GiB``; may be left out with ``shape``.
        dtype: of the elements; bytes by default.
        shape: of the array; one-dimensional by default.
        device: CUDA's number of the GPU; the calling thread's current GPU by default.
        chunk: pin in pieces of this length instead of all at once: other processes on the GPU then wait less, and
            pinning goes on while pages are touched. The price: CUDA refuses a copy that crosses from one piece into
            the next (cudaErrorInvalidValue). Take it where every copy stays within a multiple of ``chunk``; a
            multiple of 4 KiB. ``"auto"`` measures how long pieces hold the driver and takes the longest that keeps
            to ``longest_wait`` (:mod:`pinscope.lab.pinning`); the array's ``chunk`` is their length in bytes.
        longest_wait: the limit, in seconds, for how long other calls on the GPU wait, of this process and of others,
            while the memory is pinned and unpinned; with ``chunk="auto"`` only, 20 ms by default. The calling thread
            waits until all memory is pinned, so call it from a thread that does not serve. Where the limit was not
            kept, a ``RuntimeWarning`` says so, and the array's ``longest_call`` is the longest time. Memory that
            cannot be registered is pinned by one call, whatever the limit.
        threads: how many touch pages; the processors of this process by default, at most 16. With ``chunk="auto"``
            three processors are left to others: where all of them touch, calls wait for a processor.
        strategy: how to pin, by its name in the experiment ``pinning_strategy``: what a run on your machine
            recommends. Those that pin in chunks need ``chunk``, the others take none. With ``shared``: ``memfd``,
            which is the default, ``hugetlb`` or ``hugetlb_1g``: reserved huge pages.
        shared: a name: all processes of this user that give it get the same memory, each pinned for its own GPU. The
            first makes it, and touches it with several threads; the others wait for that, open it, and ask for the
            same size. What it holds is up to them: nothing is written once it is touched. The name goes when the
            maker unpins or ends, the memory with its last user (:mod:`pinscope.lab.backing`).
        calls: what pins, for tests; CUDA by default.

    Raises:
        InvalidParameter: sizes that make no sense, or do not fit each other.
        NotEnoughMemory: more than is safe to pin here, with the numbers.
        NotPossible: CuPy is not installed here, or memory cannot be shared here.
        NoDevice: no driver, or no such GPU.
    """
    kind = np.dtype(dtype)
    whole, dimensions = _size(nbytes, kind, shape)
    if threads is not None and threads < 1:
        raise InvalidParameter(f"threads is {threads}; at least 1 is needed")
    step, limit = _pieces(chunk, longest_wait)
    how = _strategy(strategy, chunk is not None, limit is not None, shared is not None)
    gpu = calls or _cuda_calls(device)
    register: _Registers
    if limit is None:
        register = partial(_at_once, Pinner(how, gpu, step, threads or default_threads()))
    else:
        register = GentlePinner(gpu, limit, threads or default_threads(SPARE_PROCESSORS)).register
    if shared is None:
        _check_safe(whole)
        owner, pin, pieces = _pinned_memory(whole, how.backing, register, gpu)
    else:
        owner, pin, pieces = _shared_memory(
            shared, whole, cast("Segment", how.name), threads or default_threads(), register, gpu
        )
    array: PinnedArray = np.frombuffer(memoryview(owner), dtype=kind).reshape(dimensions).view(PinnedArray)
    array._pin, array.chunk, array.longest_call = pin, pieces.chunk, pieces.longest_call
    if limit is not None and (array.longest_call or 0.0) > limit:
        warnings.warn(
            f"pinning held the driver for up to {format_seconds(array.longest_call)} at a time, longer than "
            f"longest_wait ({format_seconds(limit)})",
            RuntimeWarning,
            stacklevel=3,  # the line that called pinscope.pinned_empty
        )
    return array


_Registers = Callable[[int, int, OnRelease], Pieces]
"""Touches and pins so many bytes at an address; takes what undoes it."""


def _at_once(pinner: Pinner, address: int, nbytes: int, on_release: OnRelease) -> Pieces:
    """One piece, or pieces of a given length."""
    pinner.register(address, nbytes, [], on_release)
    return Pieces(pinner.chunk)


def _pinned_memory(
    nbytes: int, backing: Backing | None, register: _Registers, calls: PinningCalls
) -> tuple[ctypes.Array[Any], _Pin, Pieces]:
    """Memory of that backing, registered; of the driver's own where there is none, or none can be registered.

    Returns:
        What every array over it keeps alive, for with its last user the memory goes; what unpins it; how it was pinned.
    """
    pin, pieces = _Pin(calls), Pieces()
    if calls.can_register and backing is not None:
        with ExitStack() as failed:
            mapping = failed.enter_context(OwnMemory(nbytes, backing))
            failed.callback(pin.release)  # before it is unmapped
            pieces = register(mapping.address, nbytes, pin.undo.callback)
            pin.registered_bytes = nbytes
            failed.pop_all()
        address = mapping.address
        give_back: Callable[[], None] = mapping.close
    else:
        address = calls.allocate(nbytes)
        give_back = partial(pin.free, address)
    return _owner(address, nbytes, pin, give_back), pin, pieces


def _shared_memory(
    name: str, nbytes: int, segment: Segment, threads: int, register: _Registers, calls: PinningCalls
) -> tuple[ctypes.Array[Any], _Pin, Pieces]:
    """The memory of that name, touched by its maker, and registered. Returns what :func:`_pinned_memory` does."""
    if not calls.can_register:
        raise NotPossible("shared memory must be registered, which this GPU refuses; let one process pin it for all")
    pin = _Pin(calls)
    with ExitStack() as failed:
        memory = failed.enter_context(SharedMemory(name, nbytes, segment, _check_safe))
        touch_all(memory.address, memory.nbytes, threads, touch_pages if memory.is_maker else read_pages)
        memory.publish()
        pin.undo.callback(memory.withdraw)
        failed.callback(pin.release)
        pieces = register(
            memory.address, memory.nbytes, pin.undo.callback
        )  # whole pages: CUDA takes no part of a huge one
        failed.pop_all()
    owner = _owner(memory.address, nbytes, pin, memory.close)
    weakref.finalize(owner, memory.withdraw)
    return owner, pin, pieces


def _owner(address: int, nbytes: int, pin: _Pin, give_back: Callable[[], None]) -> ctypes.Array[Any]:
    """What every array over the memory keeps alive: with its last user the memory is unpinned, and given back."""
    owner = (ctypes.c_uint8 * nbytes).from_address(address)
    weakref.finalize(owner, pin.end, give_back).atexit = False  # arrays may live longer; the system takes all back
    return owner


def _pieces(chunk: int | str | None, longest_wait: float | None) -> tuple[int | None, float | None]:
    """The length of a piece, or the limit by which it is to be found."""
    if chunk == AUTO:
        limit = LONGEST_WAIT if longest_wait is None else longest_wait
        if not 0 < limit < math.inf:
            raise InvalidParameter(f"longest_wait is {limit}; it must be a positive number of seconds")
        return None, limit
    if longest_wait is not None:
        raise InvalidParameter(f'longest_wait goes with chunk="{AUTO}" only')
    step = None if chunk is None else parse_bytes(chunk)
    if step is not None and (step <= 0 or step % PAGE):
        raise InvalidParameter(f"chunk is {step} bytes; it must be a positive multiple of {PAGE}")
    return step, None


def _strategy(name: str | None, chunked: bool, auto: bool, shared: bool) -> Strategy:
    """The one that is named, or the recommended one."""
    if shared:
        if auto:
            raise InvalidParameter(f'chunk="{AUTO}" does not go with shared; give a length')
        if (name := name or DEFAULT_SHARED) not in SHARED_STRATEGIES:
            known = ", ".join(SHARED_STRATEGIES)
            raise InvalidParameter(f"strategy {quoted(name)} makes no shared memory; those that do: {known}")
        # It is touched before: by its maker alone.
        return SHARED_STRATEGIES[name]._replace(touched=False, registering="chunks" if chunked else "one")
    if name is not None and auto:
        raise InvalidParameter(f'chunk="{AUTO}" pins in its own way; name no strategy with it')
    if name is None:
        return default_strategy(chunked, huge_pages=why_not_backing("thp") is None)
    possible = {known.name: known for known in STRATEGIES.values() if known.makes_array and known.chunked == chunked}
    if name not in possible:
        how, names = "chunks" if chunked else "one piece", ", ".join(possible)
        raise InvalidParameter(f"strategy {quoted(name)} does not pin in {how}; those that do: {names}")
    return possible[name]


def _size(
    nbytes: int | str | None, dtype: np.dtype[Any], shape: SupportsIndex | Sequence[int] | None
) -> tuple[int, Any]:
    """(bytes, shape) of the array."""
    if dtype.hasobject or dtype.itemsize == 0:
        raise InvalidParameter(f"dtype {dtype} cannot be pinned; it must be one of plain numbers or bytes")
    given = (shape,) if isinstance(shape, SupportsIndex) else shape
    dimensions = None if given is None else tuple(map(index, given))  # NumPy's own numbers overflow
    whole = parse_bytes(nbytes) if nbytes is not None else None
    if dimensions is not None:
        needed = math.prod(dimensions) * dtype.itemsize
        if min(dimensions, default=1) < 0 or (whole is not None and whole != needed):
            raise InvalidParameter(f"shape {dimensions} of {dtype} takes {needed} bytes, not {nbytes}")
        whole = needed
    if whole is None:
        raise InvalidParameter("give nbytes or shape")
    if whole <= 0 or whole % dtype.itemsize:
        raise InvalidParameter(
            f"{whole} bytes: it must be a positive multiple of {dtype.itemsize}, the size of {dtype}"
        )
    return whole, dimensions if dimensions is not None else (whole // dtype.itemsize,)


def _cuda_calls(device: int | None) -> PinningCalls:
    try:
        from pinscope.lab.cuda_memory import CudaCalls  # noqa: PLC0415 - imports CuPy
    except ImportError as error:
        raise NotPossible(
            f"memory is pinned through CuPy, which cannot be imported here ({error}); "
            f"{install_command('cuda13')} (cuda12 for drivers before 580)"
        ) from None
    return CudaCalls.on(device)


def _check_safe(nbytes: int) -> None:
    limits = read_limits()
    safe = safe_pinned_bytes(limits, "cuda")
    if nbytes > safe:
        raise NotEnoughMemory(
            f"{format_bytes(nbytes)} cannot be pinned safely: at most {format_bytes(safe)} here, half of what is "
            f"{binding_limit(limits, 'cuda')}; free memory or ask for less"
        )
