"""What /proc tells about one process's memory: its ``status`` and its ``maps``. Never ``smaps``.

smaps walks every page and holds the process's mmap lock meanwhile (a third of a second for 24 GiB); maps only lists the
mappings. Formats: proc_pid_status(5), proc_pid_maps(5). Text that makes no sense is passed over; nothing here raises.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from pinscope.probes.proc import whole

Extent = tuple[int, int]
"""First byte and the one after the last, within a mapped object."""
ObjectKey = tuple[str, int]
"""Device and inode of a mapped object."""

_SHARED_ZERO = "/dev/zero (deleted)"
"""The name that the kernel gives shared anonymous memory, and so cudaHostAlloc's (measured on H200 hosts)."""
_MANAGED = "/dev/nvidia-uvm"
_MAPPING = re.compile(
    r"(?P<start>[0-9a-f]{1,16})-(?P<end>[0-9a-f]{1,16}) [r-][w-][x-](?P<kind>[ps]) (?P<offset>[0-9a-f]{1,16}) "
    r"(?P<device>[0-9a-f]+:[0-9a-f]+) (?P<inode>[0-9]{1,20}) +(?P<name>.*)",
    re.ASCII,
)


class ProcessStatus:
    """The lines of /proc/PID/status that are asked for; the rest is not even looked at."""

    __slots__ = ("_text",)

    def __init__(self, text: str) -> None:
        self._text = text

    def line(self, key: str) -> str | None:
        """What stands beside ``key``. The kernel escapes line ends in the name, so no process can fake a line."""
        start = 0 if self._text.startswith(f"{key}:") else self._text.find(f"\n{key}:") + 1
        if start == 0 and not self._text.startswith(f"{key}:"):
            return None
        end = self._text.find("\n", start)
        return self._text[start + len(key) + 1 : end if end >= 0 else None].strip()

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
    def size(self) -> str:
        """Peak and present size of the address space as the kernel writes them: changes when something is mapped."""
        start = self._text.find("\nVmPeak:")
        end = self._text.find("\nVmLck:", start)
        return self._text[start:end] if 0 <= start < end else ""


@dataclass(frozen=True, slots=True)
class MemoryMaps:
    """The mappings of one process that matter for pinned memory."""

    shared_zero: Mapping[ObjectKey, tuple[Extent, ...]]
    """Shared anonymous memory by object, in no order. In a CUDA process: cudaHostAlloc memory, one object for each."""
    managed_bytes: int
    """Address space of managed (unified) memory."""


def parse_maps(text: str) -> MemoryMaps:
    """The shared anonymous and the managed mappings in a /proc/PID/maps."""
    shared: dict[ObjectKey, list[Extent]] = {}
    for match in _lines_named(text, _SHARED_ZERO):
        offset = int(match["offset"], 16)
        length = int(match["end"], 16) - int(match["start"], 16)
        if match["kind"] == "s" and length > 0:
            shared.setdefault((match["device"], int(match["inode"])), []).append((offset, offset + length))
    managed = (int(match["end"], 16) - int(match["start"], 16) for match in _lines_named(text, _MANAGED))
    return MemoryMaps(
        shared_zero={key: tuple(extents) for key, extents in shared.items()},
        managed_bytes=sum(length for length in managed if length > 0),
    )


def _lines_named(text: str, name: str) -> Iterator[re.Match[str]]:
    """Lines whose mapping has that name. Of up to 65,530 lines a few matter: they are searched, not split."""
    position = text.find(name)
    while position >= 0:
        start = text.rfind("\n", 0, position) + 1
        end = text.find("\n", position)
        end = len(text) if end < 0 else end
        match = _MAPPING.fullmatch(text, start, end)
        # Another file's name may contain this one.
        if match is not None and match["name"] == name:
            yield match
        position = text.find(name, end)


def covered_bytes(extents: Iterable[Extent]) -> int:
    """Bytes that lie in at least one of the extents: a piece mapped twice counts once."""
    covered, reached = 0, -1
    for start, end in sorted(extents):
        covered += max(0, end - max(start, reached))
        reached = max(reached, end)
    return covered
