"""Watches host tensors to which PyTorch copies asynchronously: by what call their data is read first, and when.

Such a tensor gets a class of its own, by which PyTorch hands us each call that takes it, and no other tensor's calls.
With the first call that reads its data it has its old class again. A view of the tensor is watched as well. CUDA is
asked nothing here: whether the copy was done by then, and whether the program had waited, is told from CUPTI's records
(``early_reads``).
"""

from __future__ import annotations

import weakref

from pinscope.tracing.bound import TYPE_CHECKING, _thread, bind, time
from pinscope.tracing.faults import answered
from pinscope.tracing.library_calls import WHEN_OVER, change_method
from pinscope.tracing.recorder import newest_recorder

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from typing import Any

    from pinscope.tracing.library_calls import Call

    Span = tuple[int, int]
    """First address, and the one behind the last."""
    _Copy = tuple[int, Span | None]
    """Correlation id of an asynchronous copy, and the memory that it writes; ``None``: all of the tensor."""

bind(globals())

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
_SEVERAL = (list, tuple, dict)
_clock, get_thread = time.time_ns, _thread.get_ident


class _Watched(weakref.ref["Any"]):
    """A tensor that is watched, and the copies to it."""

    __slots__ = ("copies",)
    copies: tuple[_Copy, ...]


class WatchedTensors:
    """The host tensors of this process that are copied to.

    Args:
        torch: the module.
    """

    def __init__(self, torch: Any) -> None:
        self._tensor = torch.Tensor
        self._without = torch._C.DisableTorchFunctionSubclass
        self._watched: dict[int, _Watched] = {}
        """By the tensor's ``id``: of one that is gone until another has its place."""
        self._may_be_told = False
        """A copy is watched, and nothing has told the program since that the GPU is done."""
        self._class = _class_of_watched(self)
        change_method(torch.Tensor, "to", self._moving)
        change_method(torch.Tensor, "copy_", self._copying)
        for kind in (torch.cuda.Event, torch.cuda.Stream):
            change_method(kind, "query", self._asking)
        WHEN_OVER.append(self._leave)

    def _leave(self) -> None:
        """Tensors that are watched are PyTorch's own again."""
        for watched in list(self._watched.values()):
            if type(tensor := watched()) is self._class:
                tensor.__class__ = self._tensor
        self._watched.clear()

    def _moving(self, move: Call) -> Call:
        tensor_class, watched_class, watched = self._tensor, self._class, self._watched

        def moved(tensor: Any, *arguments: Any, **named: Any) -> Any:
            if len(arguments) < 2 and not named:
                return move(tensor, *arguments)
            if not (named.get("non_blocking") or _is_given(arguments)):
                return move(tensor, *arguments, **named)
            recorder, thread = newest_recorder(), get_thread() & 0xFFFFFFFF
            before = recorder.last_calls.get(thread, 0)
            result = move(tensor, *arguments, **named)
            copy = recorder.last_calls.get(thread, 0)
            if copy != before and type(result) is tensor_class and result.is_cpu:
                watched[id(result)] = new = _Watched(result)
                new.copies = ((copy, None),)
                result.__class__ = watched_class
                recorder.library_log.watched.append((copy, 0, 0, 0))  # nobody else can know the memory
                self._may_be_told = True
            return result

        return moved

    def _copying(self, copy: Call) -> Call:
        def copied(target: Any, *arguments: Any, **named: Any) -> Any:
            if len(arguments) < 2 and not named:
                return copy(target, *arguments)
            if not (named.get("non_blocking") or _is_given(arguments)):
                return copy(target, *arguments, **named)
            if type(target) is self._class and arguments and arguments[0].is_cuda:
                target.__class__ = self._tensor  # the GPU writes: PyTorch need not hand us that, which takes long
            calls, thread = newest_recorder().last_calls, get_thread() & 0xFFFFFFFF
            before = calls.get(thread, 0)
            result = copy(target, *arguments, **named)
            number = calls.get(thread, 0)
            if number != before and type(target) is self._tensor and target.is_cpu:
                answered(self._copied_to, target, number)
            return result

        return copied

    def _copied_to(self, target: Any, copy: int) -> None:
        """The program has copied into a tensor that it keeps."""
        self._may_be_told = True
        whole = target._base
        if whole is not None:
            self._add(whole, [(copy, _span(target))])
        self._add(target, [(copy, None)])

    def _asking(self, query: Call) -> Call:
        def asked(instance: Any) -> Any:
            answer = query(instance)
            if answer and self._may_be_told and newest_recorder().is_on:
                self._may_be_told = False
                newest_recorder().library_log.note_done()
            return answer

        return asked

    def _add(self, tensor: Any, copies: Sequence[_Copy]) -> None:
        """Watch a tensor for these copies, too."""
        if type(tensor) not in (self._tensor, self._class):
            return
        watched = _Watched(tensor)
        watched.copies = self._copies(tensor)
        for copy in copies:
            kept = [each for each in watched.copies if not _overwrites(copy, each)]
            watched.copies = (*kept[1 - MOST_COPIES :], copy)
        self._watched[id(tensor)] = watched
        tensor.__class__ = self._class

    def _copies(self, tensor: Any) -> tuple[_Copy, ...]:
        watched = self._watched.get(id(tensor))
        return watched.copies if watched is not None and watched() is tensor else ()

    def call(self, function: Any, arguments: Sequence[Any], named: dict[str, Any]) -> Any:
        """Whatever PyTorch does with a tensor that is watched."""
        moment = _clock()
        given = self._tensors((*arguments, *named.values()))
        watched = [tensor for tensor in given if type(tensor) is self._class]
        if not watched:  # it lies deeper
            with self._without():
                return function(*arguments, **named)
        for tensor in watched:
            tensor.__class__ = self._tensor  # what shows or keeps the tensor must not see our class
        is_over = None
        try:
            result = function(*arguments, **named)
            is_over = answered(self._is_over, function.__name__, given, result, watched, moment)
        finally:
            for tensor in watched:
                if is_over:
                    self._watched.pop(id(tensor), None)
                else:
                    tensor.__class__ = self._class
        return result

    def _is_over(self, name: str, given: list[Any], result: Any, watched: list[Any], moment: int) -> bool:
        """Note what a call did. Tensors that it read, or that cannot be noted any more, are watched no longer."""
        recorder = newest_recorder()
        if not recorder.is_on:  # or in a child by fork
            return True
        copies = [number for tensor in watched for number, _ in self._copies(tensor)]
        recorder.library_log.note_watched(copies)
        is_read = self._is_read(name, given, self._tensors((result,)), watched)
        if is_read:
            recorder.library_log.note_read(copies, name, moment)
        return is_read

    def _is_read(self, name: str, given: list[Any], given_back: list[Any], watched: list[Any]) -> bool:
        """Whether a call has read data; a view of it, which it may have given back, is watched from now on."""
        is_read = name in READERS and not given_back
        for tensor in given_back:
            if any(tensor is each for each in given):
                is_read |= name.endswith("_") and name not in _NO_DATA
            elif not self._is_view(tensor, watched):
                is_read |= not (name.endswith("_like") or name.startswith(("new_", "empty")))
        if is_read and any(tensor.is_cuda for tensor in (*given_back, *given)):
            is_read = name not in _COPIES_BY_GPU and any(tensor.is_cpu and not tensor.dim() for tensor in given)
        return is_read

    def _is_view(self, tensor: Any, watched: list[Any]) -> bool:
        """Whether a tensor shares memory with one that is watched; then it is, too, as far as copies go there."""
        storage = _storage(tensor)
        whole = [each for each in watched if _storage(each) == storage]
        copies = [copy for each in whole for copy in self._copies(each) if _reaches(copy, tensor)]
        if copies:
            self._add(tensor, copies)
        return bool(whole)

    def _tensors(self, values: Iterable[Any], depth: int = 0) -> list[Any]:
        """Those among them, and in lists and dictionaries."""
        tensors = []
        for value in values:
            if isinstance(value, self._tensor):
                tensors.append(value)
            elif isinstance(value, _SEVERAL) and depth < 4:
                tensors += self._tensors(value.values() if isinstance(value, dict) else value, depth + 1)
        return tensors


