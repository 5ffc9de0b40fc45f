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
    f"in {LEAK_SECONDS:.0f} s or more it grew by {format_bytes(LEAK_BYTES)} or more, in {LEAK_RISES} or more "
    f"steps of at most {format_share(LEAK_STEP_SHARE)} of it each, by {format_share(LEAK_PART_SHARE)} of it or more in "
    f"each of {LEAK_PARTS} equal parts of the time, and gave back at most {format_share(LEAK_RETURNED_SHARE)}"
)
"""The rule of :func:`steady_growth` in words; "it" is what grows."""
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
    if not amounts or end_seconds - amounts[0][0] < LEAK_SECONDS:
        return None
    begin, first = amounts[0]
    steps = [after - before for (_, before), (_, after) in pairwise(amounts)]
    rises = [step for step in steps if step > 0]
    grown, fallen = amounts[-1][1] - first, -sum(step for step in steps if step < 0)
    if grown < LEAK_BYTES or len(rises) < LEAK_RISES or max(rises) > LEAK_STEP_SHARE * grown:
        return None
    if fallen > LEAK_RETURNED_SHARE * sum(rises):
        return None
    length = end_seconds - begin
    edges = [_at(amounts, begin + length * part / LEAK_PARTS) for part in range(LEAK_PARTS + 1)]
    if any(after - before < LEAK_PART_SHARE * grown for before, after in pairwise(edges)):
        return None
    return Growth(grown, length, len(rises), first, fallen)


def _at(amounts: Amounts, seconds: float) -> int:
    """The step function's value; before its first step it is that of the step."""
    value = amounts[0][1]
    for at, amount in amounts:
        if at > seconds:
            break
        value = amount
    return value
