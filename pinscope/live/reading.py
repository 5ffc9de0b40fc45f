"""The verdict on one snapshot: who holds most pinned memory, on the host and on one GPU."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from pinscope.analysis.rules import UNEXPLAINED_BYTES, locked_otherwise_bytes
from pinscope.records.figure import bound_of_sum
from pinscope.records.snapshot import Holder, Snapshot
from pinscope.records.timeline import HolderSample
from pinscope.units import format_bytes, format_share


def possible_owners(snapshot: Snapshot) -> list[tuple[Holder, int]]:
    """CUDA processes that can have registered what no holder explains, each with the most that it can have of it.

    Empty where there is little of it, where it may be somebody's who is not seen, and where these cannot have it all.
    """
    host, holders = snapshot.host, snapshot.holders
    other = host.other_pinned_bytes or 0
    again = host.pins_bytes != host.pinned_bytes or any("vm_pin_bytes" in holder.estimates for holder in holders)
    if other < UNEXPLAINED_BYTES or again or snapshot.own_pids:
        return []
    named = {process.pid for device in snapshot.devices for process in device.processes}
    users = [
        holder
        for holder in holders
        if (holder.pid in named if snapshot.devices else holder.cuda and not holder.inherited_from)
    ]
    if named - {holder.pid for holder in users}:
        return []
    if locked_otherwise_bytes(host, holders) >= UNEXPLAINED_BYTES:
        return []
    if any(gap.hides_holders for gap in snapshot.unreadable) and not named:
        return []
    owners = [(holder, min(other, _resident(holder))) for holder in users if not _is_followed(holder)]
    owners = sorted((owner for owner in owners if owner[1] > 0), key=lambda owner: -owner[1])
    return owners if sum(most for _, most in owners) >= other else []


def _is_followed(holder: Holder) -> bool:
    """Whether all that it has registered is known."""
    return holder.registered_bytes is not None and "registered_bytes" not in holder.estimates


def _resident(holder: Holder) -> int:
    """What of it is in memory, less what it has from cudaHostAlloc."""
    return max(0, (holder.rss_bytes or 0) + (holder.hugetlb_bytes or 0) - (holder.host_alloc_bytes or 0))


def who(holder: Holder | HolderSample) -> str:
    return f"{holder.name or 'process'} (pid {holder.pid})"


def ranked(holders: Iterable[Holder], amount: Callable[[Holder], int | None]) -> list[Holder]:
    """Those that have any of it, most first."""
    return sorted(filter(amount, holders), key=lambda holder: amount(holder) or 0, reverse=True)


_PINNED = ("host_alloc_bytes", "registered_bytes")
"""Memory that is only locked (mlock) is not among it: CUDA does not know of it."""


def snapshot_verdict(snapshot: Snapshot) -> str:
    """The process that holds most, how many there are, and what that is of the host's memory."""
    holders, of_host = ranked(snapshot.holders, _pinned_by), _of_the_host(snapshot)
    if not holders:
        owners = possible_owners(snapshot)
        if snapshot.host.pinned_bytes == 0 and "pinned_bytes" not in snapshot.host.estimates:
            return "Nothing is pinned on this host."
        if not of_host:
            return "No process is seen to have pinned memory."
        by = "by no process of this container" if snapshot.own_pids else "by no process that is seen"
        if owners:
            several = f"one of {len(owners)} CUDA processes" if len(owners) > 1 else "the only CUDA process"
            by = f"perhaps by {who(owners[0][0])}, {several}"
        return f"On this host {of_host} is pinned, {by}."
    first = holders[0]
    whole = f"; pinned on the whole host: {of_host}" if of_host else ""
    if len(holders) == 1:
        return f"{who(first)} has {_amount(first)} pinned{whole}."
    return f"{len(holders)} processes have pinned memory, {who(first)} most ({_amount(first)}){whole}."


def gpu_verdict(snapshot: Snapshot, index: int) -> str | None:
    """Who uses a GPU, and which of them holds the most pinned memory; ``None`` where the snapshot does not show it."""
    device = next((device for device in snapshot.devices if device.index == index), None)
    if device is None:
        return None
    users = [holder for holder in snapshot.holders if any(use.index == index for use in holder.gpus)]
    count = max(
        len(users), len(device.processes)
    )  # in a container the driver names processes that nobody can look into
    if not count and not snapshot.own_pids:
        return "No process uses it now."
    if not count:
        used = device.memory_used_bytes
        rest = "" if used is None else f"; of its memory, {format_bytes(used)} are used"
        return f"No process of this container uses it now{rest}."
    words = "A process uses it now" if count == 1 else f"{count} processes use it now"
    holders = ranked(users, _pinned_by)
    if not holders:
        return f"{words}, no pinned memory of {'it' if count == 1 else 'them'} is seen."
    most = "" if len(holders) == 1 else "the most "
    return f"{words}, {who(holders[0])} has {most}pinned memory: {_amount(holders[0])}."


def _amount(holder: Holder) -> str:
    by_kernel = (holder.vm_pin_bytes or 0) >= _pinned_by(holder)
    bound = bound_of_sum(holder.estimates.get(field) for field in (("vm_pin_bytes",) if by_kernel else _PINNED))
    return f"{f'{bound.words} ' if bound else ''}{format_bytes(_pinned_by(holder))}"


def _pinned_by(holder: Holder) -> int:
    """RDMA may pin CUDA's memory again: the larger of the two counts."""
    return max(sum(getattr(holder, field) or 0 for field in _PINNED), holder.vm_pin_bytes or 0)


def _of_the_host(snapshot: Snapshot) -> str:
    host = snapshot.host
    if host.pinned_bytes is None or host.total_bytes <= 0:
        return ""
    share = format_share(host.pinned_bytes / host.total_bytes)
    bound = host.estimates.get("pinned_bytes")
    amount = f"{f'{bound.words} ' if bound else ''}{format_bytes(host.pinned_bytes)}"
    return f"{amount} ({share} of its memory)"
