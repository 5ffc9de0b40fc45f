"""One process of the experiment: a program that :mod:`pinscope.lab.child_processes` starts.

It opens a lab on each of its GPUs (a context each), then carries out orders: registers memory, copies on several GPUs
at once, exports memory of a GPU, or opens another process's.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import Literal

from pinscope.errors import MeasurementFailed
from pinscope.experiments.topology.ways import OneWay
from pinscope.lab.backing import touch
from pinscope.lab.first_use import use_each_part_once
from pinscope.lab.hostengine import wait_until
from pinscope.lab.opening import open_lab
from pinscope.lab.orders import Reply, obey
from pinscope.lab.pattern import Pattern
from pinscope.lab.placement import preferring
from pinscope.lab.protocol import Lab, MemoryState


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


class Member:
    """What one process holds and can do: each public method is an order.

    Args:
        places: GPU → where its lab is opened.
        seed: of the content; processes with the same one know each other's patterns.
        descriptor: of the memory that all processes register.
        nbytes: how long that is.
    """

    def __init__(self, places: Mapping[str, str], seed: int, descriptor: int, nbytes: int) -> None:
        self._labs: dict[int, Lab] = {int(device): open_lab(place, seed) for device, place in places.items()}
        self._descriptor, self._nbytes = descriptor, nbytes
        self._open = ExitStack()
        self._registered, self._taken, self._shared = ExitStack(), ExitStack(), ExitStack()
        self._flows: dict[tuple[int, OneWay], Flow] = {}

    def start(self) -> Reply:
        """Open the labs, and use each part of them once."""
        for lab in self._labs.values():
            use_each_part_once(self._open.enter_context(lab))
        return {}

    def used(self) -> Reply:
        """GPU memory that is used by everybody, on each GPU of this process: NVML's figure, else cudaMemGetInfo's."""
        return {"used": {device: _used(lab.memory_state()) for device, lab in self._labs.items()}}

    def register(self, first: bool) -> Reply:
        """Map the memory that all share and register it; the first process touches it before."""
        lab = next(iter(self._labs.values()))
        memory = self._registered.enter_context(lab.ordinary_memory(self._nbytes, descriptor=self._descriptor))
        if first:
            touch(memory)
        begun = time.monotonic()
        self._registered.enter_context(lab.register(memory))
        return {"seconds": time.monotonic() - begun, "nodes": lab.host_nodes.take()}

    def unregister(self) -> Reply:
        """Give it back."""
        self._registered.close()
        return {}

    def take(self, nodes: Mapping[str, int | None], nbytes: int, ways: Sequence[OneWay], copies: int) -> Reply:
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

    def prepare(self, devices: Sequence[int], ways: Sequence[OneWay]) -> Reply:
        """Lay the content of the next copies."""
        for flow in self._chosen(devices, ways).values():
            flow.prepare()
        return {}

    def copy(self, devices: Sequence[int], ways: Sequence[OneWay], at: float | None) -> Reply:
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

    def check(self, devices: Sequence[int], ways: Sequence[OneWay]) -> Reply:
        """Words that the last copies did not bring."""
        flows = self._chosen(devices, ways)
        return {"wrong": [{"device": at, "way": way, "words": flow.wrong_words()} for (at, way), flow in flows.items()]}

    def export(self, device: int, nbytes: int) -> Reply:
        """Take GPU memory that another process can open, with some content."""
        lab = self._labs[device]
        self._target, handle = self._shared.enter_context(lab.exported_buffer(nbytes))
        self._target_lab = lab
        lab.fill(self._target, lab.fresh_pattern())
        return {"handle": handle}

    def reach(self, device: int, handle: str, nbytes: int) -> Reply:
        """Open another process's GPU memory with this GPU as the current one, and take what is copied there."""
        lab = self._labs[device]
        begun = time.monotonic()
        try:
            self._target = self._shared.enter_context(lab.imported_buffer(handle, nbytes))
        except MeasurementFailed as error:
            return {"refused": str(error)}
        seconds = time.monotonic() - begun
        self._target_lab = lab
        self._host = self._shared.enter_context(lab.host_buffer(nbytes, "pinned"))
        self._device = self._shared.enter_context(lab.device_buffer(nbytes))
        return {"refused": None, "seconds": seconds}

    def through(self, source: Literal["host", "device"], copies: int) -> Reply:
        """Copy new content there, back to back; the time by the GPU's events, and the content's pattern."""
        lab, pattern = self._target_lab, self._target_lab.fresh_pattern()
        with ExitStack() as stack:
            stream = stack.enter_context(lab.stream())
            start, end = stack.enter_context(lab.event()), stack.enter_context(lab.event())
            lab.fill(self._device, pattern)
            lab.copy_to_host(self._host, self._device, stream)
            stream.synchronize()
            with lab.hold(stream):
                start.record(stream)
                for _ in range(copies):
                    if source == "host":
                        lab.copy_to_device(self._target, self._host, stream)
                    else:
                        lab.copy_on_devices(self._target, self._device, stream)
                end.record(stream)
            stream.synchronize()
            seconds = lab.elapsed(start, end)
        return {"seconds": seconds, "offset": pattern.offset, "key": pattern.key}

    def verify(self, offset: int, key: int) -> Reply:
        """Words of the exported memory that another process did not bring."""
        return {"wrong": self._target_lab.wrong_words(self._target, Pattern(offset, key))}

    def let_go(self) -> Reply:
        """Close what was opened, or free what was exported."""
        self._shared.close()
        return {}

    def end(self) -> Reply:
        """Give everything back."""
        for held in (self._shared, self._taken, self._registered, self._open):
            held.close()
        return {}

    def _chosen(self, devices: Sequence[int], ways: Sequence[OneWay]) -> dict[tuple[int, OneWay], Flow]:
        return {(device, way): self._flows[device, way] for device in devices for way in ways}


def _used(state: MemoryState) -> int | None:
    return state.device_used_bytes if state.nvml_used_bytes is None else state.nvml_used_bytes


def _watch(flows: Mapping[tuple[int, OneWay], Flow]) -> dict[tuple[int, OneWay], float]:
    """When each flow's last copy ended, as seen by the host's monotonic clock.

    All are polled in turn: to wait for one would hide when the others end.
    """
    seen: dict[tuple[int, OneWay], float] = {}
    while len(seen) < len(flows):
        for of, flow in flows.items():
            if of not in seen and flow.is_over():
                seen[of] = time.monotonic()
        time.sleep(0)  # the host model's engines are threads of the same interpreter
    return seen


if __name__ == "__main__":
    sys.exit(obey(Member))
