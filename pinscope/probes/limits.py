"""How much memory may be taken on this machine by this process."""

from __future__ import annotations

import re
import resource

from pinscope.probes.answer import Answer
from pinscope.probes.cgroup import memory_headroom
from pinscope.probes.numa import bound_nodes, read_nodes
from pinscope.probes.privileges import IPC_LOCK, has_capability, in_initial_user_namespace
from pinscope.probes.proc import HERE, Proc, whole
from pinscope.records.environment import Limits

SHARED_MEMORY = "/dev/shm"  # noqa: S108 - asked for its free space, never written to

_MEMLOCK = re.compile(r"^Max locked memory +(?P<soft>\S+)", re.MULTILINE)


def read_limits(proc: Proc = HERE) -> Limits:
    """Total and available host memory, and what control groups, RLIMIT_MEMLOCK and /dev/shm leave, in bytes.

    Where the calling thread's memory is bound to one NUMA node, total and available are that node's.
    """
    missing: dict[str, str] = {"node": "memory is bound to no NUMA node"}
    total, available = host_memory(proc)
    group = memory_headroom(proc)
    limits = Limits(
        host_total_bytes=total,
        host_available_bytes=available,
        cgroup_limit_bytes=group.then(lambda level: level.limit_bytes).note(missing, "cgroup_limit_bytes"),
        cgroup_headroom_bytes=group.then(lambda level: level.bytes).note(missing, "cgroup_headroom_bytes"),
        memlock_headroom_bytes=memlock_headroom(proc).note(missing, "memlock_headroom_bytes"),
        shm_free_bytes=proc.free_bytes(SHARED_MEMORY).note(missing, "shm_free_bytes"),
        missing=missing,
    )
    bound = bound_nodes()
    nodes = read_nodes(proc).value or () if len(bound) == 1 else ()
    return next((limits.on_node(node) for node in nodes if node.number in bound), limits)


def host_memory(proc: Proc) -> tuple[int, int]:
    """(total, available) in bytes. psutil helps out where /proc/meminfo lacks a line: it knows how to estimate it."""
    meminfo = proc.fields("/proc/meminfo")
    total, available = meminfo.amount("MemTotal").value, meminfo.amount("MemAvailable").value
    if total is not None and available is not None:
        return total, min(total, available)
    import psutil  # noqa: PLC0415 - few kernels lack one

    memory = psutil.virtual_memory()
    return memory.total, memory.available


def memlock_headroom(proc: Proc) -> Answer[int]:
    """Bytes that this process may still mlock; missing, with the reason, where no limit applies.

    RLIMIT_MEMLOCK (soft) less VmLck. CAP_IPC_LOCK lifts it, but only in the initial user namespace: in a rootless
    container the capability shows in CapEff and does not count.
    """
    if has_capability(IPC_LOCK, proc) and in_initial_user_namespace(proc):
        return Answer.missing("no limit: this process has CAP_IPC_LOCK")
    soft = _memlock_limit(proc)
    if soft is None:
        return Answer.missing("no limit: RLIMIT_MEMLOCK is unlimited")
    # Sandboxed kernels leave VmLck out. The limit itself is then the upper bound, and mlock fails cleanly above it.
    locked = proc.fields("/proc/self/status").amount("VmLck").value or 0
    return Answer(max(0, soft - locked))


def _memlock_limit(proc: Proc) -> int | None:
    """The soft limit in bytes; ``None`` for unlimited."""
    match = _MEMLOCK.search(proc.read("/proc/self/limits").value or "")
    if match is not None and match["soft"] == "unlimited":
        return None
    soft = whole(match["soft"]) if match is not None else None
    if soft is not None:
        return soft
    given, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    return None if given == resource.RLIM_INFINITY else given
