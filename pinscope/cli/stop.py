"""A wish to stop that a command notices where it can put its things away."""

from __future__ import annotations

import signal
from types import FrameType
from typing import Any, Self

LOOK_SECONDS = 0.2
"""How soon Ctrl-C, the end of a run, a closed pipe or a resized window is noticed."""


class Stop:
    """While it is entered, SIGINT, SIGQUIT and SIGTERM only set :attr:`asked`: a run is never torn in the middle, and
    no probe stays in the kernel.

    Set also where the signal was ignored before, as it is for a shell's background jobs.

    Args:
        hangup: SIGHUP, which comes when the terminal is closed, is such a wish as well; not where it is ignored, as
            nohup has it.
    """

    def __init__(self, hangup: bool = False) -> None:
        self.asked = False
        self._hangup = hangup
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Self:
        closing = self._hangup and signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN
        for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, *((signal.SIGHUP,) if closing else ())):
            self._before[number] = signal.signal(number, self._handle)
        return self

    def __exit__(self, *exception: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        del number, frame
        self.asked = True
