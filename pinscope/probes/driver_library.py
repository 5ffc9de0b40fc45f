"""CUDA's driver library: the copies that this host's programs would load, and processes that use another one.

A container has the host's copy, mounted by NVIDIA's toolkit, or one of its own. /proc/PID/map_files leads to the very
file that a process has mapped, whatever its path means outside the container, and also where the file was replaced
meanwhile.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from pinscope.probes.child_lifetime import ending_with_this
from pinscope.probes.proc import HERE, Allowance, Proc
from pinscope.probes.uprobes import is_for_another_processor

NAME = "libcuda.so.1"
USUAL_FOLDERS = (
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
    "/usr/lib64",
    "/usr/lib",
    "/usr/local/nvidia/lib64",
    "/usr/local/nvidia/lib",
    "/usr/local/cuda/compat",
    "/run/nvidia/driver/usr/lib/x86_64-linux-gnu",
    "/run/nvidia/driver/usr/lib64",
    "/run/opengl-driver/lib",
    "/usr/lib/wsl/lib",
)
"""Distributions' own, NVIDIA's container images and driver containers, NixOS and WSL."""
MOST_SCAN_SECONDS = 1.0
"""Of processor time, for all processes; the others have their turn at the next scan."""

_LDCONFIG = ("/sbin/ldconfig", "-p")
_LDCONFIG_SECONDS = 5.0
_CACHED = re.compile(rf"^\s*{re.escape(NAME)} \(.*\) => (?P<path>/.+)$", re.MULTILINE)
_MAPPED = re.compile(
    # the executable part of the library
    r"^(?P<range>[0-9a-f]+-[0-9a-f]+) r-x[ps] [0-9a-f]+ [0-9a-f]+:[0-9a-f]+ \d+ +/(?:[^\n]*/)?libcuda\.so[^/\n]*$",
    re.ASCII | re.MULTILINE,
)

ANOTHER_COPY = "it uses another copy of the driver's library than this host's programs, which the probe does not follow"

FileKey = tuple[int, int]
"""Device and inode."""


def installed_libraries() -> tuple[Path, ...]:
    """The copies that programs on this host would load; each once, with links resolved.

    Those for another processor are left out: a 64-bit host often has the 32-bit driver as well.
    """
    try:
        cache = subprocess.run(
            _LDCONFIG,
            capture_output=True,
            text=True,
            timeout=_LDCONFIG_SECONDS,
            check=False,
            preexec_fn=ending_with_this(),
        ).stdout
    except (OSError, subprocess.SubprocessError, UnicodeDecodeError):
        cache = ""
    folders = (*filter(None, os.environ.get("LD_LIBRARY_PATH", "").split(":")), *USUAL_FOLDERS)
    places = [match["path"] for match in _CACHED.finditer(cache)] + [f"{folder}/{NAME}" for folder in folders]
    files = dict.fromkeys(path.resolve() for path in map(Path, places) if path.is_file())
    return tuple(path for path in files if not _is_foreign(path))


def _is_foreign(path: Path) -> bool:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError:  # one that cannot be read is reported later, with the reason
        return False
    try:
        return is_for_another_processor(descriptor, os.uname().machine)
    finally:
        os.close(descriptor)


@dataclass(frozen=True, slots=True)
class _Process:
    address_space: str
    code: str
    reason: str | None


@dataclass
class LibraryUsers:
    """Finds processes whose copy of the driver's library is not followed.

    A process whose address space, or the part of it that holds code, stays as large as it was has mapped no library
    and is not read again.

    Args:
        probed: each known file, and why it is not followed; ``None`` if it is.
        proc: where /proc is read.
    """

    probed: Mapping[FileKey, str | None]
    proc: Proc = HERE
    _known: dict[int, _Process] = field(default_factory=dict)

    def not_followed(self) -> Mapping[int, str]:
        """Why the copy is not followed that a process uses, by its pid."""
        allowance = Allowance(seconds=MOST_SCAN_SECONDS)
        pids = self.proc.pids().value or ()
        self._known = {pid: known for pid in pids if (known := self._process(pid, allowance)) is not None}
        return {pid: known.reason for pid, known in self._known.items() if known.reason is not None}

    def _process(self, pid: int, allowance: Allowance) -> _Process | None:
        before = self._known.get(pid)
        if allowance.is_spent:
            return before
        size = (self.proc.read(f"/proc/{pid}/statm").value or "").partition(" ")[0]
        if not size:  # ended
            return None
        if before is not None and before.address_space == size:
            return before
        # Threads of the kernel have no memory, and there are hundreds of them.
        code = (self.proc.fields(f"/proc/{pid}/status").text("VmLib").value or "") if size != "0" else ""
        if before is not None and before.code == code:
            return _Process(size, code, before.reason)
        return _Process(size, code, self._reason(pid) if size != "0" else None)

    def _reason(self, pid: int) -> str | None:
        for mapped in set(_MAPPED.findall(self.proc.read(f"/proc/{pid}/maps").value or "")):
            file = self.proc.file_key(f"/proc/{pid}/map_files/{mapped}").value
            if file is None:  # the process has ended, or let go of it
                continue
            reason = self.probed.get(file, ANOTHER_COPY)
            if reason is not None:
                return reason
        return None
