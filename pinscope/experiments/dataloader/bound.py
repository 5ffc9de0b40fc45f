"""What bounds a training loop: the part of it that is busy for the largest share of a step.

By the utilization law each part is busy for (its time for one batch) × (batches a second), and a loop makes no more
steps than its busiest part allows (Denning & Buzen, "The operational analysis of queueing network models", ACM
Computing Surveys 10:3, 1978: the bottleneck). The parts are those that work at the same time:

- the workers, each on a batch of its own;
- PyTorch's pinning thread, one for all workers;
- the GPU's stream, which copies a batch and then computes on it;
- the training program in all the time in which it does not wait for the loader: it starts copies and kernels and gives
  batches back, and without workers it makes and pins them too. It may wait for the GPU in that time, so that it bounds
  the loop only where no other part is busy enough to.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from pinscope.experiments.dataloader.arithmetic import Combination

Part = Literal["workers", "program", "pinning", "copy", "compute"]
CLEAR = 0.8
"""From this share of a step on, the busiest part bounds the loop; below it the parts wait for each other in turn."""

TITLES: Mapping[Part, str] = {
    "workers": "making batches in the workers",
    "program": "the training program",
    "pinning": "PyTorch's pinning thread",
    "copy": "copying to the GPU",
    "compute": "computing",
}
"""In a few words."""


@dataclass(frozen=True)
class Busy:
    """How busy a part of a loop is.

    Attributes:
        part: which.
        share: of a step, at most 1.
    """

    part: Part
    share: float

    @property
    def clear(self) -> bool:
        """Whether it is busy enough to say that the rest waits for it."""
        return self.share >= CLEAR

    @property
    def title(self) -> str:
        """In a few words."""
        return TITLES[self.part]


def busy(one: Combination) -> list[Busy] | None:
    """All parts, the one that sets the pace first; ``None`` where the run did not time making and pinning.

    The GPU's stream stands under the longer one of its two tasks, with the time of both.
    """
    step, wait = one.seconds("step_seconds"), one.seconds("wait_seconds")
    make, copy, compute = (one.seconds(name) for name in ("make_seconds", "copy_seconds", "compute_seconds"))
    pin = one.seconds("pin_seconds") if one.pin_memory else 0.0
    if not step or wait is None or make is None or copy is None or compute is None or pin is None:
        return None
    parts: dict[Part, float] = {"copy" if copy > compute else "compute": copy + compute}
    parts["program"] = max(step - wait, 0.0) if one.workers else step
    if one.workers:
        parts["workers"] = make / one.workers
        if one.pin_memory:
            parts["pinning"] = pin
    shares = [Busy(part, min(seconds / step, 1.0)) for part, seconds in parts.items()]
    return sorted(shares, key=_rank, reverse=True)


def _rank(busy: Busy) -> tuple[bool, float]:
    return busy.clear and busy.part != "program", busy.share


def bound(one: Combination) -> Busy | None:
    """The part that sets the pace; ``None`` where :func:`busy` has no answer."""
    parts = busy(one)
    return parts[0] if parts else None


def advice(fastest: Combination, measured: Sequence[Combination]) -> str:
    """What could make the fastest of the measured loops faster; nothing that was measured to be slower."""
    found = bound(fastest)
    if found is None or not found.clear:
        return "The parts wait for each other in turn: see in the table what a step consists of."
    makes = found.part == "workers" or not fastest.workers
    if not makes or found.part in ("copy", "compute"):
        return _ADVICE[found.part]
    if any(one.workers > fastest.workers for one in measured):
        return f"More workers were no faster here: {_CHEAPER}."
    if fastest.workers:
        return f"Take more workers while there are idle processors, or {_CHEAPER}."
    return f"Take workers (num_workers), which make batches while the program goes on, or {_CHEAPER}."


_CHEAPER = "make items cheaper, or prepare the data once"
_FEWER_BYTES = "Hand over fewer bytes, such as uint8 images that the GPU converts."
_ADVICE: Mapping[Part, str] = {
    "program": _FEWER_BYTES,
    "pinning": f"PyTorch pins in one thread, whatever the number of workers. {_FEWER_BYTES}",
    "copy": _FEWER_BYTES,
    "compute": "Nothing in the loader: the GPU computes nearly all of the time.",
}
