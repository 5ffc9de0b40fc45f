"""Who holds pinned memory now: processes, host counters and GPUs joined to one frozen snapshot.

cudaHostAlloc memory shows as shared mappings of ``/dev/zero (deleted)``, each with an inode of its own; registered
memory leaves no mark; both count in the kernel's total of pinned pages (measured on H200 hosts).
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime

from pinscope.analysis.page_table_model import GRANULE_BYTES, page_table_memory_bytes
from pinscope.live.ownership import Candidate, Share, attribute
from pinscope.live.unreadable import unreadable
from pinscope.probes.answer import Answer
from pinscope.probes.host_memory import read_host
from pinscope.probes.proc import HERE, Proc
from pinscope.probes.process import start_ticks
from pinscope.probes.process_identity import boot_time, command_line, container, control_group, started_at, user_name
from pinscope.probes.processes import UVM, Bystanders, Processes, SeenProcess, read_processes
from pinscope.probes.virtualization import has_own_pids
from pinscope.records.snapshot import Allocations, DeviceFigures, GpuUse, Holder, HostTotals, Snapshot

COUNTER_SLACK_BYTES = 4 * 2**20
"""The kernel sums up pins and resident pages per processor now and then: so much may be missing from a total."""
NO_FILES = "it holds no NVIDIA device file"

_TABLES = "8 bytes for each page of its cudaHostAlloc memory, in steps of 2 MiB; registered memory comes on top"
_OTHER = "the host's total less what the holders explain; whose it is, the kernel does not tell"
_MANAGED = "address space; how much of it is on the host, and how much on a GPU, cannot be seen"
_ROUNDING = "at most: a program that asked for these very sizes wastes nothing"
_NOT_RESIDENT = "at most: not all of it is resident in this process, and what is not is not pinned"
_MAYBE_ORDINARY = "at most: the process does not hold CUDA's device file, so it may be ordinary shared memory"
_OTHERS_PIDS = "the driver names processes by the ids of another pid namespace"
_STATUS = {
    "locked_bytes": "VmLck", "vm_pin_bytes": "VmPin", "hugetlb_bytes": "HugetlbPages", "rss_bytes": "VmRSS",
    "rss_anon_bytes": "RssAnon", "rss_file_bytes": "RssFile", "rss_shmem_bytes": "RssShmem",
}  # fmt: skip


def snapshot(
    proc: Proc = HERE,
    gpus: Answer[tuple[DeviceFigures, ...]] | None = None,
    bystanders: Bystanders | None = None,
) -> Snapshot:
    """Read the host and its processes, and join them with what the GPUs' driver told.

    Args:
        proc: where /proc and /sys are read.
        gpus: from :func:`pinscope.probes.gpu_figures.read_gpus`, which may have been asked elsewhere, as the driver
            may hang; ``None``: it was not asked.
        bystanders: keep one and pass it to each snapshot of a series: the later ones then cost less.
    """
    begun = time.thread_time()
    gpus = gpus or Answer.missing("the driver was not asked")
    taken_at = datetime.now(UTC)
    gpu_pids = {one.pid for device in gpus.value or () for one in device.processes}
    processes = read_processes(proc, gpu_pids, bystanders)
    host = read_host(proc)
    seen = processes.value.seen if processes.value is not None else ()
    shares = attribute([_candidate(one, proc) for one in seen if one.maps is not None])
    booted = boot_time(proc) if seen else Answer[int].missing("no process was seen")
    strangers = processes.value is not None and bool(processes.value.strangers)
    holders = [_holder(one, shares.get(one.pid), gpus, strangers, proc, booted) for one in seen]
    kept = tuple(sorted(filter(_holds, holders), key=_weight, reverse=True))
    return Snapshot(
        taken_at=taken_at,
        host=_explained(host, kept, processes, has_own_pids(proc)),
        holders=kept,
        devices=tuple(_with_tables(device, kept) for device in gpus.value or ()),
        unreadable=unreadable(proc, host, processes, gpus),
        cpu_seconds=time.thread_time() - begun,
    )


def _candidate(one: SeenProcess, proc: Proc) -> Candidate:
    maps = one.maps.value if one.maps is not None else None
    return Candidate(
        pid=one.pid,
        parent=one.status.number("PPid"),
        started=start_ticks(one.pid, proc).value,
        pieces=maps.shared_zero if maps is not None else {},
    )


def _holds(holder: Holder) -> bool:
    """True for whoever holds something, and for whoever can have registered memory, which leaves no mark."""
    amounts = (holder.host_alloc_bytes, holder.inherited_bytes, holder.managed_bytes)
    return holder.cuda or any(amounts) or bool(holder.locked_bytes or holder.vm_pin_bytes)


def _weight(holder: Holder) -> tuple[int, int, int]:
    locked = (holder.locked_bytes or 0) + (holder.vm_pin_bytes or 0)
    return ((holder.host_alloc_bytes or 0) + locked, holder.inherited_bytes or 0, -holder.pid)


def _holder(
    one: SeenProcess,
    share: Share | None,
    gpus: Answer[tuple[DeviceFigures, ...]],
    strangers: bool,
    proc: Proc,
    booted: Answer[int],
) -> Holder:
    missing: dict[str, str] = {}
    estimates: dict[str, str] = {}
    status = one.status
    amounts = {}
    for field, key in _STATUS.items():
        amounts[field] = amount = status.bytes(key)
        if amount is None:
            missing[field] = f"/proc/{one.pid}/status has no amount {key}"
    # What the driver says of a pid counts only where the process may be that one: see Processes.strangers.
    uses = [] if one.maps is None else [(device.index, device) for device in gpus.value or ()]
    named = any(process.pid == one.pid for _, device in uses for process in device.processes)
    cuda = named or UVM in (one.files.value or ())
    owned = _owned(one, share, missing)
    if owned:
        if not cuda:
            estimates["host_alloc_bytes"] = _MAYBE_ORDINARY
        elif sum(owned) > (amounts["rss_shmem_bytes"] or 0) + COUNTER_SLACK_BYTES:
            estimates["host_alloc_bytes"] = _NOT_RESIDENT
    managed = one.maps.value.managed_bytes if one.maps is not None and one.maps.value is not None else None
    if managed:
        estimates["managed_bytes"] = _MANAGED
    allocations = _allocations(owned or ())
    rounding = sum(each.size_bytes // 2 * each.count for each in allocations if each.power_of_two)
    if rounding:
        estimates["rounding_bytes"] = _ROUNDING
    group = control_group(one.pid, proc).note(missing, "cgroup")
    engine = container(group or "")
    if engine is None:
        missing["container"] = "its control group names no container" if group is not None else missing["cgroup"]
    uid = status.number("Uid")
    user = Answer(user_name(uid)) if uid is not None else Answer[str].missing("/proc tells no user")
    parent = status.number("PPid")
    if parent is None:
        missing["parent_pid"] = "/proc tells no parent"
    return Holder(
        pid=one.pid,
        parent_pid=parent,
        user=user.note(missing, "user"),
        name=status.line("Name") or "?",
        command=command_line(one.pid, proc).note(missing, "command"),
        cgroup=group,
        container=engine,
        started_at=started_at(one.pid, proc, booted).note(missing, "started_at"),
        cuda=cuda,
        host_alloc_bytes=None if owned is None else sum(owned),
        allocations=allocations,
        rounding_bytes=None if owned is None else rounding,
        inherited_bytes=None if owned is None else (share.inherited_bytes if share is not None else 0),
        inherited_from=tuple(sorted(share.inherited_from)) if share is not None else (),
        inherited_by=tuple(sorted(share.inherited_by)) if share is not None else (),
        managed_bytes=0 if one.maps is None else managed,
        gpus=_gpu_uses(one, owned, cuda, gpus, strangers, missing),
        missing=missing,
        estimates=estimates,
        **amounts,
    )


def _owned(one: SeenProcess, share: Share | None, missing: dict[str, str]) -> list[int] | None:
    """Bytes of each piece of cudaHostAlloc memory; ``None`` with a reason if that cannot be seen."""
    if one.maps is not None and one.maps.reason is not None:
        for field in ("host_alloc_bytes", "rounding_bytes", "inherited_bytes", "managed_bytes"):
            missing[field] = one.maps.reason
        return None
    return share.owned if share is not None else []


def _allocations(sizes: Sequence[int]) -> tuple[Allocations, ...]:
    counts = Counter(sizes)
    # The driver itself takes chunks of 2 MiB in every CUDA process: nobody's rounding.
    return tuple(
        Allocations(size_bytes=size, count=count, power_of_two=size > GRANULE_BYTES and size.bit_count() == 1)
        for size, count in sorted(counts.items(), key=lambda pair: (pair[0] * pair[1], pair[0]), reverse=True)
    )


def _gpu_uses(
    one: SeenProcess,
    owned: list[int] | None,
    cuda: bool,
    gpus: Answer[tuple[DeviceFigures, ...]],
    strangers: bool,
    missing: dict[str, str],
) -> tuple[GpuUse, ...]:
    if not cuda:
        return ()
    if gpus.value is None:
        missing["gpus"] = gpus.reason or ""
        return ()
    uses = []
    page_bytes = os.sysconf("SC_PAGE_SIZE")
    for device in gpus.value:
        entries = [process for process in device.processes if process.pid == one.pid]
        if "processes" in device.missing:
            missing["gpus"] = device.missing["processes"]
        if not entries:
            continue
        amounts = [entry.memory_bytes for entry in entries if entry.memory_bytes is not None]
        reasons = {} if len(amounts) == len(entries) else {"memory_bytes": entries[0].missing.get("memory_bytes", "")}
        tables = None if owned is None else page_table_memory_bytes(sum(owned), page_bytes)
        if tables is None:
            reasons["page_table_bytes"] = missing["host_alloc_bytes"]
        uses.append(
            GpuUse(
                index=device.index,
                memory_bytes=sum(amounts) if len(amounts) == len(entries) else None,
                page_table_bytes=tables,
                missing=reasons,
                estimates={} if tables is None else {"page_table_bytes": _TABLES},
            )
        )
    if not uses and strangers:
        missing["gpus"] = _OTHERS_PIDS
    return tuple(uses)


def _with_tables(device: DeviceFigures, holders: Sequence[Holder]) -> DeviceFigures:
    """The device with the page tables that its holders imply."""
    missing = dict(device.missing)
    if "processes" in missing:
        missing["page_table_bytes"] = missing["processes"]
        return device.model_copy(update={"missing": missing})
    del missing["page_table_bytes"]
    tables = [use.page_table_bytes for one in holders for use in one.gpus if use.index == device.index]
    known = [amount for amount in tables if amount is not None]
    unseen = len(device.processes) - len(known)
    note = _TABLES if unseen <= 0 else f"{_TABLES}; {unseen} of its processes could not be looked at"
    return device.model_copy(
        update={"page_table_bytes": sum(known), "missing": missing, "estimates": {"page_table_bytes": note}}
    )


def _explained(host: HostTotals, holders: Sequence[Holder], processes: Answer[Processes], own_pids: bool) -> HostTotals:
    """The host's totals, with the pinned one split into what the holders explain and the rest."""
    missing = {key: reason for key, reason in host.missing.items() if key not in ("explained_bytes",)}
    if processes.value is None:
        missing["explained_bytes"] = missing["other_pinned_bytes"] = processes.reason or ""
        return host.model_copy(update={"missing": missing})
    explained = sum((one.host_alloc_bytes or 0) + (one.vm_pin_bytes or 0) for one in holders)
    estimates = {}
    if processes.value.closed or own_pids or any(one.host_alloc_bytes is None for one in holders):
        estimates["explained_bytes"] = "at least: not all processes could be looked at"
    elif any("host_alloc_bytes" in one.estimates for one in holders):
        estimates["explained_bytes"] = "at most: some of it may not be pinned"
    other = _other(host, explained)
    if other.value is not None:
        del missing["other_pinned_bytes"]
        estimates["other_pinned_bytes"] = _OTHER
    elif other.reason is not None:
        missing["other_pinned_bytes"] = other.reason
    return host.model_copy(
        update={
            "explained_bytes": explained, "other_pinned_bytes": other.value, "missing": missing, "estimates": estimates
        }
    )  # fmt: skip


def _other(host: HostTotals, explained: int) -> Answer[int]:
    if host.pinned_bytes is None:
        return Answer.missing(host.missing["pinned_bytes"])
    if explained > host.pinned_bytes + COUNTER_SLACK_BYTES:
        return Answer.missing("the holders' mappings come to more than is pinned: some of them are not pinned")
    return Answer(max(0, host.pinned_bytes - explained))
