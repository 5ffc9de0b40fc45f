"""What a snapshot of the host shows to be wrong, or soon to be: rules, each with its numbers and what to do.

What needs several snapshots, such as memory that grows and never comes back, is judged over a timeline, not here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from pinscope.analysis.held import held_bytes
from pinscope.analysis.link_findings import link_below_best
from pinscope.analysis.page_table_model import page_table_bytes
from pinscope.analysis.pytorch_pinned import ROUNDING_ADVICE
from pinscope.analysis.rules.host_memory import group_severity, is_much_rounding, pinned_severity, pinned_twice_bytes
from pinscope.analysis.rules.link import is_busy
from pinscope.live.driver_findings import (
    PAGE_BYTES,
    by_holder,
    memory_of_the_driver,
    page_tables,
    ranked,
    unexplained,
    unexplained_pins,
    who,
)
from pinscope.records.finding import Finding, finding, known, note, quantity
from pinscope.records.snapshot import Holder, HostTotals, Snapshot
from pinscope.units import format_bytes, format_share

GIB = 2**30
_ONE_OWNER = (
    "Let one process register the memory and copy into the others' GPU buffers through CUDA IPC; "
    "'pinscope run registration' measures both ways here."
)


def read_snapshot(snapshot: Snapshot) -> tuple[Finding, ...]:
    """What one snapshot alone shows; empty where nothing is to be said."""
    return tuple(finding for rule in _RULES for finding in rule(snapshot))


def _pinned_share(snapshot: Snapshot) -> Iterator[Finding]:
    host = snapshot.host
    pinned = host.pinned_bytes if host.pinned_bytes is not None else host.explained_bytes
    if pinned is None or host.total_bytes <= 0 or _beyond_use(host) is not None:
        return
    share = pinned / host.total_bytes
    severity = pinned_severity(share, host.available_bytes / host.total_bytes)
    if severity is None:
        return
    yield finding(
        severity,
        "pinned-share-of-ram",
        quantity("Pinned", pinned, "bytes"),
        quantity("Memory", host.total_bytes, "bytes"),
        quantity("Share of it", share, "share"),
        quantity("Available", host.available_bytes, "bytes"),
        *by_holder("Held by", [holder for holder in snapshot.holders if _charged_to(holder)], _charged_to),
        title=f"Up to {format_share(share)} of this host's memory is pinned",
        detail="Pinned memory can be neither swapped nor moved nor reclaimed; "
        f"{format_bytes(host.available_bytes)} are still available to all programs. It is less than that share where "
        "pages are pinned more than once, as the kernel counts each pin.",
        advice="Pin what is copied often, in buffers that are used again, and give back the rest. "
        "'pinscope run pressure' shows what pinned memory takes from everybody else here.",
    )


def _near_group_limit(snapshot: Snapshot) -> Iterator[Finding]:
    """The holders of one group are judged together: it is their sum that meets the limit."""
    groups: dict[tuple[str | int, int], list[Holder]] = {}
    for holder in snapshot.holders:
        if holder.cgroup_limit_bytes and holder.cgroup_headroom_bytes is not None and _charged_to(holder):
            group = holder.container or holder.cgroup or holder.pid
            groups.setdefault((group, holder.cgroup_limit_bytes), []).append(holder)
    for (_, limit), holders in groups.items():
        # Only cudaHostAlloc memory adds up: what several registered, locked or pinned for RDMA may be the same.
        pinned = max(sum(holder.host_alloc_bytes or 0 for holder in holders), *map(_charged_to, holders))
        left = min(holder.cgroup_headroom_bytes or 0 for holder in holders)
        severity = group_severity(pinned, left, limit)
        if severity is None:
            continue
        first, many = holders[0], len(holders) > 1
        where = f" in {first.container}" if first.container else ""
        yield finding(
            severity,
            "holder-near-cgroup-limit",
            quantity(f"Pinned or locked by {'them' if many else 'it'}, at least", pinned, "bytes"),
            quantity("Limit of the control group", limit, "bytes"),
            quantity("Left in the control group", left, "bytes"),
            known("Control group", first, "cgroup", "text"),
            *by_holder("Held by", holders if many else (), _charged_to),
            title=f"{len(holders)} holders{where} are {format_bytes(left)} below the limit of their control group"
            if many
            else f"{who(first)}{where} is {format_bytes(left)} below the limit of its control group",
            detail="Pinned memory is charged to the control group and cannot be reclaimed. At the limit the kernel "
            "kills a process of the group, or slows it to a crawl where the limit is memory.high.",
            advice="Pin less, or raise the limit (docker run --memory, resources.limits.memory, MemoryMax=).",
        )


def _beyond_use(host: HostTotals) -> int | None:
    pinned = host.pinned_bytes or 0
    return pinned_twice_bytes(host.pins_bytes or 0, host.total_bytes, host.total_bytes - pinned)


def _pinned_twice(snapshot: Snapshot) -> Iterator[Finding]:
    """More pins than memory in use: pages are there only once, so some of them are pinned more than once."""
    host = snapshot.host
    beyond = _beyond_use(host)
    if beyond is None or any(_registered_by_many(snapshot)):
        return
    yield note(
        "memory-pinned-more-than-once",
        quantity("Pinned, each pin counted", host.pins_bytes, "bytes"),
        quantity("Memory in use", host.pinned_bytes, "bytes"),
        known("Shared memory", host, "shmem_bytes", "bytes"),
        *by_holder("Registered by", ranked(snapshot.holders, _registered), _registered),
        title=f"At least {format_bytes(beyond)} are pinned more than once",
        detail=f"{format_bytes(host.pins_bytes)} of pins stand on {format_bytes(host.pinned_bytes)} of memory in use: "
        "several processes have registered the same memory, for instance. The host holds it once, but every GPU pays "
        f"page tables for each of them, {format_bytes(page_table_bytes(GIB, PAGE_BYTES))} a GiB.",
        advice=_ONE_OWNER,
    )


def _registered_by_many(snapshot: Snapshot) -> Iterator[Finding]:
    """Equal amounts in several processes, on memory that cannot be each one's own: seen only with the probe."""
    amounts: dict[int, list[Holder]] = {}
    for holder in ranked(snapshot.holders, _registered):
        amount, own = holder.registered_bytes, holder.rss_anon_bytes
        if amount is not None and own is not None and amount > own + (holder.hugetlb_bytes or 0):
            amounts.setdefault(amount, []).append(holder)
    for amount, holders in amounts.items():
        if len(holders) < 2:
            continue
        tables = page_table_bytes(amount, PAGE_BYTES)
        yield note(
            "same-memory-registered-by-many",
            *by_holder("Registered by", holders, _registered),
            quantity("Page tables on one GPU, at most", tables * len(holders), "bytes"),
            quantity("With one owner, at most", tables, "bytes"),
            title=f"{len(holders)} processes have {format_bytes(amount)} registered each, probably the same",
            detail="It is more than their own memory, so it is shared. Each process pays a page table of up to "
            f"{format_bytes(tables)} on every GPU on which it has a context.",
            advice=_ONE_OWNER,
        )


