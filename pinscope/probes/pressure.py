"""How scarce memory is on this host now: what is left, what was swapped, how long tasks stalled."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass

from pinscope.probes.limits import read_limits
from pinscope.probes.proc import HERE, Proc

_TOTAL = re.compile(r"\btotal=([0-9]{1,20})\b", re.ASCII)
_COUNT = re.compile(r"^\s+count:\s+([0-9]{1,20})$", re.ASCII | re.MULTILINE)
_MEMORY_STALLS, _IO_STALLS = "/proc/pressure/memory", "/proc/pressure/io"


@dataclass(frozen=True)
class HostPressure:
    """One reading. Bytes and seconds; ``None`` where ``missing`` says why.

    Attributes:
        available_bytes: what programs can still get without swapping (MemAvailable).
        cgroup_headroom_bytes: what this process's control groups leave; ``None`` where none limits it.
        free_bytes: used by nobody, not even for caching (MemFree).
        per_cpu_bytes: free pages that each processor has on a list of its own (/proc/zoneinfo); the kernel counts them
            neither as free nor as available, and takes them back within a minute or so.
        cached_bytes: the page cache, shared memory included (Cached).
        swap_in_bytes, swap_out_bytes: swapped in and out since boot.
        memory_some_seconds, memory_full_seconds: time since boot in which at least one task, or all of them, waited
            for memory (pressure stall information; Linux documentation, accounting/psi.rst).
        io_some_seconds, io_full_seconds: the same for input and output.
        missing: field name → why it is ``None``.
    """

    available_bytes: int
    cgroup_headroom_bytes: int | None
    free_bytes: int | None
    per_cpu_bytes: int | None
    cached_bytes: int | None
    swap_in_bytes: int | None
    swap_out_bytes: int | None
    memory_some_seconds: float | None
    memory_full_seconds: float | None
    io_some_seconds: float | None
    io_full_seconds: float | None
    missing: Mapping[str, str]

    @property
    def left_bytes(self) -> int:
        """What may still be taken here: the tighter of host and control group."""
        if self.cgroup_headroom_bytes is None:
            return self.available_bytes
        return min(self.available_bytes, self.cgroup_headroom_bytes)


def read_pressure(proc: Proc = HERE) -> HostPressure:
    """The figures of this moment; about half a millisecond."""
    missing: dict[str, str] = {}
    limits = read_limits(proc)
    if limits.cgroup_headroom_bytes is None:
        missing["cgroup_headroom_bytes"] = limits.missing["cgroup_headroom_bytes"]
    meminfo, vmstat = proc.fields("/proc/meminfo"), proc.fields("/proc/vmstat")

    def swapped(line: str, field: str) -> int | None:
        return vmstat.amount(line).then(_bytes, "").note(missing, field)

    def stalled(path: str, line: str, field: str) -> float | None:
        text = proc.fields(path).text(line)
        return text.then(_stalled_seconds, f"{path} has no total of {line}").note(missing, field)

    return HostPressure(
        available_bytes=limits.host_available_bytes,
        cgroup_headroom_bytes=limits.cgroup_headroom_bytes,
        free_bytes=meminfo.amount("MemFree").note(missing, "free_bytes"),
        per_cpu_bytes=proc.read("/proc/zoneinfo")
        .then(_per_cpu_bytes, "/proc/zoneinfo has no lists of processors")
        .note(missing, "per_cpu_bytes"),
        cached_bytes=meminfo.amount("Cached").note(missing, "cached_bytes"),
        swap_in_bytes=swapped("pswpin", "swap_in_bytes"),
        swap_out_bytes=swapped("pswpout", "swap_out_bytes"),
        memory_some_seconds=stalled(_MEMORY_STALLS, "some", "memory_some_seconds"),
        memory_full_seconds=stalled(_MEMORY_STALLS, "full", "memory_full_seconds"),
        io_some_seconds=stalled(_IO_STALLS, "some", "io_some_seconds"),
        io_full_seconds=stalled(_IO_STALLS, "full", "io_full_seconds"),
        missing=missing,
    )


def _per_cpu_bytes(zones: str) -> int | None:
    """Each list has a line ``count:`` with its pages."""
    counts = _COUNT.findall(zones)
    return _bytes(sum(map(int, counts))) if counts else None


def _bytes(pages: int) -> int:
    return pages * os.sysconf("SC_PAGE_SIZE")


def _stalled_seconds(line: str) -> float | None:
    """The kernel counts microseconds: ``avg10=0.00 avg60=0.00 avg300=0.00 total=12345``."""
    found = _TOTAL.search(line)
    return int(found[1]) / 1e6 if found else None
