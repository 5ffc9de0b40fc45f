"""Where snapshots come from: the host's files, the watch over its GPUs, and the probe if it runs."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Self

from pinscope.errors import PinScopeError
from pinscope.live.changes import changes, sample_of
from pinscope.live.gpu_watch import GpuWatch, Repeater, Wait
from pinscope.live.holders import snapshot
from pinscope.probes.answer import Answer
from pinscope.probes.proc import HERE, Proc
from pinscope.probes.process import open_files
from pinscope.probes.process_scan import Remembered
from pinscope.records.snapshot import Snapshot
from pinscope.records.timeline import Event, Sample

if TYPE_CHECKING:
    from pinscope.live.tracker import Tracker

OLDEST_FIGURES_SECONDS = 5.0
LEAST_ASKING_SECONDS = 1.0
"""The driver is not asked more often: that takes it 40 ms a GPU."""


class LiveSource:
    """A series of snapshots of this host; what one learns makes the next one cheaper. A context manager.

    Args:
        proc: where /proc and /sys are read.
        gpus: asks the GPUs' driver; the source starts and stops it. ``None``: the driver is not asked.
        tracker: follows registered memory; the source starts and stops it. ``None``: nobody does.
    """

    def __init__(self, proc: Proc = HERE, gpus: GpuWatch | None = None, tracker: Tracker | None = None) -> None:
        self._proc = proc
        self._gpus = gpus
        self._tracker = tracker
        self._remembered = Remembered()
        self._lock = threading.Lock()
        self._first = True
        self._open = ExitStack()

    def __enter__(self) -> Self:
        """Start what it reads from.

        Raises:
            NotPossible: registered memory cannot be followed here.
        """
        with ExitStack() as started:
            if self._gpus is not None:
                self._gpus.start()
                started.callback(self._gpus.stop)
            if self._tracker is not None:
                self._tracker.start()
                started.callback(self._tracker.stop)
            self._open = started.pop_all()
        self._first = True
        return self

    def __exit__(self, *error: object) -> None:
        self._open.close()

    def take(self) -> Snapshot:
        """The host now. The first one waits for the driver's first answer, as long as the watch allows it to take."""
        if self._gpus is not None and self._first:
            self._gpus.wait(self._gpus.limit_seconds)
        self._first = False
        with self._lock:  # several may ask; what the series remembers is for one at a time
            gpus = self._gpus.latest() if self._gpus is not None else None
            if self._tracker is None:
                return snapshot(self._proc, gpus, self._remembered)
            return snapshot(self._proc, gpus, self._remembered, registrations=self._tracker.registered())

    def open_files(self, pid: int) -> Answer[Mapping[str, int]]:
        """What a process has open now, by kind; see :func:`pinscope.probes.process.open_files`."""
        return open_files(pid, self._proc)


def open_source(probe: bool = False, gpus: bool = True, interval_seconds: float = 1.0) -> LiveSource:
    """The usual source, of this machine; enter it to start.

    Args:
        probe: follow registered memory as well; needs root.
        gpus: ask the GPUs' driver.
        interval_seconds: how often snapshots will be taken. The driver is asked as often, but at least every
            :data:`OLDEST_FIGURES_SECONDS`, as its figures are those of its last answer, and at most every
            :data:`LEAST_ASKING_SECONDS`.
    """
    asked = max(LEAST_ASKING_SECONDS, min(interval_seconds, OLDEST_FIGURES_SECONDS))
    watch = GpuWatch(interval_seconds=asked) if gpus else None
    if not probe:
        return LiveSource(gpus=watch)
    from pinscope.live.tracker import Tracker  # noqa: PLC0415 - only with the probe

    return LiveSource(gpus=watch, tracker=Tracker())


MOST_SAMPLES = 3600
"""The oldest go first: an hour at one each second."""
MOST_EVENTS = 1000
HANGS_SECONDS = 5.0
"""A reading that takes longer (or three intervals, if that is more) is reported."""

Callback = Callable[[Snapshot, Sample, tuple[Event, ...]], None]


@dataclass(frozen=True)
class History:
    """What a sampler saw, as of one moment."""

    latest: Snapshot | None = None
    samples: tuple[Sample, ...] = ()
    """Oldest first."""
    events: tuple[Event, ...] = ()
    """Oldest first, the last :data:`MOST_EVENTS`."""
    trouble: str | None = None
    """One line, if the last reading failed or the one in progress hangs, or if a listener failed."""
    interval_seconds: float = 1.0