def _rounding(snapshot: Snapshot) -> Iterator[Finding]:
    wasting = ranked(snapshot.holders, lambda holder: holder.rounding_bytes)
    waste = sum(holder.rounding_bytes or 0 for holder in wasting)
    if not is_much_rounding(waste, snapshot.host.total_bytes):
        return
    yield note(
        "rounding-waste",
        *by_holder("At most, in", wasting, lambda holder: holder.rounding_bytes),
        title=f"Up to {format_bytes(waste)} of pinned memory may be waste: sizes that are powers of two",
        detail="An allocator that rounds requests up to powers of two, as PyTorch's pinned one does, wastes up to "
        "half of each: 20.4 GiB become 32. A program that asked for exactly these sizes wastes nothing, and looks the "
        "same.",
        advice=ROUNDING_ADVICE,
    )


def _links(snapshot: Snapshot) -> Iterator[Finding]:
    for device in snapshot.devices:
        if device.link is not None and device.link.kind == "pcie":
            busy = is_busy(device.busy_share, device.rx_share, device.tx_share)
            finding = link_below_best(device.index, device.link, busy=busy)
            if finding is not None:
                reason = device.missing.get("busy_share")
                used = quantity("GPU busy", device.busy_share, "share", reason=reason)
                yield finding.model_copy(update={"evidence": (*finding.evidence, used)})


def _registered(holder: Holder) -> int | None:
    """What the probe saw it register."""
    return holder.registered_bytes


def _charged_to(holder: Holder) -> int:
    """What is pinned or locked by it, at least; of driver memory it is not known whether a control group pays."""
    locked = None if "locked_bytes" in holder.estimates else holder.locked_bytes
    return held_bytes(holder.host_alloc_bytes, holder.registered_bytes, locked, holder.vm_pin_bytes) or 0


_RULES: tuple[Callable[[Snapshot], Iterator[Finding]], ...] = (
    _pinned_share,
    _near_group_limit,
    _pinned_twice,
    _registered_by_many,
    memory_of_the_driver,
    page_tables,
    unexplained,
    unexplained_pins,
    _rounding,
    _links,
)
