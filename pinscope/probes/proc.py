"""The reader of /proc, /sys and the few other system files that PinScope looks at.

Paths are written as on the real host (``/proc/meminfo``); a :class:`Proc` may find them below another folder, such
as a tree captured on another machine. A file that cannot be read, or makes no sense, is an answer with a reason:
nothing here raises.
"""

from __future__ import annotations

import os
import re
import stat
import time
from collections.abc import Callable, Iterable, Iterator, MutableMapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Generic, TypeVar

from pinscope.units import format_bytes

T = TypeVar("T")
U = TypeVar("U")


@dataclass(frozen=True, slots=True)
class Answer(Generic[T]):
    """A value, or the reason why it is missing; never both, never neither."""

    value: T | None
    reason: str | None = None

    def __post_init__(self) -> None:
        if (self.value is None) == (self.reason is None):
            raise ValueError("an answer has either a value or a reason")

    @classmethod
    def missing(cls, reason: str) -> Answer[T]:
        """No value, because of ``reason``."""
        return cls(None, reason)

    def then(self, read: Callable[[T], U | None], otherwise: str = "") -> Answer[U]:
        """What ``read`` makes of the value; missing because of ``otherwise`` if it makes nothing of it."""
        if self.value is None:
            return Answer(None, self.reason)
        made = read(self.value)
        return Answer.missing(otherwise) if made is None else Answer(made)

    def ask(self, probe: Callable[[T], Answer[U]]) -> Answer[U]:
        """What ``probe`` answers about the value; missing for the same reason as this."""
        return Answer(None, self.reason) if self.value is None else probe(self.value)

    def note(self, missing: MutableMapping[str, str], field: str) -> T | None:
        """The value; if there is none, the reason is entered in ``missing`` under ``field``."""
        if self.reason is not None:
            missing[field] = self.reason
        return self.value


def all_of(*answers: Answer[T]) -> Answer[tuple[T, ...]]:
    """The values of all; missing for the reason of the first that is missing."""
    for answer in answers:
        if answer.reason is not None:
            return Answer.missing(answer.reason)
    return Answer(tuple(answer.value for answer in answers if answer.value is not None))


FileKey = tuple[int, int]
"""Device and inode of a file."""
_AMOUNT = re.compile(r"(?P<number>[0-9]{1,20})(?P<kibibytes>\s*kB)?", re.ASCII)
_RANGE = re.compile(r"(?P<first>[0-9]{1,9})(-(?P<last>[0-9]{1,9}))?", re.ASCII)


class Fields:
    """The ``key: value`` or ``key value`` lines of one file, read once. Of a repeated key the first line counts."""

    def __init__(self, path: str, text: Answer[str]) -> None:
        self._path = path
        self._reason = text.reason
        self._text = f"\n{text.value or ''}"

    def text(self, key: str) -> Answer[str]:
        """What stands beside ``key``. Looked for when asked: of /proc/vmstat's two hundred lines, two are."""
        if self._reason is not None:
            return Answer.missing(self._reason)
        match = re.search(rf"\n{re.escape(key)}[ \t]*(?::(.*)|[ \t]([^:\n]*))(?=\n|$)", self._text)
        if match is None:
            return Answer.missing(f"{self._path} has no line {key}")
        return Answer((match[1] if match[1] is not None else match[2]).strip())

    def amount(self, key: str) -> Answer[int]:
        """The number beside ``key``: bytes where the kernel writes ``kB`` (it means KiB), else the plain count."""
        return self.text(key).then(_amount, f"{key} in {self._path} is not a number")


