"""The timing harness: warms up, repeats until the median is known well enough, keeps every raw value."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from pinscope.analysis.statistics import LEAST_VALUES, looks, median_uncertainty
from pinscope.errors import Cancelled
from pinscope.records.budget import Budget

Clock = Callable[[], float]


@dataclass(frozen=True)
class Precision:
    """When to stop repeating.

    Attributes:
        relative: stop once the median is known to within ± this share of itself (:func:`looks` says when it is
            looked at, and why that keeps 95 % confidence).
        least: repeats to take in any case.
        most: repeats after which to stop in any case.
        seconds: time after which to stop in any case (``least`` is still reached).
        warmups: readings taken first and never counted.
    """

    relative: float = 0.01
    least: int = LEAST_VALUES
    most: int = 60
    seconds: float = 2.0
    warmups: int = 2


@dataclass(frozen=True)
class Turn:
    """One repeat to be measured: its number, whether it is a warm-up, and the values that count so far."""

    repeat: int
    warmup: bool
    values: list[float] = field(default_factory=list, compare=False, repr=False)

    def count(self, value: float) -> None:
        """What this repeat came to (any unit); of a warm-up it does not count."""
        if not self.warmup:
            self.values.append(value)

    @property
    def labels(self) -> dict[str, Any]:
        """As an observation carries them."""
        return {"repeat": self.repeat, "warmup": self.warmup}


class Harness:
    """Hands out turns and takes progress.

    Args:
        clock: seconds, monotonic. Passed in so that tests need not wait.
        report: called with (fraction, message) as the experiment goes on.
        cancelled: asked between turns; when true, :class:`Cancelled` is raised.
        note: called with what a reader of the run must know, such as a kind of memory left out and why.
        budget: what the run may take at most; for experiments that size themselves by the memory there is.
    """

    def __init__(
        self,
        clock: Clock = time.perf_counter,
        report: Callable[[float, str], None] = lambda _fraction, _message: None,
        cancelled: Callable[[], bool] = lambda: False,
        note: Callable[[str], None] = lambda _text: None,
        budget: Budget | None = None,
    ) -> None:
        self.clock = clock
        self.budget = budget
        self.note = note
        self._report = report
        self._cancelled = cancelled

    def progress(self, fraction: float, message: str) -> None:
        """Tell how far the experiment is (0 to 1) and what it does now."""
        self.check_cancelled()
        self._report(min(max(fraction, 0.0), 1.0), message)

    def check_cancelled(self) -> None:
        """Raise :class:`Cancelled` if somebody asked to stop."""
        if self._cancelled():
            raise Cancelled("the run was cancelled")

    def turns(self, precision: Precision, values: list[float] | None = None) -> Iterator[Turn]:
        """Turns until the median of ``values`` is known to ``precision.relative`` or a limit is reached.

        The caller has each turn :meth:`Turn.count` one value, or appends it to ``values`` if that is no warm-up.
        """
        values = [] if values is None else values
        for number in range(precision.warmups):
            self.check_cancelled()
            yield Turn(number, True, values)
        begun = self.clock()
        planned = [count for count in looks(precision.least, precision.most) if count < precision.most]
        for number in range(precision.most):
            self.check_cancelled()
            yield Turn(number, False, values)
            if len(values) < precision.least:
                continue
            if self.clock() - begun >= precision.seconds:
                return
            if planned and len(values) >= planned[0]:
                del planned[0]
                if median_uncertainty(values) <= precision.relative:
                    return
