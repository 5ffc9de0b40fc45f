"""Watches host tensors to which PyTorch copies asynchronously, until something has waited for the copy: who reads them
before reads what was there, or half of the copy.

Such a tensor gets a class of its own, by which PyTorch hands us each call that takes it, and no other tensor's calls.
When the copy is done and the program has waited, it has its old class again. A read counts where the copy still runs,
or where no call waited for the GPU since, and the copy happened to be done. A view of the tensor is watched as well.

``watched.json`` in the spool says which lines copied so, and which read too early.
"""

from __future__ import annotations

import sys
import weakref
from contextlib import contextmanager, suppress
from typing import Any, Protocol

from pinscope.tracing.bound import TYPE_CHECKING, _thread, as_json, bind
from pinscope.tracing.library_calls import change_method, when_imported
from pinscope.tracing.stacks import OwnLines, file_label
from pinscope.tracing.waits import relaxed_capture

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from types import FrameType, ModuleType

    from pinscope.tracing.library_calls import Call
    from pinscope.tracing.mapped_file import SpoolFolder

bind(globals())

ACCOUNT = "watched.json"
MOST_PLACES = 1000
"""Pairs of lines that are kept."""
MOST_COPIES = 64
"""To parts of one tensor that are watched at once."""
READERS = frozenset(
    (
        "item", "tolist", "numpy", "__array__", "__dlpack__", "__float__", "__int__", "__bool__", "__index__",
        "__complex__", "__repr__", "__format__", "__contains__", "__setitem__", "__reduce_ex__", "__deepcopy__",
        "equal", "allclose", "is_nonzero",
    )
)  # fmt: skip
"""Functions of PyTorch that read a tensor's data, or hand it out, and give no tensor."""
_NO_DATA = frozenset(("requires_grad_", "detach_", "resize_", "set_", "share_memory_", "squeeze_", "unsqueeze_", "t_"))
"""Those that give the tensor itself and leave its data alone."""
_COPIES_BY_GPU = frozenset(("to", "cuda", "copy_"))


class Recording(Protocol):
    """What is asked of the recorder; ``waited`` grows with each wait of the program."""

    waited: int
    libraries: Sequence[str]
    waits: Any
    accounts: list[Callable[[SpoolFolder], None]]

    @property
    def is_here(self) -> bool: ...

    @property
    def is_on(self) -> bool: ...

    def keep_accounts(self) -> None: ...


Span = tuple[int, int]
"""First address, and the one behind the last."""


class _Copy:
    """An asynchronous copy to the host.

    Attributes:
        place: file and line.
        event: behind the copy.
        waited: how often the program had waited before.
        memory: that it writes.
        storage: address of the storage that this is a part of.
        is_seen: it counts as watched: somebody has used the tensor since, or nobody else can know the memory.
        read: places that have read it too early.
    """

    __slots__ = ("event", "is_seen", "memory", "place", "read", "storage", "waited")

    def __init__(self, place: tuple[str, int], event: Any, waited: int, memory: Span, storage: int) -> None:
        self.place, self.event, self.waited, self.memory, self.storage = place, event, waited, memory, storage
        self.is_seen = False
        self.read: set[tuple[str, int, str]] = set()


class Watch:
    """What is watched while one recorder records.

    Args:
        recorder: counts the program's waits.
    """

    def __init__(self, recorder: Recording) -> None:
        self.recorder = recorder
        self._own = OwnLines(recorder.libraries)
        self._labels: dict[str, str] = {}
        self._copies: dict[tuple[str, int], int] = {}
        self._reads: dict[tuple[Any, ...], list[int]] = {}
        self._writing = _thread.allocate_lock()

    def place(self) -> tuple[str, int] | None:
        """The line of the program that calls."""
        frame = self._own.innermost(sys._getframe(1))
        return None if frame is None else self._named(frame)

    def _named(self, frame: FrameType) -> tuple[str, int]:
        """File and line, as copies name them."""
        file = frame.f_code.co_filename
        return self._labels.get(file) or self._labels.setdefault(file, file_label(file)), frame.f_lineno

    def seen(self, copy: _Copy) -> None:
        """A copy counts as watched."""
        if not copy.is_seen:
            copy.is_seen = True
            self._copies[copy.place] = self._copies.get(copy.place, 0) + 1

    def read(self, copy: _Copy, call: str, flying: bool) -> None:
        """Its data was read before a wait."""
        frame = self._own.innermost(sys._getframe(1))
        self.seen(copy)
        if frame is None:
            return
        by = (*self._named(frame), call)
        if by in copy.read:
            return
        copy.read.add(by)
        key = (*copy.place, *by, frame.f_code.co_qualname)
        is_new = key not in self._reads
        if is_new and len(self._reads) >= MOST_PLACES:
            return
        counts = self._reads.setdefault(key, [0, 0])
        counts[0] += 1
        counts[1] += flying
        if is_new:  # the program may be killed
            self.recorder.keep_accounts()

    @contextmanager
    def kept_from_the_program(self) -> Iterator[None]:
        """What fails in here, as of a tensor without memory, is not watched. What a signal's handler of the program
        raises meanwhile is the program's."""
        try:
            yield
        except Exception as error:
            trace = error.__traceback__
            while trace is not None:
                if self._own.real(trace.tb_frame.f_code.co_filename) is not None:
                    raise
                trace = trace.tb_next

    def write(self, folder: SpoolFolder) -> None:
        """Write the account."""
        copies = [[*place, count] for place, count in list(self._copies.items())]
        reads = [[*key, *counts] for key, counts in list(self._reads.items())]
        with self._writing:
            folder.write(ACCOUNT, as_json({"copies": copies, "reads": reads}))


