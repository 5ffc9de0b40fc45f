"""One piece of work, done again and again in a thread of its own, that can be stopped and started at any time."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable

from pinscope.errors import InvalidParameter

LEAST_INTERVAL_SECONDS = 0.01
STOP_SECONDS = 2.0
"""How long a stop waits for work in progress. Work that hangs is left alone: it ends when it can, in a daemon."""

Wait = Callable[[threading.Event, float], object]
"""Waits for an event, at most for so many seconds."""


class Repeater:
    """Repeats work at a steady pace; turns that a slow piece of work missed are left out, not made up for.

    There is never more than one thread. One that still hangs in the work when it is started again is used again.

    Args:
        name: of the thread.
        work: must not raise.
        interval_seconds: from one begin to the next.
        finish: called in the thread after the last piece of work.
        clock: seconds, never going back.
        wait: how the thread waits; for tests that are in a hurry.
    """

    def __init__(
        self,
        name: str,
        work: Callable[[], None],
        interval_seconds: float,
        *,
        finish: Callable[[], None] = lambda: None,
        clock: Callable[[], float] = time.monotonic,
        wait: Wait = threading.Event.wait,
    ) -> None:
        self._name = name
        self._work = work
        self._finish = finish
        self._clock = clock
        self._wait = wait
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._wanted = False
        self._thread: threading.Thread | None = None
        self._interval = _checked(interval_seconds)

    @property
    def running(self) -> bool:
        """True from start to stop."""
        return self._wanted

    @property
    def interval_seconds(self) -> float:
        return self._interval

    def set_interval(self, seconds: float) -> None:
        """Change the pace from now on.

        Raises:
            InvalidParameter: it is no number of seconds, or too small.
        """
        self._interval = _checked(seconds)
        self._wake.set()

    def start(self) -> None:
        """Begin; does nothing if it runs already."""
        with self._lock:
            self._wanted = True
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
                self._thread.start()

    def stop(self) -> None:
        """End after the work in progress, and wait for that up to :data:`STOP_SECONDS`."""
        with self._lock:
            self._wanted = False
            thread = self._thread
        self._wake.set()
        if thread is not None and thread is not threading.current_thread():
            thread.join(STOP_SECONDS)

    def _run(self) -> None:
        try:
            while True:
                due = self._clock()
                while self._wanted:
                    self._work()
                    due = self._rest(due)
                self._finish()
                with self._lock:  # nobody can start it between the last look and the end
                    if not self._wanted:
                        self._thread = None
                        return
        except BaseException:
            with self._lock:
                self._thread = None
            raise

    def _rest(self, due: float) -> float:
        """Wait until the next turn is due, and say when that is; ``due``: when this one was."""
        finished = self._clock()
        while True:
            self._wake.clear()
            interval = self._interval  # may have changed: that wakes, too
            following = due + interval * max(1, math.ceil((finished - due) / interval))
            left = following - self._clock()
            if not self._wanted or left <= 0:
                return following
            self._wait(self._wake, left)


def _checked(seconds: float) -> float:
    if not math.isfinite(seconds) or seconds < LEAST_INTERVAL_SECONDS:
        raise InvalidParameter(
            f"an interval is a number of seconds, at least {LEAST_INTERVAL_SECONDS:g}; not {seconds:g}"
        )
    return seconds
