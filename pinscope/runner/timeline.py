"""Keeps the live view as a run: each sample is stored as it comes, by the process that takes it."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from copy import copy
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

from pinscope.errors import BadInput, InvalidParameter, PinScopeError
from pinscope.live.series import Moment, TimelineRows
from pinscope.live.timeline.reading import TimelineParams
from pinscope.probes.process import current_process
from pinscope.records.base import ROWS_READ
from pinscope.records.environment import Environment
from pinscope.records.labels import NO_LABELS
from pinscope.records.run import Progress, Run, Status, TimelineRun
from pinscope.records.snapshot import Snapshot
from pinscope.runner.jobs import new_id
from pinscope.runner.worker import Outcome, Reporter
from pinscope.store.bundle import write_bundle
from pinscope.store.documents import StoredRow
from pinscope.store.safe_writer import SafeWriter, saved_line
from pinscope.store.store import Store
from pinscope.units import format_bytes, format_seconds

MOST_SECONDS = 30 * 86400.0
MOST_ROWS = ROWS_READ
"""All rows are kept in memory, less than 1 KB each, in case the database fails; and one bundle must hold them."""
LOOK_SECONDS = 0.1
"""How soon a wish to stop is noticed between two samples."""
MOST_FAILURES_NOTED = 5
"""Different reasons for missing samples that become notes; the rows have them all."""
_GPUS = "GPUs"
"""The rows say why there are none now and then."""


@dataclass(frozen=True)
class Pace:
    """How time goes by; tests have their own."""

    clock: Callable[[], float] = field(default=partial(time.clock_gettime, time.CLOCK_BOOTTIME))
    """Seconds; goes on while the machine sleeps, and never back."""
    sleep: Callable[[float], None] = time.sleep
    cpu: Callable[[], float] = time.process_time


@dataclass
class TimelineRecorder:
    """One timeline, from its first sample to its file.

    Attributes:
        store: where it is kept.
        take: takes a snapshot; where it raises, the timeline has a row that says so, and goes on.
        asked_to_stop: looked at several times a second.
        show: called with how far the recording is.
        output: a bundle to write at the end, if wanted.
    """

    store: Store
    take: Callable[[], Snapshot]
    asked_to_stop: Callable[[], bool]
    show: Callable[[Progress], None]
    output: Path | None = None
    pace: Pace = field(default_factory=Pace)

    def record(self, run: Run) -> Recorded:
        """Store the run, sample until its time is over or somebody asks to stop, and write the file.

        Raises:
            StoreFailed: the run could not be stored, so nothing was begun; or its rows could be put nowhere.
            PinScopeError: the file could not be written; the run is in the database.
        """
        run = self.store.add(run)
        writer = SafeWriter(self.store, run)
        sampling = _Sampling(self, run, writer)
        outcome = Outcome.of(sampling.to_the_end)
        saved = outcome.keep(writer, has_answer=not outcome.error)
        run, rows = writer.run, writer.rows
        try:
            if self.output is not None:
                write_bundle(self.output, [(run, rows)])
        except PinScopeError as error:
            kept = saved_line(saved) if saved else f"run {run.id} is kept: pinscope export {run.id} -o FILE"
            raise PinScopeError(f"{error}; {kept}") from None
        return Recorded(run, rows, saved, sampling.full_after_seconds)


@dataclass(frozen=True)
class Recorded:
    """A timeline that has ended."""

    run: Run
    rows: Sequence[StoredRow]
    saved: Path | None
    """The file that holds it because the database failed; ``None`` if the database has it."""
    full_after_seconds: float | None = None
    """How long it is, if it ended by itself because one timeline holds no more rows."""


class _Sampling:
    """The samples of one timeline."""

    def __init__(self, recorder: TimelineRecorder, run: Run, writer: SafeWriter) -> None:
        self.run = run
        self.writer = writer
        self.samples = 0
        self.failures: list[str] = []
        """Different reasons why samples are missing."""
        self.full_after_seconds: float | None = None
        self._recorder = recorder
        self._pace = recorder.pace
        self._params = TimelineParams.model_validate(run.params)
        self._rows = TimelineRows(self._params.pids)
        self._begun = self._cpu_begun = 0.0
        self._kept = 0
        self._unreadable: set[str] = set()
        self._seen: Snapshot | None = None

    def to_the_end(self) -> Status:
        """Take all samples; gives the status that the run has then.

        Raises:
            PinScopeError: none could be taken.
        """
        with Reporter(self.writer, self.run) as reporter:
            self._take_samples(reporter)
        if not self.samples and self.failures:
            raise PinScopeError(f"no sample could be taken: {self.failures[0]}")
        return "cancelled" if self.writer.cancelled or not self.samples else "done"

    def _take_samples(self, reporter: Reporter) -> None:
        """Take one sample after the other, at even steps from the first one; steps that were missed are left out."""
        interval, seconds = self._params.interval_seconds, self._params.for_seconds
        due: float | None = None
        for number in range(MOST_ROWS):
            if self._waits_until(due):
                return
            elapsed = self._sample(number, reporter)
            self._report(elapsed, reporter)
            if seconds is not None and elapsed >= seconds:
                return
            if self._kept >= MOST_ROWS:
                self.full_after_seconds = elapsed
                reporter.note(f"The recording ended because one timeline holds at most {MOST_ROWS:,} rows.")
                return
            step = (math.floor((self._pace.clock() - self._begun) / interval + 1e-9) + 1) * interval
            due = self._begun + (step if seconds is None else min(step, seconds))

    def _waits_until(self, due: float | None) -> bool:
        """Wait for the next sample; true if somebody asked to stop meanwhile."""
        while not (self._recorder.asked_to_stop() or self.writer.cancelled):
            left = 0.0 if due is None else due - self._pace.clock()
            if left <= 0:
                return False
            self._pace.sleep(min(LOOK_SECONDS, left))
        return True

    def _sample(self, number: int, reporter: Reporter) -> float:
        """Take one sample and store its rows; when it was, in seconds since the first one."""
        try:
            taken: Snapshot | str = self._recorder.take()
        except Exception as error:  # noqa: BLE001 - whatever it was, the timeline says so and goes on
            taken = _words(error)
        now = self._pace.clock()
        if not number:  # the first one may wait for the driver: time begins when it is there
            self._begun, self._cpu_begun = now, self._pace.cpu()
        moment = Moment(number, now - self._begun)
        try:
            rows = self._stored(taken, moment)
        except (ValueError, BadInput) as error:  # a figure that is no number, or one that no database holds
            rows = self._stored(_words(error), moment)
        for failure in (row["reason"] for row in rows if row["kind"] == "missed"):
            if failure not in self.failures and len(self.failures) < MOST_FAILURES_NOTED:
                self.failures.append(failure)
                reporter.note(f"Samples are missing: {failure}")
        if isinstance(taken, Snapshot):
            self._note_unreadable(taken, reporter)
        self._kept += len(rows)
        return moment.elapsed_seconds

    def _stored(self, taken: Snapshot | str, moment: Moment) -> list[StoredRow]:
        """The rows of a sample, or of one that is missing, in the store.

        Raises:
            ValueError: a figure in it is no number.
            BadInput: a row cannot be stored; none was.
        """
        if isinstance(taken, str):
            rows = self._rows.missed(taken, moment)
            self.writer.append(rows)
            return rows
        before = copy(self._rows)
        rows = self._rows.of(taken, moment, self._pace.cpu() - self._cpu_begun)
        try:
            self.writer.append(rows)
        except BadInput:
            self._rows = before  # the next sample stores what this one would have
            raise
        self.samples, self._seen = self.samples + 1, taken
        return rows

    def _note_unreadable(self, seen: Snapshot, reporter: Reporter) -> None:
        """What could not be read, once; its figures may change from sample to sample."""
        for unreadable in seen.unreadable:
            kind = re.sub(r"[\d, ]+", " ", unreadable.what)
            if kind not in self._unreadable and unreadable.what != _GPUS:
                self._unreadable.add(kind)
                reporter.note(f"{unreadable.what} could not be read: {unreadable.reason}.")
        if seen.probe is not None and seen.probe.lost_events:
            reporter.note("The probe lost calls that came too fast: registered memory is an estimate from then on.")

    def _report(self, elapsed: float, reporter: Reporter) -> None:
        seconds = self._params.for_seconds
        share = 0.0 if seconds is None else min(elapsed / seconds, 0.999)
        host = self._seen.host if self._seen else None
        pinned = f", {format_bytes(host.pinned_bytes)} pinned" if host and host.pinned_bytes is not None else ""
        samples = f"{self.samples:,} {'sample' if self.samples == 1 else 'samples'}"
        message = f"{format_seconds(elapsed) if elapsed else '0 s'}, {samples}{pinned}"
        reporter.progress(share, message)
        with suppress(OSError):  # nobody looks any more: a pipe that was closed, a terminal that is gone
            self._recorder.show(Progress(fraction=share, message=message))


def _words(error: Exception) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())


def prepare_timeline(params: TimelineParams, environment: Environment, labels: Mapping[str, Any] = NO_LABELS) -> Run:
    """A timeline to be recorded by this process, not stored yet; ``labels``: what it is called.

    Raises:
        InvalidParameter: a duration out of range, or more samples than one timeline holds.
        NotPossible: /proc does not show this process.
    """
    _check(params, max(len(environment.devices), 1))
    return TimelineRun(
        id=new_id(),
        status="running",
        params={name: value for name, value in params.model_dump(mode="json").items() if value not in (None, [])},
        environment=environment,
        created_at=datetime.now(UTC),
        process=current_process(),
        **labels,
    )


def _check(params: TimelineParams, gpus: int) -> None:
    interval, seconds = params.interval_seconds, params.for_seconds
    if seconds is None:
        return
    if not 0 < seconds <= MOST_SECONDS:
        raise InvalidParameter(f"--for {seconds:g} s: it must be more than 0 s, and at most 30d")
    if seconds / interval * (1 + gpus) > MOST_ROWS:
        least = math.ceil(seconds * (1 + gpus) / MOST_ROWS * 10) / 10
        raise InvalidParameter(
            f"{round(seconds / interval):,} samples are more than one timeline holds; take --interval {least:g} or more"
        )
