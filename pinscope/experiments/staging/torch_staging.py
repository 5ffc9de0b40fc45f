"""The same through PyTorch: ``.to``, ``.pin_memory().to``, and a tensor made pinned. Needs the extra ``torch``."""

from __future__ import annotations

from contextlib import ExitStack

import torch

from pinscope.experiments.staging.ways import Bench, Marks, Way
from pinscope.lab.cuda_handles import DevicePart
from pinscope.lab.cuda_pinning import CudaCalls
from pinscope.lab.pattern import Pattern, words_at
from pinscope.lab.torch_pinned import empty_pinned_cache


class _TorchWay(Way):
    """A tensor over the same pageable memory. The tensors on the GPU are PyTorch's own."""

    def __init__(self, bench: Bench, threads: int = 1) -> None:
        super().__init__(bench, threads)
        self._device = torch.device("cuda", CudaCalls.here().ordinal)
        self._result: torch.Tensor | None = None

    def keep(self, held: ExitStack) -> None:
        held.callback(_give_back)
        held.callback(self._forget)
        self._done = torch.cuda.Event(blocking=True)
        words = words_at(self.bench.source.address, self.bench.nbytes)
        self._source = torch.from_numpy(words.view("int64"))

    def ready(self, pattern: Pattern) -> None:
        self._result = None
        super().ready(pattern)

    def wrong_words(self, pattern: Pattern) -> int:
        address = 0 if self._result is None else self._result.data_ptr()
        return self.bench.lab.wrong_words(DevicePart(address, self.bench.nbytes), pattern)

    def _to(self, source: torch.Tensor, uses: int, non_blocking: bool) -> float:
        """The copies, and a wait that sleeps; when they were complete."""
        for _ in range(uses):
            self._result = None
            self._result = source.to(self._device, non_blocking=non_blocking)
        self._done.record(torch.cuda.current_stream(self._device))
        self._done.synchronize()
        return self.bench.clock()

    def _forget(self) -> None:
        self._result = None
        del self._source


class TorchTo(_TorchWay):
    """``tensor.to("cuda")``."""

    def run(self, uses: int) -> Marks:
        begun = self.bench.clock()
        return Marks(begun, self._to(self._source, uses, non_blocking=False))


class TorchPinThenTo(_TorchWay):
    """``tensor.pin_memory().to("cuda", non_blocking=True)``, with pinned memory that PyTorch has kept."""

    keeps_pool = True

    def ready(self, pattern: Pattern) -> None:
        super().ready(pattern)
        if not self.keeps_pool:
            empty_pinned_cache()

    def run(self, uses: int) -> Marks:
        pinned = self._source.pin_memory()
        prepared = self.bench.clock()
        return Marks(prepared, self._to(pinned, uses, non_blocking=True))


class TorchPinThenToFirst(TorchPinThenTo):
    """The same, where PyTorch has no pinned memory left over."""

    keeps_pool = False


class TorchPinned(_TorchWay):
    """``pinned.to("cuda", non_blocking=True)`` of a tensor that was made pinned."""

    def keep(self, held: ExitStack) -> None:
        super().keep(held)
        self._source = torch.empty(self.bench.nbytes // 8, dtype=torch.int64, pin_memory=True)

    def ready(self, pattern: Pattern) -> None:
        super().ready(pattern)
        words = words_at(self._source.data_ptr(), self.bench.nbytes)
        words[:] = words_at(self.bench.source.address, self.bench.nbytes)

    def run(self, uses: int) -> Marks:
        begun = self.bench.clock()
        return Marks(begun, self._to(self._source, uses, non_blocking=True))


def threads() -> int:
    """That PyTorch copies host memory with."""
    return int(torch.get_num_threads())


def _give_back() -> None:
    torch.cuda.empty_cache()
    empty_pinned_cache()


TORCH_WAYS: dict[str, type[Way]] = {
    "torch_to": TorchTo,
    "torch_pin_then_to_first": TorchPinThenToFirst,
    "torch_pin_then_to": TorchPinThenTo,
    "torch_pinned": TorchPinned,
}
