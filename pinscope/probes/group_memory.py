"""The memory of one control group, versions 1 and 2: what it holds, and what its limit did to those in it.

Sources: Linux documentation, admin-guide/cgroup-v2.rst and cgroup-v1/memory.rst.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pinscope.probes.answer import Answer, all_of
from pinscope.probes.host_memory import stalled_seconds
from pinscope.probes.proc import HERE, Proc


@dataclass(frozen=True)
class GroupMemory:
    """One reading. Bytes, seconds and counts since the group was made; ``None`` where ``missing`` says why.

    Attributes:
        used_bytes: charged to the group in all.
        cache_bytes: of that, pages of files, which the kernel can drop.
        swap_bytes: of the group's memory, swapped out now.
        refaults: pages of files that were dropped and had to be read again.
        kills: processes that the kernel killed because the group had no memory left.
        stalled_seconds: time in which at least one task of the group waited for memory.
        missing: field name → why it is ``None``.
    """

    used_bytes: int | None
    cache_bytes: int | None
    swap_bytes: int | None
    refaults: int | None
    kills: int | None
    stalled_seconds: float | None
    missing: Mapping[str, str]


def read_group(kind: str, folder: str, proc: Proc = HERE) -> GroupMemory:
    """The figures of this moment.

    Args:
        kind: file system type of the hierarchy, ``cgroup`` or ``cgroup2``.
        folder: the group's.
        proc: where they are read.
    """
    return (_second if kind == "cgroup2" else _first)(folder, proc)


def _second(folder: str, proc: Proc) -> GroupMemory:
    missing: dict[str, str] = {}
    statistics, path = proc.fields(f"{folder}/memory.stat"), f"{folder}/memory.pressure"
    refaults = statistics.amount("workingset_refault_file")
    if refaults.value is None:
        refaults = statistics.amount("workingset_refault")  # Linux before 5.9
    stalled = proc.fields(path).text("some").then(stalled_seconds, f"{path} has no total")
    return GroupMemory(
        used_bytes=proc.number(f"{folder}/memory.current").note(missing, "used_bytes"),
        cache_bytes=_files(statistics.amount("file"), statistics.amount("shmem")).note(missing, "cache_bytes"),
        swap_bytes=proc.number(f"{folder}/memory.swap.current").note(missing, "swap_bytes"),
        refaults=refaults.note(missing, "refaults"),
        kills=proc.fields(f"{folder}/memory.events").amount("oom_kill").note(missing, "kills"),
        stalled_seconds=stalled.note(missing, "stalled_seconds"),
        missing=missing,
    )


def _first(folder: str, proc: Proc) -> GroupMemory:
    missing = {"stalled_seconds": "control groups of version 1 do not report stalls"}
    statistics = proc.fields(f"{folder}/memory.stat")
    return GroupMemory(
        used_bytes=proc.number(f"{folder}/memory.usage_in_bytes").note(missing, "used_bytes"),
        cache_bytes=_files(statistics.amount("cache"), statistics.amount("shmem")).note(missing, "cache_bytes"),
        swap_bytes=statistics.amount("swap").note(missing, "swap_bytes"),
        refaults=statistics.amount("workingset_refault_file").note(missing, "refaults"),
        kills=proc.fields(f"{folder}/memory.oom_control").amount("oom_kill").note(missing, "kills"),
        stalled_seconds=None,
        missing=missing,
    )


def _files(cache: Answer[int], shared: Answer[int]) -> Answer[int]:
    """Shared memory is counted with the files, and cannot be dropped."""
    return all_of(cache, shared).then(lambda both: max(0, both[0] - both[1]))
