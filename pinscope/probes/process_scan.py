"""The processes of this host that hold pinned or locked memory, as far as /proc shows it.

Each process costs one read of ``status``, or of ``statm`` while a series finds it unchanged; a kernel thread costs a
read in the first snapshot of a series only. A process that could hold pinned memory has its open files listed. Only a
candidate – one that holds an NVIDIA device file, or that NVML names and whose files cannot be seen – has its ``maps``
read. The rest of a process (command line, group, start) is read where it is reported.

All of it is bounded for one process and in sum (:class:`pinscope.probes.proc.Allowance`). Who comes first matters
then: processes that NVML names and earlier holders, and of the others the first of each user before the second of
anyone.
"""

from __future__ import annotations

import os
import re
import stat
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Set
from dataclasses import dataclass, field
from datetime import UTC, datetime

from pinscope.probes.containers import read_mounts
from pinscope.probes.host_report import MARK, HostReport, read_report
from pinscope.probes.proc import HERE, MOST_OPEN_FILES, Allowance, Answer, FileKey, Proc, whole
from pinscope.probes.process import MemoryMaps, ProcessStatus, parse_maps, plain_address_space
from pinscope.records.snapshot import LeftFile

LEAST_CUDA_BYTES = 2**30
"""CUDA reserves gigabytes of address space when it starts, and a forked child inherits them."""
_LOCKS = re.compile(r"^unevictable_pgs_m(?:un)?locked \d+$", re.MULTILINE)
_PINS = re.compile(r"^nr_foll_pin_\w+ \d+$", re.MULTILINE)
"""In /proc/vmstat: pages that were ever locked and unlocked, pinned and unpinned."""
_CHECK_EVERY = 64


@dataclass(frozen=True, slots=True)
class KnownMaps:
    """A process's ``maps`` as read, and what it says.

    To parse it takes longer than to read it. Only the same text proves that nothing changed: what ``status`` says of
    sizes stays as it was if one buffer goes and another of its size comes.
    """

    text: str
    maps: MemoryMaps


@dataclass(frozen=True, slots=True)
class KnownCandidate:
    """A candidate's files and maps when its memory was last seen to change."""

    size: tuple[int, bytes]
    """Inode of its folder and ``statm``."""
    files: Answer[frozenset[str]]
    report: str | None
    maps: Answer[MemoryMaps]


LEAST_BYTES = 2**30
"""Of a file that is worth the look at every process's open files."""
AGAIN_SECONDS = 30.0
"""So long an answer serves a series of snapshots."""
_SHARED_MEMORY = "/dev/shm"  # noqa: S108 - it is looked at
_BLOCK_BYTES = 512
"""Unit of ``st_blocks`` (stat(2))."""
_MOST_DEPTH = 3


@dataclass
class LeftFiles:
    """What a series of snapshots knows of such files.

    Attributes:
        clock: seconds.
    """

    clock: Callable[[], float] = time.monotonic
    _files: tuple[LeftFile, ...] = ()
    _looked_at: float | None = field(default=None, repr=False)

    def look(self, proc: Proc) -> tuple[LeftFile, ...]:
        """Large files that nobody has open, the largest first; those of the last look if it is not long ago."""
        now = self.clock()
        if self._looked_at is None or now - self._looked_at >= AGAIN_SECONDS:
            self._looked_at, self._files = now, left_files(proc)
        return self._files


