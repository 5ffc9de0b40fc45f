"""A PyTorch DataLoader that feeds a training step, and how long each part of a step took. Needs the extra ``torch``."""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache, partial
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, default_collate

from pinscope.errors import NotPossible
from pinscope.experiments.dataloader.ways import CHANNELS, KINDS, PIXELS, PREFETCHED, SLOW_SECONDS, TENSORS, Loading
from pinscope.lab.torch_pinned import why_not_torch
from pinscope.probes.process import die_with_parent

CLASSES = 1000
LEARNING_RATE, MOMENTUM = 1e-3, 0.9
Step = dict[str, Any]
"""Fields of an observation of one step; times in seconds."""


class Images(Dataset[tuple[torch.Tensor, int]]):  # type: ignore[misc]
    """Images of the usual shape, made in memory: an item is copied and flipped, as after decoding.

    Args:
        count: how many.
        slow: whether an item takes more of the processor to make.
    """

    def __init__(self, count: int, slow: bool) -> None:
        self._count, self._slow = count, slow
        self._made = _pictures()

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        until = time.thread_time() + SLOW_SECONDS
        while self._slow and time.thread_time() < until:
            pass
        image = self._made[index % KINDS].flip(-1)
        image[0, 0, 0] = index % CLASSES  # tells afterwards whether this item arrived
        return image, index % CLASSES

    def __getitems__(self, indices: Sequence[int]) -> tuple[float, list[tuple[torch.Tensor, int]]]:
        """All items of a batch, and when they were begun: the loader asks for them at once, so that its time begins
        here."""
        begun = time.perf_counter()
        return begun, [self[index] for index in indices]


@cache
def _pictures() -> torch.Tensor:
    return torch.rand((KINDS, CHANNELS, PIXELS, PIXELS), generator=torch.Generator().manual_seed(7))


class Batch:
    """A batch as the loader hands it over, with the time that it took to make and to pin.

    DataLoader calls ``pin_memory`` of a batch type that has one, in its pinning thread (or, without workers, in the
    program): https://docs.pytorch.org/docs/stable/data.html#memory-pinning.

    Attributes:
        images: of the batch, in one tensor or several.
        labels: of the batch.
        make_seconds: making its items and putting them together, in the process that did it.
        pin_seconds: copying it to pinned memory; ``None`` where it was not.
    """

    def __init__(self, tensors: int, items: tuple[float, list[tuple[torch.Tensor, int]]]) -> None:
        begun, pairs = items
        images, self.labels = default_collate(pairs)
        # Parts of a tensor would travel as the whole: each is made one of its own.
        self.images = [images] if tensors == 1 else [part.clone() for part in images.flatten().tensor_split(tensors)]
        self.make_seconds = time.perf_counter() - begun
        self.pin_seconds: float | None = None

    def pin_memory(self) -> Batch:
        """The batch in pinned memory."""
        begun = time.perf_counter()
        self.images, self.labels = [part.pin_memory() for part in self.images], self.labels.pin_memory()
        self.pin_seconds = time.perf_counter() - begun
        return self


