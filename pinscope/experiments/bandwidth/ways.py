"""Kinds of host memory, and timed copies of them: what one takes, and what one more takes.

*One copy* is timed from an idle stream, *one more copy* as one of many in a row. Copies from memory that a device
reaches by itself are queued, with their events, behind a hold: the call that queues them is not in their time. Of
pageable memory the call itself is the copy, so nothing is held; its time begins with the call.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from pinscope.analysis.cells import LineStyle, Way, way
from pinscope.lab.backing import touch
from pinscope.lab.harness import Clock
from pinscope.lab.pattern import Pattern
from pinscope.lab.protocol import Copier, DeviceBuffer, HostBuffer, Lab, Stream
from pinscope.probes.host_memory import last_level_cache_bytes
from pinscope.records.run import Backing, Cache, HostMemory, OneWay

WAYS: dict[str, Way] = {
    "pinned": way("pinned", style=LineStyle("pinned", "circle")),
    "pageable": way("pageable", style=LineStyle("pageable", "diamond")),
    "write_combined": way("write-combined", style=LineStyle("write_combined", "square")),
    "mapped": way("mapped", style=LineStyle("mapped", "triangle-up")),
    "registered": way("registered", style=LineStyle("registered", "triangle-down")),
}
"""Kinds of host memory, in the order in which charts name them."""
Call = Callable[[], None]
Times = TypeVar("Times", float, NDArray[np.float64])
MOST_COPIES = 64
ROW_BYTES = 32 * 2**20
"""Copies in a row move at most this much; a larger copy is a row by itself."""
COLD_BYTES = 256 * 2**20
"""So much memory, or one copy if that is more, is cold after one filling."""
LEAST_CACHE_BYTES = 128 * 2**20
"""Taken for the caches where they are smaller or unknown: a virtual machine may be shown smaller ones than it has."""
LEAST_WARM_BYTES = 16 * 2**20
MOST_WARM_BYTES = 64 * 2**20
APART = 64 * 2**10
"""Cold copies begin at least so far from each other: a processor fetches what follows what it reads."""
PIECE = 2**20
LEADING_BYTES = 64 * 2**10
"""A larger copy takes the channel of one of this size."""


def copies_in_a_row(nbytes: int) -> int:
    """How many copies of that size *one more copy* is the mean of; 1: it is the one copy itself."""
    return max(1, min(MOST_COPIES, ROW_BYTES // nbytes))


def most_warm_bytes() -> int:
    """A copy beyond this size is never warm: the caches do not hold it, or what they hold is not worth the time."""
    return min(last_level_cache_bytes().value or LEAST_WARM_BYTES, MOST_WARM_BYTES)


def evicting_bytes() -> int:
    """So much written to memory drives everything older out of the processor's caches."""
    return 3 * max(last_level_cache_bytes().value or 0, LEAST_CACHE_BYTES) // 2 // PIECE * PIECE


@dataclass(frozen=True)
class HostState:
    """Which host memory is copied, and in which state it is before a copy.

    Attributes:
        memory: its kind.
        backing: what stands under it; ``None`` where the kind does not leave that open.
        cache: ``warm``: the processor wrote it right before. ``cold``: not since it left the caches. ``None``: a
            copy from the device laid its content, past the processor.
    """

    memory: HostMemory
    backing: Backing | None = None
    cache: Cache | None = None

    @property
    def words(self) -> str:
        """Such as ``pageable, 4k, cold``."""
        return ", ".join(filter(None, (self.memory, self.backing, self.cache)))

    def held_bytes(self, largest: int) -> int:
        """Host memory that copies of up to ``largest`` bytes take in one direction."""
        if self.cache == "cold":
            return max(largest, COLD_BYTES) + evicting_bytes()
        return max(largest, ROW_BYTES) if self.cache == "warm" else largest


class _LaidByDevice:
    """Content comes by a copy from the device, so that it is dirty in no cache of a processor.

    A source that was just written by a processor copies slower by up to a half: 31.9 instead of 54.8 GB/s at 16 MiB on
    an H200 host. One more copy follows, untimed, as the first one after that still meets other caches.
    """

    def __init__(self, lab: Lab, whole: HostBuffer, stream: Stream, stack: ExitStack, source: bool) -> None:
        self._lab, self._whole, self._stream, self._source = lab, whole, stream, source
        self._spare = stack.enter_context(lab.device_buffer(whole.nbytes))

    def lay(self, nbytes: int, copies: int) -> list[tuple[HostBuffer, Pattern]]:
        """Memory of the next copies in its state, with its content; copies take them in turn."""
        host, spare, pattern = self._whole.part(0, nbytes), self._spare.part(0, nbytes), self._lab.fresh_pattern()
        self._lab.fill(spare, pattern)
        self._lab.copy_to_host(host, spare, self._stream)
        if self._source:
            self._lab.copy_to_device(spare, host, self._stream)
        self._stream.synchronize()
        return [(host, pattern)]


