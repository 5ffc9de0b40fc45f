"""The only reads of system files and folders: each is bounded before it is made.

Whoever runs a process decides how long its files under /proc are: a command line of gigabytes, tens of thousands of
mappings with long paths, a million open files. So nothing is read whole and then cut: :func:`most_bytes` says how much
of which file is read, and :class:`Allowance` how much of all processes together in one snapshot.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Container, Mapping
from dataclasses import dataclass, field

MOST_SYSTEM_FILE_BYTES = 4 * 2**20
"""Of a file that the kernel or the administrator writes: the longest are /proc/cpuinfo and /proc/zoneinfo."""
MOST_MAPS_BYTES = 8 * 2**20
"""As many mappings as the kernel allows a process by default (vm.max_map_count, 65 530), each with a usual path."""
MOST_OPEN_FILES = 10_000
"""Of one process. CUDA opens its device files when it starts, so they are among the first."""
MOST_NAMES = 100_000
"""In one folder."""
_OF_A_PROCESS: Mapping[str, int] = {
    "maps": MOST_MAPS_BYTES,
    # A line of groups of 65 536 (NGROUPS_MAX), if the administrator gave it them.
    "status": 2**20,
    # A path of 4 KiB for each hierarchy, of which there are a dozen.
    "cgroup": 2**16,
    # Mounts are made by root, and by a user in a mount namespace of his own: a process reads that of its own.
    "mountinfo": MOST_SYSTEM_FILE_BYTES,
    "mounts": MOST_SYSTEM_FILE_BYTES,
}
_MOST_OF_A_PROCESS = 2**14
"""Of its other files, such as cmdline, stat, statm and comm."""
_PROCESS_FILE = re.compile(r"/proc/(?:[0-9]+|self|thread-self)/(?:task/[0-9]+/)?(.+)", re.ASCII | re.DOTALL)
GLANCE_BYTES = 2**13
"""A status has about 1500 bytes, or more if its user is in hundreds of groups."""
_HOW = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK
"""A pipe that lies where a file should be must not be waited for."""


def most_bytes(path: str) -> int:
    """How many bytes of a system file are read at most, by its path on the real host."""
    match = _PROCESS_FILE.fullmatch(path)
    return MOST_SYSTEM_FILE_BYTES if match is None else _OF_A_PROCESS.get(match[1], _MOST_OF_A_PROCESS)


def read_bytes(place: str, most: int) -> tuple[bytes, bool]:
    """The beginning of a file, at most so many bytes, and whether that is all of it.

    Raises:
        OSError: it cannot be read.
    """
    descriptor = os.open(place, _HOW)
    try:
        parts, left = [], most + 1
        while left and (part := os.read(descriptor, min(left, 2**16))):
            parts.append(part)
            left -= len(part)
    finally:
        os.close(descriptor)
    content = b"".join(parts)
    return content[:most], bool(left)


def glance(place: str) -> bytes:
    """The beginning of a short file by one read, which is all of what the kernel writes in one piece.

    Raises:
        OSError: it cannot be read.
    """
    descriptor = os.open(place, _HOW)
    try:
        return os.read(descriptor, GLANCE_BYTES)
    finally:
        os.close(descriptor)


def read_at(place: str, offset: int, count: int) -> bytes:
    """So many bytes from ``offset`` on, or fewer at the file's end.

    Raises:
        OSError: it cannot be read.
    """
    descriptor = os.open(place, _HOW)
    try:
        return os.pread(descriptor, count, offset)
    finally:
        os.close(descriptor)


def list_names(place: str, most: int = MOST_NAMES) -> list[str]:
    """Names in a folder, at most so many.

    Raises:
        OSError: it cannot be listed.
    """
    with os.scandir(place) as entries:
        return [entry.name for entry, _ in zip(entries, range(most), strict=False)]


def read_links(place: str, most: int = MOST_OPEN_FILES, without: Container[str] = ()) -> list[str]:
    """Where the symbolic links in a folder point to, at most so many of them, and not of these names.

    Raises:
        OSError: it cannot be listed.
    """
    descriptor = os.open(place, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    targets: list[str] = []
    try:
        with os.scandir(descriptor) as entries:
            for entry, _ in zip(entries, range(2 * most), strict=False):
                if entry.name in without:
                    continue
                try:
                    targets.append(os.readlink(entry.name, dir_fd=descriptor))
                except OSError:  # no link, or closed meanwhile
                    continue
                if len(targets) == most:
                    break
    finally:
        os.close(descriptor)
    return targets


@dataclass
class Allowance:
    """What one snapshot may still read of other users' processes, beyond a glance at each."""

    maps_bytes: int = 24 * 2**20
    open_files: int = 100_000
    seconds: float = 0.4
    """Processor time of this thread, for all processes together."""
    _begun: float = field(default_factory=time.thread_time)

    @property
    def is_spent(self) -> bool:
        """True if the processor time is used up."""
        return time.thread_time() - self._begun > self.seconds
