"""Copies of CUDA's driver library on this host: where programs look for it, and which ones running processes use.

A container has a copy of its own, or the host's. /proc/PID/map_files leads to the very file that a process has
mapped, whatever its path means outside the container, and also where the file was replaced meanwhile.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from pinscope.probes.answer import Answer
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
YOUNG_LOOKS = 60
"""A process that was there this often or less is looked at each time: programs load the driver when they start."""
OLD_TURNS = 10
"""An older one is looked at every so many times."""
MOST_LOOK_SECONDS = 1.0
"""Of processor time, for all processes; the others have their turn at the next look."""

_LDCONFIG = ("/sbin/ldconfig", "-p")
_LDCONFIG_SECONDS = 5.0
_CACHED = re.compile(rf"^\s*{re.escape(NAME)} \(.*\) => (?P<path>/.+)$", re.MULTILINE)
_MAPPED = re.compile(
    # start, end, device, inode and path of the executable part of the library
    r"^(?P<range>[0-9a-f]+-[0-9a-f]+) r-x[ps] [0-9a-f]+ (?P<device>[0-9a-f]+:[0-9a-f]+) (?P<inode>\d+) +"
    r"(?P<path>/(?:[^\n]*/)?libcuda\.so[^/\n]*)$",
    re.ASCII | re.MULTILINE,
)

FileKey = tuple[str, str]
"""Device and inode, as /proc/PID/maps writes them."""


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
    places = [match["path"] for match in _CACHED.finditer(cache)] + [f"{folder}/{NAME}" for folder in USUAL_FOLDERS]
    files = dict.fromkeys(path.resolve() for path in map(Path, places) if path.is_file())
    return tuple(path for path in files if not _is_foreign(path))


def _is_foreign(path: Path) -> bool:
    with opened_copy(str(path)) as opened:  # one that cannot be read is reported later, with the reason
        if opened is None or opened.value is None:
            return False
        return is_for_another_processor(opened.value, os.uname().machine)


@dataclass(frozen=True, slots=True)
class MappedLibrary:
    """A copy that processes have mapped."""

    path: str
    """As the process sees it."""
    place: str
    """Where this process can open it."""
    pids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class _Process:
    appeared: int
    """The look that saw it first; of those that were there before any, long ago."""
    address_space: str
    code: str
    libraries: tuple[tuple[FileKey, str, str], ...]
    """Key, path and place of each copy."""


@dataclass
class MappedLibraries:
    """Looks again and again which copies are in use.

    It is cheap: old processes take turns, and one whose address space, or the part of it that holds code, stays as
    large as it was has mapped no library.
    """

    proc: Proc = HERE
    _known: dict[int, _Process] = field(default_factory=dict)
    _looks: int = 0

    def look(self) -> Mapping[FileKey, MappedLibrary]:
        """All copies that running processes have mapped, as far as it is known now."""
        self._looks += 1
        allowance = Allowance(seconds=MOST_LOOK_SECONDS)
        self._known = {
            pid: one for pid in self.proc.pids().value or () if (one := self._process(pid, allowance)) is not None
        }
        users: dict[FileKey, list[tuple[int, str, str]]] = {}
        for pid, one in self._known.items():
            for key, path, place in one.libraries:
                users.setdefault(key, []).append((pid, path, place))
        return {
            key: MappedLibrary(found[0][1], found[0][2], tuple(pid for pid, _, _ in found))
            for key, found in users.items()
        }

    def _process(self, pid: int, allowance: Allowance) -> _Process | None:
        before = self._known.get(pid)
        if allowance.is_spent or (before is not None and not self._is_due(pid, before)):
            return before
        size = (self.proc.read(f"/proc/{pid}/statm").value or "").partition(" ")[0]
        if not size:  # ended
            return None
        if before is not None and before.address_space == size:
            return before
        appeared = before.appeared if before is not None else self._looks if self._looks > 1 else -YOUNG_LOOKS
        # Threads of the kernel have no memory, and there are hundreds of them.
        code = (self.proc.fields(f"/proc/{pid}/status").text("VmLib").value or "") if size != "0" else ""
        if before is not None and before.code == code:
            return _Process(appeared, size, code, before.libraries)
        return _Process(appeared, size, code, tuple(self._libraries(pid)) if size != "0" else ())

    def _is_due(self, pid: int, known: _Process) -> bool:
        young = self._looks - known.appeared <= YOUNG_LOOKS
        # Whoever uses the driver is looked at each time, so that a copy is let go of when nobody uses it any more.
        return young or bool(known.libraries) or pid % OLD_TURNS == self._looks % OLD_TURNS

    def _libraries(self, pid: int) -> Iterator[tuple[FileKey, str, str]]:
        seen = set()
        for match in _MAPPED.finditer(self.proc.read(f"/proc/{pid}/maps").value or ""):
            key = (match["device"], match["inode"])
            if key not in seen:
                seen.add(key)
                path = "".join(letter if letter.isprintable() else "?" for letter in match["path"])
                yield key, path, f"/proc/{pid}/map_files/{match['range']}"


@contextmanager
def opened_copy(place: str) -> Iterator[Answer[int] | None]:
    """The file of a copy, open for reading, or why it cannot be opened.

    Args:
        place: its path, or :attr:`MappedLibrary.place`.

    Yields:
        Its descriptor; ``None`` if the file, or the process that mapped it, is gone.
    """
    try:
        descriptor = os.open(place, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except (FileNotFoundError, ProcessLookupError):
        yield None
        return
    except OSError as error:
        yield Answer.missing(f"its copy of the driver's library cannot be opened: {error.strerror or error}")
        return
    try:
        yield Answer(descriptor)
    finally:
        os.close(descriptor)
