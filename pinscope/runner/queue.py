"""One run at a time per GPU on this machine: others queue.

Whoever may take a turn can make others wait for it. So a turn is a lock on a file that no other user can open: the runs
of one user queue, whatever others do. Where users trust each other, the administrator makes a folder for their turns
(:data:`SHARED`), which belongs to root and which they may write in; the runs of all of them queue then. A lock is free
the moment its holder ends, however it ends. Containers with a /tmp of their own have a queue of their own, and so have
processes for which :data:`VARIABLE` names a folder.
"""

from __future__ import annotations

import fcntl
import os
import re
import stat
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
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
_TRIES = 100
"""Each that fails was overtaken by another run that came or went in that moment."""
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
    lock = _taken(name, waiting, folders)
    if lock is None:
        unsafe = ", ".join(map(str, folders))
        yield f"Other runs may have measured at the same time: no folder for a lock is safe ({unsafe})."
        return
    try:
        process = f"process {os.getpid()}"
        lock.say(f"{holder} ({process})" if holder else process)
        yield None
    finally:
        lock.release()


def places() -> list[Path]:
    """Folders for locks, best first. They do not depend on the session: runs from all of a user's sessions queue."""
    if named := os.environ.get(VARIABLE):
        return [Path(named)]
    folders = [SHARED, *(own_folder(Path(shared)) for shared in (*SHARED_FOLDERS, "/dev/shm"))]  # noqa: S108 - checked
    with suppress(RuntimeError):  # this user has no home folder
        folders.append(platformdirs.user_state_path("pinscope", appauthor=False) / "queue")
    return folders


class _Lock:
    """An open file, locked or not.

    Raises:
        OSError: it cannot be opened, or somebody else may have put it there.
    """

    def __init__(self, path: Path, shared: bool) -> None:
        self._path = path
        flags = os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        try:
            self._file = os.open(path, flags)
        except FileNotFoundError:
            # Not one call with the above: in some folders the kernel lets nobody "create" what another has made.
            self._file = os.open(path, flags | os.O_CREAT | os.O_EXCL, PRIVATE_FILE)
            if shared:
                os.fchmod(self._file, 0o666)  # whatever the umask is: the folder says who may
        status = os.fstat(self._file)
        is_own = stat.S_ISREG(status.st_mode) and (shared or status.st_uid == os.geteuid())
        if not is_own or status.st_nlink > 1:  # by another name it may be a file that somebody needs
            self.close()
            raise PermissionError(f"{path} is not a file of this user")

    def take(self) -> bool:
        """Lock the file if nobody has; False also if it was removed meanwhile."""
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        except OSError as error:
            raise MeasurementFailed(f"cannot queue for the device: {self._path}: {error.strerror}") from None
        return self.is_there()

    def is_there(self) -> bool:
        """Whether the path still leads to this file."""
        try:
            return os.path.samestat(os.fstat(self._file), os.lstat(self._path))
        except FileNotFoundError:
            return False

    def say(self, text: str) -> None:
        """Tell those who wait who holds the lock."""
        with suppress(OSError):  # a full disk: they wait all the same
            os.ftruncate(self._file, 0)
            os.pwrite(self._file, text.encode()[:_MOST_READ], 0)

    def holder(self) -> str:
        """What the holder says of itself."""
        return one_line(os.pread(self._file, _MOST_READ, 0).decode(errors="replace")) or "another run"

    def release(self) -> None:
        """Leave nothing behind. Who waits sees that the file is gone, and makes the next one."""
        with suppress(OSError):  # removed by somebody else
            self._path.unlink()
        if self._path.parent != SHARED:
            with suppress(OSError):  # another lock is in it
                self._path.parent.rmdir()
        self.close()

    def close(self) -> None:
        os.close(self._file)


def _taken(name: str, waiting: Callable[[str], None], folders: Sequence[Path]) -> _Lock | None:
    lock = _opened(name, folders)
    try:
        while lock is not None and not lock.take():
            if lock.is_there():
                waiting(lock.holder())
                time.sleep(POLL_SECONDS)
            else:
                lock.close()
                lock = _opened(name, folders)
    except BaseException:
        if lock is not None:
            lock.close()
        raise
    return lock


def _opened(name: str, folders: Sequence[Path]) -> _Lock | None:
    """The file in the first folder that can be used."""
    for folder in folders:
        for _ in range(_TRIES):
            try:
                shared = _checked(folder)
                return _Lock(folder / f"{_NO_NAME.sub('_', name)[:100]}.lock", shared)
            except (FileNotFoundError, FileExistsError):
                continue  # the last holder has just removed the folder, or another one has just made the file
            except OSError:
                break
    return None


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
