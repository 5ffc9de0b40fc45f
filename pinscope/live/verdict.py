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
    bound = bound_of_sum(first.estimates.get(field) for field in _PINNED)
    amount = f"{f'{bound.words} ' if bound else ''}{format_bytes(_pinned_by(first))}"
    if len(holders) == 1:
        return f"{who(first)} holds {amount} of pinned memory{_of_the_host(snapshot)}."
    return f"{len(holders)} processes hold pinned memory, {who(first)} the most: {amount}{_of_the_host(snapshot)}."


def _pinned_by(holder: Holder) -> int:
    return sum(getattr(holder, field) or 0 for field in _PINNED)


def _of_the_host(snapshot: Snapshot) -> str:
    host = snapshot.host
    if host.pinned_bytes is None or host.total_bytes <= 0:
        return ""
    share = format_share(host.pinned_bytes / host.total_bytes)
    return f"; {format_bytes(host.pinned_bytes)} is pinned on the whole host, {share} of its memory"