class Proc:
    """Reads system files as text.

    Args:
        top: where ``/`` is.
    """

    def __init__(self, top: Path = Path("/")) -> None:
        self._top = str(top).rstrip("/")

    @classmethod
    def below(cls, folder: Path) -> Proc:
        """The reader of a captured tree: ``folder/proc``, ``folder/sys`` and so on."""
        return cls(folder)

    def read(self, path: str) -> Answer[str]:
        """The text of a file; bytes that are not UTF-8 are replaced. Missing beyond :data:`MOST_FILE_BYTES`."""
        start = Proc.beginning(self, path, MOST_FILE_BYTES)  # a subclass may read the beginning through this
        if start.value is None:
            return Answer(None, start.reason)
        text, is_whole = start.value
        if not is_whole:
            return Answer.missing(f"{path} is longer than the {format_bytes(MOST_FILE_BYTES)} that are read of it")
        return Answer(text)

    def beginning(self, path: str, most: int) -> Answer[tuple[str, bool]]:
        """The text of a file, of its first bytes where it is longer, and whether it is whole."""
        content = self._at(path, lambda place: read_bytes(place, most))
        return content.then(lambda part: (part[0].decode("utf-8", "replace"), part[1]))

    def part(self, path: str, offset: int, count: int) -> Answer[bytes]:
        """So many bytes of a file from ``offset`` on; missing if it ends before."""
        answer = self._at(path, lambda place: read_at(place, offset, count))
        return answer.then(
            lambda content: content if len(content) == count else None, f"{path} ends before byte {offset + count}"
        )

    def line(self, path: str) -> Answer[str]:
        """The text of a file without white space around it; missing if nothing is left."""
        return self.read(path).then(lambda text: text.strip() or None, f"{path} is empty")

    def number(self, path: str) -> Answer[int]:
        """The whole number, not negative, that a file holds."""
        return self.line(path).then(whole, f"{path} is not a number")

    def fields(self, path: str) -> Fields:
        """The ``key: value`` lines of a file."""
        return Fields(path, self.read(path))

    def exists(self, path: str) -> bool:
        """True if something is there."""
        return self._at(path, os.path.exists).value or False

    def may_write(self, path: str) -> bool:
        """True if this process may write there: a file, or into a folder."""
        return self._at(path, lambda place: os.access(place, os.W_OK)).value or False

    def names(self, folder: str) -> tuple[str, ...]:
        """Names in a folder, sorted; none if it cannot be listed."""
        return tuple(sorted(self._at(folder, os.listdir).value or ()))

    def pids(self) -> Answer[tuple[int, ...]]:
        """Process ids in /proc, in the order of the folder; missing if it shows none."""
        names = self._at("/proc", os.listdir)
        return names.then(lambda listed: tuple(map(int, filter(_is_pid, listed))) or None, "/proc shows no process")

    def links(self, folder: str) -> Answer[dict[str, str]]:
        """Where the symbolic links in a folder point to, by name, such as /proc/PID/fd, of the first
        :data:`MOST_OPEN_FILES`; links that vanish are left out."""
        return self._at(folder, read_links)

    def memory_of(self, path: str, most: int) -> Answer[bytes]:
        """The beginning of what a process wrote into memory of its own (memfd_create(2)), of which ``path`` is the
        descriptor. Whatever else that has become is not opened: it might wait, or do something."""
        return self._at(path, lambda place: read_memory(place, most))

    def link(self, path: str) -> Answer[str]:
        """Where one symbolic link points to."""
        return self._at(path, os.readlink)

    def file_key(self, path: str) -> Answer[FileKey]:
        """Which file a path leads to."""
        return self._at(path, os.stat).then(lambda status: (status.st_dev, status.st_ino))

    def below_folders(self, folders: Iterable[str], depth: int) -> Iterator[tuple[str, os.stat_result]]:
        """Path and status of what lies in these folders and so many levels below; no link is followed."""
        for folder in folders:
            for name in self.names(folder):
                path = f"{folder}/{name}"
                status = self._at(path, os.lstat).value
                if status is not None:
                    yield path, status
                    if stat.S_ISDIR(status.st_mode) and depth > 1:
                        yield from self.below_folders([path], depth - 1)

    def free_bytes(self, folder: str) -> Answer[int]:
        """Bytes that may still be written to the file system of a folder."""
        return self._at(folder, os.statvfs).then(lambda status: status.f_bavail * status.f_frsize)

    def _at(self, path: str, read: Callable[[str], T]) -> Answer[T]:
        """What ``read`` finds at the place of a path; missing if the system refuses."""
        try:
            return Answer(read(self._place(path)))
        except (OSError, ValueError) as error:
            return Answer.missing(_why_not(path, error))

    def _place(self, path: str) -> str:
        """Where ``path`` of the real host is found. Plain strings: this runs a thousand times in a snapshot."""
        # A path may come from a file's text (a cgroup's name): it must not lead out of the tree.
        if not path.startswith("/") or (".." in path and ".." in path.split("/")):
            raise ValueError("it is not absolute or has '..' in it")
        return f"{self._top}{path}"


HERE = Proc()
"""This machine."""


def _is_pid(name: str) -> bool:
    """The kernel's largest has seven digits."""
    return name.isdigit() and name.isascii() and len(name) < 10


def _why_not(path: str, error: OSError | ValueError) -> str:
    """Why a path could not be read, named as on the real host."""
    if isinstance(error, FileNotFoundError):
        return f"{path} is not there"
    if isinstance(error, PermissionError):
        return f"{path} may not be read by this user"
    if isinstance(error, OSError):
        return f"{path}: {error.strerror or error}"
    return f"{path!r} is not a path: {error}"


