"""Which copies of the library are followed, who is told not to be, and that copies which nobody uses are let go of."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import pytest

from pinscope.live import tracker
from pinscope.live.tracker import MOST_COPIES, MOST_NEW_COPIES, UNUSED_LOOKS, ProbedCopies
from pinscope.probes.driver_library import FileKey, MappedLibrary
from pinscope.probes.tracefs import TraceInstance
from tests.data.fake_driver import build

MACHINE = os.uname().machine


class Kernel(TraceInstance):
    """Takes note of groups instead of telling the kernel."""

    def __init__(self) -> None:
        self.groups: dict[str, bool] = {}
        self.pools: dict[str, bool] = {}
        """Groups that are not switched on when they are made."""
        self.made = 0
        self.busy = False
        self.refuses = False

    def add_group(self, number: int, lines: Callable[[str], Iterable[str]], on: bool = True) -> str:
        if self.refuses:
            raise OSError(errno.EIO, "Input/output error")
        assert any("cuMemFreeAsync" in line for line in lines("ours")) != on
        if not on:
            self.pools[f"pools{self.made}"] = False
            return f"pools{self.made}"
        self.made += 1
        self.groups[f"group{self.made}"] = True
        return f"group{self.made}"

    def _of(self, group: str) -> dict[str, bool]:
        return self.groups if group in self.groups else self.pools

    def switch_group(self, group: str, on: bool) -> None:
        self._of(group)[group] = on

    def remove_group(self, group: str) -> None:
        if self.busy:
            raise OSError(errno.EBUSY, "Device or resource busy")
        del self._of(group)[group]


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("driver"))


@pytest.fixture
def kernel() -> Kernel:
    return Kernel()


@pytest.fixture
def copies(kernel: Kernel) -> ProbedCopies:
    return ProbedCopies(kernel, MACHINE)


def mapped(*files: Path) -> Mapping[FileKey, MappedLibrary]:
    """Each is used by one process, with the file's number as its pid."""
    return {
        ("fd:01", str(file.stat().st_ino)): MappedLibrary(str(file), str(file), (file.stat().st_ino,)) for file in files
    }


def pid(file: Path) -> int:
    return file.stat().st_ino


def more(library: Path, folder: Path, count: int) -> list[Path]:
    return [Path(shutil.copy(library, folder / f"libcuda.so.{number}")) for number in range(count)]


def test_who_uses_a_copy_that_is_not_followed_is_told_at_each_look(
    copies: ProbedCopies, kernel: Kernel, library: Path, tmp_path: Path
) -> None:
    good, bad = more(library, tmp_path, 1)[0], tmp_path / "libcuda.so.bad"
    bad.write_text("text")
    for turn in range(2):
        users = copies.follow(mapped(good, bad))
        assert users.late == (frozenset() if turn else {pid(good)})
        assert set(users.not_followed) == {pid(bad)}
        assert "not a shared library" in users.not_followed[pid(bad)]
    kernel.refuses = True
    (tmp_path / "x").mkdir()
    (refused,) = more(library, tmp_path / "x", 1)
    users = copies.follow(mapped(good, refused))
    assert (set(users.not_followed), users.late) == ({pid(refused)}, frozenset())
    assert "does not take probes" in users.not_followed[pid(refused)]


def test_a_copy_that_cannot_be_opened_is_told_and_one_that_is_gone_is_not(copies: ProbedCopies, tmp_path: Path) -> None:
    place = str(tmp_path / ("x" * 300))  # ENAMETOOLONG stands for whatever it may be
    users = copies.follow({("fd:01", "1"): MappedLibrary("/a", place, (10, 11))})
    assert set(users.not_followed) == {10, 11}
    assert "cannot be opened: File name too long" in users.not_followed[10]
    users = copies.follow({("fd:01", "1"): MappedLibrary("/a", str(tmp_path / "gone"), (10,))})
    assert users.not_followed == {}


