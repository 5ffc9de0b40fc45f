"""Which processes are looked at, how closely, and what that costs them and us."""

from __future__ import annotations

from pathlib import Path

import pytest

from pinscope.probes.proc import Answer, Proc
from pinscope.probes.process_scan import LEAST_CUDA_BYTES, Processes, Remembered, read_processes
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