@dataclass
class Remembered:
    """What a series of snapshots knows already, so that each costs little. The next one brings it up to date."""

    bystanders: dict[int, str] = field(default_factory=dict)
    """Size of the address space, now and at its peak, of processes that held no NVIDIA device file.

    What opens one to pin memory maps something, too. So while the sizes stay as they were, its files need not be
    listed again.
    """
    quiet: dict[int, tuple[int, bytes]] = field(default_factory=dict)
    """Inode and ``statm`` of processes too small for CUDA that have nothing locked or pinned.

    To read ``statm`` costs half of ``status``. While it stays as it was, nothing was mapped or touched; and while the
    host's counters of locking and pinning stay as they were, nothing was locked or pinned that was there before.
    """
    locks: str = ""
    pins: str = ""
    """Those counters at the last snapshot."""
    without_memory: dict[int, int] = field(default_factory=dict)
    """Kernel threads and processes that ended without being reaped, as :meth:`Proc.tasks` tells them.

    They get no memory any more. Only a kernel thread that starts a helper program of the kernel's (modprobe) does,
    and that uses no CUDA.
    """
    maps: dict[int, KnownMaps] = field(default_factory=dict)
    """The ``maps`` of candidates."""
    candidates: dict[int, KnownCandidate] = field(default_factory=dict)
    """Candidates, as long as their ``statm`` and the host's counters of pins stay as they were."""
    left: LeftFiles = field(default_factory=LeftFiles)
    """Files that are memory and that no process has."""
    resume_at: int = 0
    """The process at which the last snapshot's time was spent: those before it come last now."""
    is_series: bool = True
    """False if no other snapshot follows."""
    booted: Answer[int] = Answer.missing("the boot time has not been read")  # noqa: RUF009 - frozen
    """Boot time in seconds since 1970. The kernel derives it from the clock, so it moves when the clock is set: within
    a series, a process must not seem to be another one for that."""


@dataclass
class Scan:
    """What every process's status tells, less those that are known to be quiet."""

    proc: Proc
    looked_at: int
    calm: bool
    """Nothing was locked, unlocked, pinned or unpinned on this host since the last snapshot."""
    same_pins: bool
    """Nothing was pinned or unpinned since then."""
    status: dict[int, ProcessStatus] = field(default_factory=dict)
    """Of those that are suspects, or may have something locked."""
    suspects: list[int] = field(default_factory=list)
    """Those that could hold pinned memory."""
    sizes: dict[int, tuple[int, bytes]] = field(default_factory=dict)
    """Inode and ``statm`` of these, where it was read."""
    reports: dict[int, str] = field(default_factory=dict)
    """Their descriptors of what they say of themselves."""
    unread: int = 0
    """Processes whose turn did not come before the allowance was spent."""


def scan_processes(proc: Proc, gpu_pids: Collection[int], remembered: Remembered, allowance: Allowance) -> Answer[Scan]:
    """Read every process's status; some end meanwhile."""
    pids = proc.pids()
    if pids.value is None:
        return Answer(None, pids.reason)
    counters = proc.read("/proc/vmstat").value or ""
    locks, pins = "".join(_LOCKS.findall(counters)), "".join(_PINS.findall(counters))
    same_pins = pins == remembered.pins
    calm = same_pins and locks == remembered.locks and bool(locks + pins)
    # Without counters of pins, what is pinned instead of something else would not show.
    scan = Scan(proc, len(pids.value), calm, same_pins and pins != "")
    remembered.locks, remembered.pins = locks, pins
    # Only in a later snapshot can another process have a pid that was seen before.
    tasks = proc.tasks().value or {} if remembered.is_series else dict.fromkeys(pids.value, 0)
    _scan(scan, tasks, gpu_pids, remembered, allowance)
    return Answer(scan)


