"""The child that measures one run: ``python -m pinscope.runner.worker RUN_ID PARENT_PID``.

It stores every observation as it comes, and ends when its parent ends.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
import time
import traceback
from contextlib import ExitStack
from datetime import UTC, datetime
from types import FrameType
from typing import Any, Self

from pinscope.errors import Cancelled, PinScopeError
from pinscope.experiments.registry import find
from pinscope.lab.budget import check_budget
from pinscope.lab.harness import Harness
from pinscope.lab.protocol import Lab
from pinscope.probes.environment import capture_environment, read_huge_pages
from pinscope.probes.limits import read_limits
from pinscope.probes.process import current_process
from pinscope.records.environment import Environment
from pinscope.records.run import Progress, Run, Status
from pinscope.runner.queue import turn
from pinscope.store.rescue import SafeWriter
from pinscope.store.store import Store

PR_SET_PDEATHSIG = 1
PROGRESS_SECONDS = 0.2
"""Progress is written at most this often."""
BEAT_SECONDS = 2.0
"""Progress is written at least this often, unless the database fails."""


class _Stop:
    """Remembers that somebody asked to stop (SIGTERM); the harness asks between turns."""

    def __init__(self) -> None:
        self.asked = False

    def handle(self, number: int, frame: FrameType | None) -> None:
        """Signal handler: only notes the wish, so that nothing is torn in the middle."""
        del number, frame
        self.asked = True


class _Reporter:
    """Writes progress and notes of a run: progress not too often, and now and then though nothing happens."""

    def __init__(self, writer: SafeWriter, run: Run) -> None:
        self._writer = writer
        self._notes = list(run.notes)
        self._written = -PROGRESS_SECONDS
        self._last = Progress()
        self._telling = threading.Lock()
        self._ended = threading.Event()
        self._heart = threading.Thread(target=self._beat, name="pinscope-heart", daemon=True)

    def __enter__(self) -> Self:
        self._heart.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._ended.set()
        self._heart.join()

    def progress(self, fraction: float, message: str) -> None:
        """Store how far the run is."""
        if time.monotonic() - self._written >= PROGRESS_SECONDS or fraction >= 1:
            self._tell(Progress(fraction=fraction, message=message))

    def waiting(self, holder: str) -> None:
        """Store what the run waits for."""
        if time.monotonic() - self._written >= PROGRESS_SECONDS:
            self._tell(Progress(message=f"waiting for {holder}", waiting_for=holder))

    def _tell(self, progress: Progress | None) -> None:
        with self._telling:
            self._last = progress or self._last
            self._written = time.monotonic()
            self._writer.update(progress=self._last.model_copy(update={"at": self._written}))

    def _beat(self) -> None:
        """Others who cannot see this process learn from it that it lives, and it learns whether they cancelled it."""
        while not self._ended.wait(BEAT_SECONDS):
            if time.monotonic() - self._written >= BEAT_SECONDS:
                self._tell(None)

    def note(self, text: str) -> None:
        """Store what a reader of the run must know, once."""
        if text not in self._notes:
            self._notes.append(text)
            self._writer.update(notes=tuple(self._notes))


def queues(run: Run) -> list[str]:
    """Names of the turns that the run must have: its GPU's, or every GPU's if it measures on all of them.

    Always in the same order, so that no two runs wait for each other.
    """
    if run.lab == "host":
        return ["host"]
    everywhere = bool(run.params.get("all_devices"))
    return sorted({one.uuid for one in run.environment.devices if everywhere or one.index == run.device})


def open_lab(run: Run) -> Lab:
    """The lab that the run asks for."""
    if run.lab == "host":
        from pinscope.lab.hostmodel import HostModelLab  # noqa: PLC0415 - each lab needs its own machine

        return HostModelLab()
    from pinscope.lab.cuda import CudaLab  # noqa: PLC0415 - imports CuPy

    devices = run.environment.devices
    if any(device.pci_bus_id is None for device in devices):
        return CudaLab(run.device)
    return CudaLab(run.device, {device.index: device.pci_bus_id for device in devices if device.pci_bus_id})


def measure(writer: SafeWriter, run: Run, stop: _Stop) -> None:
    """Measure the run from queueing to its last observation.

    Raises:
        Cancelled: somebody asked to stop.
        PinScopeError: the experiment broke off; what was measured is stored.
    """

    def cancelled() -> bool:
        return stop.asked or writer.cancelled  # by a signal, or by somebody whose signals do not reach here

    def waiting(holder: str) -> None:
        if cancelled():
            raise Cancelled("the run was cancelled while it waited")
        reporter.waiting(holder)

    experiment = find(run.experiment).experiment
    params = experiment.Params.model_validate(run.params)
    device = run.environment.device(run.device) if run.lab == "cuda" else None
    with _Reporter(writer, run) as reporter, ExitStack() as held:
        for name in queues(run):
            held.enter_context(turn(name, waiting))
        # Memory that was free when the run was prepared may have gone while it waited.
        check_budget(run.budget, read_limits(), device, run.lab, read_huge_pages())
        lab = held.enter_context(open_lab(run))
        harness = Harness(report=reporter.progress, cancelled=cancelled, note=reporter.note, budget=run.budget)
        reporter.progress(0.0, "starting")
        for observation in experiment.measure(params, lab, harness):
            writer.append([observation.model_dump(mode="json")])
        if device:
            writer.update(environment=_with_warm_links(run.environment))


def _with_warm_links(environment: Environment) -> Environment:
    """The environment with each GPU's link as it is right after copying: an idle link trains down to save power."""
    warm = {device.uuid: device.link for device in capture_environment().devices}
    devices = tuple(
        device.model_copy(update={"link": warm.get(device.uuid) or device.link}) for device in environment.devices
    )
    return environment.model_copy(update={"devices": devices})


