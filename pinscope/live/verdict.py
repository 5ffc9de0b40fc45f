"""Who holds pinned memory, in one sentence."""

from __future__ import annotations

from pinscope.live.driver_findings import ranked, who
from pinscope.records.bound import bound_of_sum
from pinscope.records.snapshot import Holder, Snapshot
from pinscope.units import format_bytes, format_share

_PINNED = ("host_alloc_bytes", "registered_bytes")
"""Memory that is only locked (mlock) is not among it: CUDA does not know of it."""


def snapshot_verdict(snapshot: Snapshot) -> str:
    """The process that holds most, how many there are, and what that is of the host's memory."""
    holders = ranked(snapshot.holders, _pinned_by)
    if not holders:
        return f"No process is seen to hold pinned memory{_of_the_host(snapshot)}."
    first = holders[0]
    amount = _amount(first)
    if len(holders) == 1:
        return f"{who(first)} holds {amount} of pinned memory{_of_the_host(snapshot)}."
    return f"{len(holders)} processes hold pinned memory, {who(first)} the most: {amount}{_of_the_host(snapshot)}."


def gpu_verdict(snapshot: Snapshot, index: int) -> str | None:
    """Who uses a GPU, and which of them holds the most pinned memory; ``None`` where the snapshot does not show it."""
    device = next((one for one in snapshot.devices if one.index == index), None)
    if device is None:
        return None
    users = [one for one in snapshot.holders if any(use.index == index for use in one.gpus)]
    count = max(
        len(users), len(device.processes)
    )  # in a container the driver names processes that nobody can look into
    if not count:
        return "No process uses it now."
    words = "A process uses it now" if count == 1 else f"{count} processes use it now"
    holders = ranked(users, _pinned_by)
    if not holders:
        return f"{words}; no pinned memory is seen of {'it' if count == 1 else 'them'}."
    most = "" if len(holders) == 1 else "the most "
    return f"{words}; {who(holders[0])} holds {most}pinned memory: {_amount(holders[0])}."


def _amount(holder: Holder) -> str:
    bound = bound_of_sum(holder.estimates.get(field) for field in _PINNED)
    return f"{f'{bound.words} ' if bound else ''}{format_bytes(_pinned_by(holder))}"


def _pinned_by(holder: Holder) -> int:
    return sum(getattr(holder, field) or 0 for field in _PINNED)


def _of_the_host(snapshot: Snapshot) -> str:
    host = snapshot.host
    if host.pinned_bytes is None or host.total_bytes <= 0:
        return ""
    share = format_share(host.pinned_bytes / host.total_bytes)
    return f"; {format_bytes(host.pinned_bytes)} is pinned on the whole host, {share} of its memory"
