"""A host with thousands of processes: each costs one read, and still nothing that changes is missed."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any

import pytest

from pinscope.live.holders import snapshot
from pinscope.probes import kept_files, process_looks
from pinscope.probes.answer import Answer
from pinscope.probes.kept_files import KeptFiles
from pinscope.probes.proc import HERE, Proc
from pinscope.probes.processes import UVM, Processes, Remembered, read_processes

ROOT = Path(__file__).parents[3]
GROWS = f"""
import ctypes, mmap, sys
sys.path.insert(0, {str(ROOT)!r})
from tests.data.like_cuda import map_like_cuda
libc = ctypes.CDLL(None)
memory = ctypes.create_string_buffer(b"x" * 2**20, 2**20)
for line in sys.stdin:
    if line == "cuda\\n":
        room = mmap.mmap(-1, 2**30, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x4000)
        map_like_cuda(4 * 2**20)
    elif line == "lock\\n":
        libc.mlock(memory, ctypes.c_size_t(2**20))
    elif line == "unlock\\n":
        libc.munlock(memory, ctypes.c_size_t(2**20))
    print("done", flush=True)
"""


class Child:
    """A process that does what it is asked for."""

    def __init__(self) -> None:
        self._process = subprocess.Popen([sys.executable, "-c", GROWS], stdin=-1, stdout=-1, text=True)
        self.pid = self._process.pid

    def ask(self, word: str) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{word}\n")
        self._process.stdin.flush()
        assert self._process.stdout.readline() == "done\n"

    def __enter__(self) -> Child:
        self.ask("start")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.communicate("")


class WithDevice(Proc):
    """This machine, where one process holds CUDA's device file, and which counts pins as it is told to."""

    def __init__(self, pid: int) -> None:
        super().__init__()
        self._folder = f"/proc/{pid}/fd"
        self.pinned_pages = 0

    def read(self, path: str) -> Answer[str]:
        if path == "/proc/vmstat":
            return Answer(f"nr_foll_pin_acquired {self.pinned_pages}\nunevictable_pgs_mlocked 0\n")
        return super().read(path)

    def links(self, folder: str) -> Answer[tuple[str, ...]]:
        found = super().links(folder)
        return Answer((*(found.value or ()), UVM)) if folder == self._folder else found


DEVICES = "Character devices:\n  1 mem\n195 nvidia-uvm-tools\n"


class Idle(WithDevice):
    """This machine as it would be if nothing were pinned, little locked, and the driver loaded and not used."""

    def __init__(
        self, pid: int, pinned_pages: int = 0, locked: str = "nr_mlock 1\n", users: str = "0\n",
        devices: str = f"{DEVICES}234 nvidia-uvm\n",
    ) -> None:  # fmt: skip
        super().__init__(pid)
        self.pinned_pages = pinned_pages
        self._locked, self._users, self._devices = locked, users, devices

    def read(self, path: str) -> Answer[str]:
        if path == "/sys/module/nvidia_uvm/refcnt":
            return Answer(self._users) if self._users else Answer.missing("it is not there")
        if path == "/proc/devices":
            return Answer(self._devices)
        if path == "/proc/vmstat":
            pins = f"nr_foll_pin_acquired {self.pinned_pages}\nnr_foll_pin_released 0\n"
            return Answer(f"{self._locked}{pins}unevictable_pgs_mlocked 0\n")
        if path == "/proc/meminfo":  # more than any process that is seen has locked
            return super().read(path).then(lambda text: text.replace("Mlocked: ", "Mlocked: 9"))
        return super().read(path)


@pytest.fixture(autouse=True)
def _every_host_has_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_looks, "MANY_PROCESSES", 0)
    monkeypatch.setattr(process_looks, "MOST_STATUSES", 100_000)
    monkeypatch.setattr(kept_files, "_kept", set())  # samplers of other tests may keep files still


def look(proc: Proc, remembered: Remembered | None = None) -> Processes:
    found = read_processes(proc, (), remembered).value
    assert found is not None
    return found


