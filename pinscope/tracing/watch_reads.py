"""Watches host tensors to which PyTorch copies asynchronously: by what call their data is read first, and when.

Such a tensor gets a class of its own, by which PyTorch hands us each call that takes it, and no other tensor's calls.
With the first call that reads its data it has its old class again. A view of the tensor is watched as well. CUDA is
asked nothing here: whether the copy was done by then, and whether the program had waited, is told from CUPTI's records
(``early_reads``).
"""

from __future__ import annotations

import weakref

from pinscope.tracing.bound import TYPE_CHECKING, _thread, bind, time
from pinscope.tracing.library_calls import change_method
from pinscope.tracing.recorder import answered, newest_recorder

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from typing import Any

    from pinscope.tracing.library_calls import Call

    Span = tuple[int, int]
    """First address, and the one behind the last."""

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
_clock = time.time_ns


class _Copy:
    """An asynchronous copy to the host.

    Attributes:
        number: its correlation id.
        memory: that it writes; ``None``: all of the tensor.
        is_noted: it counts as watched: somebody has used the tensor since, or nobody else can know the memory.
    """

    __slots__ = ("is_noted", "memory", "number")

    def __init__(self, number: int, memory: Span | None, is_noted: bool) -> None:
        self.number, self.memory, self.is_noted = number, memory, is_noted

    def overwrites(self, other: _Copy) -> bool:
        """Whether nothing is left of another one to the same tensor."""
        if self.memory is None or other.memory is None:
            return self.memory is None
        return self.memory[0] <= other.memory[0] and other.memory[1] <= self.memory[1]

    def reaches(self, span: Span) -> bool:
        """Whether it writes to this part of the tensor."""
        return self.memory is None or (span[0] < self.memory[1] and self.memory[0] < span[1])


class _Watched(weakref.ref["Any"]):
    """A tensor that is watched, its ``id``, and the copies to it."""

    __slots__ = ("copies", "number")
    copies: list[_Copy]
    number: int


