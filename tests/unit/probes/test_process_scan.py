"""Which processes are looked at, and how closely; files that are memory, named once nobody has them, in whatever way
they were held before."""

from __future__ import annotations

import mmap
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from pinscope.probes import process_scan
from pinscope.probes.proc import HERE, Answer, Proc
from pinscope.probes.process_scan import (
    AGAIN_SECONDS,
    LEAST_CUDA_BYTES,
    Processes,
    Remembered,
    left_files,
    read_processes,
)
from tests.data.one_door import OneDoor
from tests.data.synthetic_host import SyntheticHost, zero

MIB = 2**20


class Spy(OneDoor):
    """Remembers what it was asked for, and can refuse files as the kernel does to another user."""

    def __init__(self, folder: Path, refused: tuple[str, ...] = ()) -> None:
        super().__init__(folder)
        self.asked: list[str] = []
        self.refused = refused

    def read(self, path: str) -> Answer[str]:
        self.asked.append(path)
        return Answer.missing(f"{path} may not be read by this user") if path in self.refused else super().read(path)

    def links(self, folder: str) -> Answer[dict[str, str]]:
        self.asked.append(folder)
        if folder in self.refused:
            return Answer.missing(f"{folder} may not be read by this user")
        return super().links(folder)


@pytest.fixture
def host(tmp_path: Path) -> SyntheticHost:
    return SyntheticHost(tmp_path)


def look(proc: Proc, *gpu_pids: int, remembered: Remembered | None = None) -> Processes:
    found = read_processes(proc, gpu_pids, remembered).value
    assert found is not None
    return found


def test_only_candidates_have_their_maps_read_and_nobody_his_smaps(host: SyntheticHost) -> None:
    holder = host.cuda_process([zero(64 * MIB, 1)])
    plain = host.process("postgres", mappings=[zero(64 * MIB, 2)])
    small = host.process("bash", mappings=[])
    spy = Spy(host.folder)
    assert [one.pid for one in look(spy).seen] == [holder]
    assert f"/proc/{holder}/maps" in spy.asked
    assert {f"/proc/{plain}/fd", f"/proc/{plain}/maps", f"/proc/{small}/fd"} & set(spy.asked) == {f"/proc/{plain}/fd"}
    assert not [path for path in spy.asked if "smaps" in path]


def test_a_process_with_locked_memory_is_seen_without_nvidia_files(host: SyntheticHost) -> None:
    locked = host.process("database", VmLck=64 * MIB)
    rdma = host.process("storage", VmPin=64 * MIB)
    host.process("shell")
    seen = {one.pid: one for one in look(host.proc).seen}
    assert seen.keys() == {locked, rdma}
    assert seen[locked].maps is None


def test_a_forked_child_without_a_resident_page_is_seen_by_its_address_space(host: SyntheticHost) -> None:
    parent = host.cuda_process([zero(64 * MIB, 1)])
    child = host.cuda_process([zero(64 * MIB, 1)], parent=parent, RssShmem=0, VmSize=LEAST_CUDA_BYTES)
    orphan = host.cuda_process([zero(64 * MIB, 2)], parent=1, RssShmem=0, VmSize=LEAST_CUDA_BYTES)
    host.process("sh", parent=parent)
    assert {process.pid for process in look(host.proc).seen} == {parent, child, orphan}


def test_files_that_may_not_be_seen_are_counted_and_nvml_helps(host: SyntheticHost) -> None:
    pids = [host.cuda_process([zero(MIB, inode)]) for inode in range(3)]
    spy = Spy(host.folder, tuple(f"/proc/{pid}/{name}" for pid in pids for name in ("fd", "maps")))
    unnamed = look(spy)
    assert (unnamed.seen, unnamed.closed) == ((), 3)
    named = look(spy, pids[1])
    assert [one.pid for one in named.seen] == [pids[1]]
    assert named.seen[0].maps is not None
    assert "may not be read by this user" in (named.seen[0].maps.reason or "")
    assert named.strangers == frozenset()


def test_a_pid_that_is_another_process_here_is_a_stranger(host: SyntheticHost) -> None:
    # In a container NVML may name processes as the host does; a process here may have the same number by chance.
    namesake = host.process("nginx", mappings=[zero(MIB, 4)], VmLck=MIB)
    found = look(host.proc, namesake, 424242)
    assert found.strangers == {namesake, 424242}
    assert [one.maps for one in found.seen] == [None]


def test_a_second_look_does_not_list_the_files_of_those_that_stayed_the_same(host: SyntheticHost) -> None:
    plain = host.process("postgres", mappings=[zero(64 * MIB, 2)])
    holder = host.cuda_process([zero(64 * MIB, 1)])
    remembered = Remembered()
    look(host.proc, remembered=remembered)
    spy = Spy(host.folder)
    assert [one.pid for one in look(spy, remembered=remembered).seen] == [holder]
    assert f"/proc/{plain}/fd" not in spy.asked
    assert f"/proc/{holder}/fd" in spy.asked


