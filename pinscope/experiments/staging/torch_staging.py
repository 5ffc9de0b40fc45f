"""Staging through PyTorch: ``.to``, ``.pin_memory().to``, and a tensor made pinned. Needs the extra ``torch``."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack

import torch

from pinscope.experiments.staging.ways import Bench, Marks, Steps
from pinscope.lab.cuda_handles import DevicePart
from pinscope.lab.cuda_memory import CudaCalls
from pinscope.lab.pattern import Pattern, words_at
from pinscope.lab.torch_pinned import empty_pinned_cache


def torch_to(bench: Bench, threads: int, held: ExitStack) -> Steps:
    """``tensor.to("cuda")``."""
    return _steps(bench, held, _over_source(bench), non_blocking=False)


def torch_pin_then_to(bench: Bench, threads: int, held: ExitStack) -> Steps:
    """``tensor.pin_memory().to("cuda", non_blocking=True)``, with pinned memory that PyTorch has kept."""
    return _steps(bench, held, _over_source(bench), pins=True)


def torch_pin_then_to_first(bench: Bench, threads: int, held: ExitStack) -> Steps:
    """``pin_memory().to`` where PyTorch has no pinned memory left over."""
    return _steps(bench, held, _over_source(bench), empty_pinned_cache, pins=True)


def torch_pinned(bench: Bench, threads: int, held: ExitStack) -> Steps:
    """``pinned.to("cuda", non_blocking=True)`` of a tensor that was made pinned."""
    source = [torch.empty(bench.nbytes // 8, dtype=torch.int64, pin_memory=True)]

    def fill() -> None:
        words = words_at(source[0].data_ptr(), bench.nbytes)
        words[:] = words_at(bench.source.address, bench.nbytes)

    return _steps(bench, held, source, fill)


def _over_source(bench: Bench) -> list[torch.Tensor]:
    """A tensor over the same pageable memory."""
    return [torch.from_numpy(words_at(bench.source.address, bench.nbytes).view("int64"))]


def _steps(
    bench: Bench,
    held: ExitStack,
    source: list[torch.Tensor],
    prepare: Callable[[], object] = lambda: None,
    non_blocking: bool = True,
    pins: bool = False,
) -> Steps:
    """Of one tensor, which is let go at the end; those on the GPU are PyTorch's own. ``prepare``: when new data was
    written."""
    device = torch.device("cuda", CudaCalls.here().ordinal)
    done, results = torch.cuda.Event(blocking=True), list[torch.Tensor]()
    held.callback(_give_back)
    held.callback(source.clear)
    held.callback(results.clear)

    def ready(pattern: Pattern) -> None:
        results.clear()
        bench.lab.fill(bench.source, pattern)
        prepare()

    def run(uses: int) -> Marks:
        tensor = source[0].pin_memory() if pins else source[0]
        prepared = bench.clock()
        for _ in range(uses):
            results.clear()
            results.append(tensor.to(device, non_blocking=non_blocking))
        done.record(torch.cuda.current_stream(device))
        done.synchronize()
        return Marks(prepared, bench.clock())

    def wrong_words(pattern: Pattern) -> int:
        address = results[0].data_ptr() if results else 0
        return bench.lab.wrong_words(DevicePart(address, bench.nbytes), pattern)

    return bench.steps(run, ready, wrong_words)


def threads() -> int:
    """That PyTorch copies host memory with."""
    return int(torch.get_num_threads())


def _give_back() -> None:
    torch.cuda.empty_cache()
    empty_pinned_cache()
