"""Files that are memory (/dev/shm, huge pages) and that no process has open or mapped: a killed server's cache."""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Callable, Iterator, Set
from dataclasses import dataclass, field
from datetime import UTC, datetime

from pinscope.probes.containers import read_mounts
from pinscope.probes.proc import Allowance, FileKey, Proc
from pinscope.records.snapshot import LeftFile

LEAST_BYTES = 2**30
"""Of a file that is worth the look at every process's open files."""
AGAIN_SECONDS = 30.0
"""So long an answer serves a series of snapshots."""
_SHARED_MEMORY = "/dev/shm"  # noqa: S108 - it is looked at
_BLOCK_BYTES = 512
"""Unit of ``st_blocks`` (stat(2))."""
_MOST_DEPTH = 3


@dataclass
class LeftFiles:
    """What a series of snapshots knows of such files.

    Attributes:
        clock: seconds.
    """

    clock: Callable[[], float] = time.monotonic
    _files: tuple[LeftFile, ...] = ()
    _looked_at: float | None = field(default=None, repr=False)

    def look(self, proc: Proc) -> tuple[LeftFile, ...]:
        """Large files that nobody has open, the largest first; those of the last look if it is not long ago."""
        now = self.clock()
        if self._looked_at is None or now - self._looked_at >= AGAIN_SECONDS:
            self._looked_at, self._files = now, left_files(proc)
        return self._files


def left_files(proc: Proc) -> tuple[LeftFile, ...]:
    """Large files in memory that no process has open or mapped, the largest first; none where that is not sure.

    Other users' processes can be looked into by root alone. So another user sees only files of his own here: those he
    alone, or root, can have opened.
    """
    large = dict(_large_files(proc))
    in_use = _in_use(proc, large.keys()) if large else None
    if in_use is None:
        return ()
    return tuple(sorted((file for key, file in large.items() if key not in in_use), key=lambda file: -file.bytes))


def _large_files(proc: Proc) -> Iterator[tuple[FileKey, LeftFile]]:
    mounts = read_mounts(proc).value or ()
    folders = {_SHARED_MEMORY, *(mount.point for mount in mounts if mount.kind == "hugetlbfs")}
    user = os.geteuid()
    for path, status in proc.below_folders(sorted(folders), _MOST_DEPTH):
        taken = status.st_blocks * _BLOCK_BYTES
        if taken >= LEAST_BYTES and stat.S_ISREG(status.st_mode) and user in (0, status.st_uid):
            modified = datetime.fromtimestamp(status.st_mtime, UTC)
            yield (status.st_dev, status.st_ino), LeftFile(path=path, bytes=taken, modified_at=modified)


def _in_use(proc: Proc, wanted: Set[FileKey]) -> set[FileKey] | None:
    """Those of these files that some process has; ``None`` if not all processes could be looked at in time."""
    allowance, held = Allowance(), set[FileKey]()
    marks = {f" {os.major(device):02x}:{os.minor(device):02x} {inode} ": (device, inode) for device, inode in wanted}
    for pid in proc.pids().value or ():
        if allowance.is_spent:
            return None
        maps = proc.read(f"/proc/{pid}/maps").value or ""
        held |= {key for mark, key in marks.items() if mark in maps}
        held |= wanted & proc.open_file_keys(f"/proc/{pid}/fd")
        if held == wanted:
            break
    return held
