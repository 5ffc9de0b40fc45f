"""All processes of this host, as far as pinned memory needs them: one cheap look at each, a closer one at candidates.

Every process costs one read of ``status`` and one look at its open files. Only a candidate – a process that holds an
NVIDIA device file, or that NVML names and whose files cannot be seen – has its ``maps`` read. The rest of a process
(command line, group, start) is read where it is reported.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

from pinscope.probes.answer import Answer
from pinscope.probes.proc import HERE, Proc
from pinscope.probes.process_memory import MemoryMaps, ProcessStatus, parse_maps

UVM = "/dev/nvidia-uvm"
"""CUDA opens it when it starts; NVML alone and display servers do not."""
_NVIDIA = "/dev/nvidia"


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
    """Processes whose open files this user may not see."""
    strangers: frozenset[int]
    """Pids that NVML names and that are no such process here."""


@dataclass
class Bystanders:
    """Processes that held no NVIDIA device file when they were looked at.

    Whoever opens one to pin memory maps something, too. So while the size of a process's address space, now and at
    its peak, stays as it was, its files need not be looked at again: that is most of the cost of a second snapshot.
    """

    sizes: dict[int, str] = field(default_factory=dict)


def read_processes(
    proc: Proc = HERE, gpu_pids: Collection[int] = (), bystanders: Bystanders | None = None
) -> Answer[Processes]:
    """Processes with NVIDIA device files, with a place in NVML's lists, or with locked or pinned memory.

    Args:
        proc: where /proc is read.
        gpu_pids: processes that NVML names.
        bystanders: what an earlier look learned; it is brought up to date.
    """
    pids = proc.pids()
    if pids.value is None:
        return Answer(None, pids.reason)
    before = bystanders.sizes if bystanders is not None else {}
    after: dict[int, str] = {}
    seen = []
    closed = 0
    for pid in pids.value:
        text = proc.read(f"/proc/{pid}/status").value
        if text is None:
            continue  # it ended meanwhile
        status = ProcessStatus(text)
        if not status.has_memory:
            continue
        files: Answer[frozenset[str]] = Answer(frozenset())
        size = status.size
        if not size or before.get(pid) != size or pid in gpu_pids:
            files = _nvidia_files(pid, proc)
        if files.value is None:
            if not proc.exists(f"/proc/{pid}"):
                continue
            closed += 1
        if files.value or (files.value is None and pid in gpu_pids):
            path = f"/proc/{pid}/maps"
            # An empty one is that of a process that is about to end.
            maps = proc.read(path).then(lambda text: parse_maps(text) if text else None, f"{path} is empty")
            seen.append(SeenProcess(pid, status, files, maps))
            continue
        if files.value is not None:
            after[pid] = size
        if status.bytes("VmLck") or status.bytes("VmPin"):
            seen.append(SeenProcess(pid, status, files, None))
    if bystanders is not None:
        bystanders.sizes = after
    named_here = {one.pid for one in seen if one.maps is not None}
    return Answer(Processes(tuple(seen), len(pids.value), closed, frozenset(gpu_pids) - named_here))


def _nvidia_files(pid: int, proc: Proc) -> Answer[frozenset[str]]:
    links = proc.links(f"/proc/{pid}/fd")
    if links.value is None:
        return Answer(None, links.reason)
    return Answer(frozenset(target for target in links.value if target.startswith(_NVIDIA)))