_WATCHES: list[Watch] = []
"""The last is that of the newest recorder."""


def start_watching(recorder: Recording) -> None:
    """Watch from now on what this recorder records."""
    watch = Watch(recorder)
    recorder.accounts.append(watch.write)
    _WATCHES.append(watch)
    if len(_WATCHES) == 1:
        when_imported("torch", _change)


def _change(torch: ModuleType) -> None:
    with suppress(Exception):  # a version that is made otherwise is not watched
        _Tensors(torch).change()


def _watch_here() -> Watch | None:
    """That of this process, while it records."""
    watch = _WATCHES[-1]
    return watch if watch.recorder.is_here and watch.recorder.is_on else None


class _Tensors:
    """The host tensors of this process that are copied to.

    Args:
        torch: the module.
    """

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        self._without = torch._C.DisableTorchFunctionSubclass
        self._is_done: Call = torch.cuda.Event.query
        self._flying: dict[int, tuple[Any, list[_Copy]]] = {}
        """Number of a tensor → a weak reference to it, and the copies to it."""
        self._handling: set[int] = set()
        """Threads in which PyTorch has handed us a call, which may be of a changed method."""
        self._class = _class_of_watched(self)

    def change(self) -> None:
        """Put the changed methods in place."""
        tensor = self._torch.Tensor
        change_method(tensor, "to", self._moving)
        change_method(tensor, "cuda", self._moving)
        change_method(tensor, "copy_", self._copying)
        for kind in (self._torch.cuda.Event, self._torch.cuda.Stream):
            change_method(kind, "query", self._asking)

    def _moving(self, move: Call) -> Call:
        def moved(tensor: Any, *arguments: Any, **named: Any) -> Any:
            result = move(tensor, *arguments, **named)
            if (named or arguments) and _thread.get_ident() not in self._handling:
                self._wait()
                if _is_async(arguments, named):
                    self._begin(tensor, result, is_new=True)
            return result

        return moved

    def _copying(self, copy: Call) -> Call:
        def copied(target: Any, *arguments: Any, **named: Any) -> Any:
            if _thread.get_ident() in self._handling:
                return copy(target, *arguments, **named)
            is_async = _is_async(arguments, named)
            if is_async and type(target) is self._class and arguments and arguments[0].is_cuda:
                target.__class__ = self._torch.Tensor  # the GPU writes: PyTorch need not hand us that, which takes long
            result = copy(target, *arguments, **named)
            self._wait()
            if is_async:
                self._begin(arguments[0] if arguments else named.get("other"), target)
            return result

        return copied

    def _asking(self, query: Call) -> Call:
        def asked(instance: Any) -> Any:
            answer = query(instance)
            if answer:
                _WATCHES[-1].recorder.waited += 1
            return answer

        return asked

    def _wait(self) -> None:
        """Behind a copy of a thread that Python cannot be asked in, where waits are wanted."""
        if (watch := _watch_here()) is not None and watch.recorder.waits is not None:
            watch.recorder.waits.wait()

    def _begin(self, source: Any, target: Any, is_new: bool = False) -> None:
        """Watch the target of an asynchronous copy to the host.

        Args:
            source, target: of the copy.
            is_new: nobody but the program's line has the target.
        """
        watch = _watch_here()
        if watch is None:
            return
        with watch.kept_from_the_program(), self._without():
            if not source.is_cuda or not target.is_cpu or not target.is_pinned():
                return
            place = watch.place()
            if place is None or self._torch.cuda.is_current_stream_capturing():
                return
            event = self._torch.cuda.Event()
            event.record(self._torch.cuda.current_stream(source.device))
            copy = _Copy(place, event, watch.recorder.waited, _span(target), _storage(target))
            if is_new:
                watch.seen(copy)
            for tensor in (target,) if is_new else (target, target._base):
                if type(tensor) in (self._torch.Tensor, self._class):
                    self._attach(tensor, copy)

    def _attach(self, tensor: Any, copy: _Copy) -> None:
        number, flying = id(tensor), self._flying
        reference, copies = flying.get(number, (None, []))
        if reference is None or reference() is not tensor:
            copies = []
            flying[number] = weakref.ref(tensor, lambda _: flying.pop(number, None)), copies
        begin, end = copy.memory
        copies[:] = [other for other in copies if other.memory[0] < begin or other.memory[1] > end][-MOST_COPIES:]
        copies.append(copy)
        tensor.__class__ = self._class

    def _release(self, tensor: Any) -> None:
        self._flying.pop(id(tensor), None)
        tensor.__class__ = self._torch.Tensor

    def call(self, function: Any, arguments: Sequence[Any], named: dict[str, Any]) -> Any:
        """Whatever PyTorch does with a tensor that is watched."""
        states: list[tuple[_Copy, bool]] = []
        watched: list[Any] = []
        with _WATCHES[-1].kept_from_the_program():
            for tensor in self._watched((arguments, named)):
                if own := self._states(tensor):
                    states += own
                    watched.append(tensor)
                tensor.__class__ = self._torch.Tensor  # what shows or keeps the tensor must not see our class
        thread = _thread.get_ident()
        is_outermost = thread not in self._handling
        try:
            self._handling.add(thread)
            with self._without():
                result = function(*arguments, **named)
        finally:
            if is_outermost:
                self._handling.discard(thread)
            for tensor in watched:
                tensor.__class__ = self._class
        if states:
            with _WATCHES[-1].kept_from_the_program():
                self._note(function.__name__, (arguments, named), result, states)
        return result

    def _watched(self, value: Any, depth: int = 0) -> Iterator[Any]:
        if type(value) is self._class:
            yield value
        elif isinstance(value, list | tuple | dict) and depth < 4:
            for part in value.values() if isinstance(value, dict) else value:
                yield from self._watched(part, depth + 1)

    def _states(self, tensor: Any) -> list[tuple[_Copy, bool]]:
        """The copies to a tensor that the program has not waited for, and whether each still runs. Without any it is
        watched no more."""
        _, copies = self._flying.get(id(tensor), (None, []))
        states = []
        if (watch := _watch_here()) is not None:  # else CUDA must not be asked, in a child by fork
            with self._without(), relaxed_capture():
                for copy in copies:
                    is_flying = not self._is_done(copy.event)
                    if is_flying or copy.waited == watch.recorder.waited:
                        states.append((copy, is_flying))
                    else:
                        watch.seen(copy)
        copies[:] = [copy for copy, _ in states]
        if not states:
            self._release(tensor)
        return states

    def _note(self, name: str, given: Any, result: Any, states: Sequence[tuple[_Copy, bool]]) -> None:
        """Whether a call has read data, or given a view of it."""
        with self._without():
            tensors, taken = list(self._tensors(result)), list(self._tensors(given))
            is_read = name in READERS and not tensors
            for tensor in tensors:
                if any(tensor is each for each in taken):
                    is_read |= name.endswith("_") and name not in _NO_DATA
                elif not self._is_view(tensor, states):
                    is_read |= not (name.endswith("_like") or name.startswith(("new_", "empty")))
            if any(tensor.is_cuda for tensor in (*tensors, *taken)):
                is_read &= name not in _COPIES_BY_GPU and any(tensor.is_cpu and not tensor.dim() for tensor in taken)
        watch = _watch_here()
        if is_read and watch is not None:
            for copy, is_flying in states:
                watch.read(copy, name, is_flying)

    def _is_view(self, tensor: Any, states: Sequence[tuple[_Copy, bool]]) -> bool:
        """Whether a tensor shares memory with one that is watched; then it is, too, as far as copies go there."""
        storage = _storage(tensor)
        shared = [copy for copy, _ in states if copy.storage == storage]
        begin, end = _span(tensor)
        for copy in shared:
            if begin < copy.memory[1] and copy.memory[0] < end and type(tensor) in (self._torch.Tensor, self._class):
                self._attach(tensor, copy)
        return bool(shared)

    def _tensors(self, value: Any, depth: int = 0) -> Iterator[Any]:
        if isinstance(value, self._torch.Tensor):
            yield value
        elif isinstance(value, list | tuple | dict) and depth < 4:
            for part in value.values() if isinstance(value, dict) else value:
                yield from self._tensors(part, depth + 1)


