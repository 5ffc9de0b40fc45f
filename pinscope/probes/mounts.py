"""The file systems that this process sees mounted (mountinfo: proc_pid_mountinfo(5))."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from pinscope.probes.answer import Answer
from pinscope.probes.proc import HERE, Proc

IN_MEMORY = frozenset({"tmpfs", "ramfs", "devtmpfs", "hugetlbfs"})
"""File systems whose files are memory themselves: the kernel cannot drop their pages."""

_OCTAL = re.compile(r"\\([0-7]{3})")


class Mount(NamedTuple):
    """One line of a mountinfo."""

    kind: str
    """Type of the file system, such as ``ext4``."""
    root: str
    """The part of the file system that is mounted."""
    point: str
    options: str
    """Those of the file system itself, not of this mount."""


def read_mounts(proc: Proc) -> Answer[tuple[Mount, ...]]:
    """All mounts, in their order; lines that make no sense are passed over."""
    return proc.read("/proc/self/mountinfo").then(lambda text: tuple(_mounts(text)))


def _mounts(text: str) -> Iterator[Mount]:
    for line in text.splitlines():
        head, _, tail = line.partition(" - ")
        front, back = head.split(" "), tail.split(" ")
        if len(front) > 4 and len(back) > 2:
            yield Mount(back[0], _unescaped(front[3]), _unescaped(front[4]), back[2])


def _unescaped(text: str) -> str:
    """mountinfo writes blanks and backslashes in paths as three octal digits."""
    return _OCTAL.sub(lambda match: chr(int(match[1], 8)), text)


def file_system(folder: str, proc: Proc = HERE) -> Answer[str]:
    """The type of the file system that ``folder`` is on."""
    path = PurePosixPath(Path(folder).resolve())

    def nearest(mounts: tuple[Mount, ...]) -> str | None:
        above = [mount for mount in mounts if path.is_relative_to(mount.point)]
        # Of several mounts at one place the last lies on top.
        return max(reversed(above), key=lambda mount: len(PurePosixPath(mount.point).parts)).kind if above else None

    return read_mounts(proc).then(nearest, f"no mount holds {folder}")
