"""Who holds pinned memory now: processes, host counters and GPUs joined to one frozen snapshot, or a series of them.

cudaHostAlloc memory shows as shared mappings of ``/dev/zero (deleted)``, each with an inode of its own; registered
memory leaves no mark; both count in the kernel's total of pinned pages (measured on H200 hosts).
"""

from __future__ import annotations

import os
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from datetime import UTC, datetime
from typing import Self

from pinscope.analysis import rules
from pinscope.analysis.models import context_overhead_bytes
from pinscope.live.copies import judged
from pinscope.live.holder import (
    COUNTER_SLACK_BYTES,
    Candidate,
    Share,
    Surroundings,
    attribute,
    page_table_bound,
    read_holder,
    without_larger,
)
from pinscope.live.sampler import GpuWatch
from pinscope.live.tracker import Tracker
from pinscope.probes.containers import WSL2, GroupHeadrooms, has_own_pids, hides_processes, wsl_version
from pinscope.probes.host_memory import NO_HOST, PIN_COUNTERS_ADVICE, read_host
from pinscope.probes.proc import HERE, Answer, Proc
from pinscope.probes.process import MemoryMaps, boot_time, start_ticks
from pinscope.probes.process_scan import Processes, Remembered, SeenProcess, read_processes
from pinscope.records.figure import Bound, BoundKind, about, at_least, at_most, bound_of_sum
from pinscope.records.registration import Registrations
from pinscope.records.snapshot import PINNED_AGAIN, DeviceFigures, Holder, HostTotals, Snapshot, Unreadable

AS_ROOT = "Run as root, or with the capabilities CAP_SYS_PTRACE and CAP_DAC_READ_SEARCH."


def unreadable(
    proc: Proc,
    host: HostTotals,
    processes: Answer[Processes],
    gpus: Answer[tuple[DeviceFigures, ...]],
    registrations: Registrations | None = None,
) -> Iterator[Unreadable]:
    """Everything that stands between this snapshot and the whole host, and what would make it readable."""
    if host.pinned_bytes is None:
        yield Unreadable(
            what="Pinned memory of the whole host",
            reason=host.missing["pinned_bytes"],
            advice=None if host.missing["pinned_bytes"] == NO_HOST else PIN_COUNTERS_ADVICE,
        )
    yield from _processes(proc, processes)
    if gpus.value is None:
        yield Unreadable(
            what="GPUs", reason=gpus.reason or "", advice="'pinscope doctor' says what this machine lacks for it."
        )
    if wsl_version(proc) == WSL2:
        yield Unreadable(
            what="Pinned memory of Windows and of other WSL distributions",
            reason="WSL is a virtual machine; the driver proper runs in Windows",
        )
    if registrations is not None:
        yield from _not_followed(registrations)


def _processes(proc: Proc, processes: Answer[Processes]) -> Iterator[Unreadable]:
    if processes.value is None:
        yield Unreadable(what="Processes", reason=processes.reason or "", advice="Mount /proc.", hides_holders=True)
        return
    if has_own_pids(proc):
        yield Unreadable(
            what="Processes outside this container",
            reason="the container has process ids of its own",
            advice="Start the container with the host's: docker run --pid=host, or hostPID: true in Kubernetes.",
            hides_holders=True,
        )
    if hides_processes(proc):
        yield Unreadable(
            what="Processes of other users",
            reason="/proc is mounted with hidepid",
            advice="Run as root.",
            hides_holders=True,
        )
    if processes.value.closed:
        yield Unreadable(
            what=f"Open files and mappings of {processes.value.closed} of {processes.value.looked_at} processes",
            reason="they belong to other users, or are protected",
            advice=AS_ROOT,
            hides_holders=True,
        )
    if processes.value.skipped:
        yield Unreadable(
            what=f"Open files of {processes.value.skipped:,} of {processes.value.looked_at:,} processes",
            reason="they have more open files than a snapshot reads of one process, or of all together",
            hides_holders=True,
        )
    if processes.value.strangers:
        yield _strangers(processes.value.strangers, outside=has_own_pids(proc) or hides_processes(proc))


