"""One holder: a process, its share of the pinned memory, and what it has on the GPUs."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Collection, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf

from pinscope.analysis.models import GRANULE_BYTES, page_table_memory_bytes
from pinscope.analysis.rules import MUCH_LOCKED_BYTES, UNEXPLAINED_BYTES
from pinscope.live.tracker import OLDEST_PIECES, registered_by
from pinscope.probes.containers import GroupHeadrooms
from pinscope.probes.host_report import HostReport
from pinscope.probes.proc import Answer, Proc
from pinscope.probes.process import (
    CUDA_STEP_BYTES,
    UVM,
    MemoryMaps,
    ObjectKey,
    command_line,
    container,
    covered_bytes,
    group_of,
    start_time,
    user_name,
)
from pinscope.probes.process_scan import SeenProcess
from pinscope.records.figure import Bound, about, at_least, at_most
from pinscope.records.registration import Registrations
from pinscope.records.snapshot import PINNED_AGAIN, Allocations, DeviceFigures, GpuUse, Holder
from pinscope.units import MIB

CONTEXT_PIECES = 4
"""Pieces of pinned memory, of :data:`CUDA_STEP_BYTES` each, that a context has."""
CONTEXT_MAPPINGS: Mapping[int, int] = {56 * MIB: 1, 6_205_440: 1, 2 * MIB: 4, 4096: 20}
"""Mappings of driver memory that a context has: bytes of each → how many."""
_TELLING = (56 * MIB, 6_205_440)
"""Those by which the contexts of a process are counted."""
_UNFAMILIAR = at_most(
    "it includes what the driver maps for its contexts, as this driver maps other sizes than version 580"
)


def context_count(maps: MemoryMaps) -> int:
    """Contexts that a process has, also several on one GPU, or has inherited."""
    sizes = Counter(maps.driver_sizes)
    return max(len(maps.gpus), min(sizes[size] for size in _TELLING))


def split_pieces(sizes: Sequence[int], contexts: int) -> tuple[list[int], int]:
    """Pieces that the program asked for, and bytes of those that the driver has for its contexts."""
    small = sizes.count(CUDA_STEP_BYTES)
    own = min(CONTEXT_PIECES * contexts, small)
    asked = [size for size in sizes if size != CUDA_STEP_BYTES] + [CUDA_STEP_BYTES] * (small - own)
    return asked, own * CUDA_STEP_BYTES


def asked_driver_memory(sizes: Sequence[int], contexts: int) -> tuple[int, Bound | None]:
    """Bytes of driver memory beyond what the contexts have, and why the figure is an estimate if it is one."""
    if not sizes:
        return 0, None
    rest = Counter(sizes)
    own = Counter({size: count * contexts for size, count in CONTEXT_MAPPINGS.items()})
    familiar = own <= rest
    return sum(size * count for size, count in (rest - own).items()), None if familiar else _UNFAMILIAR


@dataclass(frozen=True)
class Candidate:
    """A process with mappings."""

    pid: int
    parent: int | None
    started: int | None
    """Clock ticks since boot; ``None`` where that is not known."""
    maps: MemoryMaps


@dataclass
class Share:
    """What one process has of it."""

    owned: list[int] = field(default_factory=list)
    """Bytes of each piece that it owns."""
    inherited: list[int] = field(default_factory=list)
    """Bytes that it maps of each piece that another process owns."""
    inherited_from: set[int] = field(default_factory=set)
    inherited_by: set[int] = field(default_factory=set)
    driver_sizes: list[int] = field(default_factory=list)
    """Bytes of each mapping of driver memory that is not its owner's as well."""


