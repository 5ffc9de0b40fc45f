"""One of several processes that share host memory: a program that :mod:`pinscope.lab.child_processes` starts.

It opens a lab on each of its GPUs (a context each), then carries out orders, most of them on the first.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import asdict
from typing import Literal

from pinscope.errors import MeasurementFailed
from pinscope.lab.child_processes import Reply, serve_requests
from pinscope.lab.harness import open_lab, use_each_part_once
from pinscope.lab.pattern import WORD_BYTES, Pattern
from pinscope.lab.pinning import default_threads, read_pages, touch_all, touch_pages
from pinscope.lab.protocol import DeviceBuffer, HostBuffer
from pinscope.probes.host_memory import page_table_bytes


class Member:
    """What one process holds and can do: each public method is an order.

    Args:
        rank: its number, from 0.
        device_ids: GPU → :attr:`pinscope.lab.protocol.Lab.device_id`, on which its lab is opened.
        seed: of their content.
        descriptor: of the memory that all share.
        nbytes: how long that is.
    """

    def __init__(self, rank: int, device_ids: Mapping[str, str], seed: int, descriptor: int, nbytes: int) -> None:
        self._rank, self._descriptor, self._nbytes = rank, descriptor, nbytes
        self._labs = {gpu: open_lab(device_id, seed) for gpu, device_id in device_ids.items()}
        self._lab = next(iter(self._labs.values()))
        self._open, self._held = ExitStack(), ExitStack()
        self._targets: dict[int, DeviceBuffer] = {}
        self._source: HostBuffer | None = None

    def start(self) -> Reply:
        """Open the labs, and use each part of them once."""
        for lab in self._labs.values():
            use_each_part_once(self._open.enter_context(lab))
        return {"kernel_tables": page_table_bytes().value}

    def used(self) -> Reply:
        """Memory of each GPU that is used by everybody, by either meter."""
        states = {gpu: lab.memory_state() for gpu, lab in self._labs.items()}
        meters = ("device_used_bytes", "nvml_used_bytes")
        return {"used": {gpu: {name: getattr(state, name) for name in meters} for gpu, state in states.items()}}

    def export(self, nbytes: int) -> Reply:
        """Take device memory that others can reach."""
        buffer, handle = self._held.enter_context(self._lab.exported_buffer(nbytes))
        self._targets[self._rank] = buffer
        return {"handle": handle, "kernel_tables": page_table_bytes().value}

    def reach(self, handles: dict[str, str], nbytes: int) -> Reply:
        """Open the device memory of others, by rank."""
        for rank, handle in handles.items():
            self._targets[int(rank)] = self._held.enter_context(self._lab.imported_buffer(handle, nbytes))
        return {"kernel_tables": page_table_bytes().value}

    def open(self, owner: int, handle: str, nbytes: int) -> Reply:
        """Open memory of another GPU with this one as the current device, and take what is copied there."""
        begun = time.monotonic()
        try:
            self._targets[owner] = self._held.enter_context(self._lab.imported_buffer(handle, nbytes))
        except MeasurementFailed as error:
            return {"refused": str(error)}
        seconds = time.monotonic() - begun
        self._source = self._held.enter_context(self._lab.host_buffer(nbytes, "pinned"))
        self._device = self._held.enter_context(self._lab.device_buffer(nbytes))
        return {"refused": None, "seconds": seconds}

    def through(self, owner: int, source: Literal["host", "device"], copies: int) -> Reply:
        """Copy new content there, back to back; the time by the GPU's events, and the content's pattern."""
        lab, host, target, pattern = self._lab, self._host(), self._targets[owner], self._lab.fresh_pattern()
        with ExitStack() as stack:
            stream = stack.enter_context(lab.stream())
            start, end = stack.enter_context(lab.event()), stack.enter_context(lab.event())
            lab.fill(self._device, pattern)
            lab.copy_to_host(host, self._device, stream)
            stream.synchronize()
            with lab.hold(stream):
                start.record(stream)
                for _ in range(copies):
                    if source == "host":
                        lab.copy_to_device(target, host, stream)
                    else:
                        lab.copy_on_devices(target, self._device, stream)
                end.record(stream)
            stream.synchronize()
            seconds = lab.elapsed(start, end)
        return {"seconds": seconds, "pattern": asdict(pattern)}

    def register(self, first: bool, portable: bool = False) -> Reply:
        """Map the shared memory and pin it, for all contexts or not, as ``pinscope.pinned_empty(shared=…)`` does."""
        memory = self._held.enter_context(self._lab.ordinary_memory(self._nbytes, descriptor=self._descriptor))
        begun = time.monotonic()
        touch_all(memory.address, self._nbytes, default_threads(), touch_pages if first else read_pages)
        touched = time.monotonic()
        self._source = self._held.enter_context(self._lab.register(memory, portable))
        return self._pinned(touched, touched - begun) if first else self._pinned(begun, None)

    def own(self) -> Reply:
        """Allocate pinned memory that nobody else maps."""
        begun = time.monotonic()
        self._source = self._held.enter_context(self._lab.host_buffer(self._nbytes, "pinned"))
        return self._pinned(begun, None)

    def _pinned(self, begun: float, touch_seconds: float | None) -> Reply:
        pinning = {"touch_seconds": touch_seconds, "pin_seconds": time.monotonic() - begun}
        return pinning | {"kernel_tables": page_table_bytes().value, "nodes": self._lab.host_nodes.take()}

    def fill(self, offset: int, key: int) -> Reply:
        """Lay the pattern over the host memory."""
        self._lab.fill(self._host(), Pattern(offset, key))
        return {}

    def clear(self) -> Reply:
        """Make the own device memory differ from whatever comes."""
        self._lab.fill(self._targets[self._rank], self._lab.fresh_pattern())
        return {}

    def copy(self, starts: dict[str, int]) -> Reply:
        """Copy all of the host memory through each target, window by window from its start; all at once."""
        source = self._host()
        with ExitStack() as stack:
            jobs = [
                (self._targets[int(rank)], start, stack.enter_context(self._lab.stream()))
                for rank, start in starts.items()
            ]
            window = jobs[0][0].nbytes
            count = self._nbytes // window
            begun = time.monotonic()
            for number in range(count):
                for target, start, stream in jobs:
                    part = source.part((start + number) % count * window, window)
                    self._lab.copy_to_device(target, part, stream)
            for _, _, stream in jobs:
                stream.synchronize()
            ended = time.monotonic()
        return {"begun": begun, "ended": ended, "copied": count * window}

    def check(self, offset: int, key: int) -> Reply:
        """Compare the own device memory with what was copied there last."""
        target = self._targets[self._rank]
        wrong = self._lab.wrong_words(target, Pattern(offset, key))
        return {"wrong_words": wrong, "checked_words": target.nbytes // WORD_BYTES}

    def release(self) -> Reply:
        """Give all memory back."""
        self._held.close()
        return {}

    def end(self) -> Reply:
        """Give everything back."""
        self._held.close()
        self._open.close()
        return {}

    def _host(self) -> HostBuffer:
        if self._source is None:
            raise ValueError("nothing is pinned yet")
        return self._source


if __name__ == "__main__":
    sys.exit(serve_requests(Member))
