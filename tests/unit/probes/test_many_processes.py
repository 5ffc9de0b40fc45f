"""A host with thousands of processes: each costs one read, and still nothing that changes is missed."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType

import pytest

from pinscope.live.holders import snapshot
from pinscope.probes import kept_files, process_scan
from pinscope.probes.answer import Answer
from pinscope.probes.kept_files import KeptFiles
from pinscope.probes.proc import HERE, Proc
from pinscope.probes.process_scan import UVM, Processes, Remembered, read_processes

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


@pytest.fixture(autouse=True)
def _every_host_has_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_scan, "MANY_PROCESSES", 0)
    monkeypatch.setattr(process_scan, "MOST_STATUSES", 100_000)
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
    monkeypatch.setattr(process_scan, "MOST_STATUSES", 0)  # even where no other process has its turn
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
    found = [child.pid in pids(look(proc, remembered)) for _ in range(2 * process_scan.QUIET_TURNS)]
    first = found.index(True)
    assert first < process_scan.QUIET_TURNS
    assert all(found[first:])


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
        assert [child.pid in pids(look(HERE, remembered)) for _ in range(3)] == [expected] * 3


def test_all_have_their_turn_and_how_many_wait_for_it_is_said(child: Child, monkeypatch: pytest.MonkeyPatch) -> None:
    child.ask("lock")
    monkeypatch.setattr(process_scan, "MOST_STATUSES", 4)
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
    monkeypatch.setattr(process_scan, "MOST_STATUSES", 0)
    gaps = [gap.what for gap in snapshot().unreadable]
    assert any(gap.startswith("Locked memory of ") for gap in gaps), gaps


def test_a_process_that_waits_for_its_turn_for_two_reasons_counts_once(
    child: Child, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process_scan, "MOST_STATUSES", 0)
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
    monkeypatch.setattr(kept_files.resource, "getrlimit", lambda _: (12, 12))
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