def attribute(candidates: Collection[Candidate]) -> dict[int, Share]:
    """Each candidate's share, by pid.

    A forked process inherits its parent's mappings. The pages stay the parent's: it pinned them. So of several
    processes that map one piece, the owner is the one that started first; its size is what any of them maps of it.
    Mappings of driver memory have no name of their own: a process has inherited those that lie where they lie in a
    process from which it has inherited pieces, and every context has pieces.
    """
    parents = {candidate.pid: candidate.parent for candidate in candidates}
    ranks = {candidate.pid: _rank(candidate, parents) for candidate in candidates}
    counts = Counter(key for candidate in candidates for key in candidate.maps.shared_zero)
    common = {key for key, count in counts.items() if count > 1}  # nearly always none; one process may have thousands
    shares = {
        candidate.pid: Share([size for key, size in candidate.maps.sizes.items() if key not in common])
        for candidate in candidates
    }
    for key in common:
        sharing = [candidate for candidate in candidates if key in candidate.maps.shared_zero]
        owner = min(sharing, key=lambda candidate: ranks[candidate.pid])
        extents = [extent for candidate in sharing for extent in candidate.maps.shared_zero[key]]
        shares[owner.pid].owned.append(covered_bytes(extents))
        for candidate in sharing:
            if candidate is not owner:
                shares[candidate.pid].inherited.append(candidate.maps.sizes[key])
                shares[candidate.pid].inherited_from.add(owner.pid)
                shares[owner.pid].inherited_by.add(candidate.pid)
    driver = {candidate.pid: candidate.maps.driver for candidate in candidates}
    for pid, share in shares.items():
        own = driver[pid].difference(*(driver[owner] for owner in share.inherited_from))
        share.driver_sizes = [last - first for first, last in own]
    return shares


def without_larger(candidates: Collection[Candidate], pinned_bytes: int | None) -> list[Candidate]:
    """The candidates without pieces that are larger than all that is pinned: those are ordinary shared memory.

    Nothing is left out where the kernel's count has not even what the driver pins for its contexts, as with drivers
    that pin in another way, or where it is not known (``None``).
    """
    if pinned_bytes is None or pinned_bytes < _of_contexts(candidates):
        return list(candidates)
    return [_without_larger(candidate, pinned_bytes) for candidate in candidates]


def _of_contexts(candidates: Collection[Candidate]) -> int:
    """Bytes that the driver itself has pinned for contexts; a forked child's are its parent's."""
    met: set[ObjectKey] = set()
    total = 0
    for candidate in candidates:
        small = (
            {key for key, size in candidate.maps.sizes.items() if size == CUDA_STEP_BYTES}
            if candidate.maps.gpus
            else set()
        )
        total += split_pieces([CUDA_STEP_BYTES] * len(small - met), len(candidate.maps.gpus))[1]
        met |= small
    return total


def _without_larger(candidate: Candidate, most: int) -> Candidate:
    sizes = candidate.maps.sizes
    if all(size <= most for size in sizes.values()):
        return candidate
    kept = {key: extents for key, extents in candidate.maps.shared_zero.items() if sizes[key] <= most}
    return replace(candidate, maps=replace(candidate.maps, shared_zero=kept))


def _rank(candidate: Candidate, parents: Mapping[int, int | None]) -> tuple[float, int, int]:
    """Owners first: by start; of two that started in one tick the ancestor, then the lower pid."""
    depth, above, passed = 0, candidate.parent, {candidate.pid}
    while above is not None and above in parents and above not in passed:  # a torn reading may show a circle
        passed.add(above)
        depth, above = depth + 1, parents[above]
    return (inf if candidate.started is None else candidate.started, depth, candidate.pid)


MOST_SIZES = 1000
"""Of one holder, mappings of so many different sizes are listed, those with most bytes."""
COUNTER_SLACK_BYTES = 4 * MIB
"""The kernel sums up pins and resident pages per processor now and then: so much may be missing from a total."""

_TABLES = at_least("8 bytes for each page of cudaHostAlloc memory, in steps of 2 MiB; registered memory comes on top")
_TABLES_OF_ALL = "8 bytes for each page of cudaHostAlloc and registered memory, in steps of 2 MiB"
_TABLES_OF_DRIVER = about("8 bytes for each page, also of driver memory, which has them only where a GPU maps it")
_TABLES_AT_MOST = at_most("some of the memory may not be pinned")