def pids(found: Processes) -> set[int]:
    return {one.pid for one in found.seen}


@pytest.fixture
def child() -> Iterator[Child]:
    with Child() as started:
        yield started


def test_a_process_that_opens_the_gpu_after_the_first_look_is_found_by_the_next(
    child: Child, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process_looks, "MOST_STATUSES", 0)  # even where no other process has its turn
    proc, remembered = WithDevice(child.pid), Remembered()
    for _ in range(3):
        assert child.pid not in pids(look(proc, remembered))
    child.ask("cuda")
    proc.pinned_pages += 2048  # by its context
    (found,) = (one for one in look(proc, remembered).seen if one.pid == child.pid)
    assert found.maps is not None
    assert found.maps.value is not None
    assert 4 * 2**20 in found.maps.value.sizes.values()
    for _ in range(3):
        assert child.pid in pids(look(proc, remembered))


def test_on_a_host_that_pins_nothing_everybody_has_their_turn(child: Child) -> None:
    proc, remembered = WithDevice(child.pid), Remembered()
    look(proc, remembered)
    child.ask("cuda")
    found = [child.pid in pids(look(proc, remembered)) for _ in range(2 * process_looks.QUIET_TURNS)]
    first = found.index(True)
    assert first < process_looks.QUIET_TURNS
    assert all(found[first:])


def test_where_nothing_large_can_be_found_a_series_begins_with_an_eighth_of_all(child: Child) -> None:
    child.ask("cuda")
    proc, remembered, turns = Idle(child.pid), Remembered(), process_looks.QUIET_TURNS
    looks = [look(proc, remembered) for _ in range(2 * turns)]
    mine = (child.pid - 1) % turns
    assert [child.pid in pids(found) for found in looks] == [number >= mine for number in range(2 * turns)]
    waiting = [found.unread for found in looks]
    assert waiting[0] > 2 / 3 * looks[0].looked_at  # all that have not been looked at are counted
    assert waiting[turns] == 0


@pytest.mark.parametrize(
    "host",
    [
        {"pinned_pages": 1},
        {"locked": f"nr_mlock {2**20}\n"},
        {"locked": ""},
        {"users": "1\n"},
        {"users": ""},
        {"devices": ""},
    ],
    ids=[
        "something pinned", "much locked", "no counter of locks", "the driver is used", "no count of its users",
        "no list of drivers",
    ],
)  # fmt: skip
def test_where_something_large_may_be_found_the_first_look_is_at_all(child: Child, host: dict[str, Any]) -> None:
    child.ask("cuda")
    found = look(Idle(child.pid, **host), Remembered())
    assert (child.pid in pids(found), found.unread) == (True, 0)


@pytest.mark.parametrize("users", ["", "1\n"])
def test_without_a_driver_nothing_counts_its_users(child: Child, users: str) -> None:
    proc = Idle(child.pid, users=users, devices=DEVICES)
    assert look(proc, Remembered()).unread > 0
    assert not process_looks.may_use_cuda(proc)


def test_a_single_look_is_at_all_and_one_of_a_series_at_those_that_the_driver_names(child: Child) -> None:
    child.ask("cuda")
    proc = Idle(child.pid)
    assert child.pid in pids(look(proc))
    for turn in range(2):  # at one of them it has its turn anyway
        named = read_processes(proc, (child.pid,), Remembered(looks=turn)).value
        assert named is not None
        assert child.pid in pids(named)


def test_what_waits_for_its_turn_is_said_and_has_it_at_once_when_something_is_pinned(child: Child) -> None:
    child.ask("cuda")
    proc, remembered = Idle(child.pid), Remembered(looks=child.pid % process_looks.QUIET_TURNS)
    (gap,) = (gap for gap in snapshot(proc, remembered=remembered).unreadable if gap.what.startswith("Locked memory"))
    assert gap.what.endswith(" processes")
    assert not gap.hides_holders
    proc.pinned_pages += 2048
    assert child.pid in pids(look(proc, remembered))