def _strangers(pids: frozenset[int], *, outside: bool) -> Unreadable:
    """Processes that the driver names alone. Where all of the host's are seen, those have ended, and the driver keeps
    what they had while a child of theirs has it mapped (measured on an H200): the child is shown."""
    named = ", ".join(map(str, sorted(pids)[:10]))
    if not outside:
        return Unreadable(
            what=f"GPU memory of processes that have ended and that the driver still lists (pid {named})",
            reason="a child may have their memory mapped; then it is shown with the child",
        )
    return Unreadable(
        what=f"Processes that the driver lists and /proc does not show (pid {named})",
        reason="they ended meanwhile, or run outside this container",
        advice="In a container, start it with the host's process ids: docker run --pid=host.",
        hides_holders=True,
    )


def _not_followed(registrations: Registrations) -> Iterator[Unreadable]:
    if registrations.trouble is not None:
        yield Unreadable(what="Registered memory", reason=registrations.trouble)
    if registrations.copies_trouble is not None:
        yield Unreadable(what="Copies", reason=registrations.copies_trouble)
    for library in registrations.libraries:
        if library.reason is not None:
            yield Unreadable(what=f"Registered memory of programs that use {library.path}", reason=library.reason)
    reasons = {library.reason for library in registrations.libraries}
    others = {pid: reason for pid, reason in registrations.not_followed.items() if reason not in reasons}
    if others:
        pids = ", ".join(map(str, sorted(others)[:10]))
        yield Unreadable(
            what=f"Registered memory of {len(others)} processes (pid {pids})",
            reason=next(iter(others.values())),
            advice="Have them use the driver's library of the host, as NVIDIA's container toolkit does.",
        )


