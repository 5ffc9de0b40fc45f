"""All processes of this host, as far as pinned memory needs them: one cheap look at each, a closer one at few.

A process costs one read of ``status``, or of ``statm`` while a series finds it unchanged; one file tells all kernel
threads. A process that could hold pinned memory has its open files looked at. Only a candidate – one that holds an
NVIDIA device file, or that NVML names and whose files cannot be seen – has its ``maps`` read. The rest of a process
(command line, group, start) is read where it is reported.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from pinscope.probes.answer import Answer
from pinscope.probes.proc import HERE, Proc, whole
from pinscope.probes.process_memory import MemoryMaps, ProcessStatus, parse_maps, plain_address_space

UVM = "/dev/nvidia-uvm"
"""CUDA opens it when it starts; NVML alone and display servers do not."""
LEAST_CUDA_BYTES = 2**30
"""CUDA reserves gigabytes of address space when it starts, and a forked child inherits them."""

_COUNTERS = re.compile(r"^(?:unevictable_pgs_m(?:un)?locked|nr_foll_pin_\w+) \d+$", re.MULTILINE)
"""In /proc/vmstat: pages that were ever locked, unlocked, pinned and unpinned."""
_NVIDIA = "/dev/nvidia"
_NONE: Answer[frozenset[str]] = Answer(frozenset())


@dataclass(frozen=True, slots=True)
class SeenProcess:
    """A process that holds, or may hold, pinned or locked memory."""

    pid: int
    status: ProcessStatus
    files: Answer[frozenset[str]]
    """NVIDIA device files that it has open."""
    maps: Answer[MemoryMaps] | None
    """``None`` where there was no reason to look."""


@dataclass(frozen=True, slots=True)
class Processes:
    """What one look at all processes found."""

    seen: tuple[SeenProcess, ...]
    looked_at: int
    closed: int
    """Processes that could hold pinned memory and whose open files this user may not see."""
    strangers: frozenset[int]
    """Pids that NVML names and that are no such process here."""


@dataclass(frozen=True, slots=True)
class KnownMaps:
    """A process's ``maps`` as read, and what it says.

    To parse it takes longer than to read it. Only the same text proves that nothing changed: what ``status`` says of
    sizes stays as it was if one buffer goes and another of its size comes.
    """

    text: str
    maps: MemoryMaps


@dataclass
class Remembered:
    """What a series of looks knows already, so that each costs little. The next look brings it up to date."""

    bystanders: dict[int, str] = field(default_factory=dict)
    """Size of the address space, now and at its peak, of processes that held no NVIDIA device file.

    Whoever opens one to pin memory maps something, too. So while the sizes stay as they were, its files need not be
    looked at again.
    """
    quiet: dict[int, tuple[int, bytes]] = field(default_factory=dict)
    """Inode and ``statm`` of processes too small for CUDA that have nothing locked or pinned.

    To read ``statm`` costs half of ``status``. While it stays as it was, nothing was mapped or touched; and while the
    host's counters of locking and pinning stay as they were, nothing was locked or pinned that was there before.
    """
    counters: str = ""
    """Those counters at the last look."""
    without_memory: dict[int, int] = field(default_factory=dict)
    """Kernel threads and processes that ended without being reaped, as :meth:`Proc.tasks` tells them.

    They get no memory any more. Only a kernel thread that starts a helper program of the kernel's (modprobe) does,
    and that uses no CUDA.
    """
    maps: dict[int, KnownMaps] = field(default_factory=dict)
    """The ``maps`` of candidates."""
    booted: Answer[int] = Answer.missing("the boot time has not been read")  # noqa: RUF009 - frozen
    """Boot time in seconds since 1970. The kernel derives it from the clock, so it moves when the clock is set: within
    a series, a process must not seem to be another one for that."""


def read_processes(
    proc: Proc = HERE, gpu_pids: Collection[int] = (), remembered: Remembered | None = None
) -> Answer[Processes]:
    """Processes with NVIDIA device files, with a place in NVML's lists, or with locked or pinned memory.

    Args:
        proc: where /proc is read.
        gpu_pids: processes that NVML names.
        remembered: what earlier looks learned; it is brought up to date.
    """
    tasks = proc.tasks()
    if tasks.value is None:
        return Answer(None, tasks.reason)
    remembered = remembered or Remembered()
    look = _look(proc, tasks.value, gpu_pids, remembered)
    files = _files_of_suspects(proc, look, gpu_pids, remembered)
    seen, known = [], dict[int, KnownMaps]()
    for pid in files.keys() | look.others.keys():
        status, held = look.status(pid), files.get(pid, _NONE)
        if held.value or (held.value is None and pid in gpu_pids):
            maps = _read_maps(proc, pid, remembered.maps.get(pid))
            if maps.value is not None:
                known[pid] = maps.value
            seen.append(SeenProcess(pid, status, held, maps.then(lambda found: found.maps, "")))
        elif status.has_locked:
            seen.append(SeenProcess(pid, status, held, None))
    remembered.maps = known
    closed = sum(held.value is None for held in files.values())
    named_here = {one.pid for one in seen if one.maps is not None}
    return Answer(Processes(tuple(seen), len(tasks.value), closed, frozenset(gpu_pids) - named_here))


def _read_maps(proc: Proc, pid: int, before: KnownMaps | None) -> Answer[KnownMaps]:
    """What maps says now. An empty one is that of a process that is about to end."""
    path = f"/proc/{pid}/maps"
    return proc.read(path).then(lambda text: _known(text, before), f"{path} is empty")


def _known(text: str, before: KnownMaps | None) -> KnownMaps | None:
    if before is not None and before.text == text:
        return before
    return KnownMaps(text, parse_maps(text)) if text else None


@dataclass
class _Look:
    """What the statuses tell of the processes with memory, less those that are known to be quiet."""

    plain: dict[int, bytes] = field(default_factory=dict)
    """The ``status`` of those that are no suspects and have nothing locked."""
    others: dict[int, ProcessStatus] = field(default_factory=dict)
    suspects: list[int] = field(default_factory=list)
    """Those of the others that could hold pinned memory."""

    def status(self, pid: int) -> ProcessStatus:
        return self.others[pid] if pid in self.others else ProcessStatus(self.plain[pid].decode("utf-8", "replace"))


def _look(proc: Proc, tasks: Mapping[int, int], gpu_pids: Collection[int], remembered: Remembered) -> _Look:
    """A glance at every process; some end while they are read."""
    counters = "".join(_COUNTERS.findall(proc.read("/proc/vmstat").value or ""))
    calm = counters == remembered.counters != ""  # else statm would only come on top
    known = remembered.without_memory or _kernel_threads(proc, tasks)
    look, without, quiet = _Look(), dict[int, int](), dict[int, tuple[int, bytes]]()
    for pid, inode in tasks.items():
        if known.get(pid) == inode:
            without[pid] = inode
            continue
        size = inode, (proc.glance(f"/proc/{pid}/statm") or b"") if calm else b""
        if calm and pid not in gpu_pids and remembered.quiet.get(pid) == size:
            quiet[pid] = size
            continue
        text = proc.glance(f"/proc/{pid}/status") or b""
        if pid not in gpu_pids and (plain_address_space(text) or LEAST_CUDA_BYTES) < LEAST_CUDA_BYTES:
            look.plain[pid] = text
            if size[1]:
                quiet[pid] = size
            continue
        status = ProcessStatus(text.decode("utf-8", "replace"))
        if status.has_memory:
            look.others[pid] = status
            if pid in gpu_pids or _could_hold(status):
                look.suspects.append(pid)
            elif size[1] and not status.has_locked:
                quiet[pid] = size
        elif text:
            without[pid] = inode
    remembered.without_memory, remembered.quiet, remembered.counters = without, quiet, counters
    return look


def _kernel_threads(proc: Proc, tasks: Mapping[int, int]) -> dict[int, int]:
    """Children of pid 2, if that is the kernel's own, with the inodes of their folders.

    One file tells them all; each one's status would cost as much as a process's. In a container, pid 2 may be any
    process: one without memory that has children is a kernel thread.
    """
    children = (proc.read("/proc/2/task/2/children").value or "").split()
    if not children or ProcessStatus(proc.read("/proc/2/status").value or "\nVmSize:").has_memory:
        return {}
    pids = filter(None, map(whole, children))
    return {pid: tasks[pid] for pid in pids if pid in tasks}


def _files_of_suspects(
    proc: Proc, look: _Look, gpu_pids: Collection[int], remembered: Remembered
) -> dict[int, Answer[frozenset[str]]]:
    """NVIDIA device files of each process that could hold pinned memory, and of the children of those that have some.

    To list the open files of every process on a host would cost more than all the rest.
    """
    children: dict[int, list[int]] = {}  # made once there is a parent to look for
    files: dict[int, Answer[frozenset[str]]] = {}
    sizes: dict[int, str] = {}
    suspects = list(look.suspects)
    while suspects:
        pid = suspects.pop()
        if pid in files or pid in sizes:
            continue
        status = look.status(pid)
        size = status.size
        if size and remembered.bystanders.get(pid) == size and pid not in gpu_pids:
            sizes[pid] = size
            continue
        held = _nvidia_files(pid, proc)
        if held.value is None and not proc.exists(f"/proc/{pid}"):
            continue
        files[pid] = held
        if held.value:
            if not _is_large(status):  # else its forked children are large as well, and suspects already
                children = children or _children(look)
                suspects += children.get(pid, ())
        elif held.value is not None:
            sizes[pid] = size
    remembered.bystanders = sizes
    return files


def _children(look: _Look) -> dict[int, list[int]]:
    children: dict[int, list[int]] = {}
    for pid in (*look.plain, *look.others):
        children.setdefault(look.status(pid).parent or 0, []).append(pid)
    return children


def _could_hold(status: ProcessStatus) -> bool:
    """False if the process cannot own cudaHostAlloc memory, and is not likely to use CUDA at all.

    Pinned pages are mapped, so cudaHostAlloc memory counts in its owner's RssShmem. A CUDA process that has none, or
    an orphan that inherited some and never touched it, shows by the size of its address space.
    """
    return status.may_share or _is_large(status)


def _is_large(status: ProcessStatus) -> bool:
    return (status.bytes("VmSize") or LEAST_CUDA_BYTES) >= LEAST_CUDA_BYTES


def _nvidia_files(pid: int, proc: Proc) -> Answer[frozenset[str]]:
    links = proc.links(f"/proc/{pid}/fd")
    if links.value is None:
        return Answer(None, links.reason)
    return Answer(frozenset(target for target in links.value if target.startswith(_NVIDIA)))
