"""Does an amount grow steadily, as a leak does?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from pinscope.units import format_bytes, format_share

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
    value = amounts[0][1]
    for at, amount in amounts:
        if at > seconds:
            break
        value = amount
    return value


GAP_INTERVALS = 2.5
GAP_SECONDS = 1.0
"""Two samples are apart by a gap if more than 2.5 intervals, and more than one interval and a second, lie between."""
FEW_MISSING = 0.05
"""Share of samples that may be missing: with more of them a series is no proof of anything."""


def gap_seconds(interval_seconds: float) -> float:
    """Samples that are further apart than this, of a series with that interval, have a gap between them."""
    return max(GAP_INTERVALS * interval_seconds, interval_seconds + GAP_SECONDS)