class _Warm:
    """The thread that copies writes the whole of it right before, each copy's part once."""

    def __init__(self, lab: Lab, whole: HostBuffer) -> None:
        self._lab, self._whole = lab, whole

    def lay(self, nbytes: int, copies: int) -> list[tuple[HostBuffer, Pattern]]:
        pattern, end = self._lab.fresh_pattern(), nbytes * copies
        for at in range(0, end, PIECE):  # a lab shares large pieces out to other threads
            self._lab.fill(self._whole.part(at, min(PIECE, end - at)), pattern.part(at))
        return [(self._whole.part(at, nbytes), pattern.part(at)) for at in range(0, end, nbytes)]


class _Cold:
    """Each copy takes a part that nobody touched since more than the caches hold was written."""

    def __init__(self, lab: Lab, whole: HostBuffer) -> None:
        self._lab, self._whole = lab, whole
        self._end = whole.nbytes - evicting_bytes()
        self._next = self._end

    def lay(self, nbytes: int, copies: int) -> list[tuple[HostBuffer, Pattern]]:
        apart = max(nbytes, APART)
        if self._next + apart * (copies - 1) + nbytes > self._end:
            self._pattern = self._lab.fresh_pattern()
            self._lab.fill(self._whole, self._pattern)  # ends with what drives the rest out of the caches
            self._next = 0
        places = range(self._next, self._next + apart * copies, apart)
        self._next = places.stop
        return [(self._whole.part(at, nbytes), self._pattern.part(at)) for at in places]


class Flow:
    """One direction of a copy: its buffers, its stream and its events.

    Args:
        stack: releases what the flow takes.
        lab: where the copies run.
        direction: ``h2d`` or ``d2h``.
        state: of the host memory.
        largest: bytes of the largest copy.
    """

    def __init__(self, stack: ExitStack, lab: Lab, direction: OneWay, state: HostState, largest: int) -> None:
        self.lab = lab
        self.direction = direction
        self._state = state
        self.held = state.memory != "pageable"
        """Whether copies can be queued behind a hold."""
        self.stream = stack.enter_context(lab.stream())
        self.start = stack.enter_context(lab.event())
        self.end = stack.enter_context(lab.event())
        self._whole_device = stack.enter_context(lab.device_buffer(largest))
        self._host = _open_host(stack, lab, direction, state, nbytes=state.held_bytes(largest), stream=self.stream)
        if self.held:
            self._leading_host = stack.enter_context(
                lab.host_buffer(LEADING_BYTES, state.memory, state.backing or "4k")
            )
            self._leading_device = stack.enter_context(lab.device_buffer(LEADING_BYTES))
        self.resize(largest)

    def resize(self, nbytes: int) -> None:
        """Copy ``nbytes`` bytes from now on."""
        self.nbytes = nbytes
        self._device = self._whole_device.part(0, nbytes)

    def prepare(self, copies: int) -> None:
        """Bring the host memory of the next ``copies`` copies into its state, with fresh content on both sides."""
        self._laid = self._host.lay(self.nbytes, copies)
        self._renew()

    def again(self) -> None:
        """Prepare the same copy once more: what a copy leaves as it was is kept, which saves the time to lay it."""
        if self._state.cache:
            self.prepare(1)
        else:
            self._renew()

    def _renew(self) -> None:
        """Lay fresh content on the device, so that only a later copy can pass the check."""
        self._on_device = self.lab.fresh_pattern()
        self.lab.fill(self._device, self._on_device)

    def sides(self, copies: int) -> list[tuple[HostBuffer, DeviceBuffer]]:
        """Host and device memory of each of the next copies."""
        return [(self._laid[number % len(self._laid)][0], self._device) for number in range(copies)]

    def calls(self, copier: Copier, copies: int) -> list[Call]:
        """The calls that queue the next copies."""
        return [self._call(copier, host, device) for host, device in self.sides(copies)]

    def lead(self, copier: Copier) -> None:
        """Queue a copy of the same kind and size, at most 64 KiB, of memory that no timed copy takes."""
        nbytes = min(self.nbytes, LEADING_BYTES)
        self._call(copier, self._leading_host.part(0, nbytes), self._leading_device.part(0, nbytes))()

    def _call(self, copier: Copier, host: HostBuffer, device: DeviceBuffer) -> Call:
        if self.direction == "h2d":
            return partial(self.lab.copy_to_device, device, host, self.stream, copier)
        return partial(self.lab.copy_to_host, host, device, self.stream, copier)

    def wrong_words(self) -> int:
        """Words that the last of the copies did not bring."""
        host, in_host = self._laid[-1]
        if self.direction == "h2d":
            return self.lab.wrong_words(self._device, in_host)
        return self.lab.wrong_words(host, self._on_device)