class Trainer:
    """A small convolutional network and its training step on one GPU.

    Args:
        ordinal: CUDA's number of the GPU.
        see: called with the address and the bytes of a first batch on the host.

    Raises:
        NotPossible: this PyTorch cannot use the GPU.
    """

    def __init__(self, ordinal: int, see: Callable[[int, int], None]) -> None:
        self._see = see
        if reason := why_not_torch():
            raise NotPossible(reason)
        self._device = torch.device("cuda", ordinal)
        torch.manual_seed(7)
        self._model = nn.Sequential(
            nn.Conv2d(CHANNELS, 64, 7, stride=4),
            nn.ReLU(),
            nn.Conv2d(64, 128, 3, stride=2),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(128, CLASSES),
        ).to(self._device)
        self._momenta = [(weights, torch.zeros_like(weights)) for weights in self._model.parameters()]
        self._loss = nn.CrossEntropyLoss()

    @contextmanager
    def trained(self, loading: Loading, count: int, check: Callable[[], None]) -> Iterator[list[Step]]:
        """``count`` steps of training without a pause; the loader and what it pinned last until the context ends.

        Nothing is read or stored between the steps: the workers would go on meanwhile, and what they made ahead by
        then would make the next steps faster than they are. ``check`` is called before each step; what it raises ends
        the loader's processes.
        """
        with _batches(loading, count, self._device) as batches, torch.cuda.device(self._device):
            marks = []
            for place in range(count):
                check()
                marks.append(self._step(batches, loading.non_blocking, first=place == 0))
            torch.cuda.synchronize(self._device)
            yield [_read(marks[max(place - 1, 0)], mark, place * loading.batch) for place, mark in enumerate(marks)]

    def _descend(self) -> None:
        """One step of SGD with momentum. The first use of torch.optim imports torch._dynamo, which takes long."""
        with torch.no_grad():
            for weights, momentum in self._momenta:
                momentum.mul_(MOMENTUM).add_(weights.grad)
                weights.sub_(momentum, alpha=LEARNING_RATE)

    def _step(self, batches: Iterator[Batch], non_blocking: bool, first: bool) -> _Marks:
        events = [torch.cuda.Event(enable_timing=True) for _ in range(4)]
        begun = time.perf_counter()
        batch = next(batches)
        waited = time.perf_counter()
        events[0].record()
        parts = [part.to(self._device, non_blocking=non_blocking) for part in batch.images]
        labels = batch.labels.to(self._device, non_blocking=non_blocking)
        events[1].record()
        issued = time.perf_counter()
        events[2].record()
        images = parts[0] if len(parts) == 1 else torch.cat(parts).view(-1, CHANNELS, PIXELS, PIXELS)
        self._model.zero_grad(set_to_none=True)
        loss = self._loss(self._model(images), labels)
        loss.backward()
        self._descend()
        events[3].record()
        firsts = images[:, 0, 0, 0].clone()
        if first:  # it is a warm-up: to look takes some microseconds
            self._see(batch.images[0].data_ptr(), batch.images[0].nbytes)
        times = {
            "wait_seconds": waited - begun,
            "make_seconds": batch.make_seconds,
            "pin_seconds": batch.pin_seconds,
            "issue_seconds": issued - waited,
        }
        return _Marks(events, firsts, times)


class _Marks(NamedTuple):
    """Events of one step: copy begun, copied, compute begun, computed; and what came in each item's first place."""

    events: list[torch.cuda.Event]
    firsts: torch.Tensor
    times: dict[str, float | None]


def _read(before: _Marks, marks: _Marks, first_item: int) -> Step:
    started, copied, computing, computed = marks.events
    last_end = before.events[3] if before is not marks else started
    expected = torch.arange(first_item, first_item + len(marks.firsts)) % CLASSES
    return {
        **marks.times,
        "copy_seconds": started.elapsed_time(copied) / 1e3,
        "compute_seconds": computing.elapsed_time(computed) / 1e3,
        "stall_seconds": max(last_end.elapsed_time(computing) / 1e3, 0.0),
        "step_seconds": last_end.elapsed_time(computed) / 1e3,
        "wrong_items": int((marks.firsts.cpu() != expected).sum()),
        "warmup": before is marks,  # the first has no step before it, and so no length
    }


@contextmanager
def _batches(loading: Loading, count: int, device: torch.device) -> Iterator[Iterator[Batch]]:
    """Batches in order; their processes are gone when it closes."""
    parent = os.getpid()
    loader = DataLoader(
        Images(count * loading.batch, slow=loading.kind == "slow"),
        batch_size=loading.batch,
        num_workers=loading.workers,
        pin_memory=loading.pin_memory,
        multiprocessing_context="fork" if loading.workers else None,
        prefetch_factor=PREFETCHED if loading.workers else None,
        persistent_workers=False,
        collate_fn=partial(Batch, TENSORS if loading.kind == "many" else 1),
        worker_init_fn=lambda _: die_with_parent(parent),
    )
    with warnings.catch_warnings():
        # Workers are forked, PyTorch's own default on Linux; they use no thread of this process and no CUDA.
        warnings.filterwarnings("ignore", "This process .* is multi-threaded", DeprecationWarning)
        batches = iter(loader)
        try:
            with torch.cuda.device(device):
                yield batches
        finally:
            shut_down = getattr(batches, "_shutdown_workers", None)
            if shut_down:
                shut_down()
