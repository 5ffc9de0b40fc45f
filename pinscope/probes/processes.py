"""The processes of this host that hold pinned or locked memory, as far as /proc shows it.

After a glance at each (:mod:`pinscope.probes.process_looks`), a process that could hold pinned memory has its open
files looked at. Only a candidate – one that holds an NVIDIA device file, or that NVML names and whose files cannot be
seen – has its ``maps`` read. The rest of a process (command line, group, start) is read where it is reported.

All of it is bounded for one process and in sum (:mod:`pinscope.probes.bounded`). Who comes first matters then:
processes that NVML names, and of the others the first of each user before the second of anyone.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Collection, Iterable
from dataclasses import dataclass

from pinscope.probes.answer import Answer
from pinscope.probes.bounded import MOST_OPEN_FILES, Allowance
from pinscope.probes.proc import HERE, Proc, whole
from pinscope.probes.process_identity import Identity, identify
from pinscope.probes.process_looks import (
    LEAST_CUDA_BYTES,
    CloserLook,
    KnownMaps,
    Look,
    Remembered,
    is_large,
    look_at_all,
)
from pinscope.probes.process_memory import MemoryMaps, ProcessStatus, parse_maps

__all__ = ["LEAST_CUDA_BYTES", "UVM", "Processes", "Remembered", "SeenProcess", "known_identity", "read_processes"]

UVM = "/dev/nvidia-uvm"
"""CUDA opens it when it starts; NVML alone and display servers do not."""

_NVIDIA = "/dev/nvidia"
_IDENTITY_TURNS = 10
"""A program may change its command line at any time; after so many looks it is read again."""
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
    """``None`` where there was no reason to look."""
    size: tuple[int, bytes] | None = None
    """Inode of its folder and ``statm``, where they were read."""


@dataclass(frozen=True, slots=True)
class Processes:
    """What one look at all processes found."""

    seen: tuple[SeenProcess, ...]
    looked_at: int
    closed: int
    """Processes that could hold pinned memory and whose open files this user may not see."""
    strangers: frozenset[int]
    """Pids that NVML names and that are no such process here."""
    unread: int = 0
    """Processes too small for CUDA whose locked memory is not known, as a snapshot looks at some of them in turn."""
    skipped: int = 0
    """Processes that could hold pinned memory and have more open files than a snapshot looks at."""


def read_processes(
    proc: Proc = HERE, gpu_pids: Collection[int] = (), remembered: Remembered | None = None
) -> Answer[Processes]:
    """Processes with NVIDIA device files, with a place in NVML's lists, or with locked or pinned memory.

    Args:
        proc: where /proc is read.
        gpu_pids: processes that NVML names.
        remembered: what earlier looks learned; it is brought up to date.
    """
    remembered = remembered or Remembered(is_series=False)
    remembered.looks += 1
    allowance = Allowance()
    found = look_at_all(proc, gpu_pids, remembered, allowance)
    if found.value is None:
        return Answer(None, found.reason)
    look = found.value
    files = _files_of_suspects(look, gpu_pids, remembered, allowance)
    candidates = [pid for pid, held in files.items() if held.value or (held.value is None and pid in gpu_pids)]
    maps = _maps_of_candidates(look, _fair(candidates, look, gpu_pids), remembered, allowance)
    rest = [pid for pid in (files.keys() | look.others.keys()) - maps.keys() if look.status(pid).has_locked]
    seen = [
        SeenProcess(pid, look.status(pid), files.get(pid, _NONE), maps.get(pid), look.sizes.get(pid))
        for pid in (*candidates, *rest)
    ]
    skipped = {pid for pid, held in files.items() if held in (_NO_TURN, _TOO_MANY)}
    closed = {pid for pid, held in files.items() if held.value is None} - skipped | look.closed
    named = {one.pid for one in seen}
    remembered.identities = {pid: known for pid, known in remembered.identities.items() if pid in named}
    if remembered.many is not None:
        remembered.many.marked = named | skipped
        remembered.many.closed = closed
    remembered.closer = {
        one.pid: CloserLook(one.size, one.files, one.maps)
        for one in seen
        if one.maps is not None and one.maps.value is not None and one.files.value and one.size is not None
    }
    strangers = frozenset(gpu_pids) - maps.keys()
    return Answer(Processes(tuple(seen), look.looked_at, len(closed), strangers, look.unread, len(skipped)))


def known_identity(one: SeenProcess, proc: Proc, remembered: Remembered) -> Identity:
    """Who a process is, read once in a snapshot, and in a series again when its memory changed or its turn comes."""
    before = remembered.identities.get(one.pid)
    is_due = remembered.looks % _IDENTITY_TURNS == one.pid % _IDENTITY_TURNS
    if before is not None and before[0] == (one.size or (remembered.looks, b"")) and not (one.size and is_due):
        return before[1]
    identity = identify(one.pid, proc)
    remembered.identities[one.pid] = (one.size or (remembered.looks, b"")), identity
    return identity


def _fair(pids: Iterable[int], look: Look, gpu_pids: Collection[int]) -> list[int]:
    """Those that NVML names first; then by turns, one of each user: who has many processes does not come before
    those who have one."""
    met: Counter[int | None] = Counter()
    turns = {}
    for pid in pids:
        user = look.status(pid).number("Uid")
        turns[pid] = (pid not in gpu_pids, met[user])
        met[user] += 1
    return sorted(turns, key=turns.__getitem__)


def _maps_of_candidates(
    look: Look, pids: Iterable[int], remembered: Remembered, allowance: Allowance
) -> dict[int, Answer[MemoryMaps]]:
    maps: dict[int, Answer[MemoryMaps]] = {}
    known: dict[int, KnownMaps] = {}
    for pid in pids:
        before, closer = remembered.maps.get(pid), remembered.closer.get(pid)
        if look.same_pins and closer is not None and closer.size == look.sizes.get(pid):
            maps[pid] = closer.maps
            if before is not None:
                known[pid] = before
            continue
        path = f"/proc/{pid}/maps"
        if allowance.maps_bytes <= 0 or allowance.is_spent:
            maps[pid] = Answer(None, f"{path} was not read: {_NO_TURN.reason}")
            continue
        text = look.proc.read(path)
        allowance.maps_bytes -= len(text.value or "")
        read = text.then(lambda text, before=before: _known(text, before), f"{path} is empty")  # type: ignore[misc]
        maps[pid] = read.then(lambda found: found.maps)
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
    look: Look, gpu_pids: Collection[int], remembered: Remembered, allowance: Allowance
) -> dict[int, Answer[frozenset[str]]]:
    """NVIDIA device files of each process that could hold pinned memory, and of the children of those that have some.

    To list the open files of every process on a host would cost more than all the rest.
    """
    children: dict[int, list[int]] = {}  # made once there is a parent to look for
    files: dict[int, Answer[frozenset[str]]] = {}
    sizes = look.bystanders
    suspects = []
    for pid in look.suspects:
        size = look.status(pid).size
        if size and remembered.bystanders.get(pid) == size and pid not in gpu_pids:
            sizes[pid] = size
        else:
            suspects.append(pid)
    waiting = deque(_fair(suspects, look, gpu_pids))
    while waiting:
        pid = waiting.popleft()
        if pid in files or pid in sizes:
            continue
        held = _nvidia_files(pid, look, remembered, allowance)
        if held.value is None and held is not _NO_TURN and not look.proc.exists(f"/proc/{pid}"):
            continue
        files[pid] = held
        status = look.status(pid)
        if held.value:
            if not is_large(status):  # else its forked children are large as well, and suspects already
                if remembered.many is None:
                    children = children or look.children()
                    waiting += children.get(pid, ())
                else:
                    waiting += _children(pid, look.proc)
        elif held.value is not None:
            sizes[pid] = status.size
    remembered.bystanders = sizes
    return files


def _children(pid: int, proc: Proc) -> list[int]:
    """Processes that its first thread started; of thousands of processes not all parents are known."""
    text = proc.read(f"/proc/{pid}/task/{pid}/children").value or ""
    return [child for child in map(whole, text.split()) if child is not None]


def _nvidia_files(pid: int, look: Look, remembered: Remembered, allowance: Allowance) -> Answer[frozenset[str]]:
    closer = remembered.closer.get(pid)
    if look.same_pins and closer is not None and closer.size == look.sizes.get(pid):
        return closer.files
    if allowance.open_files <= 0 or allowance.is_spent:
        return _NO_TURN
    links = look.proc.links(f"/proc/{pid}/fd")
    if links.value is None:
        return Answer(None, links.reason)
    allowance.open_files -= len(links.value)
    held = frozenset(target for target in links.value if target.startswith(_NVIDIA))
    return _TOO_MANY if not held and len(links.value) >= MOST_OPEN_FILES else Answer(held)
