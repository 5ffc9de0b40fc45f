"""Rules with their limits, each once: what grows as a leak does, what is too much memory, which link is slow; what a
process holds of memory that the kernel cannot reclaim, as one amount; and how PyTorch's pool rounds."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from operator import itemgetter
from typing import TYPE_CHECKING, Literal

from pinscope.records.run import Severity
from pinscope.units import GIB, MIB, format_bytes, format_share

if TYPE_CHECKING:
    from pinscope.records.snapshot import Holder, HostTotals
    from pinscope.records.timeline import HolderSample

Amounts = Sequence[tuple[float, int]]
"""A step function: from that second on, so many bytes."""

LEAK_SECONDS = 30.0
LEAK_BYTES = 16 * 2**20
LEAK_RISES = 4
LEAK_PARTS = 4
LEAK_PART_SHARE = 0.05
LEAK_STEP_SHARE = 0.5
LEAK_RETURNED_SHARE = 0.05
"""See :func:`steady_growth`."""
STEADY_GROWTH = (
    f"by at least {format_bytes(LEAK_BYTES)} in at least {LEAK_SECONDS:.0f} s, in {LEAK_RISES} or more steps of at "
    f"most {format_share(LEAK_STEP_SHARE)} of the growth each, by at least {format_share(LEAK_PART_SHARE)} of the "
    f"growth in each of {LEAK_PARTS} equal parts of the time, with at most {format_share(LEAK_RETURNED_SHARE)} of what "
    "was taken given back"
)
"""The rule of :func:`steady_growth` in words, as they follow "memory grew"."""
LEAK_RULE = f"PinScope suspects a leak where memory grows {STEADY_GROWTH}"
ALERT_HOURS, ALERT_BYTES = 6, 2**30
"""Alerts judge growth over so long, from so much on: an alert calls somebody, a finding is read by who looks."""


@dataclass(frozen=True)
class Growth:
    """Steady growth of one amount."""

    bytes: int
    seconds: float
    rises: int
    first_bytes: int
    """What there was before."""
    returned_bytes: int = 0
    """Given back meanwhile; ``bytes`` is without it."""

    @property
    def bytes_per_second(self) -> float:
        return self.bytes / self.seconds


def steady_growth(amounts: Amounts, end_seconds: float) -> Growth | None:
    """Growth without release, as a leak shows it; ``None`` if it is not that.

    An amount grows steadily if, from its first known value to the end,

    1. it was watched for :data:`LEAK_SECONDS` or more, and grew by :data:`LEAK_BYTES` or more in all;
    2. it rose at least :data:`LEAK_RISES` times, and no single rise was more than half of the growth: a program that
       takes what it needs at once does not count;
    3. it gave back at most 5 % of all that it took: what goes up and down does not count;
    4. it grew in each quarter of that time by 5 % of the growth or more: what has stopped growing does not count.
    """
    if not amounts or unsteady_because(amounts, end_seconds) is not None:
        return None
    begin, first = amounts[0]
    rises, fallen = _steps(amounts)
    return Growth(amounts[-1][1] - first, end_seconds - begin, len(rises), first, fallen)


def unsteady_because(amounts: Amounts, end_seconds: float) -> str | None:
    """What of the rule of :func:`steady_growth` is not met, for people; ``None`` if all is.

    Args:
        amounts: one at least.
        end_seconds: of the time in which they were watched.
    """
    begin, first = amounts[0]
    rises, fallen = _steps(amounts)
    length, grown = end_seconds - begin, amounts[-1][1] - first
    edges = [_at(amounts, begin + length * part / LEAK_PARTS) for part in range(LEAK_PARTS + 1)]
    broken = {
        f"it was watched for less than {LEAK_SECONDS:.0f} s": length < LEAK_SECONDS,
        f"it grew by less than {format_bytes(LEAK_BYTES)} after it was first seen": grown < LEAK_BYTES,
        f"it grew in fewer than {LEAK_RISES} steps": len(rises) < LEAK_RISES,
        f"one step was more than {format_share(LEAK_STEP_SHARE)} of the growth": (
            max(rises, default=0) > LEAK_STEP_SHARE * grown
        ),
        f"it gave back more than {format_share(LEAK_RETURNED_SHARE)} of what it took": (
            fallen > LEAK_RETURNED_SHARE * sum(rises)
        ),
        f"in one of {LEAK_PARTS} equal parts of the time it grew by less than {format_share(LEAK_PART_SHARE)} of the "
        "growth": min(after - before for before, after in pairwise(edges)) < LEAK_PART_SHARE * grown,
    }
    return next((why for why, holds in broken.items() if holds), None)


def _steps(amounts: Amounts) -> tuple[list[int], int]:
    """All steps up, and the sum of those down."""
    steps = [after - before for (_, before), (_, after) in pairwise(amounts)]
    return [step for step in steps if step > 0], -sum(step for step in steps if step < 0)


def _at(amounts: Amounts, seconds: float) -> int:
    """The step function's value; before its first step it is that of the step."""
    return amounts[max(bisect_right(amounts, seconds, key=itemgetter(0)) - 1, 0)][1]


