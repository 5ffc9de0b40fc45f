"""One holder: a process, its share of the pinned memory, and what it has on the GPUs."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import MutableMapping, Sequence
from dataclasses import dataclass

from pinscope.analysis.page_table_model import GRANULE_BYTES, page_table_memory_bytes
from pinscope.live.ownership import Share
from pinscope.live.registered import Registered, registered_by
from pinscope.probes.answer import Answer
from pinscope.probes.cgroup import GroupHeadrooms
from pinscope.probes.proc import Proc
from pinscope.probes.process_identity import command_line, container, control_group, started_at, user_name
from pinscope.probes.processes import UVM, SeenProcess
from pinscope.records.registration import Registrations
from pinscope.records.snapshot import Allocations, DeviceFigures, GpuUse, Holder

COUNTER_SLACK_BYTES = 4 * 2**20
"""The kernel sums up pins and resident pages per processor now and then: so much may be missing from a total."""

_TABLES = "8 bytes for each page of cudaHostAlloc memory, in steps of 2 MiB; registered memory comes on top"
_TABLES_OF_ALL = "8 bytes for each page of cudaHostAlloc and registered memory, in steps of 2 MiB"

_MANAGED = "address space; how much of it is on the host, and how much on a GPU, cannot be seen"
_ROUNDING = "at most: a program that asked for these very sizes wastes nothing"
_NOT_RESIDENT = "at most: not all of it is resident in this process, and what is not is not pinned"
_MAYBE_ORDINARY = "at most: the process does not hold CUDA's device file, so it may be ordinary shared memory"
_OTHERS_PIDS = "the driver names processes by the ids of another pid namespace"
_STATUS = {
    "locked_bytes": "VmLck", "vm_pin_bytes": "VmPin", "hugetlb_bytes": "HugetlbPages", "rss_bytes": "VmRSS",
    "rss_anon_bytes": "RssAnon", "rss_file_bytes": "RssFile", "rss_shmem_bytes": "RssShmem",
}  # fmt: skip


@dataclass(frozen=True)
class Surroundings:
    """What one holder is read with."""

    proc: Proc
    gpus: Answer[tuple[DeviceFigures, ...]]
    strangers: bool
    """NVML names processes that /proc does not show."""
    booted: Answer[int]
    """Boot time in seconds since 1970."""
    groups: GroupHeadrooms
    registrations: Registrations | None = None
    """What the probe tells of registered memory, if it runs."""


def page_table_note(registrations: Registrations | None) -> str:
    """What stands beside page tables that the holders' memory implies."""
    if registrations is None or registrations.trouble is not None:
        return _TABLES
    return f"{_TABLES_OF_ALL}; of what was registered since {registrations.since:%Y-%m-%d %H:%M:%S} UTC"


