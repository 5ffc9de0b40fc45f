"""New files: whole or not at all, and readable by their owner alone."""

from __future__ import annotations

import errno
import logging
import os
import secrets
import stat
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from itertools import takewhile
from pathlib import Path
from typing import BinaryIO

from pinscope.errors import BadInput, PathExists, PinScopeError
from pinscope.text import one_line

_NO_HARD_LINKS = frozenset({errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK, errno.EXDEV, errno.EINVAL})
_OPEN_FILES = "/proc/self/fd"
_NO_NAMELESS_FILES = frozenset({errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL, errno.ENOSYS})
"""How a file system refuses O_TMPFILE; a kernel that does not know it takes it for opening the folder."""
AS_UMASK_SAYS = 0o666
_IMPOSSIBLE_NAMES = frozenset({errno.ENAMETOOLONG, errno.ELOOP, errno.EINVAL})


def write_new(path: Path, content: Iterable[bytes]) -> None:
    """Write the pieces of ``content`` to a new file; errors as for :func:`new_file`."""
    with new_file(path) as file:
        file.writelines(content)


def check_new(path: Path) -> None:
    """Refuse a file that could not be written at the end, before anything begins.

    Raises:
        PathExists: something of that name is there.
        BadInput: there is no such folder, or it may not be written to or not be looked into.
    """
    _check_name(path)
    try:
        is_folder = stat.S_ISDIR(path.parent.stat().st_mode)
    except (FileNotFoundError, NotADirectoryError):
        is_folder = False
    except OSError as error:
        raise BadInput(f"cannot write {path}: {error.strerror}") from None
    if not is_folder:
        raise BadInput(f"cannot write {path}: there is no folder {path.parent}")
    if not os.access(path.parent, os.W_OK | os.X_OK):
        raise BadInput(f"cannot write {path}: the folder may not be written to")


@contextmanager
def new_file(path: Path, mode: int = AS_UMASK_SAYS) -> Iterator[BinaryIO]:
    """Gives the file to write to. Whoever looks at that name sees nothing, or what was written when the block ended.

    Args:
        path: its name.
        mode: what may be done with it, less what the umask takes away.

    Raises:
        PathExists: something of that name is there.
        BadInput: there is no such folder, it may not be written to, or no file can have that name.
        PinScopeError: the disk is full or fails.
    """
    _check_name(path)
    try:
        with _unfinished(path.parent, mode) as (file, take_name):
            yield file
            file.flush()
            os.fsync(file.fileno())
            take_name(path)
        _keep_name(path.parent)
    except FileExistsError:
        raise PathExists(f"{path} is there already; PinScope does not overwrite files") from None
    except (FileNotFoundError, NotADirectoryError, PermissionError) as error:
        raise BadInput(f"cannot write {path}: {error.strerror}") from None
    except OSError as error:
        kind = BadInput if error.errno in _IMPOSSIBLE_NAMES else PinScopeError
        raise kind(f"cannot write {path}: {error.strerror}") from None


def _check_name(path: Path) -> None:
    if os.path.lexists(path):
        raise PathExists(f"{path} is there already; PinScope does not overwrite files")


@contextmanager
def _unfinished(folder: Path, mode: int) -> Iterator[tuple[BinaryIO, Callable[[Path], None]]]:
    """A file to write to, and what gives it its name: fails where somebody else has taken that meanwhile.

    It has no name before (O_TMPFILE, open(2)), so a process that is killed leaves nothing.
    """
    descriptor = _nameless(folder, mode)
    if descriptor is None:
        with _hidden(folder, mode) as both:
            yield both
        return
    with os.fdopen(descriptor, "wb") as file:
        yield file, lambda path: _name_descriptor(descriptor, path)


def _nameless(folder: Path, mode: int) -> int | None:
    if not os.path.lexists(_OPEN_FILES):
        return None  # without /proc it could never get a name
    try:
        return os.open(folder, os.O_TMPFILE | os.O_WRONLY, mode)
    except OSError as error:
        if error.errno not in _NO_NAMELESS_FILES:
            raise
        return None