_OTHER = about("the host's total less what the holders explain; the kernel does not say which process owns it")
_AT_LEAST = at_least("not all processes could be looked at")
_AT_MOST = at_most("some of the holders' mappings may not be pinned")
_OVERHEAD = about("as on H200s with driver 580: 3.25 MiB once and 3.56 MiB for each context; other GPUs may differ")
_REGISTERED: Mapping[BoundKind, Bound] = {
    "at_least": at_least("not all registrations could be followed"),
    "at_most": at_most("a holder ended a CUDA context, which releases what was registered in it"),
    "about": about("how much memory some holder has registered is not known exactly"),
}
_WITH_OUTSIDE = at_most("it includes processes outside this container, which the driver does not list here")
_LOCKED_OTHERWISE = at_most(
    "processes claim more than the kernel counts as locked: some is pinned, or locked by several"
)
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
        proc: of the host.
        gpus: from :func:`pinscope.probes.gpu.read_gpus`, which may have been asked elsewhere, as the driver
            may hang; ``None``: it was not asked.
        remembered: keep one and pass it to each snapshot of a series: the later ones then cost less.
        registrations: from :meth:`pinscope.live.tracker.Tracker.registered`, asked just before; ``None``: nobody
            follows registered memory.
    """
    begun = time.thread_time()
    gpus = gpus or Answer.missing("the driver was not asked")
    remembered = remembered or Remembered()
    if remembered.booted.value is None:
        remembered.booted = boot_time(proc)
    taken_at = datetime.now(UTC)
    gpu_pids = {process.pid for device in gpus.value or () for process in device.processes}
    groups = GroupHeadrooms(proc)
    host = read_host(proc, groups)
    processes = read_processes(proc, gpu_pids, remembered)
    seen = processes.value.seen if processes.value is not None else ()
    holders = _holders(
        seen,
        host,
        Surroundings(
            proc=proc,
            gpus=gpus,
            strangers=processes.value is not None and bool(processes.value.strangers),
            own_pids=has_own_pids(proc),
            spare_pins_bytes=None,
            booted=remembered.booted,
            groups=groups,
            started={process.pid: start_ticks(process.pid, proc) for process in seen},
            registrations=registrations,
        ),
    )
    gaps = tuple(unreadable(proc, host, processes, gpus, registrations))
    return Snapshot(
        taken_at=taken_at,
        host=_explained(host, holders, processes, gaps, registrations),
        holders=holders,
        devices=tuple(
            _with_tables(_with_outside(device, proc), holders, processes, registrations) for device in gpus.value or ()
        ),
        unreadable=gaps,
        left_files=remembered.left_files(proc),
        kernel=proc.line("/proc/sys/kernel/osrelease").value or "",
        own_pids=has_own_pids(proc),
        probe=registrations.state() if registrations is not None else None,
        cpu_seconds=time.thread_time() - begun,
    )


def _holders(seen: Sequence[SeenProcess], host: HostTotals, around: Surroundings) -> tuple[Holder, ...]:
    """Processes that hold something, most bytes first."""
    pinned = None if host.pins_bytes is None else host.pins_bytes + COUNTER_SLACK_BYTES
    candidates = [_candidate(process, around) for process in seen if process.maps is not None]
    shares = attribute(without_larger(candidates, pinned))
    if pinned is not None:
        around = replace(around, spare_pins_bytes=pinned - _claimed(seen, shares, around.registrations))
    holders = [read_holder(process, shares.get(process.pid, Share()), around) for process in seen]
    if rules.locked_otherwise_bytes(host, holders) >= rules.UNEXPLAINED_BYTES:
        holders = [_locked_at_most(holder) for holder in holders]
    return tuple(sorted((holder for holder in holders if _holds(holder, around.own_pids)), key=_weight, reverse=True))


def _locked_at_most(holder: Holder) -> Holder:
    if (holder.locked_bytes or 0) < rules.MUCH_LOCKED_BYTES or "locked_bytes" in holder.estimates:
        return holder
    return holder.model_copy(update={"estimates": {**holder.estimates, "locked_bytes": _LOCKED_OTHERWISE}})


def _claimed(seen: Sequence[SeenProcess], shares: Mapping[int, Share], registrations: Registrations | None) -> int:
    """Bytes of all that looks pinned, or is known to be."""
    registered = registrations.by_pid if registrations is not None else {}

    def said(process: SeenProcess) -> int:
        report = process.report if registrations is None else None
        return (report.registered_bytes if report is not None else None) or 0

    return sum(
        sum(shares[process.pid].owned if process.pid in shares else ())
        + (process.status.amount("VmPin").value or 0)
        + (registered[process.pid].pinned_registered_bytes if process.pid in registered else said(process))
        for process in seen
    )


def _candidate(process: SeenProcess, around: Surroundings) -> Candidate:
    maps = process.maps.value if process.maps is not None else None
    return Candidate(
        pid=process.pid,
        parent=process.status.number("PPid").value,
        started=around.started[process.pid].value,
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
        locked = locked if min(locked, holder.rss_bytes or 0) >= rules.MUCH_LOCKED_BYTES else 0
    return bool(may_hold or any(pinned) or any(mapped) or locked)


def _weight(holder: Holder) -> tuple[int, int, int]:
    return (rules.held_by(holder, holder.vm_pin_bytes), holder.inherited_bytes or 0, -holder.pid)


def _with_outside(device: DeviceFigures, proc: Proc) -> DeviceFigures:
    """The driver hides processes of other pid namespaces, and what it charges to them."""
    if device.unattributed_bytes is None or not has_own_pids(proc):
        return device
    return device.model_copy(update={"estimates": {**device.estimates, "unattributed_bytes": _WITH_OUTSIDE}})


def _with_tables(
    device: DeviceFigures, holders: Sequence[Holder], processes: Answer[Processes], registrations: Registrations | None
) -> DeviceFigures:
    """The device with the page tables that its holders imply."""
    unknown = device.missing.get("processes") or processes.reason
    if unknown is not None:
        joined = dict.fromkeys(("page_table_bytes", "context_overhead_bytes"), unknown)
        return device.model_copy(update={"missing": {**device.missing, **joined}})
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
    missing, estimates = dict(host.missing), dict(host.estimates)
    explained: Answer[int] = Answer.missing(processes.reason or "")
    if processes.value is not None:
        registered = registrations.by_pid if registrations is not None else {}
        pinned = sum(
            registered[holder.pid].pinned_registered_bytes if holder.pid in registered else holder.registered_bytes or 0
            for holder in holders
        )
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
    whole = host.model_copy(update={**split, "missing": missing, "estimates": estimates})
    least = rules.least_pinned_bytes(whole, holders, hidden=any(gap.hides_holders for gap in gaps))
    if least is None:
        missing["pinned_least_bytes"] = missing["explained_bytes"]
    return whole.model_copy(update={"pinned_least_bytes": least})


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


OLDEST_FIGURES_SECONDS = 5.0
LEAST_ASKING_SECONDS = 1.0
"""The driver is not asked more often: that takes it 40 ms a GPU."""


class LiveSource:
    """A series of snapshots of this host; what one learns makes the next one cheaper. A context manager.

    It starts and stops what asks the GPUs' driver and what follows registered memory; with ``None``, nobody does.
    """

    def __init__(self, proc: Proc = HERE, gpus: GpuWatch | None = None, tracker: Tracker | None = None) -> None:
        self._proc = proc
        self._gpus = gpus
        self._tracker = tracker
        self._remembered = Remembered()
        self._first = True
        self._before_bytes: int | None = None
        """The most that can have been registered before the first snapshot, as nobody is known to have pinned it."""
        self._open = ExitStack()

    def __enter__(self) -> Self:
        """Start what it reads from.

        Raises:
            NotPossible: registered memory cannot be followed here.
        """
        with ExitStack() as started:
            if self._gpus is not None:
                self._gpus.start()
                started.callback(self._gpus.stop)
            if self._tracker is not None:
                self._tracker.start()
                started.callback(self._tracker.stop)
            self._open = started.pop_all()
        self._first, self._before_bytes = True, None
        return self

    def __exit__(self, *error: object) -> None:
        self._open.close()

    def take(self) -> Snapshot:
        """The host now. The first one waits for the driver's first answer, as long as the watch allows it to take."""
        if self._gpus is not None and self._first:
            self._gpus.wait(self._gpus.limit_seconds)
        self._first = False
        gpus = self._gpus.latest() if self._gpus is not None else None
        registrations = self._tracker.registered() if self._tracker is not None else None
        if registrations is not None and registrations.copies:
            copies = {pid: judged(each, self._before_bytes) for pid, each in registrations.copies.items()}
            registrations = registrations.model_copy(update={"copies": copies})
        taken = snapshot(self._proc, gpus, self._remembered, registrations)
        if self._before_bytes is None and taken.host.other_pinned_bytes is not None:
            self._before_bytes = taken.host.other_pinned_bytes + COUNTER_SLACK_BYTES
        return taken


def open_source(
    probe: bool = False, gpus: bool = True, interval_seconds: float = 1.0, copies_of: Collection[int] = ()
) -> LiveSource:
    """The usual source, of this machine; enter it to start.

    Args:
        probe: follow registered memory as well; needs root.
        gpus: ask the GPUs' driver.
        interval_seconds: how often snapshots will be taken. The driver is asked as often, but at least every
            :data:`OLDEST_FIGURES_SECONDS`, as its figures are those of its last answer, and at most every
            :data:`LEAST_ASKING_SECONDS`.
        copies_of: processes whose copies the probe counts as well.
    """
    asked = max(LEAST_ASKING_SECONDS, min(interval_seconds, OLDEST_FIGURES_SECONDS))
    watch = GpuWatch(interval_seconds=asked) if gpus else None
    return LiveSource(gpus=watch, tracker=Tracker(copies_of=copies_of) if probe else None)
