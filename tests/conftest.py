"""What every test is held to: it touches nobody's data and leaves nothing behind.

Servers that outlive a test belong into session or module fixtures: those start before the count is taken.
What starts later and may stay is entered in ``outliving``.
"""

from __future__ import annotations

import gc
import importlib.util
import os
import re
import shutil
import stat
import tempfile
import threading
import time
import uuid
from collections.abc import Iterator, Set
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser

REBOUND = "evil.example"
"""A name that the browser resolves to this machine, as after DNS rebinding."""
ARGUMENTS = [
    "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update",
    "--disable-sync", "--no-first-run", f"--host-resolver-rules=MAP {REBOUND} 127.0.0.1",
]  # fmt: skip
SETTLE_SECONDS = 3.0
"""How long threads and children may take to end after a test."""
_MARK = "PINSCOPE_TEST_MARK"
"""Environment variable by which a process is known to come from one test, however deep or orphaned."""

# A busy machine must not fail a test for being slow.
if importlib.util.find_spec("hypothesis"):  # the GPU tests do without it
    import hypothesis

    hypothesis.settings.register_profile("pinscope", deadline=None)
    hypothesis.settings.load_profile("pinscope")


@dataclass
class Outliving:
    """What may stay after a test: process ids (with all below them) and thread names."""

    processes: set[int] = field(default_factory=set)
    threads: set[str] = field(default_factory=set)


@pytest.fixture(scope="session")
def outliving() -> Outliving:
    """Enter here what a test starts and a later test goes on using."""
    return Outliving()


@pytest.fixture(scope="session")
def chromium(outliving: Outliving) -> Iterator[Browser]:
    """Debian's Chromium, or the one that CHROMIUM names. One for all: Playwright's loop runs once in a process."""
    from playwright.sync_api import sync_playwright  # a GPU host runs tests too, without a browser

    binary = os.environ.get("CHROMIUM") or shutil.which("chromium")
    assert binary, "no chromium here: apt-get install chromium, or set CHROMIUM to its path"
    before = set(psutil.Process().children())
    with sync_playwright() as playwright:
        outliving.processes.update(child.pid for child in set(psutil.Process().children()) - before)
        browser = playwright.chromium.launch(executable_path=binary, args=ARGUMENTS)
        yield browser
        browser.close()


def _use_private_places(patch: pytest.MonkeyPatch, folder: Path) -> Path:
    """Point the store, the data folders and the temporary folder below ``folder``; returns the last."""
    temporary = folder / "t"
    temporary.mkdir()
    patch.setenv("PINSCOPE_DATABASE", f"sqlite:///{folder / 'pinscope.sqlite'}")
    for name in ("XDG_DATA_HOME", "XDG_STATE_HOME", "XDG_CONFIG_HOME"):
        patch.setenv(name, str(folder / name.lower()))
    patch.setenv("TMPDIR", str(temporary))
    patch.setattr(tempfile, "tempdir", None)  # asks for TMPDIR again
    return temporary


@pytest.fixture(scope="session", autouse=True)
def _session_uses_private_places(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Servers of session fixtures must not see a user's data either."""
    with pytest.MonkeyPatch.context() as patch:
        _use_private_places(patch, tmp_path_factory.mktemp("session"))
        yield


@pytest.fixture(autouse=True)
def _leaves_nothing_behind(tmp_path_factory: pytest.TempPathFactory, outliving: Outliving) -> Iterator[None]:
    """A test starts in places of its own and ends with what it began with."""
    with pytest.MonkeyPatch.context() as patch:
        mark = uuid.uuid4().hex
        # Not numbered: to find the next number takes longer with each folder that is there.
        temporary = _use_private_places(patch, tmp_path_factory.mktemp(f"own-{mark}", numbered=False))
        patch.setenv(_MARK, mark)
        before = _resources(temporary)  # nobody can have the mark yet
        yield
        deadline = time.monotonic() + SETTLE_SECONDS
        while left := _left_over(before, _resources(temporary, _marked_processes(mark)), outliving):
            if time.monotonic() > deadline:
                pytest.fail("left behind: " + "; ".join(left), pytrace=False)
            gc.collect()
            time.sleep(0.05)


@dataclass(frozen=True)
class _Resources:
    threads: frozenset[threading.Thread]
    processes: frozenset[int]
    shared_memory: frozenset[str]
    open_files: frozenset[str]
    temporary_files: frozenset[str]
    locked_kib: int


def _resources(temporary: Path, marked: Set[int] = frozenset()) -> _Resources:
    return _Resources(
        threads=frozenset(threading.enumerate()),
        processes=frozenset(_children() | marked),
        shared_memory=frozenset(_names("/dev/shm")),
        open_files=frozenset(_open_files()),
        temporary_files=frozenset(str(path) for path in temporary.iterdir()),
        locked_kib=int(re.search(r"VmLck:\s+(\d+)", Path("/proc/self/status").read_text())[1]),  # type: ignore[index]
    )


def _left_over(before: _Resources, after: _Resources, outliving: Outliving) -> list[str]:
    """What is there after and was not before, one line each."""
    threads = [t for t in after.threads - before.threads if t.name not in outliving.threads]
    processes = [p for p in after.processes - before.processes if not _below(p, outliving.processes)]
    left = [f"thread {thread.name!r}" for thread in threads]
    left += [f"process {pid} ({_read(pid, 'cmdline').replace(chr(0), ' ').strip()})" for pid in processes]
    left += [f"/dev/shm/{name}" for name in after.shared_memory - before.shared_memory]
    left += [f"open file {name}" for name in after.open_files - before.open_files]
    left += [f"temporary file {name}" for name in after.temporary_files - before.temporary_files]
    if after.locked_kib > before.locked_kib:
        left.append(f"{after.locked_kib - before.locked_kib} KiB of locked memory")
    return left


def _read(pid: int, name: str) -> str:
    """A file of /proc/PID; empty if the process is gone or not ours."""
    try:
        return Path(f"/proc/{pid}/{name}").read_text(errors="replace")
    except OSError:
        return ""


def _names(folder: str) -> set[str]:
    return {path.name for path in Path(folder).iterdir()}


def _children() -> set[int]:
    """Direct children, ended but unread ones included."""
    return {child.pid for child in psutil.Process().children()}


def _marked_processes(mark: str) -> set[int]:
    """Processes that inherited this test's environment, orphans included."""
    pids = {int(name) for name in _names("/proc") if name.isdecimal()} - {os.getpid()}
    return {pid for pid in pids if mark in _read(pid, "environ")}


def _below(pid: int, allowed: set[int]) -> bool:
    """True if the process or one of its ancestors is allowed."""
    while pid > 1 and pid not in allowed:
        parent = re.search(r"PPid:\s+(\d+)", _read(pid, "status"))
        pid = int(parent[1]) if parent else 0
    return pid in allowed


def _open_files() -> set[str]:
    """Regular files this process holds open."""
    names = set()
    for descriptor in _names("/proc/self/fd"):
        try:
            if stat.S_ISREG(os.fstat(int(descriptor)).st_mode):
                names.add(str(Path(f"/proc/self/fd/{descriptor}").readlink()))
        except OSError:  # the descriptor of this very listing
            continue
    return names
