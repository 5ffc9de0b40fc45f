"""Asks the GPUs' driver in a thread of its own: it may hang, for example while a process pins a lot."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import ExitStack

from pinscope.live.repeater import Repeater
from pinscope.probes.answer import Answer
from pinscope.probes.gpu import Nvml
from pinscope.probes.gpu_figures import read_gpus
from pinscope.probes.proc import HERE, Proc
from pinscope.records.snapshot import DeviceFigures

Figures = Answer[tuple[DeviceFigures, ...]]

_NOT_ASKED: Figures = Answer.missing("the driver is not being asked")
_NO_ANSWER_YET: Figures = Answer.missing("the driver has not answered yet")


class GpuWatch:
    """Keeps the last figures of all GPUs; a reader never waits for the driver.

    Args:
        open_nvml: gives the reader, which is opened in the thread.
        interval_seconds: from one question to the next.
        limit_seconds: how long the driver may take to answer until its last figures count no more.
        clock: seconds, never going back.
        proc: where /sys is read.
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

    def set_interval(self, seconds: float) -> None:
        """Ask at another pace from now on."""
        self._repeater.set_interval(seconds)

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
            return read_gpus(self._reader, self._proc, rates=True)
        except Exception as error:  # noqa: BLE001 - whatever it was, the snapshot says so and the watch goes on
            line = " ".join(str(error).split())
            return Answer.missing(f"the GPUs could not be read: {type(error).__name__}: {line}")

    def _close(self) -> None:
        self._reader = None
        self._nvml.close()
