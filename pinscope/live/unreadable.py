"""What a snapshot could not look at, and what would make it readable."""

from __future__ import annotations

from collections.abc import Iterator

from pinscope.probes.answer import Answer
from pinscope.probes.containers import WSL2, has_own_pids, hides_processes, wsl_version
from pinscope.probes.host_memory import NO_HOST, PIN_COUNTERS_ADVICE
from pinscope.probes.proc import Proc
from pinscope.probes.process_scan import Processes
from pinscope.records.registration import Registrations
from pinscope.records.snapshot import DeviceFigures, HostTotals, Unreadable

AS_ROOT = "Run as root, or with the capabilities CAP_SYS_PTRACE and CAP_DAC_READ_SEARCH."


def unreadable(
    proc: Proc,
    host: HostTotals,
    processes: Answer[Processes],
    gpus: Answer[tuple[DeviceFigures, ...]],
    registrations: Registrations | None = None,
    *,
    left_out: int = 0,
) -> tuple[Unreadable, ...]:
    """Everything that stands between this snapshot and the whole host.

    Args:
        proc: where /proc is read.
        host: its totals.
        processes: what the look at them found.
        gpus: what the driver answered.
        registrations: what the probe found, if it runs.
        left_out: processes that hold something and are not shown, as there are too many.
    """
    bounds = _bounds(processes.value, left_out) if processes.value is not None else ()
    return (*_host(host), *_processes(proc, processes), *bounds, *_gpus(proc, gpus), *_probe(registrations))


def _host(host: HostTotals) -> Iterator[Unreadable]:
    if host.pinned_bytes is None:
        yield Unreadable(
            what="Pinned memory of the whole host",
            reason=host.missing["pinned_bytes"],
            advice=None if host.missing["pinned_bytes"] == NO_HOST else PIN_COUNTERS_ADVICE,
        )


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
    if processes.value.strangers:
        yield _strangers(processes.value.strangers, outside=has_own_pids(proc) or hides_processes(proc))


def _bounds(processes: Processes, left_out: int) -> Iterator[Unreadable]:
    """What a snapshot leaves out so that no process can make it endless."""
    if left_out:
        yield Unreadable(
            what=f"{left_out:,} more processes that hold something",
            reason="a snapshot shows only those that hold most",
            hides_holders=True,
        )
    if processes.skipped:
        yield Unreadable(
            what=f"Open files of {processes.skipped:,} of {processes.looked_at:,} processes",
            reason="they have more open files than a snapshot reads of one process, or of all together",
            hides_holders=True,
        )
    if processes.unread:
        yield Unreadable(
            what=f"{processes.unread:,} of {processes.looked_at:,} processes",
            reason="a snapshot takes only so much processor time",
            hides_holders=True,
        )


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


def _gpus(proc: Proc, gpus: Answer[tuple[DeviceFigures, ...]]) -> Iterator[Unreadable]:
    if gpus.value is None:
        yield Unreadable(
            what="GPUs", reason=gpus.reason or "", advice="'pinscope doctor' says what this machine lacks for it."
        )
    if wsl_version(proc) == WSL2:
        yield Unreadable(
            what="Pinned memory of Windows and of other WSL distributions",
            reason="WSL is a virtual machine; the driver proper runs in Windows",
        )


def _probe(registrations: Registrations | None) -> Iterator[Unreadable]:
    if registrations is None:
        return
    if registrations.trouble is not None:
        yield Unreadable(what="Registered memory", reason=registrations.trouble)
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
