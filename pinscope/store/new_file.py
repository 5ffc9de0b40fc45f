"""New files: whole or not at all, and readable by their owner alone."""

from __future__ import annotations

import errno
import os
import secrets
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from itertools import takewhile
from pathlib import Path
from typing import BinaryIO

from pinscope.errors import BadInput, PathExists, PinScopeError

_NO_HARD_LINKS = frozenset({errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK, errno.EXDEV, errno.EINVAL})
_IMPOSSIBLE_NAMES = frozenset({errno.ENAMETOOLONG, errno.ELOOP, errno.EINVAL})


def write_new(path: Path, content: Iterable[bytes]) -> None:
    """Write the pieces of ``content`` to a new file; errors as for :func:`new_file`."""
    with new_file(path) as file:
        file.writelines(content)


def check_new(path: Path, *suffixes: str) -> None:
    """Refuse a file that could not be written at the end, before anything begins.

    Raises:
        PathExists: something of that name is there.
        BadInput: none of these suffixes, if any are given; there is no such folder, or it may not be written to or not
            be looked into.
    """
    if suffixes and path.suffix.lower() not in suffixes:
        raise BadInput(f"{path.name}: the suffix tells the format; there are: {', '.join(suffixes)}")
    _check_name(path)
    if not os.path.isdir(path.parent):  # noqa: PTH112 - false also where this user may not look
        raise BadInput(f"cannot write {path}: there is no folder {path.parent}, or it may not be looked into")
    if not os.access(path.parent, os.W_OK | os.X_OK):
        raise BadInput(f"cannot write {path}: the folder may not be written to")


@contextmanager
def new_file(path: Path) -> Iterator[BinaryIO]:
    """Gives the file to write to. Under that name there is nothing, or what was written when the block ended.

    Until then it has a hidden name beside it, which a process that is killed leaves behind.

    Raises:
        PathExists: something of that name is there.
        BadInput: there is no such folder, it may not be written to, or no file can have that name.
        PinScopeError: the disk is full or fails.
    """
    _check_name(path)
    temporary = path.parent / f".pinscope-{secrets.token_hex(8)}.part"
    try:
        try:
            with temporary.open("xb") as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
                _take_name(temporary, path)
        finally:
            with suppress(OSError):
                temporary.unlink()
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


PRIVATE_FOLDER = 0o700
PRIVATE_FILE = 0o600
SHARED_FOLDERS = ("/tmp", "/var/tmp")  # noqa: S108 - used by what this module checks
"""Folders that every user may write in."""
_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH


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


def keep_private(folder: Path) -> None:
    """Make a folder of PinScope's own, and close it to other users if it was open."""
    make_private(folder)
    with suppress(OSError):  # it is another user's, or its file system knows no modes
        if folder.stat().st_uid == os.geteuid():
            folder.chmod(folder.stat().st_mode & stat.S_IRWXU)


def make_private_file(path: Path) -> None:
    """Make an empty file that nobody else may open, unless there is one; of a link, the file that it leads to."""
    with suppress(FileExistsError):
        # Not opened: to close it would take away the locks that another thread has on it by then (fcntl(2)).
        os.mknod(os.path.realpath(path), stat.S_IFREG | PRIVATE_FILE)
