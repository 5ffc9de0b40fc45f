"""Folders and files of this user alone, also where all users may make theirs.

Who is first in a shared folder has a name there. So a folder that another user may have made, or may put another one
in the place of, is neither read nor written: there is always a next place.
"""

from __future__ import annotations

import logging
import os
import stat
from contextlib import suppress
from itertools import takewhile
from pathlib import Path

from pinscope.text import one_line

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