GAP_INTERVALS = 2.5
GAP_SECONDS = 1.0
"""Two samples are apart by a gap if more than 2.5 intervals, and more than one interval and a second, lie between."""
FEW_MISSING = 0.05
"""Share of samples that may be missing: with more of them a series is no proof of anything."""


def gap_seconds(interval_seconds: float) -> float:
    """Samples that are further apart than this, of a series with that interval, have a gap between them."""
    return max(GAP_INTERVALS * interval_seconds, interval_seconds + GAP_SECONDS)


TABLES_WARNING, TABLES_CRITICAL = 0.01, 0.1
"""Share of a GPU's memory that page tables take."""
UNATTRIBUTED_NOTE, UNATTRIBUTED_WARNING = 512 * MIB, 2 * GIB
"""GPU memory that neither processes nor page tables explain. With ten CUDA processes an H200 showed 61 MiB of it; a
context that was left behind takes about 520 MiB there."""


def page_table_severity(share: float) -> Severity | None:
    """How grave it is that page tables take this share of a GPU's memory."""
    if share < TABLES_WARNING:
        return None
    return "critical" if share >= TABLES_CRITICAL else "warning"


def unattributed_severity(unexplained_bytes: int, *, sure: bool) -> Severity | None:
    """How grave it is that nothing explains so much GPU memory.

    Args:
        unexplained_bytes: used by no process, page table or context.
        sure: no process was hidden that may have it.
    """
    if unexplained_bytes < UNATTRIBUTED_NOTE:
        return None
    return "warning" if sure and unexplained_bytes >= UNATTRIBUTED_WARNING else "note"


SAFE_SHARE, END_SHARE = 0.5, 0.8
"""Of the memory that others leave: so much is safe to pin, for a plan and for a run; and from here on little is left to
programs that start. The kernel can neither swap nor move it, and keeps the rest for its own and for the page cache."""
RAM_NOTE = 0.25
"""Share of the host's memory: less than this that is pinned needs no word."""
SCARCE_SHARE = 0.05
"""Less than this share of the memory available, with much of it pinned: nothing can be reclaimed in time."""

MUCH_OF_GROUP = 0.5
"""Share of its control group's limit from which on it is the pinned memory that fills the group."""
GROUP_WARNING, GROUP_CRITICAL = 0.1, 0.03
"""Share of the control group's limit that is left."""
WELL_BELOW_HOST = 0.75
"""A control group that leaves less than this share of the host's memory is worth a note."""

TWICE_SHARE = 0.05
"""More than this share of RAM must be pinned beyond what is in use, before it is called pinned twice."""
ROUNDING_BYTES, ROUNDING_SHARE = GIB, 0.02
"""Possible rounding waste of a host that is worth a note: so much, or that share of RAM on a small host."""
ROUNDING_RATIO = 1.25
"""Pinned bytes over those asked for, of one request: from here on its rounding is worth a finding."""
MUCH_LOCKED_BYTES = 64 * MIB
"""Locked memory that is worth a word by itself. Init systems, and agents that keep keys, lock less for their own."""
UNEXPLAINED_BYTES = 64 * MIB
"""Pinned memory that no holder explains is worth a note from here on; other pins of a host come to less."""
DRIVER_BYTES = GIB
"""Driver memory of the holders that is worth a note."""


def pinned_severity(pinned_bytes: int, available_bytes: int, total_bytes: int) -> Severity | None:
    """How grave it is that so much is pinned, with so much available, on a host with so much memory."""
    if pinned_bytes < RAM_NOTE * total_bytes:
        return None
    left = pinned_bytes + available_bytes  # by all others
    if pinned_bytes > END_SHARE * left or available_bytes < SCARCE_SHARE * total_bytes:
        return "critical"
    return "warning" if pinned_bytes > SAFE_SHARE * left else "note"


