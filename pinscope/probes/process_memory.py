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

_ZERO, _MANAGED, _CONTROL, _GPU = "/dev/zero (deleted)", "/dev/nvidia-uvm", "/dev/nvidiactl", "/dev/nvidia"
"""The names of mappings that matter. The kernel gives shared anonymous memory, and so cudaHostAlloc's, the first;
driver memory has the third (measured on H100 and H200 hosts)."""
_MAPPING = re.compile(
    # start, end, access, offset, device and inode of a shared mapping
    r"([0-9a-f]{1,16})-([0-9a-f]{1,16}) ([r-][w-])[x-]s ([0-9a-f]{1,16}) "
    r"([0-9a-f]{1,8}:[0-9a-f]{1,8}) ([0-9]{1,20}) +/",
    re.ASCII,
)
_GPU_FILE = re.compile(rf"{_GPU}([0-9]{{1,4}})", re.ASCII)
_RESERVED = re.compile(r"[0-9a-f]{1,16}-([0-9a-f]{1,16}) ---p ", re.ASCII)
"""Address space that was set aside: its end."""
CUDA_STEP_BYTES = 2 * 2**20
"""CUDA takes and reserves address space for host memory in multiples of this."""

_NOTHING_LOCKED = "\nVmLck:\t       0 kB\nVmPin:\t       0 kB\n"
_NOTHING_SHARED = "\nRssShmem:\t       0 kB\n"
_PLAIN = re.compile(
    rb"\nVmSize:\t *([0-9]{1,20}) kB\nVmLck:\t       0 kB\nVmPin:\t       0 kB\n"
    rb"VmHWM:.*\nVmRSS:.*\nRssAnon:.*\nRssFile:.*\nRssShmem:\t       0 kB\n"
)
_PARENT = re.compile(r"\nPPid:\t([0-9]{1,20})\n", re.ASCII)


class ProcessStatus:
    """The lines of /proc/PID/status that are asked for; the rest is not even looked at."""

    __slots__ = ("_bytes", "_text")

    def __init__(self, text: str) -> None:
        self._text = f"\n{text}"
        self._bytes: dict[str, int | None] = {}

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
        if key not in self._bytes:
            text = self.line(key) or ""
            number = whole(text[:-3].strip()) if text.endswith(" kB") else None
            self._bytes[key] = None if number is None else number * 1024
        return self._bytes[key]

    def number(self, key: str) -> int | None:
        """The first number beside ``key``."""
        words = (self.line(key) or "").split()
        return whole(words[0]) if words else None

    @property
    def without_switches(self) -> str:
        """All that stands before the counts of context switches, which change without anything else."""
        return self._text.partition("\nvoluntary_ctxt_switches:")[0]

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
        """False if no page of shared memory is resident (RssShmem); true where that is not known."""
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
    """Shared anonymous memory by object, in no order, that lies as cudaHostAlloc memory does: one object for each
    piece. What lies otherwise is ordinary shared memory, and is left out."""
    managed_bytes: int = 0
    """Address space of managed (unified) memory."""
    driver: frozenset[Extent] = frozenset()
    """Addresses of driver memory, its mappings one by one: what the program asked for, and the driver's own."""
    gpus: frozenset[int] = frozenset()
    """Minor numbers of the GPUs on which there is a context: their device files are mapped to be read and written."""

    @cached_property
    def driver_sizes(self) -> Sequence[int]:
        """Bytes of each mapping of driver memory."""
        return [last - first for first, last in self.driver]

    @cached_property
    def sizes(self) -> Mapping[ObjectKey, int]:
        """Bytes of each object that are mapped."""
        return {
            key: extents[0][1] - extents[0][0] if len(extents) == 1 else covered_bytes(extents)
            for key, extents in self.shared_zero.items()
        }


def parse_maps(text: str) -> MemoryMaps:
    """The shared anonymous mappings that may be cudaHostAlloc memory, and the driver's, in a /proc/PID/maps."""
    found = _Found()
    lines = text.split("\n")
    for place in range(len(lines) - 1, -1, -1):  # from the highest address down: what follows a mapping is known
        line = lines[place]
        # A Python process has a thousand lines of libraries: the name is looked at first, as that is quick.
        if (line.endswith(_ZERO) or _GPU in line) and (match := _MAPPING.match(line)) is not None:
            found.add(match, line[match.end() - 1 :], lines[place + 1] if place + 1 < len(lines) else "")
    return found.maps()


class _Found:
    """Puts together what the lines say."""

    def __init__(self) -> None:
        self._shared: dict[ObjectKey, list[Extent]] = {}
        self._ordinary: set[ObjectKey] = set()
        self._managed = 0
        self._driver: set[Extent] = set()
        self._gpus: set[int] = set()
        self._next = ""
        """Where the mapping above begins, if it is one of these."""
        self._reserved = False
        """The mappings above end where reserved address space begins, which ends at a multiple of CUDA's step."""

    def add(self, match: re.Match[str], name: str, above: str) -> None:
        """One mapping, and the line of the next one."""
        begin, end, access, offset, device, inode = match.groups()
        first, last = int(begin, 16), int(end, 16)
        if last <= first:
            return
        if end != self._next:
            rest = _RESERVED.match(above) if above.startswith(f"{end}-") else None
            self._reserved = rest is not None and int(rest[1], 16) % CUDA_STEP_BYTES == 0
        self._next = begin
        if name == _ZERO:  # in place, as there may be thousands
            start = int(offset, 16)
            key = (device, int(inode))
            if key in self._shared:
                self._shared[key].append((start, start + last - first))  # a part of what lies above it
                return
            self._shared[key] = [(start, start + last - first)]
            if (first - start) % CUDA_STEP_BYTES or (last % CUDA_STEP_BYTES and not self._reserved):
                self._ordinary.add(key)
        elif name == _MANAGED:
            self._managed += last - first
        elif name == _CONTROL and access == "rw":
            self._driver.add((first, last))
        elif access == "rw" and (gpu := _GPU_FILE.fullmatch(name)):
            self._gpus.add(int(gpu[1]))

    def maps(self) -> MemoryMaps:
        """All of it."""
        # One piece of each context lies where the kernel put it.
        small = [key for key in self._ordinary if covered_bytes(self._shared[key]) == CUDA_STEP_BYTES]
        for key in self._ordinary - set(sorted(small)[: len(self._gpus)]):
            del self._shared[key]
        return MemoryMaps(self._shared, self._managed, frozenset(self._driver), frozenset(self._gpus))


def covered_bytes(extents: Sequence[Extent]) -> int:
    """Bytes that lie in at least one of the extents: a piece mapped twice counts once."""
    covered, reached = 0, -1
    for start, end in sorted(extents):
        covered += max(0, end - max(start, reached))
        reached = max(reached, end)
    return covered
