"""One process of the experiment: a program that :mod:`pinscope.lab.child_processes` starts.

It opens a lab on each of its GPUs (a context each), then carries out orders to copy on several GPUs at once.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack

from pinscope.lab.child_processes import Reply, serve_requests
from pinscope.lab.harness import open_lab, use_each_part_once
from pinscope.lab.hostengine import wait_until
from pinscope.lab.placement import preferring
from pinscope.lab.protocol import Lab
from pinscope.records.run import Direction


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

    def __init__(
        self, stack: ExitStack, lab: Lab, way: Direction, *, node: int | None, nbytes: int, copies: int
    ) -> None:
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


class Member:
    """What one process holds and can do: each public method is an order.

    Args:
        device_ids: GPU → :attr:`Lab.device_id`, on which its lab is opened.
        seed: of the content.
    """

    def __init__(self, device_ids: Mapping[str, str], seed: int) -> None:
        self._labs: dict[int, Lab] = {int(gpu): open_lab(device_id, seed) for gpu, device_id in device_ids.items()}
        self._open, self._taken = ExitStack(), ExitStack()
        self._flows: dict[tuple[int, Direction], Flow] = {}

    def start(self) -> Reply:
        """Open the labs, and use each part of them once."""
        for lab in self._labs.values():
            use_each_part_once(self._open.enter_context(lab))
        return {}

    def take(self, nodes: Mapping[str, int | None], nbytes: int, ways: Sequence[Direction], copies: int) -> Reply:
        """Take buffers for copies: for each GPU host memory from its node. Gives the nodes on which they lie."""
        seen = {}
        for device, node in nodes.items():
            lab = self._labs[int(device)]
            for way in ways:
                self._flows[int(device), way] = Flow(self._taken, lab, way, node=node, nbytes=nbytes, copies=copies)
            seen[device] = lab.host_nodes.take()
        return {"on_nodes": seen, "nodes": sorted({node for nodes in seen.values() for node in nodes})}

    def give_back(self) -> Reply:
        """Give the buffers back."""
        self._flows.clear()
        self._taken.close()
        return {}

    def prepare(self, devices: Sequence[int], ways: Sequence[Direction]) -> Reply:
        """Lay the content of the next copies."""
        for flow in self._chosen(devices, ways).values():
            flow.prepare()
        return {}

    def copy(self, devices: Sequence[int], ways: Sequence[Direction], at: float | None) -> Reply:
        """Queue the copies of these GPUs behind holds that end together, at that moment of the monotonic clock."""
        flows = self._chosen(devices, ways)
        with ExitStack() as holds:
            for device in devices:
                own = [flow.stream for (index, _), flow in flows.items() if index == device]
                holds.enter_context(self._labs[device].hold(*own))
            for flow in flows.values():
                flow.queue()
            if at is not None:
                wait_until(at, time.monotonic)
        seen = _watch(flows)
        flights = []
        for (device, way), flow in flows.items():
            ends = flow.ends()
            flights.append({"device": device, "way": way, "begun": seen[device, way] - ends[-1], "ends": ends})
        return {"flights": flights}

    def check(self, devices: Sequence[int], ways: Sequence[Direction]) -> Reply:
        """Words that the last copies did not bring."""
        flows = self._chosen(devices, ways)
        return {"wrong": [{"device": at, "way": way, "words": flow.wrong_words()} for (at, way), flow in flows.items()]}

    def end(self) -> Reply:
        """Give everything back."""
        self._taken.close()
        self._open.close()
        return {}

    def _chosen(self, devices: Sequence[int], ways: Sequence[Direction]) -> dict[tuple[int, Direction], Flow]:
        return {(device, way): self._flows[device, way] for device in devices for way in ways}


def _watch(flows: Mapping[tuple[int, Direction], Flow]) -> dict[tuple[int, Direction], float]:
    """When each flow's last copy ended, as seen by the host's monotonic clock.

    All are polled in turn: to wait for one would hide when the others end.
    """
    seen: dict[tuple[int, Direction], float] = {}
    while len(seen) < len(flows):
        for of, flow in flows.items():
            if of not in seen and flow.is_over():
                seen[of] = time.monotonic()
        time.sleep(0)  # the host model's engines are threads of the same interpreter
    return seen


if __name__ == "__main__":
    sys.exit(serve_requests(Member))
