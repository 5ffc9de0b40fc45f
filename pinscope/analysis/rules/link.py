"""Is a GPU's link as fast as it could be?"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from pinscope.records.finding import Severity

BUSY_SHARE = 0.1
"""A GPU, or its link, that does this much or more is not idle: its link should be at its best generation."""
LINK_SAMPLES = 3
"""Over a series of samples a link is below its best if it was so in as many of them, and in half of those judged."""
SLOW_LINK = 0.85
"""Pinned copies below this share of the link's payload limit are worth a look."""
SATURATED = 0.9
"""Share of what a link can carry: rates from here on are the link's, and more copiers add nothing."""
SHARED_UPLINK = 0.9
"""GPUs that copy at once below this share of what they reach alone share something on the way."""

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
