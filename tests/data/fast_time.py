"""A clock in a hurry: whoever waits by it moves it on."""

from __future__ import annotations

import threading


class FastTime:
    """Seconds that pass only while a thread waits, and then at once; from ``end`` on the thread waits for real."""

    def __init__(self, end: float) -> None:
        self.now = 0.0
        self.end = end
        self.reached = threading.Event()

    def clock(self) -> float:
        return self.now

    def wait(self, event: threading.Event, seconds: float) -> None:
        """What a :class:`pinscope.live.sampler.Repeater` waits by."""
        if self.now < self.end:
            self.now += seconds
        else:
            self.reached.set()
            event.wait()
