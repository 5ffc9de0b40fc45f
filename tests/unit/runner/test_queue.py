"""Turns on a device, between real processes."""

from __future__ import annotations

import os
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from pinscope.runner import worker
from pinscope.runner.worker import VARIABLE, turn
from pinscope.store.new_file import own_folder
from tests.data.second_user import ATTACKS, NOBODY, as_another_user, attack, needs_root, open_place


class _GivenUpError(Exception):
    pass


def _give_up(holder: str) -> None:
    raise _GivenUpError(holder)


@pytest.fixture(autouse=True)
def _own_folders(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where these tests queue when they name no folder."""
    monkeypatch.setenv(VARIABLE, str(tmp_path_factory.mktemp("queue") / "own"))


@pytest.fixture
def seen_by_all() -> Iterator[Path]:
    """A folder that every user can look into, as pytest's own are not."""
    with open_place() as place:
        yield place


def test_a_turn_ends_with_its_block_also_after_an_error_and_another_device_does_not_wait() -> None:
    name = uuid.uuid4().hex
    with pytest.raises(RuntimeError), turn(name, _give_up), turn(uuid.uuid4().hex, _give_up):
        raise RuntimeError("broken off")
    with turn(name, _give_up):
        pass


@needs_root
def test_no_other_user_can_open_what_is_locked(seen_by_all: Path) -> None:
    name, folder = uuid.uuid4().hex, seen_by_all / "own"
    folder.mkdir(mode=0o755)  # even if it were not closed to others
    with turn(name, _give_up, folders=[folder]):
        read = "try: open(sys.argv[1])\nexcept PermissionError: print('refused')"
        assert as_another_user(read, folder / f"{name}.lock") == "refused\n"


def test_a_folder_that_others_may_have_made_is_passed_over(tmp_path: Path) -> None:
    opened, link, own = tmp_path / "opened", tmp_path / "link", tmp_path / "own"
    opened.mkdir()
    opened.chmod(0o777)
    (tmp_path / "file").touch()
    link.symlink_to(opened)
    with turn("gpu", _give_up, folders=[tmp_path / "file" / "x", opened, link, own]) as problem:
        assert problem is None
        assert [path.name for path in own.iterdir()] == ["gpu.lock"]
        assert list(opened.iterdir()) == []


@needs_root
def test_a_folder_or_file_of_another_user_is_passed_over(tmp_path: Path) -> None:
    theirs, mixed, own = tmp_path / "theirs", tmp_path / "mixed", tmp_path / "own"
    for folder in (theirs, mixed):
        folder.mkdir(mode=0o700)
    (mixed / "gpu.lock").touch()
    os.chown(theirs, NOBODY, NOBODY)
    os.chown(mixed / "gpu.lock", NOBODY, NOBODY)
    with turn("gpu", _give_up, folders=[theirs, mixed, own]):
        assert [path.name for path in own.iterdir()] == ["gpu.lock"]


@pytest.fixture
def shared_folders(seen_by_all: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    """Two folders that every user may write in, where runs queue when nothing is named."""
    first, second = seen_by_all / "first", seen_by_all / "second"
    for folder in (first, second):
        folder.mkdir()
        folder.chmod(0o1777)
    monkeypatch.delenv(VARIABLE)
    monkeypatch.setattr(worker, "SHARED", seen_by_all / "none")
    monkeypatch.setattr(worker, "SHARED_FOLDERS", (str(first), str(second)))
    return first, second


@pytest.fixture
def precious(seen_by_all: Path) -> Iterator[Path]:
    """A file of this user's that may even be written to, in a folder of its own; it stays as it is."""
    file = seen_by_all / "mine" / "gpu.lock"
    file.parent.mkdir()
    file.write_text("precious")
    file.chmod(0o666)
    yield file
    assert file.read_text() == "precious"
    assert list(file.parent.iterdir()) == [file]


@needs_root
@pytest.mark.parametrize("how", ATTACKS)
def test_what_another_user_has_put_there_first_is_passed_over(
    shared_folders: tuple[Path, Path], precious: Path, how: str
) -> None:
    first, second = shared_folders
    attack(how, own_folder(first), precious, "gpu.lock")
    with turn("gpu", _give_up) as problem:
        assert problem is None
        assert [path.name for path in own_folder(second).iterdir()] == ["gpu.lock"]
    assert precious.stat().st_nlink == 1


@needs_root
def test_a_folder_is_not_used_that_another_user_could_replace_while_it_is(
    shared_folders: tuple[Path, Path], precious: Path
) -> None:
    """Without the sticky bit, whoever may write in a folder may rename what others made there."""
    first, second = shared_folders
    first.chmod(0o777)
    replace = "name, victim = sys.argv[1:]\nos.path.lexists(name) and os.rename(name, name + '-away')\n"
    with turn("gpu", _give_up) as problem:
        assert problem is None
        as_another_user(replace + ATTACKS["a link"], own_folder(first), precious)
        with pytest.raises(_GivenUpError, match=f"process {os.getpid()}"), turn("gpu", _give_up):
            pass  # two runs at once, if it were used
        assert [path.name for path in own_folder(second).iterdir()] == ["gpu.lock"]


@needs_root
@pytest.mark.parametrize("how", ["symlink", "hard link", "FIFO", "folder"])
def test_in_a_folder_that_users_share_a_lock_is_a_plain_file_and_nothing_else(
    shared_folders: tuple[Path, Path], seen_by_all: Path, precious: Path, how: str
) -> None:
    first, _ = shared_folders
    worker.SHARED.mkdir()
    os.chown(worker.SHARED, 0, NOBODY)
    worker.SHARED.chmod(0o2770)
    put = {
        "symlink": "os.symlink(victim, name)",
        "hard link": "os.link(victim, name)",
        "FIFO": "os.mkfifo(name)",
        "folder": "os.mkdir(name)",
    }
    code = f"name, victim = sys.argv[1:]\n{put[how]}"
    as_another_user(code, worker.SHARED / "gpu.lock", precious)
    with turn("gpu", _give_up) as problem:
        assert problem is None
        assert [path.name for path in own_folder(first).iterdir()] == ["gpu.lock"]


def test_a_name_cannot_leave_its_folder(tmp_path: Path) -> None:
    own = tmp_path / "own"
    with turn("../../GPU 1\0", _give_up, folders=[own]):
        assert [path.name for path in own.iterdir()] == ["______GPU_1_.lock"]
    assert list(tmp_path.iterdir()) == [own]


def test_who_names_a_folder_queues_there_and_nowhere_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name = uuid.uuid4().hex
    with turn(name, _give_up):
        monkeypatch.setenv(VARIABLE, str(tmp_path / "named"))
        with turn(name, _give_up) as problem:
            assert problem is None
            assert [path.name for path in (tmp_path / "named").iterdir()] == [f"{name}.lock"]
    monkeypatch.setenv(VARIABLE, "/proc")
    with turn(name, _give_up) as problem:
        assert problem == "Other runs may have measured at the same time: no folder for a lock is safe (/proc)."


@needs_root
def test_users_of_a_folder_that_root_made_for_them_queue(seen_by_all: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shared = seen_by_all / "shared"
    shared.mkdir()
    os.chown(shared, 0, NOBODY)
    shared.chmod(0o2770)
    monkeypatch.setattr("pinscope.runner.worker.SHARED", shared)
    code = f"""
import os
from pathlib import Path
from pinscope.runner import worker
worker.SHARED = Path({str(shared)!r})
os.setgid({NOBODY})
os.setuid({NOBODY})
with worker.turn("gpu", print, "run of another user", [worker.SHARED]):
    print("held", flush=True)
    input()
"""
    with subprocess.Popen([sys.executable, "-c", code], stdin=-1, stdout=-1, text=True) as other:
        assert other.stdout is not None
        assert other.stdin is not None
        assert other.stdout.readline() == "held\n"
        expected = f"run of another user \\(process {other.pid}\\)"
        with pytest.raises(_GivenUpError, match=expected), turn("gpu", _give_up, folders=[shared]):
            pass
        other.stdin.close()
        other.wait()
    with turn("gpu", _give_up, folders=[shared]) as problem:
        assert problem is None


def test_many_at_once_never_hold_one_turn_together(tmp_path: Path) -> None:
    """Each process counts what it must never see."""
    code = f"""
import os
from pathlib import Path
from pinscope.runner import worker
worker.POLL_SECONDS = 0.0005
mark = Path({str(tmp_path)!r}, "mark")
for _ in range(60):
    with worker.turn("gpu", lambda holder: None, folders=[Path({str(tmp_path)!r}, "own")]) as problem:
        assert problem is None
        os.close(os.open(mark, os.O_CREAT | os.O_EXCL))
        mark.unlink()
"""
    several = [subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.PIPE, text=True) for _ in range(3)]
    errors = [process.communicate(timeout=60)[1] for process in several]
    assert errors == ["", "", ""]