def test_a_copy_that_nobody_uses_is_switched_off_at_once_and_let_go_of_later(
    copies: ProbedCopies, kernel: Kernel, library: Path, tmp_path: Path
) -> None:
    (one,) = more(library, tmp_path, 1)
    assert copies.follow(mapped(one)).late == {pid(one)}
    for _ in range(UNUSED_LOOKS):
        copies.follow({})
        assert kernel.groups == {"group1": False}
    assert copies.follow(mapped(one)).late == {pid(one)}  # used again in time
    assert kernel.groups == {"group1": True}
    for _ in range(UNUSED_LOOKS + 1):
        copies.follow({})
    assert (kernel.groups, kernel.pools, copies.libraries()) == ({}, {}, ())
    copies.follow(mapped(one))
    assert kernel.groups == {"group2": True}


def test_calls_on_pools_are_followed_in_the_copies_that_are_used_and_only_while_that_is_wanted(
    copies: ProbedCopies, kernel: Kernel, library: Path, tmp_path: Path
) -> None:
    one, other = more(library, tmp_path, 2)
    copies.follow(mapped(one))
    assert kernel.pools == {"pools1": False}
    copies.follow_pools(True)
    copies.follow(mapped(one, other))
    assert kernel.pools == {"pools1": True, "pools2": True}
    copies.follow(mapped(one))
    assert kernel.pools == {"pools1": True, "pools2": False}
    copies.follow_pools(False)
    copies.follow(mapped(one, other))
    assert kernel.pools == {"pools1": False, "pools2": False}


def test_one_whose_probes_somebody_else_uses_is_let_go_of_when_that_ends(
    copies: ProbedCopies, kernel: Kernel, library: Path, tmp_path: Path
) -> None:
    copies.follow(mapped(*more(library, tmp_path, 1)))
    kernel.busy = True
    for _ in range(UNUSED_LOOKS + 5):
        copies.follow({})
    assert len(copies.libraries()) == 1
    kernel.busy = False
    copies.follow({})
    assert copies.libraries() == ()


def test_a_copy_that_is_not_followed_is_forgotten_with_its_last_user(copies: ProbedCopies, tmp_path: Path) -> None:
    bad = tmp_path / "libcuda.so.1"
    bad.write_text("text")
    copies.follow(mapped(bad))
    assert len(copies.libraries()) == 1
    assert copies.follow({}).not_followed == {}
    assert copies.libraries() == ()


def test_an_installed_copy_stays_whoever_uses_it(copies: ProbedCopies, kernel: Kernel, library: Path) -> None:
    copies.add_installed(str(library))
    assert copies.follow(mapped(library)).late == frozenset()
    for _ in range(UNUSED_LOOKS + 5):
        copies.follow({})
    assert kernel.groups == {"group1": True}
    assert len(copies.libraries()) == 1


def test_new_copies_take_turns(copies: ProbedCopies, kernel: Kernel, library: Path, tmp_path: Path) -> None:
    files = more(library, tmp_path, MOST_NEW_COPIES + 1)
    users = copies.follow(mapped(*files))
    assert len(kernel.groups) == len(users.late) == MOST_NEW_COPIES
    assert set(users.not_followed) == {pid(files[-1])}
    users = copies.follow(mapped(*files))
    assert (users.late, users.not_followed) == ({pid(files[-1])}, {})


def test_when_too_many_are_known_the_one_unused_for_longest_makes_room(
    copies: ProbedCopies, kernel: Kernel, library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert MOST_COPIES > 3
    monkeypatch.setattr(tracker, "MOST_COPIES", 3)
    files = more(library, tmp_path, 5)
    users = copies.follow(mapped(*files[:4]))
    assert len(kernel.groups) == 3
    assert "in use already" in users.not_followed[pid(files[3])]
    copies.follow(mapped(files[0], files[2]))
    copies.follow(mapped(files[0]))
    users = copies.follow(mapped(files[0], files[4]))
    assert users.late == {pid(files[4])}
    assert {one.path for one in copies.libraries()} == {str(files[number]) for number in (0, 2, 4)}
    assert kernel.made == 4
