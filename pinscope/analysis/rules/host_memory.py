"""How much of a host's memory, or of a control group's, may be pinned, locked or wasted before it is worth a word?"""

from __future__ import annotations

from pinscope.records.finding import Severity

MIB, GIB = 2**20, 2**30

RAM_NOTE, RAM_WARNING, RAM_CRITICAL = 0.25, 0.5, 0.8
"""Share of the host's memory that is pinned. Half is also the most that an experiment here may pin of what is free."""
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


def pinned_severity(share: float, available_share: float) -> Severity | None:
    """How grave it is that this share of the host's memory is pinned, with that share of it available."""
    if share < RAM_NOTE:
        return None
    if share >= RAM_CRITICAL or available_share < SCARCE_SHARE:
        return "critical"
    return "warning" if share >= RAM_WARNING else "note"


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
