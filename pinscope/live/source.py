"""Where snapshots come from: the host's files, the watch over its GPUs, and the probe if it runs."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from contextlib import ExitStack
from typing import TYPE_CHECKING, Self

from pinscope.live.gpu_watch import GpuWatch
from pinscope.live.holders import snapshot
from pinscope.probes.answer import Answer
from pinscope.probes.open_files import open_files
from pinscope.probes.proc import HERE, Proc
from pinscope.probes.processes import Remembered
from pinscope.records.snapshot import Snapshot

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
        """What a process has open now, by kind; see :func:`pinscope.probes.open_files.open_files`."""
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
