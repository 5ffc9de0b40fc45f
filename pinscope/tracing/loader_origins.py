"""Where the program makes its DataLoaders, and which memory their batches lie in: so a copy is known to be of a batch.

Runs inside the traced program. Of each of the first loaders the first batches are looked at, and of these the tensors
that lie on the host, in lists and dictionaries.
"""

from __future__ import annotations

import sys
from collections import UserDict
from contextlib import suppress
from weakref import WeakKeyDictionary, ref

from pinscope.tracing.bound import TYPE_CHECKING, bind, time
from pinscope.tracing.library_calls import change_function
from pinscope.tracing.recorder import is_of_the_program, newest_recorder

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from typing import Any

bind(globals())

MOST_LOADERS, MOST_BATCHES, MOST_TENSORS = 100, 4, 32
"""That are looked at: loaders; batches of each; tensors of each of these."""
LARGE_BYTES = 64 * 1024
"""``records.run.LARGE_BYTES``, which a program that is traced does without."""
FILE = "loaders"


class Loaders:
    """Those of this process.

    Args:
        module: ``torch.utils.data.dataloader``.
    """

    def __init__(self, module: Any) -> None:
        self._torch: Any = sys.modules["torch"]
        self._origins: WeakKeyDictionary[Any, int] = WeakKeyDictionary()
        """Loader → the stack that made it, or the first one of its data set: libraries make loaders anew."""
        self._datasets: dict[int, tuple[Any, int]] = {}
        """Id of a data set → a weak reference to it, and the stack that made its first loader."""
        self._seen: WeakKeyDictionary[Any, list[int]] = WeakKeyDictionary()
        """Loader → how many of its batches were looked at."""
        change_function(module.DataLoader, "__init__", self._making)
        change_function(module.DataLoader, "__iter__", self._iterating)
        change_function(module._BaseDataLoaderIter, "__next__", self._giving)

    def _making(self, make: Callable[..., None]) -> Callable[..., None]:
        def made(loader: Any, *arguments: Any, **named: Any) -> None:
            make(loader, *arguments, **named)
            with _kept_from_the_program():
                if newest_recorder().is_here and len(self._origins) < MOST_LOADERS:
                    self._origins[loader] = self._origin(loader.dataset)

        return made

    def _origin(self, dataset: Any) -> int:
        stack = newest_recorder().stack_here()
        known = self._datasets.get(id(dataset))
        if known is not None and known[0]() is dataset:
            return known[1]
        with suppress(TypeError):  # a list, which no weak reference knows
            self._datasets[id(dataset)] = ref(dataset), stack
        return stack

    def _iterating(self, iterate: Callable[[Any], Any]) -> Callable[[Any], Any]:
        def iterated(loader: Any) -> Any:
            iterator = iterate(loader)
            with _kept_from_the_program():
                if loader in self._origins:
                    self._seen.setdefault(iterator, [self._origins[loader], 0])
            return iterator

        return iterated

    def _giving(self, give: Callable[[Any], Any]) -> Callable[[Any], Any]:
        def given(iterator: Any) -> Any:
            batch = give(iterator)
            seen = self._seen.get(iterator)
            if seen is not None and seen[1] < MOST_BATCHES and newest_recorder().is_on:
                seen[1] += 1
                with _kept_from_the_program():
                    self._note(iterator, seen[0], batch)
            return batch

        return given

    def _note(self, iterator: Any, origin: int, batch: Any) -> None:
        tensors = [[tensor.data_ptr(), tensor.nbytes] for tensor in self._large(batch)][:MOST_TENSORS]
        if tensors:
            entry = {
                "stack": origin,
                "ns": time.time_ns(),
                "pins": bool(iterator._pin_memory),
                "workers": iterator._num_workers,
                "tensors": tensors,
            }
            newest_recorder().keep(FILE, entry)

    def _large(self, batch: Any) -> Iterator[Any]:
        """The large tensors on the host of a batch. No code of the program's own runs for that."""
        if type(batch) is self._torch.Tensor:
            if batch.is_cpu and batch.layout is self._torch.strided and batch.nbytes > LARGE_BYTES:
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
            yield from self._large(part)


class _kept_from_the_program:  # noqa: N801 - as contextlib names its own
    """Where something of ours fails, less is known; what a signal's handler of the program raised is the program's."""

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> bool:
        return error is not None and not is_of_the_program(error)
