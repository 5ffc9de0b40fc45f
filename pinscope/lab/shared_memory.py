"""Memory that processes of one user share by name: the first that asks makes it, the others open it.

The memory is a memfd: it takes no room of /dev/shm, and is gone with its last user, also after a crash. Its name is a
small file in /dev/shm that only its user may read, and that says where its maker holds the memory. Whoever holds the
file's lock makes the memory, or learns where it is; the maker keeps the lock until every page is touched.
"""

from __future__ import annotations

import fcntl
import os
import re
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Self

from pinscope.errors import InvalidParameter, NotPossible
from pinscope.lab.backing import SEGMENT_FOLDER, OwnMemory, Segment, segment_page, shared_region
from pinscope.text import quoted
from pinscope.units import format_bytes

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}")


class SharedMemory:
    """The memory of that name, made or opened, and mapped.

    Args:
        name: letters, digits, ``.``, ``_`` and ``-``.
        nbytes: how much; all who share it ask for the same.
        segment: what the maker makes.
        check: called with the number of bytes before they are made; raises where they must not be.

    Attributes:
        nbytes: its length: whole pages.
        is_maker: whether it was made here. Others get it only after :meth:`publish`.

    Raises:
        InvalidParameter: the name or the size is not right, or the name is another user's.
        NotEnoughMemory: no such memory can be had.
        NotPossible: this host keeps processes from sharing it.
    """

    def __init__(self, name: str, nbytes: int, segment: Segment, check: Callable[[int], None]) -> None:
        if not _NAME.fullmatch(name):
            raise InvalidParameter(f"shared is {quoted(name)}; up to 100 letters, digits, '_', '-' and '.' make a name")
        self._title, self._process = f"pinscope-{name}", os.getpid()
        self._path = f"{SEGMENT_FOLDER}/{self._title}"
        self._named = ExitStack()
        """Takes the name away; with nothing to do where another process gave it."""
        with ExitStack() as failed:
            lock = _locked(self._path, name)
            failed.callback(_let_go, lock)
            opened = self._opened(lock, name, nbytes)
            self.is_maker = opened is None
            if opened is None:
                failed.callback(Path(self._path).unlink, missing_ok=True)  # before it is let go
                check(nbytes)
                page = segment_page(segment)
                opened = failed.enter_context(shared_region(-(-nbytes // page) * page, segment, self._title))
                os.fchmod(opened, 0o600)
                os.ftruncate(lock, 0)
                os.pwrite(lock, f"{self._process} {opened} {nbytes} {_namespace()}".encode(), 0)
            else:
                failed.callback(os.close, opened)
            self._lock, self.nbytes = lock, os.fstat(opened).st_size
            self._memory = OwnMemory(self.nbytes, descriptor=opened)
            if self.is_maker:
                failed.callback(fcntl.flock, lock, fcntl.LOCK_EX)  # before all else: others may be reading it
                self._named = failed.pop_all()

    @property
    def address(self) -> int:
        """Where it begins."""
        return self._memory.address

    def publish(self) -> None:
        """Let the others have what was made: its pages are touched."""
        if self.is_maker:
            fcntl.flock(self._lock, fcntl.LOCK_UN)

    def withdraw(self) -> None:
        """Take the name away, if this process gave it: who has the memory keeps it. In a forked child nothing."""
        named = self._named.pop_all()
        if os.getpid() == self._process:
            named.close()

    def close(self) -> None:
        """Withdraw and unmap."""
        self.withdraw()
        self._memory.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _opened(self, lock: int, name: str, nbytes: int) -> int | None:
        """The descriptor of what another process made under this name and still holds."""
        words = os.pread(lock, 200, 0).decode().split()
        if len(words) != 4:  # nobody has made it
            return None
        process, number, size, namespace = words
        if namespace != _namespace():
            raise NotPossible(
                f"shared memory {quoted(name)} was made in another container, whose processes are not seen here; take "
                f"another name, or remove {self._path} if that container has ended"
            )
        place = f"/proc/{process}/fd/{number}"
        try:
            if os.readlink(place).split()[0] != f"/memfd:{self._title}":  # noqa: PTH115
                return None
            descriptor = os.open(place, os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:  # its maker has ended
            return None
        except OSError as error:
            raise NotPossible(f"shared memory {quoted(name)} of process {process}: {error.strerror}") from None
        if int(size) != nbytes:
            os.close(descriptor)
            raise InvalidParameter(
                f"shared memory {quoted(name)} has {format_bytes(int(size))} ({size} bytes), not {nbytes} bytes"
            )
        return descriptor


def _locked(path: str, name: str) -> int:
    """The file of that name, locked; not one whose name has been taken away."""
    while True:
        try:
            lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        except OSError as error:
            raise NotPossible(f"shared memory {quoted(name)} needs {path}: {error.strerror}") from None
        with ExitStack() as failed:
            failed.callback(os.close, lock)
            if os.fstat(lock).st_uid != os.geteuid():
                raise InvalidParameter(f"shared memory {quoted(name)} is another user's; take another name")
            fcntl.flock(lock, fcntl.LOCK_EX)
            with suppress(FileNotFoundError):  # its maker took the name away meanwhile
                if os.path.samestat(os.fstat(lock), os.stat(path)):  # noqa: PTH116
                    failed.pop_all()
                    return lock


def _let_go(lock: int) -> None:
    """Explicitly: a forked child has it too."""
    fcntl.flock(lock, fcntl.LOCK_UN)
    os.close(lock)


def _namespace() -> str:
    """Of process numbers."""
    return os.readlink("/proc/self/ns/pid")  # noqa: PTH115