def least_pinned_bytes(host: HostTotals, holders: Sequence[Holder], *, hidden: bool) -> int | None:
    """So much is pinned even if as much as possible is pinned several times; ``None`` where nothing is known.

    Processes can pin the same memory where they share it, each of them once. RDMA pins memory that CUDA has pinned.

    Args:
        host: with its pins and what holders explain of them.
        holders: all that are seen.
        hidden: there may be others.
    """
    if host.pins_bytes is None:
        return host.explained_bytes
    exact = [holder.host_alloc_bytes or 0 for holder in holders if "host_alloc_bytes" not in holder.estimates]
    owned, used = sum(exact), host.pinned_bytes or 0
    if hidden:
        return owned if host.pins_bytes > used + TWICE_SHARE * host.total_bytes else used
    pinning = sum(1 for holder in holders if holder.cuda) + sum(1 for holder in holders if holder.vm_pin_bytes)
    shared = (host.shmem_bytes or 0) + (host.hugetlb_used_bytes or 0) + host.mapped_file_bytes - owned
    each = min(max(shared, 0), max(0, host.pins_bytes - owned) // max(pinning, 1))
    by_rdma = sum(holder.vm_pin_bytes or 0 for holder in holders if holder.cuda)
    return min(used, max(owned, host.pins_bytes - each * max(pinning - 1, 0) - by_rdma))


def group_severity(pinned_bytes: int, headroom_bytes: int, limit_bytes: int) -> Severity | None:
    """How grave it is that a control group with so much pinned memory has so much left below its limit."""
    if not is_near_limit(headroom_bytes, limit_bytes) or pinned_bytes < MUCH_OF_GROUP * limit_bytes:
        return None
    return "critical" if headroom_bytes <= GROUP_CRITICAL * limit_bytes else "warning"


def is_near_limit(headroom_bytes: int, limit_bytes: int) -> bool:
    """Whether a control group has little left."""
    return headroom_bytes <= GROUP_WARNING * limit_bytes


def is_well_below_host(limit_bytes: int, headroom_bytes: int, total_bytes: int, available_bytes: int) -> bool:
    """Whether a control group leaves clearly less than the host has, in all or now."""
    return limit_bytes < WELL_BELOW_HOST * total_bytes or headroom_bytes < WELL_BELOW_HOST * available_bytes


def pinned_twice_bytes(pinned_bytes: int, total_bytes: int, available_bytes: int) -> int | None:
    """At least so much is pinned more than once: pins beyond the memory in use; ``None`` below the limit."""
    beyond = pinned_bytes - (total_bytes - available_bytes)
    return beyond if beyond > TWICE_SHARE * total_bytes else None


def is_much_rounding(waste_bytes: int, total_bytes: int) -> bool:
    """Whether possible rounding waste is worth a note on a host with so much memory."""
    return waste_bytes > 0 and waste_bytes >= min(ROUNDING_BYTES, ROUNDING_SHARE * total_bytes)


BUSY_SHARE = 0.1
"""A GPU, or its link, that does this much or more is not idle: its link should be at its best generation."""
LINK_SAMPLES = 3
"""Over a series of samples a link is below its best if it was so in as many of them, and in half of those judged."""
SLOW_LINK = 0.85
"""Pinned copies below this share of the link's payload limit are worth a look."""
SHARED_UPLINK = 0.9
"""GPUs that copy at once below this share of what they reach alone share something on the way."""

SAME_RATE = 0.05
"""Rates that differ by less are the same."""
BELOW_LIKE = 0.9
"""Large pinned copies below this share of what another GPU of the same model reaches are worth a look."""


@dataclass(frozen=True)
class Shortfall:
    """What a PCIe link is below its best in.

    Attributes:
        what: fewer lanes than it could have, or a lower generation.
        severity: a note where a lower generation may be to save power.
    """

    what: Literal["lanes", "generation"]
    severity: Severity


def is_busy(*shares: float | None) -> bool:
    """Whether any of these shares (of a GPU's time, of what its link carries each way) says that it is not idle."""
    return any(share is not None and share >= BUSY_SHARE for share in shares)


def is_below(now: int | None, best: int | None) -> bool:
    """Whether both are known, and there is less now than at best."""
    return now is not None and best is not None and now < best


def link_shortfall(
    generation_now: int | None,
    generation_max: int | None,
    width_now: int | None,
    width_max: int | None,
    *,
    busy: bool | None,
) -> Shortfall | None:
    """What a PCIe link is below its best in; ``None`` if it is at its best, idle, or not known.

    Lanes are trained at start-up and stay. An idle link lowers its generation to save power, so a lower one means
    something while the GPU is busy only.

    Args:
        generation_now, generation_max: of PCI Express.
        width_now, width_max: lanes.
        busy: ``None`` where that is not known.
    """
    if is_below(width_now, width_max):
        return Shortfall("lanes", "warning")
    if is_below(generation_now, generation_max) and busy is not False:
        return Shortfall("generation", "warning" if busy else "note")
    return None


def is_lasting(below: int, judged: int) -> bool:
    """Whether so many samples with a link below its best, of so many that were judged, are enough for a finding."""
    return below >= LINK_SAMPLES and 2 * below >= judged


def held_bytes(
    host_alloc: int | None,
    registered: int | None,
    locked: int | None,
    vm_pin: int | None = None,
    driver_memory: int | None = None,
) -> int | None:
    """Pinned, locked and driver memory together, as far as it is known; ``None`` if none of it is.

    CUDA's memory may be locked as well, and pinned by the kernel's account, so the largest of the three counts.

    Args:
        host_alloc: cudaHostAlloc memory, in bytes as all of them.
        registered: cudaHostRegister memory.
        locked: mlock'ed memory (VmLck).
        vm_pin: pinned as the kernel accounts it (VmPin).
        driver_memory: write-combined memory, ``cuMemCreate`` on the host, host pools.
    """
    if all(amount is None for amount in (host_alloc, registered, locked, vm_pin, driver_memory)):
        return None
    return (driver_memory or 0) + max((host_alloc or 0) + (registered or 0), locked or 0, vm_pin or 0)


def held_by(holder: Holder | HolderSample, vm_pin: int | None = None) -> int:
    """What a process is known to hold, in bytes, with ``vm_pin`` where the kernel's account is to count as well."""
    pinned = holder.host_alloc_bytes, holder.registered_bytes, holder.locked_bytes
    return held_bytes(*pinned, vm_pin, holder.driver_memory_bytes) or 0


def locked_otherwise_bytes(host: HostTotals, holders: Iterable[Holder]) -> int:
    """What processes have as locked (VmLck) beyond what the kernel counts as locked (Mlocked).

    Drivers account memory that they pin there as well (VFIO), and of memory that several lock each counts all.
    """
    if host.mlocked_bytes is None:
        return 0
    claimed = sum(min(holder.locked_bytes or 0, holder.rss_bytes or 0) for holder in holders)
    return max(0, claimed - host.mlocked_bytes)


def is_only_locked(holder: Holder) -> bool:
    """Whether all that it is known to hold is locked with mlock, which CUDA does not know as pinned.

    A process that uses CUDA may have registered memory, of which /proc shows nothing.
    """
    pinned = (holder.host_alloc_bytes, holder.registered_bytes, holder.vm_pin_bytes)
    mapped = (holder.inherited_bytes, holder.managed_bytes, holder.driver_memory_bytes)
    return bool(holder.locked_bytes) and not (holder.cuda or any(pinned) or any(mapped))


GIVES_BACK = {
    "PyTorch": "torch._C._host_emptyCache()",
    "CuPy": "cupy.get_default_pinned_memory_pool().free_all_blocks()",
}
"""Allocator of pinned memory → the call by which a program gives back what it keeps."""
UNROUNDED_SINCE = "2.14"
"""The first release of PyTorch in which the rounding can be switched off without the fault of pytorch#192722."""
ROUNDING_ADVICE = (
    "Split it into powers of two (40 GiB into 32 and 8), or pin one buffer with pinscope.pinned_empty, which does not "
    "round so, and use it again once its last copy is done. With PYTORCH_ALLOC_CONF=pinned_max_round_threshold_mb:N, "
    f"PyTorch {UNROUNDED_SINCE} and later do not round above N MiB. Never set that in PyTorch 2.13: it can corrupt "
    "memory there (pytorch#192722)."
)


def rounded_up(nbytes: int) -> int:
    """Bytes that the allocator takes for a request, unless it is configured otherwise: a power of two."""
    return 1 << (nbytes - 1).bit_length()
