"""Who holds pinned memory now: processes, host counters and GPUs joined to one frozen snapshot.

cudaHostAlloc memory shows as shared mappings of ``/dev/zero (deleted)``, each with an inode of its own; registered
memory leaves no mark; both count in the kernel's total of pinned pages (measured on H200 hosts).
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial

from pinscope.analysis.held import held_by
from pinscope.analysis.page_table_model import context_overhead_bytes
from pinscope.analysis.rules.host_memory import MUCH_LOCKED_BYTES
from pinscope.live.holder import COUNTER_SLACK_BYTES, Surroundings, page_table_bound, read_holder
from pinscope.live.registered import Candidate, Share, attribute, without_larger
from pinscope.live.unreadable import unreadable
from pinscope.probes.answer import Answer
from pinscope.probes.containers import GroupHeadrooms, has_own_pids
from pinscope.probes.host_memory import read_host
from pinscope.probes.proc import HERE, Proc
from pinscope.probes.process import MemoryMaps, boot_time
from pinscope.probes.process_scan import Processes, Remembered, SeenProcess, known_identity, read_processes
from pinscope.records.figure import Bound, BoundKind, about, at_least, at_most, bound_of_sum
from pinscope.records.registration import Registrations
from pinscope.records.snapshot import PINNED_AGAIN, DeviceFigures, Holder, HostTotals, Snapshot, Unreadable

MOST_HOLDERS = 3000
"""In one snapshot; a user who may start processes may make any number of holders."""
_OTHER = about("the host's total less what the holders explain; the kernel does not say which process owns it")
_AT_LEAST = at_least("not all processes could be looked at")
_AT_MOST = at_most("some of the holders' mappings may not be pinned")
_OVERHEAD = about("as on H200s with driver 580: 3.25 MiB once and 3.56 MiB for each context; other GPUs may differ")
_REGISTERED: Mapping[BoundKind, Bound] = {
    "at_least": at_least("not all registrations could be followed"),
    "at_most": at_most("a holder ended a CUDA context, which releases what was registered in it"),
    "about": about("how much memory some holder has registered is not known exactly"),
}
_DOUBTFUL_TABLES = about("registered memory of some of its processes is not known exactly")
_INIT = 1
_TOO_MUCH = "the holders' memory adds up to more than is pinned, so some of it is not pinned"


def snapshot(
    proc: Proc = HERE,
    gpus: Answer[tuple[DeviceFigures, ...]] | None = None,
    remembered: Remembered | None = None,
    registrations: Registrations | None = None,
) -> Snapshot:
    """Read the host and its processes, and join them with what the GPUs' driver reports.

    Args:
        proc: where /proc and /sys are read.
        gpus: from :func:`pinscope.probes.devices.read_gpus`, which may have been asked elsewhere, as the driver
            may hang; ``None``: it was not asked.
        remembered: keep one and pass it to each snapshot of a series: the later ones then cost less.
        registrations: from :meth:`pinscope.live.tracker.Tracker.registered`, asked just before; ``None``: nobody
            follows registered memory.
    """
    begun = time.thread_time()
    gpus = gpus or Answer.missing("the driver was not asked")
    remembered = remembered or Remembered(is_series=False)
    if remembered.booted.value is None:
        remembered.booted = boot_time(proc)
    taken_at = datetime.now(UTC)
    gpu_pids = {process.pid for device in gpus.value or () for process in device.processes}
    groups = GroupHeadrooms(proc)
    host = read_host(proc, groups)
    processes = read_processes(proc, gpu_pids, remembered)
    holders, left_out = _holders(
        processes,
        host,
        Surroundings(
            proc=proc,
            gpus=gpus,
            strangers=processes.value is not None and bool(processes.value.strangers),
            own_pids=has_own_pids(proc),
            covers=None,
            proven=False,
            booted=remembered.booted,
            groups=groups,
            identify=partial(known_identity, proc=proc, remembered=remembered),
            registrations=registrations,
        ),
        remembered,
    )
    gaps = unreadable(proc, host, processes, gpus, registrations, left_out=left_out)
    return Snapshot(
        taken_at=taken_at,
        host=_explained(host, holders, processes, gaps, registrations),
        holders=holders,
        devices=tuple(_with_tables(device, holders, processes, registrations) for device in gpus.value or ()),
        unreadable=gaps,
        own_pids=has_own_pids(proc),
        probe=registrations.state() if registrations is not None else None,
        cpu_seconds=time.thread_time() - begun,
    )


def _holders(
    processes: Answer[Processes], host: HostTotals, around: Surroundings, remembered: Remembered
) -> tuple[tuple[Holder, ...], int]:
    """Whoever holds something, most bytes first; and how many are left out, as there are too many."""
    if processes.value is None:
        return (), 0
    seen: Sequence[SeenProcess] = processes.value.seen
    pinned = None if host.pins_bytes is None else host.pins_bytes + COUNTER_SLACK_BYTES
    candidates = [_candidate(process, around) for process in seen if process.maps is not None]
    shares = attribute(without_larger(candidates, pinned))
    if pinned is not None:
        claimed = _claimed(seen, shares, around.registrations)
        covers = claimed <= pinned
        proven = covers and claimed >= pinned - 2 * COUNTER_SLACK_BYTES
        around = replace(around, covers=covers, proven=proven)
    left_out = max(0, len(seen) - MOST_HOLDERS)
    if left_out:
        seen = sorted(seen, key=lambda process: _first_weight(process, shares), reverse=True)[:MOST_HOLDERS]
    before, remembered.holders = remembered.holders, {}
    for process in seen:
        share = shares.get(process.pid, Share())
        inputs, (known, holder) = around.inputs(process, share), before.get(process.pid, ((), None))
        if holder is None or known != inputs:
            holder = read_holder(process, share, around)
        remembered.holders[process.pid] = inputs, holder
    kept = (holder for _, holder in remembered.holders.values() if _holds(holder, around.own_pids))
    return tuple(sorted(kept, key=_weight, reverse=True)), left_out


def _first_weight(process: SeenProcess, shares: Mapping[int, Share]) -> int:
    """Bytes that it holds, before it is looked at closely."""
    share = shares.get(process.pid, Share())
    return (
        sum(share.owned)
        + sum(share.driver_sizes)
        + max(process.status.bytes("VmPin") or 0, process.status.bytes("VmLck") or 0)
    )


def _claimed(seen: Sequence[SeenProcess], shares: Mapping[int, Share], registrations: Registrations | None) -> int:
    """Bytes of all that looks pinned, or is known to be."""
    registered = registrations.by_pid if registrations is not None else {}
    return sum(
        sum(shares[process.pid].owned if process.pid in shares else ())
        + (process.status.bytes("VmPin") or 0)
        + (registered[process.pid].pinned_registered_bytes if process.pid in registered else 0)
        for process in seen
    )


def _candidate(process: SeenProcess, around: Surroundings) -> Candidate:
    maps = process.maps.value if process.maps is not None else None
    return Candidate(
        pid=process.pid,
        parent=process.status.number("PPid"),
        started=around.identify(process).started.value,
        maps=maps if maps is not None else MemoryMaps({}),
    )


def _holds(holder: Holder, own_pids: bool) -> bool:
    """True for a process that holds something, or can have registered memory, which /proc does not show.

    This process asks NVML, which opens CUDA's device file as well. The host's init process locks its own memory, often
    all that it may ever have; that counts only if much of it is there.
    """
    pinned = (holder.host_alloc_bytes, holder.registered_bytes, holder.vm_pin_bytes)
    mapped = (holder.inherited_bytes, holder.managed_bytes, holder.driver_memory_bytes)
    may_hold = holder.cuda and holder.pid != os.getpid()
    locked = holder.locked_bytes or 0
    if holder.pid == _INIT and not own_pids:
        locked = locked if min(locked, holder.rss_bytes or 0) >= MUCH_LOCKED_BYTES else 0
    return bool(may_hold or any(pinned) or any(mapped) or locked)


def _weight(holder: Holder) -> tuple[int, int, int]:
    return (held_by(holder, holder.vm_pin_bytes), holder.inherited_bytes or 0, -holder.pid)


def _with_tables(
    device: DeviceFigures, holders: Sequence[Holder], processes: Answer[Processes], registrations: Registrations | None
) -> DeviceFigures:
    """The device with the page tables that its holders imply."""
    joined = ("page_table_bytes", "context_overhead_bytes")
    missing = {field: reason for field, reason in device.missing.items() if field not in joined}
    unknown = device.missing.get("processes") or processes.reason
    if unknown is not None:
        missing |= dict.fromkeys(joined, unknown)
        return device.model_copy(update={"missing": missing})
    tables = [use.page_table_bytes for holder in holders for use in holder.gpus if use.index == device.index]
    known = [amount for amount in tables if amount is not None]
    contexts = max(len({process.pid for process in device.processes}), len(tables))
    unseen = contexts - len(known)
    here = [holder for holder in holders if any(use.index == device.index for use in holder.gpus)]
    followed = registrations is not None and registrations.trouble is None
    bound = page_table_bound(
        registrations,
        driver_memory=any(holder.driver_memory_bytes for holder in here),
        may_be_ordinary=any("host_alloc_bytes" in holder.estimates for holder in here),
    )
    if followed and any("registered_bytes" in {**holder.missing, **holder.estimates} for holder in here):
        bound = bound.plus(_DOUBTFUL_TABLES)
    if unseen:
        bound = bound.plus(at_least(f"{unseen} of its processes could not be looked at"))
    return device.model_copy(
        update={
            "page_table_bytes": sum(known),
            "context_overhead_bytes": context_overhead_bytes(contexts),
            "missing": missing,
            "estimates": {**device.estimates, "page_table_bytes": bound, "context_overhead_bytes": _OVERHEAD},
        }
    )


def _explained(
    host: HostTotals,
    holders: Sequence[Holder],
    processes: Answer[Processes],
    gaps: Sequence[Unreadable],
    registrations: Registrations | None,
) -> HostTotals:
    """The host's totals, with the pinned one split into what the holders explain and the rest."""
    missing = {key: reason for key, reason in host.missing.items() if not key.startswith(("explained", "other"))}
    estimates = dict(host.estimates)
    explained: Answer[int] = Answer.missing(processes.reason or "")
    if processes.value is not None:
        registered = registrations.by_pid if registrations is not None else {}
        pinned = sum(registered[holder.pid].pinned_registered_bytes for holder in holders if holder.pid in registered)
        own = sum((holder.context_pinned_bytes or 0) + (holder.vm_pin_bytes or 0) for holder in holders)
        explained = Answer(pinned + own + sum(holder.host_alloc_bytes or 0 for holder in holders))
        doubt = _doubt(holders, gaps, registrations)
        if doubt is not None:
            estimates["explained_bytes"] = doubt
    other = _other(host, explained)
    if any(
        "vm_pin_bytes" in holder.estimates or (holder.vm_pin_bytes and holder.host_alloc_bytes) for holder in holders
    ):
        estimates["explained_bytes"] = PINNED_AGAIN.plus(estimates.get("explained_bytes"))
        estimates |= {} if host.pinned_bytes is None else {"pinned_bytes": PINNED_AGAIN}
    if other.value is not None:
        estimates["other_pinned_bytes"] = PINNED_AGAIN if "pinned_bytes" in estimates else _OTHER
    most = host.total_bytes - host.available_bytes if host.pinned_bytes is None else host.pinned_bytes
    if host.total_bytes > 0 and (explained.value or 0) > most + COUNTER_SLACK_BYTES:
        explained = Answer(most)
        estimates.setdefault("explained_bytes", _AT_MOST)
    split = {
        "explained_bytes": explained.note(missing, "explained_bytes"),
        "other_pinned_bytes": other.note(missing, "other_pinned_bytes"),
    }
    return host.model_copy(update={**split, "missing": missing, "estimates": estimates})


def _doubt(holders: Sequence[Holder], gaps: Sequence[Unreadable], registrations: Registrations | None) -> Bound | None:
    """Why the sum of what the holders have is no more than an estimate."""
    hidden = any(gap.hides_holders for gap in gaps) or any(holder.host_alloc_bytes is None for holder in holders)
    followed = registrations is not None and registrations.trouble is None
    registered = {
        holder.estimates["registered_bytes"].kind for holder in holders if "registered_bytes" in holder.estimates
    }
    if followed and any(holder.registered_bytes is None for holder in holders):
        registered.add("at_least")
    return bound_of_sum(
        [
            _AT_LEAST if hidden else None,
            _AT_MOST if any("host_alloc_bytes" in holder.estimates for holder in holders) else None,
            *(_REGISTERED[kind] for kind in sorted(registered)),
        ]
    )


def _other(host: HostTotals, explained: Answer[int]) -> Answer[int]:
    if host.pinned_bytes is None or explained.value is None:
        return Answer.missing(host.missing.get("pinned_bytes") or explained.reason or "")
    if explained.value > (host.pins_bytes or 0) + COUNTER_SLACK_BYTES:
        return Answer.missing(_TOO_MUCH)
    return Answer(max(0, host.pinned_bytes - explained.value))
