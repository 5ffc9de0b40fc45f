"""Which DataLoader a tensor of a batch is from: where the program made it, whether it pins, and its workers.

Runs inside the traced program. Of each batch the large tensors that lie on the host are looked at, in lists and
dictionaries; a tensor is known by itself, so what the program makes of it is another one.
"""

from __future__ import annotations

import sys
from collections import UserDict
from contextlib import suppress
from sys import _getframe
from weakref import WeakKeyDictionary, ref

from pinscope.tracing.bound import TYPE_CHECKING, bind
from pinscope.tracing.faults import is_of_the_program
from pinscope.tracing.library_calls import change_function
from pinscope.tracing.mapped_file import LOADER
from pinscope.tracing.recorder import newest_recorder
from pinscope.tracing.stacks import INSTALLED

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from typing import Any

    from pinscope.tracing.recorder import Recorder

bind(globals())

MOST_LOADERS, MOST_TENSORS = 100, 32
"""That are looked at: loaders; tensors of each batch."""
MOST_KNOWN = 1000
"""Tensors that are kept in mind, by weak references; those that are gone make room."""
FILE = "loaders"
_FROM: dict[int, tuple[ref[Any], int]] = {}
"""Id of a tensor → the tensor, and the number of its loader."""


def loader_flags(tensor: Any) -> int:
    """Number of the loader that a tensor is from, as flags of a call; 0 where none is known."""
    known = _FROM.get(id(tensor))
    return known[1] << LOADER if known is not None and known[0]() is tensor else 0


class Loaders:
    """Those of this process.

    Args:
        module: ``torch.utils.data.dataloader``.
        is_large: whether a tensor's copies are worth it.
    """

    def __init__(self, module: Any, is_large: Callable[[Any], bool | None]) -> None:
        self._tensor: Any = sys.modules["torch"].Tensor
        self._is_large = is_large
        self._origins: WeakKeyDictionary[Any, tuple[Recorder, int]] = WeakKeyDictionary()
        """Loader → the recording, and in it the stack that made the loader."""
        self._datasets: dict[int, tuple[ref[Any], tuple[Recorder, int]]] = {}
        """Id of a data set → it, and the same of its newest loader that the program's own code made."""
        self._iterators: WeakKeyDictionary[Any, int] = WeakKeyDictionary()
        """Each loop's iterator → number of its loader."""
        self._numbers: dict[tuple[Recorder, int, bool, int], int] = {}
        change_function(module.DataLoader, "__init__", self._making)
        change_function(module._BaseDataLoaderIter, "__init__", self._beginning)

    def _making(self, make: Callable[..., None]) -> Callable[..., None]:
        def made(loader: Any, *arguments: Any, **named: Any) -> None:
            make(loader, *arguments, **named)
            with _kept_from_the_program():
                recorder = newest_recorder()
                if recorder.is_here and len(self._origins) < MOST_LOADERS:
                    maker = _getframe(1).f_code.co_filename
                    self._origins[loader] = self._origin(recorder, loader.dataset, maker)

        return made

    def _origin(self, recorder: Recorder, dataset: Any, maker: str) -> tuple[Recorder, int]:
        """Libraries make a loader anew from one that they are given: that one's line counts."""
        known = self._datasets.get(id(dataset))
        if known is not None and known[0]() is dataset and any(folder in maker for folder in INSTALLED):
            return known[1]
        origin = recorder, recorder.stack_here()
        with suppress(TypeError):  # a list, which no weak reference knows
            self._datasets[id(dataset)] = ref(dataset), origin
        return origin

    def _beginning(self, begin: Callable[..., None]) -> Callable[..., None]:
        def begun(iterator: Any, loader: Any, *arguments: Any, **named: Any) -> None:
            begin(iterator, loader, *arguments, **named)
            with _kept_from_the_program():
                recorder, stack = self._origins.get(loader, (None, 0))
                if stack and recorder is newest_recorder() and recorder.is_here:
                    pins, workers = bool(loader.pin_memory), int(loader.num_workers)
                    self._iterators[iterator] = self._number(recorder, stack, pins, workers)

        return begun

    def _number(self, recorder: Recorder, stack: int, pins: bool, workers: int) -> int:
        key = recorder, stack, pins, workers
        if key not in self._numbers:
            self._numbers[key] = number = len(self._numbers) + 1
            recorder.keep(FILE, [number, {"stack": stack, "pins": pins, "workers": workers}])
        return self._numbers[key]

    def note(self, iterator: Any, batch: Any) -> None:
        """A loop was given a batch."""
        with _kept_from_the_program():
            number = self._iterators.get(iterator)
            if number is None:
                return
            if len(_FROM) > MOST_KNOWN:
                for place in [place for place, (tensor, _) in list(_FROM.items()) if tensor() is None]:
                    _FROM.pop(place, None)
            for tensor, _ in zip(self._tensors(batch), range(MOST_TENSORS)):
                if len(_FROM) <= MOST_KNOWN:
                    _FROM[id(tensor)] = ref(tensor), number

    def _tensors(self, batch: Any) -> Iterator[Any]:
        """The large tensors on the host of a batch. No code of the program's own runs for that."""
        if type(batch) is self._tensor:
            if batch.is_cpu and self._is_large((batch,)):
                yield batch
            return
        parts: Iterable[Any] = ()
        if isinstance(batch, list):
            parts = list.__iter__(batch)
        elif isinstance(batch, tuple):
            parts = tuple.__iter__(batch)
        elif isinstance(batch, dict):
            parts = dict.values(batch)
        elif isinstance(batch, UserDict):
            parts = (batch.data,)
        for part in parts:
            yield from self._tensors(part)


class _kept_from_the_program:  # noqa: N801 - as contextlib names its own
    """Where something of ours fails, less is known; what a signal's handler of the program raised is the program's."""

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> bool:
        return error is not None and not is_of_the_program(error)
