"""Copies of the processes that somebody asked for, summed up by call, direction, size and kind of host memory.

Host memory is pinned where the probe saw it pinned, and where it is mapped as cudaHostAlloc or driver memory is, also
from before the probe. Memory that was registered before has no mark: elsewhere is unknown, unless nothing is pinned on
the host that nobody is known to have pinned.
"""

from __future__ import annotations

import re
import time
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Literal

from pinscope.probes.copy_calls import COPY_CALLS, CopyProbe, pid_and_call
from pinscope.probes.proc import HERE, Proc
from pinscope.probes.process import UVM, ZERO, Extent, MemoryMaps, parse_maps, start_ticks
from pinscope.probes.uprobes import Executed, Returned, TraceEvent
from pinscope.records.figure import at_least, at_most, bound_of_sum
from pinscope.records.registration import Copies, CopyMemory, CopySum, LinkDirection
from pinscope.units import format_bytes

Side = Literal["pinned", "host", "managed", "unseen"]
"""``unseen``: nothing was mapped there when the process was looked at, and it is too early to look again."""
OLDEST_LOOK_SECONDS = 1.0
"""A process's mappings are looked at again after this, and when it pins or releases memory."""
LOOK_SHARE = 0.05
"""Of the time, at most, that looking at a process's mappings takes."""
MOST_BYTES = 2**50
"""More than any host has: such a copy fails."""
_MAPPING = re.compile(
    # start, end, what can be read or written, device, inode, name
    r"^([0-9a-f]{1,16})-([0-9a-f]{1,16}) (?:r.|.w).. [0-9a-f]+ (\S+) ([0-9]{1,20}) *(.*)$",
    re.ASCII | re.MULTILINE,
)


class Ranges:
    """Addresses, each of one kind: begin, end and kind of ranges that do not overlap."""

    def __init__(self, ranges: Iterable[tuple[int, int, Side]] = ()) -> None:
        self._ranges = sorted(ranges)
        self._begins = [begin for begin, _, _ in self._ranges]

    def at(self, address: int) -> Side | None:
        """The kind of an address; ``None`` where there is none."""
        place = bisect_right(self._begins, address) - 1
        return self._ranges[place][2] if place >= 0 and address < self._ranges[place][1] else None


def host_ranges(text: str) -> Ranges:
    """What a process can read or write, of its /proc/PID/maps; GPU memory is address space that it cannot."""
    maps = parse_maps(text)
    return Ranges(_range(match, maps) for match in _MAPPING.finditer(text))


def _range(match: re.Match[str], maps: MemoryMaps) -> tuple[int, int, Side]:
    begin, end, device, inode, name = match.groups()
    extent = (int(begin, 16), int(end, 16))
    if name == UVM:
        return *extent, "managed"
    is_pinned = extent in maps.driver or (name == ZERO and (device, int(inode)) in maps.shared_zero)
    return *extent, "pinned" if is_pinned else "host"


