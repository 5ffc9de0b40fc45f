"""What can be turned on in a training loop, and how a DataLoader is set up. Knows no PyTorch, so a budget can ask."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from pinscope.analysis.cells import Way, way

CHANNELS, PIXELS = 3, 224
"""Of an image: its channels, of 4 bytes a pixel, and its height and width."""
IMAGE_BYTES = CHANNELS * PIXELS**2 * 4
KINDS = 64
"""Different images that a worker makes items from."""
PREFETCHED = 2
"""Batches that each of PyTorch's workers makes ahead (DataLoader's prefetch_factor)."""
BACKLOGS = 12
"""A combination takes at least so many times the batches made ahead: the first steps use up what the workers made
while they started, and what comes after must be long enough to know its pace."""
TENSORS = 60
"""Of a batch that is many: as models of molecules or graphs have."""
SLOW_SECONDS = 2e-3
"""Processor time that an item takes beyond the usual where it is slow to make, as to decode a photograph."""
BatchKind = Literal["one", "many", "slow"]
BATCHES: Mapping[BatchKind, Way] = {
    "one": way("one tensor", help="all images in one tensor"),
    "many": way(f"{TENSORS} tensors", help=f"the same bytes in {TENSORS} tensors"),
    "slow": way(
        "slow items",
        help=f"one tensor, of items that take {SLOW_SECONDS * 1e3:g} ms longer to make: workers are the limit",
    ),
}


@dataclass(frozen=True, kw_only=True)
class Setting(Way):
    """Something to turn on.

    Attributes:
        on, off: (pin_memory, non_blocking) with it and without.
        code: what to write, where it makes the loop faster.
        given: when that is advised, behind the number of workers.
    """

    on: tuple[bool, bool]
    off: tuple[bool, bool] = (False, False)
    code: str
    given: str = ""


_COPY = "batch.to(device, non_blocking=True)."
WAYS: Mapping[str, Setting] = {
    "pinned-batches": Setting(
        "pin_memory with non_blocking", on=(True, True), code=f"DataLoader(..., pin_memory=True) and {_COPY}"
    ),
    "pin-memory-alone": Setting("pin_memory alone", on=(True, False), code="DataLoader(..., pin_memory=True)."),
    "non-blocking-pinned": Setting(
        "non_blocking copies of pinned batches",
        on=(True, True),
        off=(True, False),
        code=_COPY,
        given=", if batches are pinned anyway",
    ),
    "non-blocking-alone": Setting("non_blocking copies of pageable batches", on=(False, True), code=_COPY),
}
"""Rule of its findings → setting."""
BOTH = "pinned-batches"
"""The setting that verdict and headline are about."""
PARTS: Mapping[str, tuple[Way, str]] = {
    "workers": (Way("making batches in the workers"), "workers"),
    "program": (Way("the training program"), "issue"),
    "pinning": (Way("PyTorch's pinning thread"), "pinned"),
    "copy": (Way("copying to the GPU", "the GPU's copies and kernels"), "copy"),
    "compute": (Way("computing", "the GPU's copies and kernels"), "compute"),
}
"""Parts of a loop that work at the same time: what they are called, and the key of their colour."""


POOL_SETTINGS: Mapping[str, str] = {
    "in_force": "as set here",
    "none": "nothing set",
    "register": "registers",
    "segment": "reserved segment",
    "unrounded": "no rounding",
}
"""Setting of PyTorch's pool → for people."""


@dataclass(frozen=True)
class Loading:
    """How a loader is set up.

    Attributes:
        workers: processes that make items; 0: the program itself does.
    """

    batch: int
    workers: int
    pin_memory: bool
    non_blocking: bool
    kind: BatchKind = "one"

    @property
    def batch_bytes(self) -> int:
        """Of the images of one batch."""
        return self.batch * IMAGE_BYTES

    @property
    def tensor_bytes(self) -> int:
        """Of one of its tensors."""
        return -(-self.batch_bytes // TENSORS) if self.kind == "many" else self.batch_bytes

    @property
    def ahead(self) -> int:
        """Batches that the workers make ahead, together."""
        return PREFETCHED * self.workers

    @property
    def shared_bytes(self) -> int:
        """What workers hand over through /dev/shm: the batches made ahead, and the one that the program uses."""
        return (self.ahead + 1) * self.batch_bytes if self.workers else 0

    def at_least(self, steps: int) -> int:
        """``steps``, or as many more as it takes to see past the batches made ahead."""
        return max(steps, BACKLOGS * self.ahead)