def _class_of_watched(tensors: WatchedTensors) -> type:
    """A class of tensors that passes for PyTorch's own."""
    tensor = tensors._tensor

    def __torch_function__(  # noqa: N807 - PyTorch's name
        kind: type, function: Any, types: Any, arguments: Any = (), named: Any = None
    ) -> Any:
        del kind, types
        return tensors.call(function, arguments, named or {})

    members = {"__torch_function__": classmethod(__torch_function__), "__module__": tensor.__module__}
    made: type = type(tensor)(tensor.__name__, (tensor,), members)
    return made


def _span(tensor: Any) -> Span:
    """The memory from a tensor's first element to its last."""
    begin = tensor.data_ptr()
    if tensor.is_contiguous():
        return begin, begin + tensor.nbytes
    if not tensor.numel():
        return begin, begin
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride()))
    return begin, begin + (last + 1) * tensor.element_size()


def _storage(tensor: Any) -> int:
    """First address of the storage that a tensor is a part of."""
    return int(tensor.data_ptr() - tensor.storage_offset() * tensor.element_size())


def _overwrites(copy: _Copy, other: _Copy) -> bool:
    """Whether nothing is left of another copy to the same tensor."""
    (_, memory), (_, before) = copy, other
    return memory is None or (before is not None and memory[0] <= before[0] and before[1] <= memory[1])


def _reaches(copy: _Copy, part: Any) -> bool:
    """Whether a copy writes to a part of the tensor."""
    _, memory = copy
    if memory is None:
        return True
    begin, end = _span(part)
    return begin < memory[1] and memory[0] < end


def _is_given(arguments: Sequence[Any]) -> bool:
    """``non_blocking`` by its place: in all forms of these calls the first argument that is true or false."""
    return next((value for value in arguments if value is True or value is False), False)