@dataclass
class _Process:
    """What is known of one process."""

    sums: dict[tuple[str, LinkDirection, CopyMemory, int], list[int]] = field(default_factory=dict)
    uncounted: int = 0
    mapped: Ranges = field(default_factory=Ranges)
    is_stale: bool = True
    """It has pinned or released memory since it was looked at."""
    looked_at: float = 0.0
    look_seconds: float = 0.0
    pinned: Ranges | None = None
    """Where the probe saw it pin memory; ``None``: to be asked again."""

    def add(self, call: str, direction: LinkDirection, memory: CopyMemory, size: int, times: int) -> None:
        most = 1 << -(-max(size - 1, 0).bit_length() // 2) * 2
        count = self.sums.setdefault((call, direction, memory, most), [0, 0])
        count[0] += times
        count[1] += times * size


class CopyCounter:
    """Counts the copies of certain processes; of none, nothing is done. ``trouble``: why nothing can be counted."""

    def __init__(self, pids: Collection[int], proc: Proc = HERE) -> None:
        self._proc = proc
        self._processes = {pid: _Process() for pid in pids}
        self._moments: list[int] = []
        self._calls: list[tuple[int, int, int, int]] = []
        self._started = {pid: start_ticks(pid, proc).value for pid in pids}
        self._counts_since = 0.0
        self._since = datetime.now(UTC)
        self._probe: CopyProbe | None = None
        self.trouble: str | None = None
        if pids:
            try:
                self._probe = CopyProbe(pids, proc)
            except OSError as error:
                self._give_up(error)

    def _give_up(self, error: OSError) -> None:
        self.close()
        self.trouble = f"the kernel does not let PinScope count copies: {error.strerror or error}"

    def add(self, place: str, offsets: Mapping[str, int]) -> None:
        """Set the probes in the library at a path, at the offsets of the driver's functions that copy."""
        if self._probe is not None:
            try:
                self._probe.add(place, offsets)
            except OSError as error:
                self._give_up(error)
            self._since = datetime.now(UTC)

    def follow(
        self,
        events: Sequence[TraceEvent],
        until: int,
        apply: Callable[[Sequence[TraceEvent]], None],
        pinned_by: Callable[[int], Iterable[Extent]],
    ) -> None:
        """Apply events and count copies, in the order of their time.

        Args:
            events: read from the kernel's trace just now.
            until: nanoseconds since boot, just before they were read; copies since then are kept for the next time, as
                events may be missing that came before them.
            apply: takes events.
            pinned_by: gives begin and end of all memory that, by the events, a process has pinned.
        """
        if self._probe is None:
            apply(events)
            return
        copies = self._probe.read()
        self._moments += copies.nanoseconds
        self._calls += copies.calls
        begin = 0
        for place, event in enumerate(events):
            if not isinstance(event, Returned | Executed) or event.process not in (*self._processes, None):
                continue
            if self._moments and self._moments[0] < event.seconds * 1e9:
                apply(events[begin:place])
                self._count(int(event.seconds * 1e9), pinned_by)
                begin = place
            for process in self._processes.values():
                process.is_stale, process.pinned = True, None
        apply(events[begin:])
        self._count(until, pinned_by)

    def _count(self, until: int, pinned_by: Callable[[int], Iterable[Extent]]) -> None:
        """Count what was copied before that."""
        self._counts_since = time.monotonic()
        end = bisect_left(self._moments, until)
        for (word, *arguments), times in Counter(self._calls[:end]).items():
            pid, call = pid_and_call(word)
            if (process := self._processes.get(pid)) is not None:
                if process.pinned is None:
                    process.pinned = Ranges((begin, last, "pinned") for begin, last in pinned_by(pid))
                self._add(pid, process, call, arguments, times)
        del self._moments[:end], self._calls[:end]

    def _add(self, pid: int, process: _Process, call: str, arguments: Sequence[int], times: int) -> None:
        to, source, size = arguments
        way = COPY_CALLS[call]
        if way == "uncounted":
            process.uncounted += times
        elif size < MOST_BYTES:
            sides = [None if way == on_gpu else self._side(pid, process, address)
                     for on_gpu, address in (("h2d", to), ("d2h", source))]  # fmt: skip
            to_host, from_host = (side in ("pinned", "host") for side in sides)
            memory: CopyMemory = "pinned" if "pinned" in sides else "unknown"
            if "managed" in sides or (way == "by address" and "unseen" in sides and not to_host and not from_host):
                process.uncounted += times
            elif way != "by address":
                process.add(call, way, memory, size, times)
            elif to_host != from_host:
                process.add(call, "d2h" if to_host else "h2d", memory, size, times)

    def _side(self, pid: int, process: _Process, address: int) -> Side | None:
        if process.pinned is not None and process.pinned.at(address) is not None:
            return "pinned"
        side, now = process.mapped.at(address), time.monotonic()
        is_missed = side is None and process.looked_at < self._counts_since
        if is_missed or process.is_stale or now - process.looked_at > OLDEST_LOOK_SECONDS:
            if now - process.looked_at < process.look_seconds / LOOK_SHARE:
                # What was pinned may have been released.
                return "host" if side == "pinned" else side or "unseen"
            process.mapped = host_ranges(self._proc.read(f"/proc/{pid}/maps").value or "")
            process.is_stale, process.looked_at = False, now
            process.look_seconds = time.monotonic() - now
            side = process.mapped.at(address)
        return side

    def copies(self) -> Mapping[int, Copies]:
        """What is counted, by pid, of processes that have not ended."""
        if self._probe is None:
            return {}
        lost = self._probe.lost_calls()
        return {pid: self._record(process, lost) for pid, process in self._processes.items() if self._runs(pid)}

    def _runs(self, pid: int) -> bool:
        return start_ticks(pid, self._proc).value == self._started[pid]

    def _record(self, process: _Process, lost: int) -> Copies:
        sums = [
            CopySum(call=call, direction=direction, memory=memory, most_bytes=most, count=count, bytes=size)
            for (call, direction, memory, most), (count, size) in process.sums.items()
        ]
        return Copies(
            since=self._since,
            seconds=max((datetime.now(UTC) - self._since).total_seconds(), 0.0),
            sums=tuple(sorted(sums, key=lambda each: -each.bytes)),
            uncounted_calls=process.uncounted,
            lost_calls=lost,
        )

    def close(self) -> None:
        """Take the probes away; does nothing where there are none."""
        probe, self._probe = self._probe, None
        if probe is not None:
            probe.close()


_LOST = at_least("some calls came too fast to be counted")
_UNCOUNTED = at_least("the bytes of some calls are not known")
_UNKNOWN = at_least("of some memory it is not known whether it is pinned")
LITTLE_BYTES = 8 * 2**20
"""Memory that nobody is known to have pinned: no more than this is mostly inexact counters, and may be registered."""


def judged(copies: Copies, before_bytes: int | None) -> Copies:
    """The same, with pageable memory told from unknown where that can be, and with which figures are estimates.

    ``before_bytes`` can have been registered before the probe started, at most; ``None``: that is not known.
    """
    sums, pageable, pinned = [], [], []
    for each in copies.sums:
        is_certain = before_bytes is not None and each.most_bytes // 4 >= before_bytes
        is_likely = before_bytes is not None and before_bytes <= LITTLE_BYTES
        is_pageable = each.memory == "unknown" and (is_certain or is_likely)
        sums.append(each.model_copy(update={"memory": "pageable"}) if is_pageable else each)
        if is_pageable and not is_certain:
            why = f"up to {format_bytes(before_bytes)} may have been registered before the probe started"
            pageable, pinned = [at_most(why)], [at_least(why)]
    if any(each.memory == "unknown" for each in sums):
        pageable, pinned = [*pageable, _UNKNOWN], [*pinned, _UNKNOWN]
    missed = _LOST if copies.lost_calls else _UNCOUNTED if copies.uncounted_calls else None
    bounds = {
        **dict.fromkeys(("to_gpu_bytes", "from_gpu_bytes", "unknown_bytes"), missed),
        "pageable_bytes": bound_of_sum([*pageable, missed]),
        "pinned_bytes": bound_of_sum([*pinned, missed]),
    }
    return copies.model_copy(
        update={"sums": tuple(sums), "estimates": {name: bound for name, bound in bounds.items() if bound is not None}}
    )
