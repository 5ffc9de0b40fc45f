"""The time in which several GPUs copy side by side, and what each moves in it.

Each GPU knows the time of its own events only; the host's clock is what they have in common. A flow is set into it by
its end, which the host sees. The moment at which streams are let go would not do: a start event lies in the channel of
the stream's last work, and an engine that is busy with another stream's copies reaches it after them. On an H200 that
was up to 23 ms late; copies that ran one after the other looked as if they had run side by side.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

LEAST_COMMON = 0.5
"""Part of the shortest flow's time in which all must have copied: less tells of turns, not of a link."""


@dataclass(frozen=True)
class Flight:
    """The copies of one flow in time.

    Attributes:
        device: the GPU.
        way: ``h2d`` or ``d2h``.
        begun: when the first copy began, by the host's monotonic clock, which all processes share.
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
    """When the last flow had begun and the first one ended.

    ``None`` if they took turns: less than :data:`LEAST_COMMON` of the shortest one's time was common to all.
    """
    first, last = max(flight.begun for flight in flights), min(flight.ended for flight in flights)
    enough = LEAST_COMMON * min(flight.ends[-1] for flight in flights)
    return (first, last) if last - first >= enough else None