def test_a_holder_that_ended_is_seen_to_have_ended_on_a_quiet_host() -> None:
    with Child() as ends:
        ends.ask("cuda")
        proc, remembered = WithDevice(ends.pid), Remembered()
        assert [ends.pid in pids(look(proc, remembered)) for _ in range(3)] == [True] * 3
    assert ends.pid not in pids(look(proc, remembered))


def test_memory_that_was_there_before_is_seen_once_it_is_locked(child: Child) -> None:
    remembered = Remembered()
    for word, expected in (("unlock", False), ("lock", True), ("unlock", False)):
        child.ask(word)
        looks = [child.pid in pids(look(HERE, remembered)) for _ in range(process_looks.QUIET_TURNS)]
        assert looks == [expected] * len(looks)


def test_all_have_their_turn_and_how_many_wait_for_it_is_said(child: Child, monkeypatch: pytest.MonkeyPatch) -> None:
    child.ask("lock")
    monkeypatch.setattr(process_looks, "MOST_STATUSES", 4)
    with ExitStack() as others:
        for _ in range(20):
            others.callback(others.enter_context(subprocess.Popen(["sleep", "60"])).kill)
        remembered, waiting = Remembered(), []
        first = look(HERE, remembered)
        assert first.unread >= 17
        for _ in range(500):
            waiting.append(child.pid in pids(look(HERE, remembered)))
            if waiting[-1]:
                break
    assert waiting[-1]
    monkeypatch.setattr(process_looks, "MOST_STATUSES", 0)
    gaps = [gap.what for gap in snapshot().unreadable]
    assert any(gap.startswith("Locked memory of ") for gap in gaps), gaps


def test_a_process_that_waits_for_its_turn_for_two_reasons_counts_once(
    child: Child, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process_looks, "MOST_STATUSES", 0)
    proc, remembered = WithDevice(child.pid), Remembered()
    for _ in range(3):
        proc.pinned_pages += 1  # so everything that was known may have changed
        found = look(proc, remembered)
        assert 0 < found.unread <= found.looked_at


def test_files_are_kept_open_for_a_series_only_and_are_closed_with_it() -> None:
    before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208
    look(HERE)
    assert len(os.listdir("/proc/self/fd")) == before  # noqa: PTH208
    remembered = Remembered()
    look(HERE, remembered)
    assert len(os.listdir("/proc/self/fd")) > before  # noqa: PTH208
    del remembered
    assert len(os.listdir("/proc/self/fd")) == before  # noqa: PTH208


def test_what_is_kept_open_for_others_is_not_looked_at_as_an_own_file() -> None:
    remembered = Remembered()
    look(HERE, remembered)
    kept, shown = len(kept_files.kept_names()), HERE.links("/proc/self/fd").value or ()
    assert kept > 2
    (listed,) = (HERE.links(f"/proc/{os.getpid()}/fd").value or (),)
    assert len(shown) >= kept
    assert not [target for target in listed if target.endswith("/statm")]
    del remembered
    assert kept_files.kept_names() == set()


def test_where_few_may_be_open_few_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept_files.resource, "getrlimit", lambda _: (6, 6))
    one, other = KeptFiles("statm"), KeptFiles("statm")
    known = HERE.pids().value or ()
    assert one.read(known).keys() >= {os.getpid(), os.getppid()}
    assert other.read(known).keys() >= {os.getpid(), os.getppid()}
    assert len(one._descriptors) + len(other._descriptors) == 3


def test_a_kept_file_of_a_process_that_ended_is_let_go_of() -> None:
    kept = KeptFiles("statm")
    with Child() as ended:
        assert kept.read([ended.pid, os.getpid()]).keys() == {ended.pid, os.getpid()}
    assert kept.read([ended.pid, os.getpid()]).keys() == {os.getpid()}
    assert kept._descriptors.keys() == {os.getpid()}
    kept.keep_only(set())
    assert kept._descriptors == {}
