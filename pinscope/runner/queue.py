"""The queue for a device: one run measures at a time, by a lock that users of a host may share."""

from __future__ import annotations

import fcntl
import os
import re
import stat
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from io import FileIO
from pathlib import Path

import platformdirs

from pinscope.errors import MeasurementFailed
from pinscope.store.new_file import PRIVATE_FILE, SHARED_FOLDERS, check_private, make_private, own_folder
from pinscope.text import one_line

POLL_SECONDS = 0.1
SHARED = Path("/run/lock/pinscope")
"""For users who are to wait for each other. Root makes it: ``install -d -g GROUP -m 2770 /run/lock/pinscope``."""
VARIABLE = "PINSCOPE_QUEUE"
"""Environment variable with the folder in which this user's runs queue instead."""
_MOST_READ = 200
"""Bytes that a holder says of itself."""
_NO_NAME = re.compile(r"[^0-9A-Za-z_-]")


@contextmanager
def turn(
    name: str, waiting: Callable[[str], None], holder: str = "", folders: Sequence[Path] | None = None
) -> Iterator[str | None]:
    """Hold the lock of ``name`` while the block runs; gives ``None``, or why nothing could be locked.

    Args:
        name: what is locked: a GPU's UUID, or ``host`` for the host model.
        waiting: called with what holds the lock, again and again while it is held; may raise to give up.
        holder: what the waiting ones say of this one, beside its process id.
        folders: where the lock may lie; the first that can be used is taken. By default those of :func:`places`.

    Raises:
        MeasurementFailed: the file system refuses the lock for another reason than that it is held.
    """
    folders = places() if folders is None else folders
    lock = _opened(name, folders)
    if lock is None:
        unsafe = ", ".join(map(str, folders))
        yield f"Other runs may have measured at the same time: no folder for a lock is safe ({unsafe})."
        return
    with lock:
        while not _is_taken(lock):
            said = os.pread(lock.fileno(), _MOST_READ, 0).decode(errors="replace")
            waiting(one_line(said) or "another run")
            time.sleep(POLL_SECONDS)
        process = f"process {os.getpid()}"
        with suppress(OSError):  # a full disk: they wait all the same
            lock.truncate(0)
            os.pwrite(lock.fileno(), (f"{holder} ({process})" if holder else process).encode()[:_MOST_READ], 0)
        yield None


def _is_taken(lock: FileIO) -> bool:
    """Lock the file if nobody has."""
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        raise MeasurementFailed(f"cannot queue for the device: {lock.name}: {error.strerror}") from None
    return True


def places() -> list[Path]:
    """Folders for locks, best first. They do not depend on the session: runs from all of a user's sessions queue."""
    if named := os.environ.get(VARIABLE):
        return [Path(named)]
    folders = [SHARED, *(own_folder(Path(shared)) for shared in (*SHARED_FOLDERS, "/dev/shm"))]  # noqa: S108 - checked
    with suppress(RuntimeError):  # this user has no home folder
        folders.append(platformdirs.user_state_path("pinscope", appauthor=False) / "queue")
    return folders


def _opened(name: str, folders: Sequence[Path]) -> FileIO | None:
    """The file in the first folder that can be used; it stays when the turn is over."""
    for folder in folders:
        with suppress(OSError):
            shared = _checked(folder)
            path = str(folder / f"{_NO_NAME.sub('_', name)[:100]}.lock")
            file = FileIO(path, "r+", opener=partial(_open_lock, shared=shared))
            status = os.fstat(file.fileno())
            is_own = stat.S_ISREG(status.st_mode) and (shared or status.st_uid == os.geteuid())
            if is_own and status.st_nlink == 1:  # by another name it may be a file that somebody needs
                return file
            file.close()
    return None


def _open_lock(path: str, _flags: int, shared: bool) -> int:
    flags = os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        return os.open(path, flags)
    except FileNotFoundError:
        # Not one call with the above: in some folders the kernel lets nobody "create" what another has made.
        file = os.open(path, flags | os.O_CREAT, PRIVATE_FILE)
        if shared:
            os.fchmod(file, 0o666)  # whatever the umask is: the folder says who may
        return file


def _checked(folder: Path) -> bool:
    """Whether the users of the folder share it. One of this user alone is made where it is not.

    Raises:
        OSError: it is not there, or somebody who should not may write in it.
    """
    if folder != SHARED:
        make_private(folder)
        check_private(folder)
        return False
    status = folder.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != 0:
        raise PermissionError(f"{folder} is not a folder that root made")
    return True
