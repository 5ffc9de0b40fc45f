"""Who holds pinned memory, in one sentence."""

from __future__ import annotations

from collections.abc import Sequence

from pinscope.analysis.rules.growth import LEAK_BYTES
from pinscope.live.driver_findings import ranked, who
from pinscope.records.bound import bound_of_sum
from pinscope.records.snapshot import Holder, Snapshot
from pinscope.records.timeline import Sample
from pinscope.units import format_bytes, format_duration, format_share

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


def pinned_change(samples: Sequence[Sample]) -> str:
    """``That is 6.8 GiB more than 31.0 s ago.``; empty where the host's pinned memory changed by little."""
    known = [(one.elapsed_seconds, one.pinned_bytes) for one in samples if one.pinned_bytes is not None]
    if not known:
        return ""
    (begun, first), (ended, last) = known[0], known[-1]
    if abs(last - first) < LEAK_BYTES:
        return ""
    more = "more" if last > first else "less"
    return f"That is {format_bytes(abs(last - first))} {more} than {format_duration(ended - begun)} ago."


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
