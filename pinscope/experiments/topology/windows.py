"""The time in which several GPUs copy side by side, and what each moves in it.

Each GPU knows the time of its own events only. Their common axis is the host's clock: streams are held until all
copies are queued, and the moment at which the hold ends is when the copies begin.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Flight:
    """The copies of one flow in time.

    Attributes:
        device: the GPU.
        way: ``h2d`` or ``d2h``.
        begun: when the hold ended, by the host's monotonic clock, which all processes share.
        ends: seconds from there until each copy ended.
    """

    device: int
    way: str
    begun: float
    ends: tuple[float, ...]

    @property
    def ended(self) -> float:
        """When the last copy ended, by the same clock."""
        return self.begun + self.ends[-1]

    def done(self, moment: float) -> float:
        """How many copies were done by then; a copy moves its bytes evenly."""
        since, before = moment - self.begun, 0.0
        for number, end in enumerate(self.ends):
            if since < end:
                return number + max(since - before, 0.0) / (end - before)
            before = end
        return float(len(self.ends))


def common_window(flights: Sequence[Flight]) -> tuple[float, float] | None:
    """When the last flow had begun and the first one ended; ``None`` if they never ran together."""
    first, last = max(flight.begun for flight in flights), min(flight.ended for flight in flights)
    return (first, last) if last > first else None
