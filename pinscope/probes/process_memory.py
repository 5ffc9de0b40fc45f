"""What /proc tells about one process's memory: its ``status`` and its ``maps``. Never ``smaps``.

smaps walks every page and holds the process's mmap lock meanwhile (a third of a second for 24 GiB); maps only lists the
mappings. Formats: proc_pid_status(5), proc_pid_maps(5). Text that makes no sense is passed over; nothing here raises.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from pinscope.probes.proc import whole

Extent = tuple[int, int]
"""First byte and the one after the last, within a mapped object."""
ObjectKey = tuple[str, int]
"""Device and inode of a mapped object."""

_ZERO, _MANAGED = "/dev/zero (deleted)", "/dev/nvidia-uvm"
"""The names of mappings that matter. The kernel gives shared anonymous memory, and so cudaHostAlloc's, the first
(measured on H200 hosts)."""
_MAPPING = re.compile(
    # start, end, offset, device and inode of a shared mapping
    r"([0-9a-f]{1,16})-([0-9a-f]{1,16}) [r-][w-][x-]s ([0-9a-f]{1,16}) ([0-9a-f]{1,8}:[0-9a-f]{1,8}) ([0-9]{1,20}) +/",
    re.ASCII,
)

_NOTHING_LOCKED = "\nVmLck:\t       0 kB\nVmPin:\t       0 kB\n"
_NOTHING_SHARED = "\nRssShmem:\t       0 kB\n"
_PLAIN = re.compile(
    rb"\nVmSize:\t *([0-9]{1,20}) kB\nVmLck:\t       0 kB\nVmPin:\t       0 kB\n"
    rb"VmHWM:.*\nVmRSS:.*\nRssAnon:.*\nRssFile:.*\nRssShmem:\t       0 kB\n"
)
_PARENT = re.compile(r"\nPPid:\t([0-9]{1,20})\n", re.ASCII)


class ProcessStatus:
    """The lines of /proc/PID/status that are asked for; the rest is not even looked at."""

    __slots__ = ("_text",)

    def __init__(self, text: str) -> None:
        self._text = f"\n{text}"

    def line(self, key: str) -> str | None:
        """What stands beside ``key``. The kernel escapes line ends in the name, so no process can fake a line."""
        mark = f"\n{key}:"
        start = self._text.find(mark)
        if start < 0:
            return None
        end = self._text.find("\n", start + 1)
        return self._text[start + len(mark) : end if end >= 0 else None].strip()

    def bytes(self, key: str) -> int | None:
        """Bytes beside a key such as ``VmLck``; the kernel writes ``kB`` and means KiB."""
        text = self.line(key)
        if text is None or not text.endswith(" kB"):
            return None
        number = whole(text[:-3].strip())
        return None if number is None else number * 1024

    def number(self, key: str) -> int | None:
        """The first number beside ``key``."""
        words = (self.line(key) or "").split()
        return whole(words[0]) if words else None

    @property
    def has_memory(self) -> bool:
        """False for kernel threads and for processes that have ended."""
        return "\nVmSize:" in self._text

    @property
    def has_locked(self) -> bool:
        """True if it has memory that is locked (VmLck) or that the kernel counts as pinned by it (VmPin)."""
        return _NOTHING_LOCKED not in self._text and bool(self.bytes("VmLck") or self.bytes("VmPin"))

    @property
    def may_share(self) -> bool:
        """False if no page of shared memory is resident (RssShmem); true where that is not told."""
        return _NOTHING_SHARED not in self._text and self.bytes("RssShmem") != 0

    @property
    def parent(self) -> int | None:
        """The parent's pid."""
        match = _PARENT.search(self._text)
        return None if match is None else int(match[1])

    @property
    def size(self) -> str:
        """Peak and present size of the address space as the kernel writes them: changes when something is mapped."""
        start = self._text.find("\nVmPeak:")
        end = self._text.find("\nVmLck:", start)
        return self._text[start:end] if 0 <= start < end else ""


def plain_address_space(status: bytes) -> int | None:
    """Bytes of address space of a process that has nothing locked, pinned or shared, as most have not.

    ``None`` if it has, and if its ``status`` has another form than the kernel's (Linux 4.5 and later): a quick answer
    for a snapshot, which asks it of hundreds.
    """
    match = _PLAIN.search(status)
    return None if match is None else int(match[1]) * 1024


@dataclass(frozen=True)
class MemoryMaps:
    """The mappings of one process that matter for pinned memory."""

    shared_zero: Mapping[ObjectKey, Sequence[Extent]]
    """Shared anonymous memory by object, in no order. In a CUDA process: cudaHostAlloc memory, one object for each.

    Except what is write-combined: that shows as a mapping of ``/dev/nvidiactl`` of its size, between others of the
    driver's own, and cannot be told from them (measured on H200 hosts).
    """
    managed_bytes: int = 0
    """Address space of managed (unified) memory."""

    @cached_property
    def sizes(self) -> Mapping[ObjectKey, int]:
        """Bytes of each object that are mapped."""
        return {key: covered_bytes(extents) for key, extents in self.shared_zero.items()}


def parse_maps(text: str) -> MemoryMaps:
    """The shared anonymous and the managed mappings in a /proc/PID/maps."""
    shared: dict[ObjectKey, list[Extent]] = {}
    managed = 0
    for line in text.split("\n"):
        # A Python process has a thousand lines of libraries: the name is looked at first, as that is quick.
        if not line.endswith((_ZERO, _MANAGED)) or (match := _MAPPING.match(line)) is None:
            continue
        first, last, offset, device, inode = match.groups()
        name = line[match.end() - 1 :]
        length = int(last, 16) - int(first, 16)
        if length <= 0:
            continue
        if name == _MANAGED:
            managed += length
            continue
        if name != _ZERO:
            continue
        begin = int(offset, 16)
        key, extent = (device, int(inode)), (begin, begin + length)
        if key in shared:
            shared[key].append(extent)
        else:
            shared[key] = [extent]
    return MemoryMaps(shared, managed)


def covered_bytes(extents: Sequence[Extent]) -> int:
    """Bytes that lie in at least one of the extents: a piece mapped twice counts once."""
    if len(extents) == 1:  # nearly always, and there may be thousands
        return extents[0][1] - extents[0][0]
    covered, reached = 0, -1
    for start, end in sorted(extents):
        covered += max(0, end - max(start, reached))
        reached = max(reached, end)
    return covered