_MANAGED = about("address space; how much of it is on the host, and how much on a GPU, cannot be seen")
_ROUNDING = at_most("a program that asked for exactly these sizes wastes nothing")
_NOT_RESIDENT = at_most("part of it is not resident in this process and may have been freed")
_MORE_THAN_PINNED = at_most("the holders' mappings add up to more than is pinned, so some are ordinary shared memory")
_MERELY_ALIGNED = at_most("other memory may be what is pinned, and some of this ordinary shared memory that lies alike")
_LOCKED_NOT_RESIDENT = at_most("less of its memory than this is resident")
_MAY_BE_KEPT = at_most("only the process knows how much of it is in use")
_SAID_NOTHING = "it did not call pinscope.report_host_memory()"
_HELD = at_most("all that PyTorch's allocator holds may be kept: before 2.13 it counts freed memory as in use")
_NO_ALLOCATOR = "it has loaded neither PyTorch nor CuPy, which keep pinned memory"
_NO_CONTEXT = "it has no CUDA context; the driver memory that it maps is for graphics"
_MAYBE_ORDINARY = at_most("the process does not hold CUDA's device file, so it may be ordinary shared memory")
_OTHERS_PIDS = "the driver lists processes by the ids of another pid namespace"
_OWNER_ENDED = "the driver charges it to the process that made the context, which has ended"
_VFIO = ("/dev/vfio/", "/dev/iommu")
_STATUS = {
    "locked_bytes": "VmLck",
    "vm_pin_bytes": "VmPin",
    "hugetlb_bytes": "HugetlbPages",
    "rss_bytes": "VmRSS",
    "rss_anon_bytes": "RssAnon",
    "rss_file_bytes": "RssFile",
    "rss_shmem_bytes": "RssShmem",
}


@dataclass(frozen=True)
class Surroundings:
    """What one holder is read with."""

    proc: Proc
    gpus: Answer[tuple[DeviceFigures, ...]]
    strangers: bool
    """NVML names processes that /proc does not show."""
    own_pids: bool
    """This is a container with process ids of its own, and NVML may know other ones."""
    spare_pins_bytes: int | None
    """Pins of the host beyond all mappings that look like cudaHostAlloc memory and what else is known to be pinned;
    negative: some of those are not pinned; ``None``: that is not known."""
    booted: Answer[int]
    """Boot time in seconds since 1970."""
    groups: GroupHeadrooms
    started: Mapping[int, Answer[int]]
    """Pid → clock ticks from the boot to its start."""
    registrations: Registrations | None = None
    """What the probe tells of registered memory, if it runs."""


def page_table_bound(registrations: Registrations | None, *, driver_memory: bool, may_be_ordinary: bool) -> Bound:
    """Why page tables that holders' memory implies are no more than an estimate.

    Some of that memory is the driver's, or may be ordinary, not pinned.
    """
    kind = _TABLES
    if driver_memory:
        kind = _TABLES_OF_DRIVER
    elif registrations is not None and registrations.trouble is None:
        kind = about(f"{_TABLES_OF_ALL}; of what was registered since {registrations.since:%Y-%m-%d %H:%M:%S} UTC")
    return kind.plus(_TABLES_AT_MOST if may_be_ordinary else None)