def _scan(
    scan: Scan, tasks: Mapping[int, int], gpu_pids: Collection[int], remembered: Remembered, allowance: Allowance
) -> None:
    proc, calm = scan.proc, scan.calm  # unless it is calm, statm would only come on top
    without, quiet = dict[int, int](), dict[int, tuple[int, bytes]]()
    resume_at, remembered.resume_at = remembered.resume_at, 0
    in_turn = dict(sorted(tasks.items(), key=lambda task: (task[0] < resume_at, task[0])))
    first = {pid: tasks[pid] for pid in (*gpu_pids, *remembered.candidates) if pid in tasks}
    for number, (pid, inode) in enumerate((first | in_turn).items()):
        if number % _CHECK_EVERY == 0 and allowance.is_spent:
            scan.unread, remembered.resume_at = len(tasks) - number, pid
            break
        if remembered.without_memory.get(pid) == inode:
            without[pid] = inode
            continue
        size = inode, (proc.glance(f"/proc/{pid}/statm") or b"") if calm else b""
        if calm and pid not in gpu_pids and remembered.quiet.get(pid) == size:
            quiet[pid] = size
            continue
        text = proc.glance(f"/proc/{pid}/status") or b""
        if pid not in gpu_pids and (plain_address_space(text) or LEAST_CUDA_BYTES) < LEAST_CUDA_BYTES:
            if size[1]:
                quiet[pid] = size
            continue
        status = ProcessStatus(text.decode("utf-8", "replace"))
        if status.has_memory:
            scan.status[pid] = status
            if size[1]:
                scan.sizes[pid] = size
            # Pinned pages are mapped, so cudaHostAlloc memory counts in its owner's RssShmem. A CUDA process that has
            # none, or an orphan that inherited some and never touched it, shows by the size of its address space.
            is_large = (status.bytes("VmSize") or LEAST_CUDA_BYTES) >= LEAST_CUDA_BYTES
            if pid in gpu_pids or status.may_share or is_large:
                scan.suspects.append(pid)
            elif size[1] and not status.has_locked:
                quiet[pid] = size
        elif text:
            without[pid] = inode
    remembered.without_memory, remembered.quiet = without, quiet


UVM = "/dev/nvidia-uvm"
"""CUDA opens it when it starts; NVML alone and display servers do not."""

_NVIDIA = "/dev/nvidia"
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
    unread: int = 0
    """Processes that were not looked at, as a snapshot takes only so much time."""
    skipped: int = 0
    """Processes that could hold pinned memory and have more open files than a snapshot looks at."""


def read_processes(
    proc: Proc = HERE, gpu_pids: Collection[int] = (), remembered: Remembered | None = None
) -> Answer[Processes]:
    """Processes with NVIDIA device files, with a place in NVML's lists, or with locked or pinned memory.

    Args:
        proc: where /proc is read.
        gpu_pids: processes that NVML names.
        remembered: what earlier snapshots learned; it is brought up to date.
    """
    remembered = remembered or Remembered(is_series=False)
    allowance = Allowance()
    answer = scan_processes(proc, gpu_pids, remembered, allowance)
    if answer.value is None:
        return Answer(None, answer.reason)
    scan = answer.value
    files = _files_of_suspects(scan, gpu_pids, remembered, allowance)
    candidates = [pid for pid, held in files.items() if held.value or (held.value is None and pid in gpu_pids)]
    maps = _maps_of_candidates(scan, _fair(candidates, scan, gpu_pids), remembered, allowance)
    rest = [pid for pid in scan.status.keys() - maps.keys() if scan.status[pid].has_locked]
    seen = [
        SeenProcess(pid, scan.status[pid], files.get(pid, _NONE), maps.get(pid), _report(pid, scan))
        for pid in (*candidates, *rest)
    ]
    skipped = {pid for pid, held in files.items() if held in (_NO_TURN, _TOO_MANY)}
    closed = {pid for pid, held in files.items() if held.value is None} - skipped
    remembered.candidates = {
        process.pid: KnownCandidate(scan.sizes[process.pid], process.files, scan.reports.get(process.pid), process.maps)
        for process in seen
        if process.maps is not None
        and process.maps.value is not None
        and process.files.value
        and process.pid in scan.sizes
    }
    strangers = frozenset(gpu_pids) - maps.keys()
    return Answer(Processes(tuple(seen), scan.looked_at, len(closed), strangers, scan.unread, len(skipped)))


def _report(pid: int, scan: Scan) -> HostReport | None:
    """Read each time: a process may say something new at any moment, also without more memory."""
    descriptor = scan.reports.get(pid)
    if descriptor is None:
        return None
    status = scan.status[pid]
    pids = (status.line("NSpid") or "").split()  # the last is the process's own
    report = read_report(pid, descriptor, whole(pids[-1]) if pids else pid, scan.proc)
    in_memory = (status.bytes("VmRSS") or 0) + (status.bytes("HugetlbPages") or 0)
    return report if report is not None and report.most_bytes <= in_memory else None