class WatchedTensors:
    """The host tensors of this process that are copied to.

    Args:
        torch: the module.
    """

    def __init__(self, torch: Any) -> None:
        self._tensor = torch.Tensor
        self._without = torch._C.DisableTorchFunctionSubclass
        self._watched: dict[int, _Watched] = {}
        """By their ``id``."""
        self._class = _class_of_watched(self)
        change_method(torch.Tensor, "to", self._moving)
        change_method(torch.Tensor, "copy_", self._copying)
        for kind in (torch.cuda.Event, torch.cuda.Stream):
            change_method(kind, "query", self._asking)

    def _moving(self, move: Call) -> Call:
        def moved(tensor: Any, *arguments: Any, **named: Any) -> Any:
            if not _is_async(arguments, named):
                return move(tensor, *arguments, **named)
            copies, thread = newest_recorder().last_copies, _thread.get_ident()
            before = copies.get(thread)
            result = move(tensor, *arguments, **named)
            copy = copies.get(thread)
            if copy != before and type(result) is self._tensor and result.is_cpu:
                self._add(result, [_Copy(copy, None, True)])
                newest_recorder().library_log.note_watched(copy)
            return result

        return moved

    def _copying(self, copy: Call) -> Call:
        def copied(target: Any, *arguments: Any, **named: Any) -> Any:
            if not _is_async(arguments, named):
                return copy(target, *arguments, **named)
            if type(target) is self._class and arguments and arguments[0].is_cuda:
                target.__class__ = self._tensor  # the GPU writes: PyTorch need not hand us that, which takes long
            copies, thread = newest_recorder().last_copies, _thread.get_ident()
            before = copies.get(thread)
            result = copy(target, *arguments, **named)
            number = copies.get(thread)
            if number != before and type(target) is self._tensor and target.is_cpu:
                answered(self._copied_to, target, number)
            return result

        return copied

    def _copied_to(self, target: Any, copy: int) -> None:
        """The program has copied into a tensor that it keeps."""
        whole = target._base
        if whole is not None:
            self._add(whole, [_Copy(copy, _span(target), False)])
        self._add(target, [_Copy(copy, None, False)])

    def _asking(self, query: Call) -> Call:
        def asked(instance: Any) -> Any:
            answer = query(instance)
            if answer and self._watched and newest_recorder().is_on:
                newest_recorder().library_log.note_watched(0)
            return answer

        return asked

    def _add(self, tensor: Any, copies: Sequence[_Copy]) -> None:
        """Watch a tensor for these copies, too."""
        if type(tensor) not in (self._tensor, self._class):
            return
        number = id(tensor)
        watched = self._watched.get(number)
        if watched is None or watched() is not tensor:
            watched = self._watched[number] = _Watched(tensor, self._forget)
            watched.number, watched.copies = number, []
        for copy in copies:
            kept = [each for each in watched.copies if not copy.overwrites(each)]
            watched.copies = [*kept[1 - MOST_COPIES :], copy]
        tensor.__class__ = self._class

    def _forget(self, watched: _Watched) -> None:
        """The tensor is gone."""
        self._watched.pop(watched.number, None)

    def call(self, function: Any, arguments: Sequence[Any], named: dict[str, Any]) -> Any:
        """Whatever PyTorch does with a tensor that is watched."""
        moment = _clock()
        taken = [tensor for tensor in self._tensors((arguments, named)) if type(tensor) is self._class]
        for tensor in taken:
            tensor.__class__ = self._tensor  # what shows or keeps the tensor must not see our class
        try:
            with self._without():
                result = function(*arguments, **named)
        finally:
            for tensor in taken:
                tensor.__class__ = self._class
        answered(self._note, function.__name__, (arguments, named), result, taken, moment)
        return result

    def _note(self, name: str, given: Any, result: Any, watched: Sequence[Any], moment: int) -> None:
        """A call is over; whose it was to read is watched no more."""
        recorder = newest_recorder()
        copies = [copy for tensor in watched for copy in self._copies(tensor)]
        with self._without():
            is_read = self._is_read(name, given, result, watched)
        if recorder.is_on:  # not in a child by fork
            for copy in copies:
                if not copy.is_noted:
                    copy.is_noted = True
                    recorder.library_log.note_watched(copy.number)
            if is_read:
                recorder.library_log.note_read([copy.number for copy in copies], name, moment)
        if is_read or not recorder.is_on:
            for tensor in watched:
                self._watched.pop(id(tensor), None)
                tensor.__class__ = self._tensor

    def _copies(self, tensor: Any) -> list[_Copy]:
        watched = self._watched.get(id(tensor))
        return watched.copies if watched is not None and watched() is tensor else []

    def _is_read(self, name: str, given: Any, result: Any, watched: Sequence[Any]) -> bool:
        """Whether a call has read data; a view of it, which it may have given, is watched from now on."""
        tensors, taken = list(self._tensors(result)), list(self._tensors(given))
        is_read = name in READERS and not tensors
        for tensor in tensors:
            if any(tensor is each for each in taken):
                is_read |= name.endswith("_") and name not in _NO_DATA
            elif not self._is_view(tensor, watched):
                is_read |= not (name.endswith("_like") or name.startswith(("new_", "empty")))
        if any(tensor.is_cuda for tensor in (*tensors, *taken)):
            is_read &= name not in _COPIES_BY_GPU and any(tensor.is_cpu and not tensor.dim() for tensor in taken)
        return is_read

    def _is_view(self, tensor: Any, watched: Sequence[Any]) -> bool:
        """Whether a tensor shares memory with one that is watched; then it is, too, as far as copies go there."""
        storage = _storage(tensor)
        whole = [each for each in watched if _storage(each) == storage]
        if whole and (copies := [copy for each in whole for copy in self._copies(each) if copy.reaches(_span(tensor))]):
            self._add(tensor, copies)
        return bool(whole)

    def _tensors(self, value: Any, depth: int = 0) -> Iterator[Any]:
        if isinstance(value, self._tensor):
            yield value
        elif isinstance(value, list | tuple | dict) and depth < 4:
            for part in value.values() if isinstance(value, dict) else value:
                yield from self._tensors(part, depth + 1)


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