def _open_host(
    stack: ExitStack, lab: Lab, direction: OneWay, state: HostState, *, nbytes: int, stream: Stream
) -> _LaidByDevice | _Warm | _Cold:
    if state.memory == "pageable" and state.backing:
        whole = stack.enter_context(lab.ordinary_memory(nbytes, state.backing))
        touch(whole)
    else:
        whole = stack.enter_context(lab.host_buffer(nbytes, state.memory, state.backing or "4k"))
    if state.cache == "cold":
        return _Cold(lab, whole)
    if state.cache == "warm":
        return _Warm(lab, whole)
    return _LaidByDevice(lab, whole, stream, stack, direction == "h2d")


@dataclass(frozen=True)
class Timing:
    """What copies that ran side by side took, in seconds.

    Attributes:
        wall_seconds: from before the first call to after the synchronisation, by the host clock.
        issue_seconds: how long the calls kept the CPU.
    """

    wall_seconds: float
    issue_seconds: float


def time_copies(flows: Sequence[Flow], copier: Copier, copies: int, clock: Clock, events: bool = True) -> Timing:
    """Run ``copies`` copies of each flow, all flows of one device side by side; the flows have been prepared.

    With events, whole and own times can be read from the flows afterwards; where copies can be held, those of all
    flows begin together, within a microsecond on an H200, once all of them are queued. Without, all is done as by a
    program that does not measure.
    """
    calls, held = _calls(flows, copier, copies), events and flows[0].held
    if held:
        _lead(flows, copier)
    # A kernel that copies both ways runs in the first flow's stream: the other one's events stand there, too.
    streams = [flows[0].stream if copier == "kernel" else flow.stream for flow in flows]
    with ExitStack() as holds:
        if held:
            holds.enter_context(flows[0].lab.hold(*(flow.stream for flow in flows)))
        if events:
            for flow, stream in zip(flows, streams, strict=True):
                flow.start.record(stream)
        begun = clock()
        for call in calls:
            call()
        issue = clock() - begun
        if events:
            for flow, stream in zip(flows, streams, strict=True):
                flow.end.record(stream)
    for flow in flows:
        flow.stream.synchronize()
    return Timing(clock() - begun, issue)


def _lead(flows: Sequence[Flow], copier: Copier) -> None:
    """End the work of each stream with a held copy of its own kind, so that what follows stays in one channel.

    The driver chooses a channel for each copy: by its direction, and on an idle stream another one for 16 KiB and less
    to the device. A hold and an event stay in the channel of the stream's last work. Where the copy changes the
    channel, the one looks for the end of the other in steps of a microsecond and more: 4 KiB to the device took 5.7 to
    13 µs on an H200 host, where they take 5.2 in one channel, held for 0 or for 60 µs.
    """
    with flows[0].lab.hold(*(flow.stream for flow in flows)):
        for flow in flows:
            flow.lead(copier)
    for flow in flows:
        flow.stream.synchronize()


def _calls(flows: Sequence[Flow], copier: Copier, copies: int) -> list[Call]:
    """The calls of all flows, a copy of each in turn. Kernels copy both ways as one."""
    if copier == "kernel" and len(flows) > 1:
        inward, outward = sorted(flows, key=lambda flow: flow.direction, reverse=True)
        sides = zip(inward.sides(copies), outward.sides(copies), strict=True)
        both, stream = inward.lab.copy_both_ways, flows[0].stream
        return [partial(both, there, source, target, back, stream) for (source, there), (target, back) in sides]
    calls = [flow.calls(copier, copies) for flow in flows]
    return [call for turn in zip(*calls, strict=True) for call in turn]


def whole_seconds(flows: Sequence[Flow]) -> float:
    """Device seconds from the first start to the last end of one device's flows."""
    return max(first.lab.elapsed(first.start, last.end) for first in flows for last in flows)


def counted_seconds(flows: Sequence[Flow]) -> float:
    """Device seconds by which a rate is counted; of copies that a thread has to make in turn the whole time."""
    if len(flows) == 1 or not flows[0].held:
        return whole_seconds(flows)
    return both_ways_seconds(*(flow.lab.elapsed(flow.start, flow.end) for flow in flows))


def both_ways_seconds(h2d: Times, d2h: Times) -> Times:
    """Of copies that began together: the rates of both ways add up, as each is while both copy. So counts topology."""
    return 2 / (1 / h2d + 1 / d2h)