def _die_with_parent(parent: int) -> None:
    """Ask the kernel to end this process when its parent ends, and end now if that has happened already."""
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        sys.exit(1)


def _outcome(writer: SafeWriter, run: Run, stop: _Stop) -> tuple[Status, str | None, int]:
    """Measure, and tell how it went: status, error line, exit code."""
    try:
        measure(writer, run, stop)
    except Cancelled:
        return "cancelled", None, Cancelled.exit_code
    except PinScopeError as error:
        return "failed", str(error), error.exit_code
    except Exception as error:  # noqa: BLE001 - whatever it was, the run must say so
        if os.environ.get("PINSCOPE_DEBUG"):
            traceback.print_exc()
        return "failed", f"unexpected {type(error).__name__}: {error}".splitlines()[0], 1
    return "done", None, 0


def main(arguments: list[str]) -> int:
    """Measure the run named on the command line; its exit code."""
    run_id, parent = arguments
    _die_with_parent(int(parent))
    stop = _Stop()
    signal.signal(signal.SIGTERM, stop.handle)
    try:
        with Store() as store:
            return _run(store, store.run(run_id), stop)
    except PinScopeError as error:
        print(f"pinscope: {error}", file=sys.stderr)  # noqa: T201 - the only word a child without a store can say
        return error.exit_code


def _run(store: Store, run: Run, stop: _Stop) -> int:
    """Measure, and store how it went; the exit code."""
    writer = SafeWriter(store, run)
    writer.update(process=current_process())  # its starter does it too, unless the database fails him right then
    status, error, code = _outcome(writer, run, stop)
    changes: dict[str, Any] = {"status": status, "finished_at": datetime.now(UTC)}
    if error:
        changes["error"] = error
    if status == "done":
        changes["progress"] = Progress(fraction=1.0, message="done")
    if rescued := writer.close(**changes):
        print(f"pinscope: the database took no more; the run was saved to {rescued}", file=sys.stderr)  # noqa: T201
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