def whole(text: str) -> int | None:
    """A whole number that is not negative, in ASCII digits (at most 20: no kernel counter is longer)."""
    return int(text) if text.isascii() and text.isdigit() and len(text) <= 20 else None


def _amount(text: str) -> int | None:
    match = _AMOUNT.fullmatch(text.strip())
    if match is None:
        return None
    return int(match["number"]) * (1024 if match["kibibytes"] else 1)


def ranges(text: str) -> tuple[tuple[int, int], ...] | None:
    """First and last of each range in a kernel list such as ``0-3,8``; ``None`` if it is not one."""
    pairs = []
    for part in text.strip().split(","):
        match = _RANGE.fullmatch(part)
        if match is None:
            return None
        first = int(match["first"])
        last = int(match["last"] or first)
        if last < first:
            return None
        pairs.append((first, last))
    return tuple(pairs)


MOST_FILE_BYTES = 8 * 2**20
"""Of one file: as many mappings as the kernel allows a process by default (vm.max_map_count, 65 530), each with a usual
path. The longest files of the kernel itself, /proc/cpuinfo and /proc/zoneinfo, have half of that on a large host."""
MOST_OPEN_FILES = 10_000
"""Of one process. CUDA opens its device files when it starts, so they are among the first."""
_HOW = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK
"""A pipe that lies where a file should be must not be waited for."""


# Each of these takes a place on this machine, and raises OSError where it cannot be read.


@contextmanager
def _opened(place: str, how: int) -> Iterator[int]:
    descriptor = os.open(place, how)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def read_bytes(place: str, most: int) -> tuple[bytes, bool]:
    """The beginning of a file, at most so many bytes, and whether that is all of it."""
    parts, left = [], most + 1
    with _opened(place, _HOW) as descriptor:
        while left and (part := os.read(descriptor, min(left, 2**16))):
            parts.append(part)
            left -= len(part)
    content = b"".join(parts)
    return content[:most], bool(left)


def read_at(place: str, offset: int, count: int) -> bytes:
    """So many bytes from ``offset`` on, or fewer at the file's end."""
    with _opened(place, _HOW) as descriptor:
        return os.pread(descriptor, count, offset)


def read_memory(place: str, most: int) -> bytes:
    """The beginning of a file of memory that has no name."""
    with _opened(place, os.O_PATH | os.O_CLOEXEC) as looked_at:  # this opens nothing yet
        itself = f"/proc/self/fd/{looked_at}"
        if not str(Path(itself).readlink()).startswith("/memfd:"):
            raise OSError("it is not memory without a name")
        return read_at(itself, 0, most)


def read_links(place: str, most: int = MOST_OPEN_FILES) -> dict[str, str]:
    """Where the symbolic links in a folder point to, by name, at most so many of them."""
    targets: dict[str, str] = {}
    with _opened(place, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC) as descriptor, os.scandir(descriptor) as entries:
        for entry, _ in zip(entries, range(most), strict=False):
            with suppress(OSError):  # no link, or closed meanwhile
                targets[entry.name] = os.readlink(entry.name, dir_fd=descriptor)
    return targets


@dataclass
class Allowance:
    """Processor time of this thread in which other users' processes are read, beyond a glance at each."""

    seconds: float = 0.4
    _begun: float = field(default_factory=time.thread_time)

    @property
    def is_spent(self) -> bool:
        """True if the processor time is used up."""
        return time.thread_time() - self._begun > self.seconds


IPC_LOCK = 14
"""Lifts RLIMIT_MEMLOCK. These are bits (include/uapi/linux/capability.h)."""
SYS_PTRACE = 19
"""Looks into other users' processes."""
SYS_ADMIN = 21

_HEXADECIMAL = re.compile(r"[0-9a-f]{1,32}", re.IGNORECASE)
_WHOLE_MAP = ["0", "0", "4294967295"]


def has_capability(bit: int, proc: Proc) -> bool:
    """True if it has this capability; in a rootless container it shows, and does not count outside."""
    mask = proc.fields("/proc/self/status").text("CapEff").value or ""
    return _HEXADECIMAL.fullmatch(mask) is not None and bool(int(mask, 16) >> bit & 1)


def in_initial_user_namespace(proc: Proc) -> bool:
    """True if user ids are mapped one to one, as in the initial user namespace, or namespaces do not exist."""
    return (proc.read("/proc/self/uid_map").value or " ".join(_WHOLE_MAP)).split() == _WHOLE_MAP
