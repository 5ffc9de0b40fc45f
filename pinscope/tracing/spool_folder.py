"""The spool's folder, as a process of the traced program opens it.

The folder may lie where other users write, too. So it is known by device and inode, must be this user's alone, and is
opened anew for each file, below which no link is followed. A program may close every descriptor: none is kept.

Its layout::

    config.json           written by the parent: where CUPTI is, what to follow and when, offsets in its structures
    started.json          the process, its rank among others, and when it began
    ended.json            when it ended, if that was in an orderly way
    switched              a line of JSON each time the recording is switched on or off
    buffer.NUMBER         an activity buffer that CUPTI fills; ``.done`` is added when it gave it back
    process.PID.NUMBER    likewise of a process that the program has started, without config.json and stop
    children              a line for each process that was started: :func:`child_line`
    calls.NUMBER          an entry for each call that is over: :data:`pinscope.tracing.mapped_file.ENTRY`
    data.NUMBER           an entry for copies whose data was looked at: :data:`pinscope.tracing.host_data.DATA`
    host_calls.NUMBER     an entry for each library's call that moves data of the host: ``HOST_ENTRY`` there
    host_names            a line of JSON for each name: its number, the call, and what it did to the data
    watched               an entry for each copy that is watched, and each call that reads: ``READ_ENTRY`` there
    failed.NUMBER         an entry for each call that returned an error: ``error_filter.FAILED_ENTRY``
    failed_functions      a line of JSON for each function of these: its number, and its name
    stacks                a line of JSON for each stack: its number, and its frames, the innermost first
    ranges                a line of JSON for each range: its number, and its name
    memory                a line of JSON for each copy whose memory was looked at: that of ``source_memory``
    managed               a line of JSON once managed memory was allocated: CUPTI's error where it is not followed
    standing              where the program stood then, and when: :data:`pinscope.tracing.managed.STANDING`
    full                  a line that says which calls have no stack because there were too many, if so
    stop                  written by the parent: record no more
    fault                 why the recording ended early
    waited.json           with ``--what-if wait``: how often each line was waited for, and why not
    checks                with ``--what-if``: a line of JSON for each array that the program saves or names
    refused.json          CUPTI's error, if it gave us no subscription; the program was not started then
"""

from __future__ import annotations

import os as program_os

from pinscope.tracing.bound import TYPE_CHECKING, bind, os

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import TypeVar

    Answer = TypeVar("Answer")

bind(globals())

CHILDREN = "children"
"""File of the program's spool: what its processes say of those that they start, of :func:`child_line`."""
JOINED, STARTED, FAILED, SHELL = "joined", "started", "failed", "shell"
"""A Python process that is recorded from its first import of ``ctypes`` on; another program, or one that this process
becomes; it did not become that; a call of ``os.system``."""
_FOLDER = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_NOFOLLOW | os.O_CLOEXEC
_PRIVATE = 0o700
STACK = 25
"""Place in ``stat``, behind the name, of where the stack begins: a fork does not change it, another program does."""


def child_line(first: int, second: int, word: str) -> bytes:
    """A line of :data:`CHILDREN`: a process, where its stack begins, and one of the words above. The stack of a process
    that becomes another program is that before; of one that is started as another, 0. Of a shell, when it began and
    ended, in nanoseconds of the clock ``CLOCK_MONOTONIC``."""
    return f"{first} {second} {word}\n".encode()


def stack_begin() -> int:
    """Where the stack of this process begins, by which it differs from another program in its place."""
    descriptor = os.open("/proc/self/stat", os.O_RDONLY | os.O_CLOEXEC)
    try:
        return int(os.read(descriptor, 4096).rpartition(b")")[2].split()[STACK])
    finally:
        os.close(descriptor)


def rank_here() -> int | None:
    """Of this process among those of one job, where its launcher says so."""
    rank = program_os.environ.get("RANK") or program_os.environ.get("LOCAL_RANK") or ""
    return int(rank) if rank.isascii() and rank.isdigit() else None


