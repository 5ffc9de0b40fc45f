"""Work at a steady pace in threads of its own: the watch over the GPUs' driver, and the sampler of snapshots."""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Self

from pinscope.errors import InvalidParameter, PinScopeError
from pinscope.live.series import changes, sample_of
from pinscope.probes.gpu import Nvml, read_gpus
from pinscope.probes.proc import HERE, Answer, Proc
from pinscope.records.snapshot import DeviceFigures, Snapshot
from pinscope.records.timeline import Event, Sample

LEAST_INTERVAL_SECONDS = 0.01
STOP_SECONDS = 2.0
"""How long a stop waits for work in progress. Work that hangs is left alone: it ends when it can, in a daemon."""

Wait = Callable[[threading.Event, float], object]
"""Waits for an event, at most for so many seconds."""


class Repeater:
    """Repeats work at a steady pace; turns that a slow piece of work missed are left out, not made up for.

    There is never more than one thread. One that still hangs in the work when it is started again is used again.
    ``work`` must not raise; ``finish`` is called in the thread after the last piece of it. ``clock`` and ``wait`` are
    for tests that are in a hurry.
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
        self.interval_seconds = _checked(interval_seconds)

    @property
    def running(self) -> bool:
        """True from start to stop."""
        return self._wanted

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

    def _rest(self, due: float) -> float:
        """Wait until the next turn is due, and say when that is; ``due``: when this one was."""
        passed = math.ceil((self._clock() - due) / self.interval_seconds)
        following = due + self.interval_seconds * max(1, passed)
        self._wake.clear()
        if self._wanted and (left := following - self._clock()) > 0:
            self._wait(self._wake, left)
        return following


def _checked(seconds: float) -> float:
    if not math.isfinite(seconds) or seconds < LEAST_INTERVAL_SECONDS:
        raise InvalidParameter(
            f"an interval is a number of seconds, at least {LEAST_INTERVAL_SECONDS:g}; not {seconds:g}"
        )
    return seconds


Figures = Answer[tuple[DeviceFigures, ...]]

_NOT_ASKED: Figures = Answer.missing("the driver is not being asked")
_NO_ANSWER_YET: Figures = Answer.missing("the driver has not answered yet")


class GpuWatch:
    """Keeps the last figures of all GPUs; a reader never waits for the driver.

    NVML is opened in the thread. If it takes longer than ``limit_seconds`` to answer, its last figures count no more.
    """

    def __init__(
        self,
        open_nvml: Callable[[], Nvml] = Nvml,
        interval_seconds: float = 1.0,
        limit_seconds: float = 5.0,
        clock: Callable[[], float] = time.monotonic,
        proc: Proc = HERE,
    ) -> None:
        self.limit_seconds = limit_seconds
        self._open_nvml = open_nvml
        self._clock = clock
        self._proc = proc
        self._lock = threading.Lock()
        self._answered = threading.Event()
        self._answer: Figures = _NO_ANSWER_YET
        self._asked_at: float | None = None
        self._nvml = ExitStack()
        self._reader: Nvml | None = None
        self._repeater = Repeater("pinscope-gpu-watch", self._ask, interval_seconds, finish=self._close)

    def start(self) -> None:
        """Begin to ask."""
        with self._lock:
            if not self._repeater.running:
                self._answer = _NO_ANSWER_YET  # the one from before a stop is old
                self._answered.clear()
            self._repeater.start()

    def stop(self) -> None:
        """Ask no more. Does not wait for a driver that hangs."""
        self._repeater.stop()
        self._answered.set()

    def wait(self, seconds: float) -> None:
        """Wait for the first answer, or for the end; at most so long."""
        self._answered.wait(seconds)

    def latest(self) -> Figures:
        """The last figures, or why there are none."""
        with self._lock:
            if not self._repeater.running:
                return _NOT_ASKED
            waited = 0.0 if self._asked_at is None else self._clock() - self._asked_at
            if waited > self.limit_seconds:
                return Answer.missing(f"NVML has not answered for {waited:.0f} s")
            return self._answer

    def _ask(self) -> None:
        with self._lock:
            self._asked_at = self._clock()
        answer = self._read()
        with self._lock:
            self._asked_at = None
            self._answer = answer
        self._answered.set()
        if answer.value is None:
            self._close()  # and opened anew for the next question: the driver may have come back

    def _read(self) -> Figures:
        try:
            if self._reader is None:
                self._reader = self._nvml.enter_context(self._open_nvml())
            return read_gpus(self._reader, self._proc)
        except Exception as error:  # noqa: BLE001 - whatever it was, the snapshot says so and the watch goes on
            return Answer.missing(f"the GPUs could not be read: {_one_line(error)}")

    def _close(self) -> None:
        self._reader = None
        self._nvml.close()


MOST_SAMPLES = 3600
"""The oldest go first: an hour at one each second."""
MOST_EVENTS = 1000
HANGS_SECONDS = 5.0
"""A reading that takes longer (or three intervals, if that is more) is reported."""


@dataclass(frozen=True)
class History:
    """What a sampler saw, as of one moment."""

    latest: Snapshot | None = None
    samples: tuple[Sample, ...] = ()
    """Oldest first."""
    events: tuple[Event, ...] = ()
    """Oldest first, the last :data:`MOST_EVENTS`."""
    trouble: str | None = None
    """One line, if the last reading failed or the one in progress hangs."""
    interval_seconds: float = 1.0


class Sampler:
    """Restartable background sampling. Also a context manager that starts and stops it.

    Args:
        take: takes a snapshot, such as ``LiveSource.take``. If it raises, the history says so and sampling goes on.
        interval_seconds: from one snapshot to the next.
        history_seconds: how far back the history goes, at most :data:`MOST_SAMPLES` samples.
        clock, wait: as of the :class:`Repeater`.
    """

    def __init__(
        self,
        take: Callable[[], Snapshot],
        interval_seconds: float = 1.0,
        history_seconds: float = 3600.0,
        clock: Callable[[], float] = time.monotonic,
        wait: Wait = threading.Event.wait,
    ) -> None:
        self._take = take
        self._history_seconds = history_seconds
        self._clock = clock
        self._began: float | None = None
        self._lock = threading.Lock()
        self._latest: Snapshot | None = None
        self._samples: deque[Sample] = deque(maxlen=MOST_SAMPLES)
        self._events: deque[Event] = deque(maxlen=MOST_EVENTS)
        self._failing: str | None = None
        self._reading_since: float | None = None
        self._repeater = Repeater("pinscope-sampler", self._sample, interval_seconds, clock=clock, wait=wait)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()

    @property
    def running(self) -> bool:
        """True from start to stop."""
        return self._repeater.running

    def start(self) -> None:
        """Begin, or go on: the history stays."""
        self._repeater.start()

    def stop(self) -> None:
        """Take no more snapshots. Does not wait long for a reading that hangs."""
        self._repeater.stop()

    def history(self) -> History:
        """All that is known now; it does not change afterwards."""
        with self._lock:
            samples, events, interval = tuple(self._samples), tuple(self._events), self._repeater.interval_seconds
            return History(self._latest, samples, events, self._trouble(), interval)

    def _trouble(self) -> str | None:
        lines = []
        if self._reading_since is not None and self.running:
            lasted = self._clock() - self._reading_since
            if lasted > max(HANGS_SECONDS, 3 * self._repeater.interval_seconds):
                lines.append(f"The reading has been going on for {lasted:.0f} s")
        if self._failing is not None:
            lines.append(f"Reading failed: {self._failing}")
        return "; ".join(lines) or None

    def _sample(self) -> None:
        """One reading, in the thread; nobody else writes what is kept."""
        now = self._clock()
        self._began = now if self._began is None else self._began
        self._reading_since = now
        failing = None
        try:
            taken = self._take()
            sample = sample_of(taken, now - self._began, self._samples[-1] if self._samples else None)
            events = changes(self._latest, taken)
        except Exception as error:  # noqa: BLE001 - whatever it was, the history says so and sampling goes on
            failing = _one_line(error)
        with self._lock:
            self._reading_since, self._failing = None, failing
            if failing is not None or not self.running:  # it hung, and was stopped meanwhile
                return
            self._latest = taken
            self._samples.append(sample)
            while self._samples[0].elapsed_seconds < sample.elapsed_seconds - self._history_seconds:
                self._samples.popleft()
            self._events.extend(events)


def _one_line(error: Exception) -> str:
    text = str(error) if isinstance(error, PinScopeError) else f"{type(error).__name__}: {error}"
    return " ".join(text.split())
