"""Which file system a folder is on."""

from __future__ import annotations

import re
from pathlib import Path, PurePosixPath

from pinscope.probes.answer import Answer
from pinscope.probes.proc import HERE, Proc

IN_MEMORY = frozenset({"tmpfs", "ramfs", "devtmpfs", "hugetlbfs"})
"""File systems whose files are memory themselves: the kernel cannot drop their pages."""

_OCTAL = re.compile(r"\\([0-7]{3})")


def file_system(folder: str, proc: Proc = HERE) -> Answer[str]:
    """The type of the file system that ``folder`` is on, such as ``ext4`` (mountinfo: proc_pid_mountinfo(5))."""
    path = PurePosixPath(Path(folder).resolve())

    def nearest(mounts: str) -> str | None:
        found: tuple[int, str] | None = None
        for line in mounts.splitlines():
            head, _, tail = line.partition(" - ")
            fields, kind = head.split(" "), tail.partition(" ")[0]
            point = PurePosixPath(_unescaped(fields[4])) if len(fields) > 4 and kind else None
            # Of several mounts at one place the last lies on top.
            if point and path.is_relative_to(point) and (found is None or len(point.parts) >= found[0]):
                found = len(point.parts), kind
        return found[1] if found else None

    return proc.read("/proc/self/mountinfo").then(nearest, f"no mount holds {folder}")


def _unescaped(text: str) -> str:
    """mountinfo writes blanks and backslashes in paths as three octal digits."""
    return _OCTAL.sub(lambda match: chr(int(match[1], 8)), text)