@dataclass
class _Failing:
    """Something that failed the last time, in a row since then."""

    since: datetime
    what: str
    times: int = 1

    @classmethod
    def again(cls, before: _Failing | None, error: Exception) -> _Failing:
        what = str(error) if isinstance(error, PinScopeError) else f"{type(error).__name__}: {error}"
        now = datetime.now(UTC)
        what = " ".join(what.split())  # one line
        return cls(now, what) if before is None else cls(before.since, what, before.times + 1)

    def line(self, of: str) -> str:
        times = "once" if self.times == 1 else f"{self.times} times"
        return f"{of} failed {times} since {self.since:%H:%M:%S} UTC: {self.what}"


@dataclass
class _Kept:
    """All that the sampler's lock guards."""

    latest: Snapshot | None = None
    samples: deque[Sample] = field(default_factory=lambda: deque(maxlen=MOST_SAMPLES))
    events: deque[Event] = field(default_factory=lambda: deque(maxlen=MOST_EVENTS))
    failing: _Failing | None = None
    callbacks_failing: _Failing | None = None
    reading_since: float | None = None
    frozen: tuple[tuple[Sample, ...], tuple[Event, ...]] | None = None
    """Made once for all who ask between two readings."""


class Sampler:
    """Restartable background sampling. Also a context manager that starts and stops it.

    Args:
        take: takes a snapshot, such as ``LiveSource.take``. If it raises, the history says so and sampling goes on.
        interval_seconds: from one snapshot to the next.
        history_seconds: how far back the history goes, at most :data:`MOST_SAMPLES` samples.
        clock: seconds, never going back.
        wait: how the thread waits; for tests that are in a hurry.
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
        self._kept = _Kept()
        self._callbacks: tuple[Callback, ...] = ()
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

    def set_interval(self, seconds: float) -> None:
        """Sample at another pace from now on.

        Raises:
            InvalidParameter: it is no number of seconds, or too small.
        """
        self._repeater.set_interval(seconds)

    def subscribe(self, callback: Callback) -> None:
        """Call this with each snapshot, its sample and what happened since the last one; in the sampler's thread."""
        with self._lock:
            self._callbacks = (*self._callbacks, callback)

    def unsubscribe(self, callback: Callback) -> None:
        """Call it no more; nothing happens if it was not called."""
        with self._lock:
            self._callbacks = tuple(one for one in self._callbacks if one != callback)

    def history(self) -> History:
        """All that is known now; it does not change afterwards."""
        with self._lock:
            kept = self._kept
            if kept.frozen is None:
                kept.frozen = (tuple(kept.samples), tuple(kept.events))
            samples, events = kept.frozen
            return History(kept.latest, samples, events, self._trouble(), self._repeater.interval_seconds)

    def _trouble(self) -> str | None:
        kept, lines = self._kept, []
        if kept.reading_since is not None and self.running:
            lasted = self._clock() - kept.reading_since
            if lasted > max(HANGS_SECONDS, 3 * self._repeater.interval_seconds):
                lines.append(f"The reading has been going on for {lasted:.0f} s")
        if kept.failing is not None:
            lines.append(kept.failing.line("Reading"))
        if kept.callbacks_failing is not None:
            lines.append(kept.callbacks_failing.line("Passing a snapshot on"))
        return "; ".join(lines) or None

    def _sample(self) -> None:
        """One reading, in the thread."""
        now = self._clock()
        with self._lock:
            self._began = now if self._began is None else self._began
            self._kept.reading_since = now
            before, last = self._kept.latest, self._kept.samples[-1] if self._kept.samples else None
        try:
            taken = self._take()
            sample, events = sample_of(taken, now - self._began, last), changes(before, taken)
        except Exception as error:  # noqa: BLE001 - whatever it was, the history says so and sampling goes on
            with self._lock:
                self._kept.reading_since = None
                self._kept.failing = _Failing.again(self._kept.failing, error)
            return
        with self._lock:
            self._kept.reading_since = None
            if not self.running:  # it hung, and was stopped meanwhile
                return
            self._keep(taken, sample, events)
            callbacks = self._callbacks
        self._hand_on(callbacks, taken, sample, events)

    def _keep(self, taken: Snapshot, sample: Sample, events: tuple[Event, ...]) -> None:
        kept = self._kept
        kept.failing = None
        kept.latest = taken
        kept.samples.append(sample)
        while kept.samples[0].elapsed_seconds < sample.elapsed_seconds - self._history_seconds:
            kept.samples.popleft()
        kept.events.extend(events)
        kept.frozen = None

    def _hand_on(
        self, callbacks: tuple[Callback, ...], taken: Snapshot, sample: Sample, events: tuple[Event, ...]
    ) -> None:
        failed: Exception | None = None
        for callback in callbacks:
            try:
                callback(taken, sample, events)
            except Exception as error:  # noqa: BLE001 - the others are called, and the history says so
                failed = error
        with self._lock:
            before = self._kept.callbacks_failing
            self._kept.callbacks_failing = None if failed is None else _Failing.again(before, failed)
