"""What PinScope keeps is for its user alone, whatever the umask; what a user names, the umask and the user decide."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from pinscope.store.database import VARIABLE
from pinscope.store.new_file import check_private, keep_private, make_private, own_folder
from pinscope.store.store import Store
from tests.data.second_user import NOBODY, READ_ALL, as_another_user, open_place
from tests.unit.store.runs import new_run
from tests.unit.store.test_read_only import real_rows


@pytest.fixture
def place(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A home that others may look into: the database lies where it does by default, in ``data/pinscope``."""
    with open_place() as folder:
        monkeypatch.delenv(VARIABLE)
        monkeypatch.setenv("XDG_DATA_HOME", str(folder / "data"))
        monkeypatch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
        yield folder


@pytest.fixture
def without_umask() -> Iterator[None]:
    before = os.umask(0)
    yield
    os.umask(before)


def modes(folder: Path) -> dict[str, int]:
    """Of a folder and all below it."""
    return {str(path.relative_to(folder)): path.stat().st_mode & 0o777 for path in (folder, *folder.rglob("*"))}


def pinscope(*words: str, umask: int = 0o022) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pinscope", *words]
    return subprocess.run(command, umask=umask, cwd="/", capture_output=True, text=True, check=True)


@pytest.mark.usefixtures("without_umask")
def test_whatever_the_umask_the_data_folder_is_private_and_what_lies_in_it(place: Path) -> None:
    with Store() as store:
        store.add(new_run("r", status="done"))
        assert modes(place / "data") == {
            ".": 0o700, "pinscope": 0o700, "pinscope/pinscope.db": 0o600,
            "pinscope/pinscope.db-wal": 0o600, "pinscope/pinscope.db-shm": 0o600,
        }  # fmt: skip
        if os.getuid() == 0:
            assert as_another_user(READ_ALL, place / "data", place / "data" / "pinscope") == ""
            (place / "data").chmod(0o755)
            assert as_another_user(READ_ALL, place / "data" / "pinscope") == ""
            (place / "data" / "pinscope").chmod(0o755)  # even if only the files were closed
            assert "read" not in as_another_user(READ_ALL, place / "data" / "pinscope")


def test_a_file_that_the_user_names_follows_the_umask(place: Path) -> None:
    with Store() as store:
        store.add(new_run("r", status="done"))
        store.append("r", real_rows())
    for command, umask, mode in (("export", 0, 0o666), ("report", 0o027, 0o640)):
        file = place / ("r.pinscope" if command == "export" else "r.csv")
        pinscope(command, "r", "-o", str(file), umask=umask)
        assert file.stat().st_mode & 0o777 == mode


def test_a_folder_of_ours_that_was_open_is_closed_and_one_of_another_user_stays_as_it_is(place: Path) -> None:
    folder = place / "data" / "pinscope"
    with Store() as store:
        store.add(new_run("r", status="done"))
    folder.chmod(0o777)
    with Store() as store:
        assert store.run("r").id == "r"
    assert folder.stat().st_mode & 0o777 == 0o700
    if os.getuid() == 0:
        folder.chmod(0o775)
        os.chown(folder, NOBODY, NOBODY)
        keep_private(folder)
        assert folder.stat().st_mode & 0o777 == 0o775


@pytest.mark.usefixtures("without_umask")
def test_a_database_elsewhere_is_private_and_its_folder_the_user_s(place: Path) -> None:
    with Store(f"sqlite:///{place}/mine/too/x.db") as store:
        store.add(new_run())
        assert modes(place / "mine") == {
            ".": 0o777, "too": 0o777, "too/x.db": 0o600, "too/x.db-wal": 0o600, "too/x.db-shm": 0o600,
        }  # fmt: skip
    (place / "mine" / "too" / "x.db").chmod(0o664)  # its user opens it to others: it stays open
    (place / "link.db").symlink_to(place / "far.db")  # to one that is not there yet
    with Store(f"sqlite:///{place}/mine/too/x.db") as store, Store(f"sqlite:///{place}/link.db") as far:
        store.add(new_run())
        assert set(modes(place / "mine" / "too").values()) == {0o777, 0o664}
        run = far.add(new_run())
    assert (place / "far.db").stat().st_mode & 0o777 == 0o600
    with Store(f"sqlite:///{place}/far.db") as store:
        assert store.run(run.id) == run


def test_a_database_is_private_from_its_first_moment(place: Path) -> None:
    """No other user opens it in time and reads on with what he has open."""
    code = """
import os, sys
def look(event, arguments):
    if event == "sqlite3.connect" and arguments[0].startswith(sys.argv[1]):
        print(oct(os.stat(arguments[0]).st_mode & 0o777))
sys.addaudithook(look)
os.umask(0)
from pinscope.store.store import Store
Store(f"sqlite:///{sys.argv[1]}/x.db").close()
Store().close()
"""
    command = [sys.executable, "-c", code, str(place)]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    assert len(said) >= 2
    assert set(said) == {"0o600"}


def test_nobody_else_writes_into_the_pages_that_a_browser_opens(place: Path) -> None:
    pinscope("docs", "--json", umask=0)
    assert (place / "cache" / "pinscope").stat().st_mode & 0o777 == 0o700
    assert (place / "cache").stat().st_mode & 0o777 == 0o700


@pytest.mark.usefixtures("without_umask")
def test_folders_that_were_missing_on_the_way_are_private_too(tmp_path: Path) -> None:
    make_private(tmp_path / "a" / "b" / "c")
    assert {mode for name, mode in modes(tmp_path / "a").items()} == {0o700}
    make_private(tmp_path / "a" / "b" / "c")


@pytest.mark.parametrize("mode", [0o777, 0o775])
def test_a_folder_is_refused_where_others_may_replace_it(tmp_path: Path, mode: int) -> None:
    shared = tmp_path / "shared"
    make_private(own_folder(shared / "within"))
    check_private(own_folder(shared / "within"))
    os.chown(shared, -1, NOBODY) if os.getuid() == 0 else None
    shared.chmod(mode)
    if os.getuid() == 0 or mode == 0o777:
        with pytest.raises(PermissionError, match="lets other users replace"):
            check_private(own_folder(shared / "within"))
    shared.chmod(mode | 0o1000)
    check_private(own_folder(shared / "within"))
    if os.getuid() == 0:
        os.chown(shared, -1, os.getegid())
    shared.chmod(0o775)  # the user's own group
    check_private(own_folder(shared / "within"))