def _class_of_watched(tensors: _Tensors) -> type:
    """A class of tensors that passes for PyTorch's own."""
    torch = tensors._torch

    def __torch_function__(  # noqa: N807 - PyTorch's name
        kind: type, function: Any, types: Any, arguments: Any = (), named: Any = None
    ) -> Any:
        del kind, types
        return tensors.call(function, arguments, named or {})

    members = {"__torch_function__": classmethod(__torch_function__), "__module__": torch.Tensor.__module__}
    made: type = type(torch.Tensor)(torch.Tensor.__name__, (torch.Tensor,), members)
    return made


def _span(tensor: Any) -> Span:
    """The memory from a tensor's first element to its last."""
    begin = tensor.data_ptr()
    if tensor.is_contiguous():
        return begin, begin + tensor.nbytes
    if not tensor.numel():
        return begin, begin
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return begin, begin + (last + 1) * tensor.element_size()


def _storage(tensor: Any) -> int:
    """First address of the storage that a tensor is a part of."""
    return int(tensor.data_ptr() - tensor.storage_offset() * tensor.element_size())


def _is_async(arguments: Sequence[Any], named: dict[str, Any]) -> bool:
    """``non_blocking``: in all forms of these calls the first argument that is true or false."""
    for value in arguments:
        if value is True or value is False:
            return bool(value)
    return bool(named.get("non_blocking"))