def read_holder(seen: SeenProcess, share: Share, around: Surroundings) -> Holder:
    """The record of one process."""
    missing: dict[str, str] = {}
    amounts = {field: seen.status.amount(key).note(missing, field) for field, key in _STATUS.items()}
    named = seen.maps is not None and any(
        process.pid == seen.pid for device in around.gpus.value or () for process in device.processes
    )
    again = _move_pins(seen, amounts, around.proc)
    cuda = Answer(True) if named else seen.files.then(lambda files: UVM in files)
    maps = seen.maps.value if seen.maps is not None else None
    contexts = context_count(maps) if maps is not None else 0
    owned = _pieces(seen, share)
    asked, own_bytes = split_pieces(owned.value or (), contexts)
    pieces = owned.then(lambda _: asked)
    doubt = (
        _doubt(sum(owned.value or ()), maps, bool(cuda.value), amounts["rss_shmem_bytes"], around) if asked else None
    )
    managed = pieces.then(lambda _: seen.maps.value.managed_bytes if seen.maps and seen.maps.value else 0)
    allocations = _allocations(pieces.value or ())
    rounding = pieces.then(lambda _: sum(a.size_bytes // 2 * a.count for a in allocations if a.power_of_two))
    group = group_of(seen.pid, around.proc)
    left = around.groups.of(seen.pid)
    user = seen.status.number("Uid").then(user_name)
    started = start_time(seen.pid, around.started[seen.pid], around.booted)
    followed, partly = registered_by(seen.pid, cuda.value, started.value, around.registrations)
    said: Answer[HostReport] = Answer.missing(_SAID_NOTHING) if seen.report is None else Answer(seen.report)
    registered = followed.then(lambda known: known.registered_bytes)
    registered_pages = followed.value.pinned_registered_bytes if followed.value is not None else 0
    if registered.value is None and seen.report is not None and seen.report.registered_bytes is not None:
        registered, registered_pages = Answer(seen.report.registered_bytes), seen.report.registered_bytes
    kept, keeping = _kept(seen, maps, pieces.then(sum))
    driver_memory, kind = _driver_memory(owned, share, contexts, cuda)
    more_sizes = len(allocations) - MOST_SIZES
    estimates = {
        "host_alloc_bytes": doubt,
        "locked_bytes": _LOCKED_NOT_RESIDENT if (amounts["locked_bytes"] or 0) > (amounts["rss_bytes"] or 0) else None,
        "vm_pin_bytes": again,
        "managed_bytes": _MANAGED if managed.value else None,
        "allocations": at_least(f"mappings of {more_sizes:,} more sizes are left out") if more_sizes > 0 else None,
        "rounding_bytes": _ROUNDING if rounding.value else None,
        "registered_bytes": partly,
        "kept_bytes": keeping,
        "driver_memory_bytes": kind,
    }
    return Holder(
        pid=seen.pid,
        parent_pid=seen.status.number("PPid").note(missing, "parent_pid"),
        user=user.note(missing, "user"),
        name=seen.status.text("Name").value or "",
        command=command_line(seen.pid, around.proc).note(missing, "command"),
        cgroup=group.note(missing, "cgroup"),
        container=group.then(container, "its control group names no container").note(missing, "container"),
        cgroup_limit_bytes=left.then(lambda limit: limit.limit_bytes).note(missing, "cgroup_limit_bytes"),
        cgroup_headroom_bytes=left.then(lambda limit: limit.bytes).note(missing, "cgroup_headroom_bytes"),
        started_at=started.note(missing, "started_at"),
        cuda=cuda.note(missing, "cuda"),
        host_alloc_bytes=pieces.then(sum).note(missing, "host_alloc_bytes"),
        context_pinned_bytes=owned.then(lambda _: own_bytes).note(missing, "context_pinned_bytes"),
        driver_memory_bytes=driver_memory.note(missing, "driver_memory_bytes"),
        allocations=allocations[:MOST_SIZES],
        registered_bytes=registered.note(missing, "registered_bytes"),
        registrations=followed.then(lambda known: known.registrations).note(missing, "registrations"),
        kept_bytes=kept.note(missing, "kept_bytes"),
        kept_by=seen.report.kept_bytes if seen.report is not None else {},
        allocators=maps.allocators if maps is not None else (),
        python=owned.then(lambda _: maps is not None and maps.is_python).note(missing, "python"),
        said_at=said.then(lambda report: report.at).note(missing, "said_at"),
        oldest_pieces=followed.value.pieces[:OLDEST_PIECES] if followed.value is not None else (),
        copies=around.registrations.copies.get(seen.pid) if around.registrations is not None else None,
        rounding_bytes=rounding.note(missing, "rounding_bytes"),
        inherited_bytes=pieces.then(lambda _: sum(split_pieces(share.inherited, contexts)[0])).note(
            missing, "inherited_bytes"
        ),
        inherited_from=tuple(sorted(share.inherited_from)),
        inherited_by=tuple(sorted(share.inherited_by)),
        managed_bytes=managed.note(missing, "managed_bytes"),
        gpus=_gpu_uses(
            seen,
            _Mapped(
                owned.then(lambda sizes: sum(sizes) + registered_pages + (driver_memory.value or 0), ""),
                _tables_bound(registered.value is not None, partly, driver_memory.value, doubt, around),
                frozenset() if maps is None or not owned.value else maps.gpus,
            ),
            around,
            missing,
        )
        if cuda.value
        else (),
        missing=missing,
        estimates={field: bound for field, bound in estimates.items() if bound is not None},
        **amounts,
    )


def _move_pins(seen: SeenProcess, amounts: dict[str, int | None], proc: Proc) -> Bound | None:
    """VFIO counts what it pins of a virtual machine in VmLck; who pins the same memory again has more than is there."""
    locked, resident = amounts["locked_bytes"] or 0, (amounts["rss_bytes"] or 0) + (amounts["hugetlb_bytes"] or 0)
    if locked >= MUCH_LOCKED_BYTES and any(
        file.startswith(_VFIO) for file in (proc.links(f"/proc/{seen.pid}/fd").value or {}).values()
    ):
        amounts["vm_pin_bytes"], amounts["locked_bytes"] = (amounts["vm_pin_bytes"] or 0) + locked, 0
    if not resident or (amounts["vm_pin_bytes"] or 0) <= resident + COUNTER_SLACK_BYTES:
        return None
    amounts["vm_pin_bytes"] = resident
    return PINNED_AGAIN


def _kept(seen: SeenProcess, maps: MemoryMaps | None, allocated: Answer[int]) -> tuple[Answer[int], Bound | None]:
    """What allocators keep of the bytes from cudaHostAlloc, and why the figure is an estimate if it is one."""
    held = seen.report.held_bytes if seen.report is not None else {}
    kept = seen.report.kept_bytes if seen.report is not None else {}
    names = {*(maps.allocators if maps is not None else ()), *held}
    if not names:
        return Answer.missing(allocated.reason or _NO_ALLOCATOR), None
    if names <= kept.keys():
        return Answer(sum(kept.values())), None
    if names <= held.keys():
        return Answer(sum({**held, **kept}.values())), _HELD
    return allocated, _MAY_BE_KEPT if allocated.value else None


def _pieces(seen: SeenProcess, share: Share) -> Answer[Sequence[int]]:
    """Bytes of each piece of cudaHostAlloc memory that it owns; none for a process without NVIDIA's files."""
    reason = seen.maps.reason if seen.maps is not None else seen.files.reason
    return Answer(share.owned) if reason is None else Answer.missing(reason)


def _doubt(
    claimed: int, maps: MemoryMaps | None, cuda: bool, resident: int | None, around: Surroundings
) -> Bound | None:
    """Why its pieces are no more than an estimate."""
    spare = around.spare_pins_bytes
    if spare is not None and 0 <= spare <= 2 * COUNTER_SLACK_BYTES:  # they are all that is pinned
        return None
    if spare is not None and spare < 0:
        return _MORE_THAN_PINNED
    if not cuda:
        return _MAYBE_ORDINARY
    if maps is not None and maps.aligned and (spare is None or spare >= UNEXPLAINED_BYTES):
        return _MERELY_ALIGNED
    return _NOT_RESIDENT if claimed > (resident or 0) + COUNTER_SLACK_BYTES else None


def _driver_memory(
    owned: Answer[Sequence[int]], share: Share, contexts: int, cuda: Answer[bool]
) -> tuple[Answer[int], Bound | None]:
    """What it asked for and has mapped, and why the figure is an estimate if it is one."""
    if owned.value is None:
        return Answer(None, owned.reason), None
    if cuda.value is False and share.driver_sizes:
        return Answer.missing(_NO_CONTEXT), None
    amount, kind = asked_driver_memory(share.driver_sizes, contexts)
    return Answer(amount), kind


def _allocations(sizes: Sequence[int]) -> tuple[Allocations, ...]:
    counts = Counter(sizes)
    # Small requests share chunks of 2 MiB: those are not rounded up by an allocator.
    return tuple(
        Allocations(size_bytes=size, count=count, power_of_two=size > GRANULE_BYTES and size.bit_count() == 1)
        for size, count in sorted(counts.items(), key=lambda pair: (pair[0] * pair[1], pair[0]), reverse=True)
    )


@dataclass(frozen=True)
class _Mapped:
    """Pinned memory that each GPU maps on which a process has a context."""

    bytes: Answer[int]
    tables: Bound
    """What stands beside the page tables that it implies."""
    contexts: frozenset[int]
    """Minor numbers of the GPUs on which the process, as the owner of pinned memory, has a context."""


def _tables_bound(
    is_known: bool, partly: Bound | None, driver_memory: int | None, doubt: Bound | None, around: Surroundings
) -> Bound:
    """``is_known``: how much is registered; ``partly``: why not exactly."""
    followed = around.registrations if is_known else None
    bound = page_table_bound(followed, driver_memory=bool(driver_memory), may_be_ordinary=doubt is not None)
    return bound.plus(None if partly is None else Bound(kind=partly.kind, why=f"of registered memory: {partly.why}"))


def _gpu_uses(
    seen: SeenProcess, mapped: _Mapped, around: Surroundings, missing: MutableMapping[str, str]
) -> tuple[GpuUse, ...]:
    """What it has on each GPU on which NVML names it, or on which it owns memory and has a context."""
    if around.gpus.value is None:
        missing["gpus"] = around.gpus.reason or ""
        return ()
    uses = [use for device in around.gpus.value if (use := _gpu_use(seen, mapped, device, around)) is not None]
    silent = [device.missing["processes"] for device in around.gpus.value if "processes" in device.missing]
    if silent:
        missing["gpus"] = silent[0]
    elif not uses and around.strangers and around.own_pids:
        missing["gpus"] = _OTHERS_PIDS
    return tuple(uses)


def _gpu_use(seen: SeenProcess, mapped: _Mapped, device: DeviceFigures, around: Surroundings) -> GpuUse | None:
    missing: dict[str, str] = {}
    entries = [process for process in device.processes if process.pid == seen.pid]  # one for each MIG instance
    amounts = [entry.memory_bytes for entry in entries if entry.memory_bytes is not None]
    if not entries:
        if device.minor not in mapped.contexts:
            return None
        # Its context was made by a parent that has ended, or NVML knows it by another id.
        missing["memory_bytes"] = _OTHERS_PIDS if around.own_pids else _OWNER_ENDED
    elif len(amounts) < len(entries):
        missing["memory_bytes"] = next(entry.missing["memory_bytes"] for entry in entries if entry.missing)
    page_bytes = os.sysconf("SC_PAGE_SIZE")
    tables = mapped.bytes.then(lambda amount: page_table_memory_bytes(amount, page_bytes))
    return GpuUse(
        index=device.index,
        memory_bytes=None if "memory_bytes" in missing else sum(amounts),
        page_table_bytes=tables.note(missing, "page_table_bytes"),
        missing=missing,
        estimates={"page_table_bytes": mapped.tables} if tables.value is not None else {},
    )