def read_holder(one: SeenProcess, share: Share, around: Surroundings) -> Holder:
    """The record of one process.

    Args:
        one: what the look at all processes found of it.
        share: what it owns and inherited.
        around: the host and its GPUs.
    """
    missing: dict[str, str] = {}
    estimates: dict[str, str] = {}
    amounts = {field: _amount(one, key).note(missing, field) for field, key in _STATUS.items()}
    named = one.maps is not None and any(
        process.pid == one.pid for device in around.gpus.value or () for process in device.processes
    )
    cuda = Answer(True) if named else one.files.then(lambda files: UVM in files, "")
    pieces = _pieces(one, share)
    if pieces.value and not cuda.value:
        estimates["host_alloc_bytes"] = _MAYBE_ORDINARY
    elif pieces.value and sum(pieces.value) > (amounts["rss_shmem_bytes"] or 0) + COUNTER_SLACK_BYTES:
        estimates["host_alloc_bytes"] = _NOT_RESIDENT
    managed = pieces.then(lambda _: one.maps.value.managed_bytes if one.maps and one.maps.value else 0, "")
    if managed.value:
        estimates["managed_bytes"] = _MANAGED
    allocations = _allocations(pieces.value or ())
    rounding = pieces.then(lambda _: sum(a.size_bytes // 2 * a.count for a in allocations if a.power_of_two), "")
    if rounding.value:
        estimates["rounding_bytes"] = _ROUNDING
    group = control_group(one.pid, around.proc)
    left = around.groups.of(one.pid)
    user = _number(one, "Uid").then(user_name, "")
    started = started_at(one.pid, around.proc, around.booted)
    registered = registered_by(one.pid, cuda.value, started.value, around.registrations)
    if registered.estimate is not None:
        estimates["registered_bytes"] = registered.estimate
    return Holder(
        pid=one.pid,
        parent_pid=_number(one, "PPid").note(missing, "parent_pid"),
        user=user.note(missing, "user"),
        name=one.status.line("Name") or "",
        command=command_line(one.pid, around.proc).note(missing, "command"),
        cgroup=group.note(missing, "cgroup"),
        container=group.then(container, "its control group names no container").note(missing, "container"),
        cgroup_limit_bytes=left.then(lambda found: found.limit_bytes, "").note(missing, "cgroup_limit_bytes"),
        cgroup_headroom_bytes=left.then(lambda found: found.bytes, "").note(missing, "cgroup_headroom_bytes"),
        started_at=started.note(missing, "started_at"),
        cuda=cuda.note(missing, "cuda"),
        host_alloc_bytes=pieces.then(sum, "").note(missing, "host_alloc_bytes"),
        allocations=allocations,
        registered_bytes=registered.bytes.note(missing, "registered_bytes"),
        registrations=registered.pieces.note(missing, "registrations"),
        oldest_pieces=registered.oldest,
        rounding_bytes=rounding.note(missing, "rounding_bytes"),
        inherited_bytes=pieces.then(lambda _: share.inherited_bytes, "").note(missing, "inherited_bytes"),
        inherited_from=tuple(sorted(share.inherited_from)),
        inherited_by=tuple(sorted(share.inherited_by)),
        managed_bytes=managed.note(missing, "managed_bytes"),
        gpus=_gpu_uses(
            one,
            _Mapped(
                pieces.then(lambda sizes: sum(sizes) + registered.pinned_bytes, ""), _tables_note(registered, around)
            ),
            around,
            missing,
        )
        if cuda.value
        else (),
        missing=missing,
        estimates=estimates,
        **amounts,
    )


def _amount(one: SeenProcess, key: str) -> Answer[int]:
    amount = one.status.bytes(key)
    return Answer.missing(f"/proc/{one.pid}/status has no amount {key}") if amount is None else Answer(amount)


def _number(one: SeenProcess, key: str) -> Answer[int]:
    number = one.status.number(key)
    return Answer.missing(f"/proc/{one.pid}/status has no number {key}") if number is None else Answer(number)


def _pieces(one: SeenProcess, share: Share) -> Answer[Sequence[int]]:
    """Bytes of each piece of cudaHostAlloc memory that it owns; none for a process without NVIDIA's files."""
    reason = one.maps.reason if one.maps is not None else one.files.reason
    return Answer(share.owned) if reason is None else Answer.missing(reason)


def _allocations(sizes: Sequence[int]) -> tuple[Allocations, ...]:
    counts = Counter(sizes)
    # The driver itself takes chunks of 2 MiB in every CUDA process: nobody's rounding.
    return tuple(
        Allocations(size_bytes=size, count=count, power_of_two=size > GRANULE_BYTES and size.bit_count() == 1)
        for size, count in sorted(counts.items(), key=lambda pair: (pair[0] * pair[1], pair[0]), reverse=True)
    )


@dataclass(frozen=True)
class _Mapped:
    """Pinned memory that each GPU maps on which a process has a context."""

    bytes: Answer[int]
    tables_note: str
    """What stands beside the page tables that it implies."""


def _tables_note(registered: Registered, around: Surroundings) -> str:
    if registered.bytes.value is None:
        return _TABLES
    note = page_table_note(around.registrations)
    return note if registered.estimate is None else f"{note}; registered memory is {registered.estimate}"


def _gpu_uses(
    one: SeenProcess, mapped: _Mapped, around: Surroundings, missing: MutableMapping[str, str]
) -> tuple[GpuUse, ...]:
    """What it has on each GPU on which NVML names it."""
    if around.gpus.value is None:
        missing["gpus"] = around.gpus.reason or ""
        return ()
    uses = [use for device in around.gpus.value if (use := _gpu_use(one, mapped, device)) is not None]
    silent = [device.missing["processes"] for device in around.gpus.value if "processes" in device.missing]
    if silent:
        missing["gpus"] = silent[0]
    elif not uses and around.strangers:
        missing["gpus"] = _OTHERS_PIDS
    return tuple(uses)


def _gpu_use(one: SeenProcess, mapped: _Mapped, device: DeviceFigures) -> GpuUse | None:
    entries = [process for process in device.processes if process.pid == one.pid]  # one for each MIG instance
    if not entries:
        return None
    missing: dict[str, str] = {}
    amounts = [entry.memory_bytes for entry in entries if entry.memory_bytes is not None]
    if len(amounts) < len(entries):
        missing["memory_bytes"] = next(entry.missing["memory_bytes"] for entry in entries if entry.missing)
    page_bytes = os.sysconf("SC_PAGE_SIZE")
    tables = mapped.bytes.then(lambda amount: page_table_memory_bytes(amount, page_bytes), "")
    return GpuUse(
        index=device.index,
        memory_bytes=None if "memory_bytes" in missing else sum(amounts),
        page_table_bytes=tables.note(missing, "page_table_bytes"),
        missing=missing,
        estimates={"page_table_bytes": mapped.tables_note} if tables.value is not None else {},
    )