def _name_descriptor(descriptor: int, path: Path) -> None:
    here = os.open(_OPEN_FILES, os.O_PATH)
    try:
        os.link(str(descriptor), path, src_dir_fd=here, follow_symlinks=True)
    finally:
        os.close(here)


@contextmanager
def _hidden(folder: Path, mode: int) -> Iterator[tuple[BinaryIO, Callable[[Path], None]]]:
    """The same where the file system has no files without a name: it has a hidden one meanwhile."""
    temporary = folder / f".pinscope-{secrets.token_hex(8)}.part"
    try:
        with open(temporary, "xb", opener=lambda name, flags: os.open(name, flags, mode)) as file:
            yield file, lambda path: _take_name(temporary, path)
    finally:
        with suppress(OSError):
            temporary.unlink()


def _take_name(temporary: Path, path: Path) -> None:
    """Give the finished file its name unless somebody else has taken it meanwhile."""
    try:
        os.link(temporary, path)
    except OSError as error:
        if error.errno not in _NO_HARD_LINKS:
            raise
        # FAT and some network file systems: claim the name with an empty file, then replace that.
        path.open("xb").close()
        temporary.replace(path)


def _keep_name(folder: Path) -> None:
    """Make the name itself survive a power cut."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


PRIVATE_FOLDER = 0o700
PRIVATE_FILE = 0o600
SHARED_FOLDERS = ("/tmp", "/var/tmp")  # noqa: S108 - used by what this module checks
"""Folders that every user may write in."""
_OTHERS = stat.S_IRWXG | stat.S_IRWXO
_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH
_LOG = logging.getLogger("pinscope")
"""Where nobody has set up logging, Python writes a warning to stderr as it is."""


def own_folder(shared: Path) -> Path:
    """This user's folder in one that users share; see :func:`make_private` and :func:`check_private`."""
    return shared / f"pinscope-{os.geteuid()}"


def make_private(folder: Path) -> None:
    """Make a folder that nobody else may enter, and those above it that are missing likewise.

    What has that name already stays as it is.
    """
    missing = takewhile(lambda above: not os.path.lexists(above), folder.parents)
    for path in reversed([folder, *missing]):
        with suppress(FileExistsError):
            path.mkdir(PRIVATE_FOLDER)


def check_private(folder: Path) -> None:
    """Refuse a folder that another user may have made, may write in, or may put another one in the place of.

    Raises:
        OSError: it is such a folder, a link or no folder, or not there.
    """
    status = folder.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid() or status.st_mode & _OTHERS_WRITE:
        raise PermissionError(f"{folder} is open to other users")
    within = folder.parent.resolve()
    for above in (within, *within.parents):
        status = above.stat()
        # Many systems give each user a group of his own, and a umask that lets it write.
        writers = stat.S_IWOTH if status.st_gid == os.getegid() else _OTHERS_WRITE
        if status.st_mode & writers and not status.st_mode & stat.S_ISVTX:
            raise PermissionError(f"{above} lets other users replace what is in it")


def keep_private(folder: Path, *names: str) -> None:
    """Make a folder of PinScope's own, and close it and these files in it to other users; says so if it was open."""
    make_private(folder)
    closed = [path for path in (folder, *(folder / name for name in names)) if _close(path)]
    if closed:
        _LOG.warning("pinscope: %s was open to other users; it is private now", one_line(str(closed[0])))


def _close(path: Path) -> bool:
    """Whether other users could do anything with a file or folder of this user, and can no longer."""
    try:
        status = path.stat()
        if status.st_uid != os.geteuid() or not status.st_mode & _OTHERS:
            return False
        path.chmod(status.st_mode & stat.S_IRWXU)
        return not path.stat().st_mode & _OTHERS
    except OSError:  # it is not there, or its file system takes no changes or knows no modes
        return False


def make_private_file(path: Path) -> None:
    """Make an empty file that nobody else may open, unless there is one; of a link, the file that it leads to."""
    with suppress(FileExistsError):
        # Not opened: to close it would take away the locks that another thread has on it by then (fcntl(2)).
        os.mknod(os.path.realpath(path), stat.S_IFREG | PRIVATE_FILE)
