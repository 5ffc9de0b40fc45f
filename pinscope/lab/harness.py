"""The timing harness: warms up, repeats until the median is known well enough, keeps every raw value."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

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
    """One repeat to be measured: its number, and whether it is a warm-up."""

    repeat: int
    warmup: bool


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

    def turns(self, precision: Precision, values: list[float]) -> Iterator[Turn]:
        """Turns until the median of ``values`` is known to ``precision.relative`` or a limit is reached.

        The caller appends one value (any unit) to ``values`` per turn that is no warm-up.
        """
        for number in range(precision.warmups):
            self.check_cancelled()
            yield Turn(number, warmup=True)
        begun = self.clock()
        planned = [count for count in looks(precision.least, precision.most) if count < precision.most]
        for number in range(precision.most):
            self.check_cancelled()
            yield Turn(number, warmup=False)
            if len(values) < precision.least:
                continue
            if self.clock() - begun >= precision.seconds:
                return
            if planned and len(values) >= planned[0]:
                del planned[0]
                if median_uncertainty(values) <= precision.relative:
                    return