def _fair(pids: Iterable[int], scan: Scan, gpu_pids: Collection[int]) -> list[int]:
    """Those that NVML names first; then by turns, one of each user: who has many processes does not come before
    those who have one."""
    met: Counter[int | None] = Counter()
    turns = {}
    for pid in pids:
        user = scan.status[pid].number("Uid")
        turns[pid] = (pid not in gpu_pids, met[user])
        met[user] += 1
    return sorted(turns, key=turns.__getitem__)


def _maps_of_candidates(
    scan: Scan, pids: Iterable[int], remembered: Remembered, allowance: Allowance
) -> dict[int, Answer[MemoryMaps]]:
    maps: dict[int, Answer[MemoryMaps]] = {}
    known: dict[int, KnownMaps] = {}
    for pid in pids:
        before, earlier = remembered.maps.get(pid), remembered.candidates.get(pid)
        if scan.same_pins and earlier is not None and earlier.size == scan.sizes.get(pid):
            maps[pid] = earlier.maps
            if before is not None:
                known[pid] = before
            continue
        path = f"/proc/{pid}/maps"
        if allowance.maps_bytes <= 0 or allowance.is_spent:
            maps[pid] = Answer(None, f"{path} was not read: {_NO_TURN.reason}")
            continue
        text = scan.proc.read(path)
        allowance.maps_bytes -= len(text.value or "")
        read = text.then(lambda text, before=before: _known(text, before), f"{path} is empty")  # type: ignore[misc]
        maps[pid] = read.then(lambda known_maps: known_maps.maps)
        # Other than ASCII takes up to four times the memory: it is parsed each time.
        if read.value is not None and read.value.text.isascii():
            known[pid] = read.value
    remembered.maps = known
    return maps


def _known(text: str, before: KnownMaps | None) -> KnownMaps | None:
    """What maps says now. An empty one is that of a process that is about to end."""
    if before is not None and before.text == text:
        return before
    return KnownMaps(text, parse_maps(text)) if text else None


def _files_of_suspects(
    scan: Scan, gpu_pids: Collection[int], remembered: Remembered, allowance: Allowance
) -> dict[int, Answer[frozenset[str]]]:
    """NVIDIA device files of each process that could hold pinned memory.

    To list the open files of every process on a host would cost more than all the rest.
    """
    files: dict[int, Answer[frozenset[str]]] = {}
    bystanders: dict[int, str] = {}
    for pid in _fair(scan.suspects, scan, gpu_pids):
        size = scan.status[pid].size
        if size and remembered.bystanders.get(pid) == size and pid not in gpu_pids:
            bystanders[pid] = size
            continue
        held = _nvidia_files(pid, scan, remembered, allowance)
        if held.value is None and held is not _NO_TURN and not scan.proc.exists(f"/proc/{pid}"):
            continue
        files[pid] = held
        if held.value is not None and not held.value:
            bystanders[pid] = size
    remembered.bystanders = bystanders
    return files


def _nvidia_files(pid: int, scan: Scan, remembered: Remembered, allowance: Allowance) -> Answer[frozenset[str]]:
    earlier = remembered.candidates.get(pid)
    if scan.same_pins and earlier is not None and earlier.size == scan.sizes.get(pid):
        if earlier.report is not None:
            scan.reports[pid] = earlier.report
        return earlier.files
    if allowance.open_files <= 0 or allowance.is_spent:
        return _NO_TURN
    links = scan.proc.links(f"/proc/{pid}/fd")
    if links.value is None:
        return Answer(None, links.reason)
    allowance.open_files -= len(links.value)
    targets = links.value.values()
    held = frozenset(target for target in targets if target.startswith(_NVIDIA))
    if MARK in targets:
        scan.reports[pid] = next(name for name, target in links.value.items() if target == MARK)
    return _TOO_MANY if not held and len(links.value) >= MOST_OPEN_FILES else Answer(held)


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
    folders = {_SHARED_MEMORY, *(mount.point for mount in mounts if mount.kind == "hugetlbfs")}
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
        held |= wanted & proc.open_file_keys(f"/proc/{pid}/fd")
        if held == wanted:
            break
    return held
