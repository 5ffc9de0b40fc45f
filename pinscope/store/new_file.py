"""A new file, whole or not at all, never over one that is there."""

from __future__ import annotations

import errno
import os
import secrets
from contextlib import suppress
from pathlib import Path

from pinscope.errors import BadInput, PathExists, PinScopeError

_NO_HARD_LINKS = frozenset({errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK, errno.EXDEV, errno.EINVAL})

_IMPOSSIBLE_NAMES = frozenset({errno.ENAMETOOLONG, errno.ELOOP, errno.EINVAL})


def write_new(path: Path, content: bytes) -> None:
    """Write ``content`` to ``path``. Whoever looks at that name sees nothing, or the whole file.

    Raises:
        PathExists: something of that name is there.
        BadInput: there is no such folder, it may not be written to, or no file can have that name.
        PinScopeError: the disk is full or fails.
    """
    if os.path.lexists(path):
        raise PathExists(f"{path} is there already; PinScope does not overwrite files")
    temporary = path.with_name(f".pinscope-{secrets.token_hex(8)}.part")
    try:
        with temporary.open("xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        _take_name(temporary, path)
        _keep_name(path.parent)
    except FileExistsError:
        raise PathExists(f"{path} is there already; PinScope does not overwrite files") from None
    except (FileNotFoundError, NotADirectoryError, PermissionError) as error:
        raise BadInput(f"cannot write {path}: {error.strerror}") from None
    except OSError as error:
        kind = BadInput if error.errno in _IMPOSSIBLE_NAMES else PinScopeError
        raise kind(f"cannot write {path}: {error.strerror}") from None
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
