"""Many open pages share one server: their scripts draw in turn, and live pages draw less often the more there are."""

from __future__ import annotations

import statistics
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

SHARE = 0.6
"""Of one core's time that scripts may take while others wait. The rest is for what answers browsers."""
PATIENCE_SECONDS = 0.5
"""How long a script is waited for."""
PACES = (0.5, 1.0, 2.0, 3.0, 4.0, 6.0, 8.0)
"""Seconds from one drawing of a live page to the next, where there are too many pages for what their readers chose.

There is none slower: where even that is too quick, pages wait in line, and each is drawn as soon as there is time.
"""
_FILL = 0.9
"""Of the time that live pages may fill with drawing. The rest is for pages that are opened and clicked."""
_SLOWER_SECONDS, _QUICKER_SECONDS = 5.0, 60.0
"""A pace is changed no sooner after the last change, for each change costs a drawing of all pages."""
_CALM = 0.7
"""It gets quicker, by one step, if the pages need less than this part of that step."""
_LEAST_TURNS, _MOST_TURNS = 5, 31
"""Turns whose median says what one takes: the first ones of a server load modules."""
_GONE_PACES = 3.0
"""A live page that was not drawn for so many paces is open no more, or hidden."""


@dataclass
class _Turn:
    begun: float = 0.0
    woken: threading.Event = field(default_factory=threading.Event)


class Turns:
    """One script draws at a time, first come first served; then all rest for a while.

    Scripts that draw at the same time take Python's lock from the thread that serves all browsers. With twenty of them
    it answered no request for seconds, and browsers were dropped. A script that takes long is waited for only so long:
    then the next one draws beside it.

    Args:
        clock: seconds, never going back.
        processor_clock: seconds that the calling thread computed.
    """

    def __init__(
        self, clock: Callable[[], float] = time.monotonic, processor_clock: Callable[[], float] = time.thread_time
    ) -> None:
        self._clock = clock
        self._processor_clock = processor_clock
        self._lock = threading.Lock()
        self._line: deque[_Turn] = deque()
        self._drawing: _Turn | None = None
        self._free_at = clock()
        self._own = threading.local()

    @contextmanager
    def turn(self, done: Callable[[float], None] | None = None) -> Iterator[None]:
        """Wait, and draw. A turn within a turn of the same thread is the same turn.

        Args:
            done: called after it with the seconds that it took from all others, with the rest.
        """
        if getattr(self._own, "drawing", False):
            yield
            return
        mine = self._wait()
        self._own.drawing = True
        begun = self._processor_clock()
        try:
            yield
        finally:
            self._own.drawing = False
            taken = self._end(mine, self._processor_clock() - begun)
            if done is not None:
                done(taken)

    def _wait(self) -> _Turn:
        mine = _Turn()
        with self._lock:
            self._line.append(mine)
        while (left := self._try(mine)) != 0:
            mine.woken.wait(left)
            mine.woken.clear()
        return mine

    def _try(self, mine: _Turn) -> float | None:
        """Begin, and give 0; or give the seconds to wait, where they are known."""
        with self._lock:
            if self._line[0] is not mine:
                return None
            now = self._clock()
            if now < self._free_at:
                return self._free_at - now
            self._line.popleft()
            mine.begun = now
            self._drawing, self._free_at = mine, now + PATIENCE_SECONDS
            self._wake_first()
            return 0

    def _end(self, mine: _Turn, processor_seconds: float) -> float:
        rest = min(processor_seconds, PATIENCE_SECONDS) * (1 / SHARE - 1)
        with self._lock:
            now = self._clock()
            if self._drawing is mine:
                self._drawing, self._free_at = None, now + rest
                self._wake_first()
            return min(now - mine.begun, PATIENCE_SECONDS) + rest

    def _wake_first(self) -> None:
        if self._line:
            self._line[0].woken.set()


class Pace:
    """How often live pages are drawn: as their readers chose, or as often as there is time for all of them."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._open_until: dict[str, float] = {}
        self._turns: deque[float] = deque(maxlen=_MOST_TURNS)
        self._least = PACES[0]
        self._changed_at = clock()

    def drawn(self, page: str, pace_seconds: float, turn_seconds: float) -> None:
        """A live page was drawn, in a turn of so many seconds, and will be again at its pace."""
        with self._lock:
            now = self._clock()
            self._open_until = {other: until for other, until in self._open_until.items() if until >= now}
            self._open_until[page] = now + _GONE_PACES * pace_seconds
            self._turns.append(turn_seconds)

    def closed(self, page: str) -> None:
        """Count a page no more."""
        with self._lock:
            self._open_until.pop(page, None)

    @property
    def pages(self) -> int:
        """How many live pages are open."""
        with self._lock:
            return self._pages()

    def seconds(self, wanted_seconds: float) -> float:
        """From one drawing to the next, for a page that wants to be drawn this often: that long, or longer."""
        with self._lock:
            if len(self._turns) >= _LEAST_TURNS:
                needed = self._pages() * statistics.median(self._turns) / _FILL
                self._adjust(needed)
            return max(wanted_seconds, self._least)

    def _adjust(self, needed: float) -> None:
        now, quicker = self._clock(), PACES[max(0, PACES.index(self._least) - 1)]
        if needed > self._least and now - self._changed_at > _SLOWER_SECONDS:
            self._least, self._changed_at = next((pace for pace in PACES if pace >= needed), PACES[-1]), now
        elif needed < _CALM * quicker and now - self._changed_at > _QUICKER_SECONDS:
            self._least, self._changed_at = quicker, now

    def _pages(self) -> int:
        now = self._clock()
        return sum(until >= now for until in self._open_until.values())
