"""Another user of this machine, as a real process: what may it read, and what can it put into the way?"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

NOBODY = 65534
needs_root = pytest.mark.skipif(os.getuid() != 0, reason="becomes another user, which takes root")
_BECOME = f"""
import os
os.setgroups([])
os.setgid({NOBODY})
os.setuid({NOBODY})
"""


def as_another_user(code: str, *arguments: str | Path, before: str = "") -> str:
    """What the code prints that another user runs, with ``sys.argv[1:]``; ``before`` is run while it is not yet one."""
    words = [sys.executable, "-c", f"import sys\n{before}{_BECOME}{code}", *map(str, arguments)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@contextmanager
def open_place() -> Iterator[Path]:
    """A folder that every user can look into, as pytest's own are not."""
    folder = Path(tempfile.mkdtemp(prefix="pinscope-place-", dir="/tmp"))
    try:
        folder.chmod(0o755)
        yield folder
    finally:
        shutil.rmtree(folder)


READ_ALL = """
for folder in sys.argv[1:]:
    try:
        print("listed", os.listdir(folder))
    except PermissionError:
        pass
    for name in ("pinscope.db", "pinscope.db-wal", "pinscope.db-shm"):
        try:
            print("read", name, len(open(f"{folder}/{name}", "rb").read()))
        except PermissionError:
            pass
"""
"""Prints what it could read of databases in the folders that it is given."""


ATTACKS = {
    "a folder": "os.mkdir(name); os.chmod(name, 0o777)\nfor file in files: os.symlink(victim, f'{name}/{file}')",
    "a link": "os.symlink(os.path.dirname(victim), name)",
    "a FIFO": "os.mkfifo(name)",
    "a file": "open(name, 'w').close()",
}
"""What another user puts where the first one's folder is to be: ``name``; ``victim`` is a file of the first one's, and
``files`` are names that the folder would hold."""


def attack(how: str, name: Path, victim: Path, *files: str) -> None:
    """Put one of :data:`ATTACKS` there."""
    begin = "name, victim, *files = sys.argv[1:]\n"
    as_another_user(begin + ATTACKS[how], name, victim, *files)
