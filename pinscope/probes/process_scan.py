"""The processes of this host that hold pinned or locked memory, as far as /proc shows it.

Each process costs one read of ``status``. A process that could hold pinned memory has its open files listed. Only a
candidate – one that holds an NVIDIA device file, or that NVML names and whose files cannot be seen – has its ``maps``
read. The rest of a process (command line, group, start) is read where it is reported.

All of it is bounded for one process, and in processor time for all together (:class:`pinscope.probes.proc.Allowance`):
then processes that NVML names come first.
"""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Collection, Iterable, Iterator, Set
from dataclasses import dataclass, field
from datetime import UTC, datetime
from math import inf

from pinscope.probes.containers import read_mounts
from pinscope.probes.host_memory import SHARED_MEMORY
from pinscope.probes.host_report import MARK, HostReport, read_report
from pinscope.probes.proc import HERE, MOST_OPEN_FILES, Allowance, Answer, FileKey, Proc, whole
from pinscope.probes.process import NVIDIA, MemoryMaps, ProcessStatus, parse_maps
from pinscope.records.snapshot import LeftFile

LEAST_CUDA_BYTES = 2**30
"""CUDA reserves gigabytes of address space when it starts, and a forked child inherits them."""
LEAST_BYTES = 2**30
"""Of a file that is worth the look at every process's open files."""
AGAIN_SECONDS = 30.0
"""So long an answer serves a series of snapshots."""
_BLOCK_BYTES = 512
"""Unit of ``st_blocks`` (stat(2))."""
_MOST_DEPTH = 3


@dataclass
class Remembered:
    """What a series of snapshots knows already, so that each costs little. The next one brings it up to date."""

    bystanders: dict[int, str] = field(default_factory=dict)
    """Size of the address space, now and at its peak, of processes that held no NVIDIA device file.

    What opens one to pin memory maps something, too. So while the sizes stay as they were, its files need not be
    listed again.
    """
    maps: dict[int, tuple[str, MemoryMaps]] = field(default_factory=dict)
    """The ``maps`` of candidates as read, and what they say. To parse one takes longer than to read it, and only the
    same text proves that nothing changed."""
    left: tuple[LeftFile, ...] = ()
    """What :func:`left_files` gave last."""
    left_at: float = -inf
    """When that was, on the clock of :func:`time.monotonic`."""
    booted: Answer[int] = Answer.missing("the boot time has not been read")  # noqa: RUF009 - frozen
    """Boot time in seconds since 1970. The kernel derives it from the clock, so it moves when the clock is set: within
    a series, a process must not seem to be another one for that."""

    def left_files(self, proc: Proc) -> tuple[LeftFile, ...]:
        """Large files that nobody has open, the largest first; those of the last look if it is not long ago."""
        now = time.monotonic()
        if now - self.left_at >= AGAIN_SECONDS:
            self.left_at, self.left = now, left_files(proc)
        return self.left


@dataclass
class _Scan:
    """What is learned of the processes, step by step."""

    proc: Proc
    gpu_pids: Collection[int]
    remembered: Remembered
    allowance: Allowance
    status: dict[int, ProcessStatus] = field(default_factory=dict)
    """Of all that have memory."""
    reports: dict[int, str] = field(default_factory=dict)
    """Descriptors of what they say of themselves."""

    def suspects(self) -> Iterator[int]:
        """Processes that could hold pinned memory, those that NVML names first.

        Pinned pages are mapped, so cudaHostAlloc memory counts in its owner's RssShmem. A CUDA process that has none,
        or an orphan that inherited some and never touched it, shows by the size of its address space.
        """
        for pid in sorted(self.status, key=lambda pid: pid not in self.gpu_pids):
            status = self.status[pid]
            is_large = (status.amount("VmSize").value or LEAST_CUDA_BYTES) >= LEAST_CUDA_BYTES
            if pid in self.gpu_pids or is_large or status.may_share:
                yield pid


_NONE: Answer[frozenset[str]] = Answer(frozenset())
_NO_TURN: Answer[frozenset[str]] = Answer.missing("a snapshot reads only so much of other processes' files")
_TOO_MANY: Answer[frozenset[str]] = Answer.missing(f"it has more than {MOST_OPEN_FILES} open files")


@dataclass(frozen=True, slots=True)
class SeenProcess:
    """A process that holds, or may hold, pinned or locked memory."""

    pid: int
    status: ProcessStatus
    files: Answer[frozenset[str]]
    """NVIDIA device files that it has open."""
    maps: Answer[MemoryMaps] | None
    """``None`` where there was no reason to scan."""
    report: HostReport | None = None
    """What it says of itself."""


@dataclass(frozen=True, slots=True)
class Processes:
    """What one scan of all processes found."""

    seen: tuple[SeenProcess, ...]
    looked_at: int
    closed: int
    """Processes that could hold pinned memory and whose open files this user may not see."""
    strangers: frozenset[int]
    """Pids that NVML names and that are no such process here."""
    skipped: int = 0
    """Processes that could hold pinned memory and whose open files were too many, or had no turn."""


