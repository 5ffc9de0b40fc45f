"""Who holds pinned memory, in one sentence."""

from __future__ import annotations

from collections.abc import Sequence

from pinscope.analysis.rules.growth import LEAK_BYTES
from pinscope.live.reading import only_candidate, ranked, who
from pinscope.records.figure import bound_of_sum
from pinscope.records.snapshot import Holder, Snapshot
from pinscope.records.timeline import HolderSample, Sample
from pinscope.units import format_bytes, format_duration, format_share

_PINNED = ("host_alloc_bytes", "registered_bytes")
"""Memory that is only locked (mlock) is not among it: CUDA does not know of it."""


def snapshot_verdict(snapshot: Snapshot) -> str:
    """The process that holds most, how many there are, and what that is of the host's memory."""
    holders = ranked(snapshot.holders, _pinned_by)
    if not holders:
        candidate = only_candidate(snapshot)
        who_may = f"; {who(candidate)} is the only CUDA process seen, and may have registered it" if candidate else ""
        return f"No process is seen to hold pinned memory{_of_the_host(snapshot)}{who_may}."
    first = holders[0]
    amount = _amount(first)
    if len(holders) == 1:
        return f"{who(first)} holds {amount} of pinned memory{_of_the_host(snapshot)}."
    return f"{len(holders)} processes hold pinned memory, {who(first)} the most: {amount}{_of_the_host(snapshot)}."


def pinned_change(samples: Sequence[Sample]) -> str:
    """``That is 6.8 GiB more than 31.0 s ago.``; empty where the host's pinned memory changed by little."""
    known = [sample for sample in samples if sample.pinned_bytes is not None]
    if not known:
        return ""
    first, last = known[0], known[-1]
    change = (last.pinned_bytes or 0) - (first.pinned_bytes or 0)
    if abs(change) < LEAK_BYTES:
        return ""
    more = "more" if change > 0 else "less"
    ago = format_duration(last.elapsed_seconds - first.elapsed_seconds)
    return f"That is {format_bytes(abs(change))} {more} than {ago} ago{_whose(first, last, change)}."


def _whose(first: Sample, last: Sample, change: int) -> str:
    """``; loader (pid 1002) took 4.88 GiB of it``: the process with the most of the change, if that is half of it."""
    if first.holders_left_out or last.holders_left_out:
        return ""
    before, now = ({(holder.pid, holder.started_at): holder for holder in sample.holders} for sample in (first, last))
    changes = {key: _change(before.get(key), now.get(key)) for key in {**before, **now}}
    key, most = max(changes.items(), key=lambda pair: pair[1] / change, default=(None, 0))
    if key is None or most / change < 1 / 2:
        return ""
    amount = format_bytes(min(abs(most), abs(change)))
    return f"; {who(now.get(key) or before[key])} {'took' if change > 0 else 'gave back'} {amount} of it"


def _change(before: HolderSample | None, now: HolderSample | None) -> int:
    """Bytes; what is known of a process at one of the two moments only is no change."""
    amounts = [[getattr(sample, field) if sample else 0 for sample in (before, now)] for field in _PINNED]
    return sum(last - first for first, last in amounts if None not in (first, last))


def gpu_verdict(snapshot: Snapshot, index: int) -> str | None:
    """Who uses a GPU, and which of them holds the most pinned memory; ``None`` where the snapshot does not show it."""
    device = next((device for device in snapshot.devices if device.index == index), None)
    if device is None:
        return None
    users = [holder for holder in snapshot.holders if any(use.index == index for use in holder.gpus)]
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
    return f"; {amount} is pinned on the whole host, {share} of its memory"