class SpoolFolder:
    """A folder that this user alone may enter.

    Args:
        path: where it lies.
        device, inode: which it is.
        process: of it, the folder of one process that the program started, with a slash at its end; of the program
            itself nothing.
    """

    def __init__(self, path: str, device: int, inode: int, process: str = "") -> None:
        self.path = path
        self._identity = device, inode
        self._process = process

    @classmethod
    def of(cls, status: os.stat_result, path: str) -> SpoolFolder:
        """The one of this status, by a path of it."""
        return cls(path, status.st_dev, status.st_ino)

    @classmethod
    def named(cls, handover: str) -> SpoolFolder:
        """That of :meth:`handover`.

        Raises:
            ValueError: it is none.
        """
        device, inode, path = handover.split(":", 2)
        return cls(path, int(device), int(inode))

    @property
    def handover(self) -> str:
        """Which it is, in one text."""
        device, inode = self._identity
        return f"{device}:{inode}:{self.path}"

    @property
    def of_program(self) -> SpoolFolder:
        """That of the program, which all its processes share."""
        return SpoolFolder(self.path, *self._identity)

    def of_process(self) -> SpoolFolder:
        """A new folder of this process, which the program started.

        Raises:
            OSError: there is no folder to make it in.
        """
        number = 0
        while True:  # the same process may have run another program before
            name = f"process.{os.getpid()}.{number}"
            try:
                self._inside(lambda folder, name=name: os.mkdir(name, _PRIVATE, dir_fd=folder))  # type: ignore[misc]
            except FileExistsError:
                number += 1
                continue
            return SpoolFolder(self.path, *self._identity, f"{name}/")

    def open(self, name: str, flags: int) -> int:
        """A descriptor of a file in it; a new one is this user's alone.

        Raises:
            OSError: there is no such file, or the folder is gone or another one.
        """
        return self._inside(lambda folder: os.open(self._process + name, flags | _FILE, 0o600, dir_fd=folder))

    def append(self, name: str, line: bytes) -> None:
        """Write to the end of a file, which is made if it is not there."""
        self.write(name, line, os.O_APPEND)

    def write(self, name: str, content: bytes, how: int = os.O_TRUNC) -> None:
        """Write a file, in the place of one of that name."""
        descriptor = self.open(name, os.O_WRONLY | os.O_CREAT | how)
        try:
            os.write(descriptor, content)
        finally:
            os.close(descriptor)

    def read(self, name: str) -> bytes:
        """The whole of a file.

        Raises:
            OSError: there is no such file, or the folder is gone or another one.
        """
        descriptor = self.open(name, os.O_RDONLY)
        try:
            return b"".join(iter(lambda: os.read(descriptor, 1 << 20), b""))
        finally:
            os.close(descriptor)

    def rename(self, name: str, new: str) -> None:
        """Give a file another name."""
        name, new = self._process + name, self._process + new
        self._inside(lambda folder: os.rename(name, new, src_dir_fd=folder, dst_dir_fd=folder))

    def remove(self, name: str) -> None:
        """Remove a file."""
        self._inside(lambda folder: os.unlink(self._process + name, dir_fd=folder))

    def has(self, name: str) -> bool:
        """Whether there is such a file; not where the folder is gone or another one."""
        try:
            return self._inside(lambda folder: os.access(self._process + name, os.F_OK, dir_fd=folder))
        except OSError:
            return False

    def _inside(self, work: Callable[[int], Answer]) -> Answer:
        """Do something with a descriptor of the folder."""
        folder = os.open(self.path, _FOLDER)
        try:
            status = os.fstat(folder)
            if (status.st_dev, status.st_ino) != self._identity:
                raise FileNotFoundError(2, "another folder has its name", self.path)
            if status.st_uid != os.geteuid() or status.st_mode & 0o077:
                raise PermissionError(1, "it is not this user's alone", self.path)
            return work(folder)
        finally:
            os.close(folder)
