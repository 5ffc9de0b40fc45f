"""Progress of a run on stderr, and a wish to stop that a command notices where it can put its things away."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, Self

from pinscope.cli.terminal import complain, console
from pinscope.errors import Cancelled, MeasurementFailed, StoreFailed, UnknownName
from pinscope.records.run import LAB_TITLES, ExperimentRun, Progress, Run
from pinscope.runner.jobs import Job
from pinscope.store.store import Store
from pinscope.text import one_line
from pinscope.units import format_duration

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


LINE_SECONDS = 10.0
"""Where there is no terminal, a line at most this often."""


def follow(store: Store, run: ExperimentRun, job: Job, stop: Stop) -> None:
    """Show how far the run is until its child ends or somebody asks to stop.

    A database that fails meanwhile ends nothing: the child would end with this process, and it alone holds what the
    database did not take.
    """
    about = f"about {format_duration(run.budget.seconds)}"
    if run.lab == "host":  # only GPU runs were recorded to compare with
        about += " or, on a slow processor, longer"
    complain(f"{run.experiment} on {LAB_TITLES[run.lab]}, run {run.id}, {about}; Ctrl-C cancels")
    with progress_shown() as show:
        failing = False
        while job.poll() is None and not stop.asked:
            try:
                show(store.run(run.id).progress)
                failing = False
            except (StoreFailed, UnknownName) as error:  # a database file that was deleted knows no run
                if not failing and job.poll() is None:
                    complain(f"{error}; the run goes on, and keeps what it measures until it can be stored")
                failing = True
            time.sleep(LOOK_SECONDS)


def say_how_it_ended(run: Run) -> int:
    """A line on stderr if the run failed or was stopped; the exit code that fits."""
    if run.status == "done":
        return 0
    reason = f": {one_line(run.error)}" if run.error else ""
    complain(f"run {run.id} {'failed' if run.status == 'failed' else f'was {run.status}'}{reason}")
    return Cancelled.exit_code if run.status == "cancelled" else MeasurementFailed.exit_code


@contextmanager
def progress_shown(endless: bool = False) -> Iterator[Callable[[Progress], None]]:
    """Gives what shows progress on stderr: a bar in a terminal, else plain lines. ``endless``: nobody knows the end."""
    with _bar(endless) if sys.stderr.isatty() else _lines(endless) as show:
        yield show


@contextmanager
def _bar(endless: bool) -> Iterator[Callable[[Progress], None]]:
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn

    share = () if endless else (BarColumn(), TaskProgressColumn())
    columns = (*share, TimeElapsedColumn(), TextColumn("{task.description}", markup=False))
    with Progress(*columns, console=console(sys.stderr), transient=True) as bar:
        task = bar.add_task("starting", total=None if endless else 1.0)
        yield lambda progress: bar.update(task, completed=progress.fraction, description=one_line(progress.message))


@contextmanager
def _lines(endless: bool) -> Iterator[Callable[[Progress], None]]:
    said = time.monotonic()
    waiting: str | None = None

    def show(progress: Progress) -> None:
        nonlocal said, waiting
        if progress.waiting_for != waiting or time.monotonic() - said >= LINE_SECONDS:
            waiting, said = progress.waiting_for, time.monotonic()
            complain(f"{'' if endless else f'{progress.fraction:.0%} '}{one_line(progress.message)}")

    yield show
