"""One run at a time per GPU on this machine, across processes and users: others queue.

The lock is the kernel's (flock), so it is free the moment its holder ends, however it ends.
"""

from __future__ import annotations

import errno
import fcntl
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from pinscope.errors import MeasurementFailed

POLL_SECONDS = 0.1


def lock_path(name: str) -> Path:
    """The lock file of a GPU (its UUID) or of the host model (``host``)."""
    safe = "".join(character if character.isalnum() or character == "-" else "_" for character in name)
    return Path(tempfile.gettempdir()) / f"pinscope-{safe}.lock"


@contextmanager
def turn(name: str, run_id: str, waiting: Callable[[str], None]) -> Iterator[None]:
    """Hold the lock of ``name`` while the block runs.

    Args:
        name: what is locked.
        run_id: told to those who wait.
        waiting: called with what holds the lock, again and again while it is held; may raise to give up.
    """
    descriptor = _open(lock_path(name))
    try:
        while not _try_lock(descriptor):
            holder = os.pread(descriptor, 200, 0).decode(errors="replace").strip("\0\n ")
            waiting(holder or "another run")
            time.sleep(POLL_SECONDS)
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"run {run_id} (process {os.getpid()})".encode(), 0)
        yield
        os.ftruncate(descriptor, 0)
    finally:
        os.close(descriptor)


def _open(path: Path) -> int:
    """The lock file, made for all users; a link in its place is refused."""
    flags = os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC
    for _ in range(3):
        try:
            return os.open(path, flags)
        except FileNotFoundError:
            pass
        except OSError as error:
            raise MeasurementFailed(f"cannot open the lock file {path}: {error.strerror}") from None
        try:
            descriptor = os.open(path, flags | os.O_CREAT | os.O_EXCL, 0o666)
        except FileExistsError:
            continue  # another run made it between our two calls
        except OSError as error:
            raise MeasurementFailed(f"cannot make the lock file {path}: {error.strerror}") from None
        os.fchmod(descriptor, 0o666)  # the umask must not lock other users out
        return descriptor
    raise MeasurementFailed(f"the lock file {path} comes and goes; is something clearing that folder?")


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in (errno.EWOULDBLOCK, errno.EINTR):
            return False
        raise
    return True
