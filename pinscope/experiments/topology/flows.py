"""Copies of one GPU in one direction, back to back, with an event after each."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Literal

from pinscope.lab.placement import preferring
from pinscope.lab.protocol import Lab

OneWay = Literal["h2d", "d2h"]


class Flow:
    """Pinned host memory, memory of the GPU, and copies from one to the other.

    Args:
        stack: releases what the flow takes.
        lab: of the GPU.
        way: ``h2d`` or ``d2h``.
        node: NUMA node of the host memory; ``None``: where the process takes its memory from.
        nbytes: of one copy.
        copies: how many follow each other.
    """

    def __init__(self, stack: ExitStack, lab: Lab, way: OneWay, *, node: int | None, nbytes: int, copies: int) -> None:
        self.lab = lab
        self._way = way
        self.stream = stack.enter_context(lab.stream())
        self._start = stack.enter_context(lab.event())
        self._ends = [stack.enter_context(lab.event()) for _ in range(copies)]
        self._device = stack.enter_context(lab.device_buffer(nbytes))
        with preferring(node):
            self._host = stack.enter_context(lab.host_buffer(nbytes, "pinned"))

    def prepare(self) -> None:
        """Lay other content on the target than on the source.

        The content of host memory comes from the GPU: memory that a processor has just written copies slower.
        """
        on_host, on_device = self.lab.fresh_pattern(), self.lab.fresh_pattern()
        self.lab.fill(self._device, on_host)
        self.lab.copy_to_host(self._host, self._device, self.stream)
        self.stream.synchronize()
        self.lab.fill(self._device, on_device)
        self._expected = on_host if self._way == "h2d" else on_device

    def queue(self) -> None:
        """Queue the copies; the stream may be held."""
        self._start.record(self.stream)
        for end in self._ends:
            if self._way == "h2d":
                self.lab.copy_to_device(self._device, self._host, self.stream)
            else:
                self.lab.copy_to_host(self._host, self._device, self.stream)
            end.record(self.stream)

    def is_over(self) -> bool:
        """Whether the last copy has ended."""
        return self._ends[-1].is_reached()

    def ends(self) -> list[float]:
        """When each copy ended, in seconds from the first one's start, by the GPU's events."""
        self.stream.synchronize()
        return [self.lab.elapsed(self._start, end) for end in self._ends]

    def wrong_words(self) -> int:
        """8-byte words of the target that the copies did not bring."""
        return self.lab.wrong_words(self._device if self._way == "h2d" else self._host, self._expected)