def read_processes(
    proc: Proc = HERE, gpu_pids: Collection[int] = (), remembered: Remembered | None = None
) -> Answer[Processes]:
    """Processes with NVIDIA device files, with a place in NVML's lists (``gpu_pids``), or with locked or pinned memory.

    What earlier snapshots ``remembered`` is brought up to date.
    """
    scan = _Scan(proc, gpu_pids, remembered or Remembered(), Allowance())
    pids = proc.pids()
    if pids.value is None:
        return Answer(None, pids.reason)
    for pid in pids.value:
        status = ProcessStatus.of(pid, proc)
        if status.has_memory:  # else it is a kernel thread, or has ended
            scan.status[pid] = status
    files = _files_of_suspects(scan)
    candidates = [pid for pid, held in files.items() if held.value or (held.value is None and pid in gpu_pids)]
    maps = _maps_of_candidates(scan, candidates)
    rest = [pid for pid, status in scan.status.items() if pid not in maps and status.has_locked]
    seen = [
        SeenProcess(pid, scan.status[pid], files.get(pid, _NONE), maps.get(pid), _report(pid, scan))
        for pid in (*candidates, *rest)
    ]
    skipped = {pid for pid, held in files.items() if held in (_NO_TURN, _TOO_MANY)}
    closed = {pid for pid, held in files.items() if held.value is None} - skipped
    strangers = frozenset(gpu_pids) - maps.keys()
    return Answer(Processes(tuple(seen), len(pids.value), len(closed), strangers, len(skipped)))


def _report(pid: int, scan: _Scan) -> HostReport | None:
    """Read each time: a process may say something new at any moment, also without more memory."""
    descriptor = scan.reports.get(pid)
    if descriptor is None:
        return None
    status = scan.status[pid]
    pids = (status.text("NSpid").value or "").split()  # the last is the process's own
    report = read_report(pid, descriptor, whole(pids[-1]) if pids else pid, scan.proc)
    in_memory = (status.amount("VmRSS").value or 0) + (status.amount("HugetlbPages").value or 0)
    return report if report is not None and report.most_bytes <= in_memory else None


def _files_of_suspects(scan: _Scan) -> dict[int, Answer[frozenset[str]]]:
    """NVIDIA device files of each process that could hold pinned memory.

    To list the open files of every process on a host would cost more than all the rest.
    """
    files: dict[int, Answer[frozenset[str]]] = {}
    bystanders: dict[int, str] = {}
    for pid in scan.suspects():
        size = scan.status[pid].size
        if size and scan.remembered.bystanders.get(pid) == size and pid not in scan.gpu_pids:
            bystanders[pid] = size
            continue
        held = _nvidia_files(pid, scan)
        if held.value is None and held is not _NO_TURN and not scan.proc.exists(f"/proc/{pid}"):
            continue
        files[pid] = held
        if held.value is not None and not held.value:
            bystanders[pid] = size
    scan.remembered.bystanders = bystanders
    return files


def _nvidia_files(pid: int, scan: _Scan) -> Answer[frozenset[str]]:
    if scan.allowance.is_spent:
        return _NO_TURN
    links = scan.proc.links(f"/proc/{pid}/fd")
    if links.value is None:
        return Answer(None, links.reason)
    targets = links.value.values()
    held = frozenset(target for target in targets if target.startswith(NVIDIA))
    if MARK in targets:
        scan.reports[pid] = next(name for name, target in links.value.items() if target == MARK)
    return _TOO_MANY if not held and len(links.value) >= MOST_OPEN_FILES else Answer(held)


def _maps_of_candidates(scan: _Scan, pids: Iterable[int]) -> dict[int, Answer[MemoryMaps]]:
    maps: dict[int, Answer[MemoryMaps]] = {}
    known: dict[int, tuple[str, MemoryMaps]] = {}
    for pid in pids:
        path = f"/proc/{pid}/maps"
        if scan.allowance.is_spent:
            maps[pid] = Answer(None, f"{path} was not read: {_NO_TURN.reason}")
            continue
        read, before = scan.proc.read(path), scan.remembered.maps.get(pid)
        if not read.value:  # an empty one is that of a process that is about to end
            maps[pid] = Answer.missing(read.reason or f"{path} is empty")
            continue
        known[pid] = before if before and before[0] == read.value else (read.value, parse_maps(read.value))
        maps[pid] = Answer(known[pid][1])
    scan.remembered.maps = known
    return maps


def left_files(proc: Proc) -> tuple[LeftFile, ...]:
    """Large files in memory that no process has open or mapped, the largest first; none where that is not sure.

    Other users' processes can be looked into by root alone. So another user sees only files of his own here: those he
    alone, or root, can have opened.
    """
    large = dict(_large_files(proc))
    in_use = _in_use(proc, large.keys()) if large else None
    if in_use is None:
        return ()
    return tuple(sorted((file for key, file in large.items() if key not in in_use), key=lambda file: -file.bytes))


def _large_files(proc: Proc) -> Iterator[tuple[FileKey, LeftFile]]:
    mounts = read_mounts(proc).value or ()
    folders = {SHARED_MEMORY, *(mount.point for mount in mounts if mount.kind == "hugetlbfs")}
    user = os.geteuid()
    for path, status in proc.below_folders(sorted(folders), _MOST_DEPTH):
        taken = status.st_blocks * _BLOCK_BYTES
        if taken >= LEAST_BYTES and stat.S_ISREG(status.st_mode) and user in (0, status.st_uid):
            modified = datetime.fromtimestamp(status.st_mtime, UTC)
            yield (status.st_dev, status.st_ino), LeftFile(path=path, bytes=taken, modified_at=modified)


def _in_use(proc: Proc, wanted: Set[FileKey]) -> set[FileKey] | None:
    """Those of these files that some process has; ``None`` if not all processes could be looked at in time."""
    allowance, held = Allowance(), set[FileKey]()
    marks = {f" {os.major(device):02x}:{os.minor(device):02x} {inode} ": (device, inode) for device, inode in wanted}
    for pid in proc.pids().value or ():
        if allowance.is_spent:
            return None
        maps = proc.read(f"/proc/{pid}/maps").value or ""
        held |= {key for mark, key in marks.items() if mark in maps}
        folder = f"/proc/{pid}/fd"
        held |= wanted & {proc.file_key(f"{folder}/{name}").value for name in proc.links(folder).value or ()}
        if held == wanted:
            break
    return held