def test_a_process_that_starts_to_use_cuda_is_looked_at_again(host: SyntheticHost) -> None:
    starting = host.process("python", mappings=[zero(MIB, 2)], pid=77)
    remembered = Remembered()
    assert look(host.proc, remembered=remembered).seen == ()
    for path in sorted((host.folder / "proc" / "77").rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    assert host.cuda_process([zero(64 * MIB, 3)], pid=starting) == starting
    assert [one.pid for one in look(host.proc, remembered=remembered).seen] == [starting]
    assert remembered.bystanders == {}


def test_a_process_that_vanishes_while_it_is_read_is_left_out(host: SyntheticHost) -> None:
    holder = host.cuda_process([zero(MIB, 1)])
    ended = host.process("ended")
    (host.folder / f"proc/{ended}/status").unlink()
    half = host.cuda_process([zero(MIB, 2)])
    (host.folder / f"proc/{half}/maps").unlink()
    emptied = host.cuda_process([zero(MIB, 3)])
    (host.folder / f"proc/{emptied}/maps").write_text("")
    seen = {one.pid: one for one in look(host.proc).seen}
    assert seen.keys() == {holder, half, emptied}
    assert all(seen[pid].maps is not None and seen[pid].maps.value is None for pid in (half, emptied))  # type: ignore[union-attr]


def test_without_proc_there_is_a_reason(tmp_path: Path) -> None:
    assert read_processes(Proc.below(tmp_path)).reason == "/proc is not there"
    (tmp_path / "proc").mkdir()
    assert read_processes(Proc.below(tmp_path)).reason == "/proc shows no process"


def test_a_kernel_thread_holds_nothing_and_a_process_that_follows_with_its_pid_is_seen(tmp_path: Path) -> None:
    folder = tmp_path / "proc/77"
    folder.mkdir(parents=True)
    (folder / "status").write_text("Name:\tkworker\nPPid:\t2\n")
    proc, remembered = Proc.below(tmp_path), Remembered()
    assert look(proc, remembered=remembered) == Processes((), 1, 0, frozenset())
    (folder / "status").write_text("Name:\tprogram\nVmPeak:\t8 kB\nVmSize:\t8 kB\nVmLck:\t4 kB\nVmPin:\t0 kB\n")
    assert [process.pid for process in look(proc, remembered=remembered).seen] == [77]


HOLDS = "import mmap, sys; f = open(sys.argv[1], 'r+b'); m = mmap.mmap(f.fileno(), 0); f.close(); print(); input()"


@pytest.fixture
def cache(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setattr(process_scan, "LEAST_BYTES", 2 * MIB)
    path = Path(f"/dev/shm/pinscope-left-{os.getpid()}")
    path.write_bytes(b"x" * 2 * MIB)
    yield path
    path.unlink()


def left(path: Path) -> list[int]:
    return [file.bytes for file in left_files(HERE) if file.path == str(path)]


def test_a_file_is_left_once_no_process_has_it_open_or_mapped(cache: Path) -> None:
    with cache.open("r+b") as file:
        assert left(cache) == []
        mapped = mmap.mmap(file.fileno(), 0)
    assert left(cache) == []
    mapped.close()
    assert left(cache) == [2 * MIB]


def test_a_killed_server_leaves_it(cache: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", HOLDS, cache], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as server:
        assert server.stdout is not None
        server.stdout.readline()
        assert left(cache) == []
        server.kill()
    assert left(cache) == [2 * MIB]


def test_small_and_sparse_files_are_none(cache: Path) -> None:
    os.truncate(cache, MIB)
    assert left(cache) == []
    os.truncate(cache, 64 * MIB)
    assert left(cache) == []


def test_where_not_every_process_could_be_looked_at_nothing_is_said(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process_scan.Allowance, "is_spent", True)
    assert left(cache) == []


def test_another_users_file_is_left_to_root(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: cache.stat().st_uid + 1)
    assert left(cache) == []


def test_files_of_huge_pages_count_wherever_they_are_mounted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_scan, "LEAST_BYTES", 2 * MIB)
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/7/fd").mkdir(parents=True)
    (tmp_path / "proc/self/mountinfo").write_text("30 1 0:40 / /mnt/huge rw - hugetlbfs none rw,pagesize=2M\n")
    (tmp_path / "mnt/huge/server").mkdir(parents=True)
    file = tmp_path / "mnt/huge/server/kv"
    file.write_bytes(b"x" * 2 * MIB)
    assert [seen.path for seen in left_files(Proc.below(tmp_path))] == ["/mnt/huge/server/kv"]
    (tmp_path / "proc/7/fd/3").symlink_to(file)
    assert left_files(Proc.below(tmp_path)) == ()


def test_a_series_looks_every_30_seconds(cache: Path) -> None:
    known = Remembered()

    def is_named() -> bool:
        return str(cache) in [file.path for file in known.left_files(HERE)]

    assert is_named()
    with cache.open():
        assert is_named()
        known.left_at -= AGAIN_SECONDS
        assert not is_named()
