"""How a PyTorch DataLoader is set up and what it takes of the host. Knows no PyTorch, so that a budget can ask."""

from __future__ import annotations

from dataclasses import dataclass

CHANNELS = 3
KINDS = 64
"""Different images that a worker makes items from."""
PREFETCHED = 2
"""Batches that each of PyTorch's workers makes ahead (DataLoader's prefetch_factor)."""
BACKLOGS = 12
"""A combination takes at least so many times the batches made ahead: the first steps use up what the workers made
while they started, and what comes after must be long enough to know its pace."""


@dataclass(frozen=True)
class Loading:
    """How a loader is set up.

    Attributes:
        batch: items in a batch.
        pixels: height and width of an image.
        workers: processes that make items; 0: the program itself does.
        pin_memory: whether batches are copied to pinned memory.
        non_blocking: whether the program asks for asynchronous copies.
    """

    batch: int
    pixels: int
    workers: int
    pin_memory: bool
    non_blocking: bool

    @property
    def image_bytes(self) -> int:
        """Of one image."""
        return CHANNELS * self.pixels**2 * 4

    @property
    def batch_bytes(self) -> int:
        """Of the images of one batch."""
        return self.batch * self.image_bytes

    @property
    def made_bytes(self) -> int:
        """Of the images that items are made from; forked workers share them."""
        return KINDS * self.image_bytes

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
