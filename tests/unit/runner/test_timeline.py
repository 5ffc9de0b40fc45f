"""A timeline as a run: hours in a moment, and nothing that was seen is lost."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from pinscope.errors import BadInput, PinScopeError, StoreFailed
from pinscope.experiments.registry import read_run
from pinscope.live.timeline.reading import TimelineParams
from pinscope.probes.process import current_process
from pinscope.records.registration import ProbeState
from pinscope.records.run import Progress, Run
from pinscope.records.snapshot import Snapshot, Unreadable
from pinscope.runner import timeline
from pinscope.runner.jobs import reconcile
from pinscope.runner.timeline import Pace, Recorded, TimelineRecorder, prepare_timeline
from pinscope.store.bundle import read_bundle
from pinscope.store.safe_writer import FLUSH_SECONDS
from pinscope.store.store import Store
from tests.data.synthetic_snapshot import GIB, TAKEN_AT, holder, snapshot
from tests.data.waiting import until
from tests.unit.store.runs import environment


@dataclass
class Hurry:
    """A clock that moves on only while somebody sleeps by it, and a processor that works a tenth of the time."""

    now: float = 1000.0
    sleeps: list[Callable[[float], None]] = field(default_factory=list)
    """Called with the time at each sleep."""

    def pace(self) -> Pace:
        return Pace(clock=lambda: self.now, sleep=self._sleep, cpu=lambda: (self.now - 1000.0) / 10)

    def _sleep(self, seconds: float) -> None:
        assert seconds > 0
        self.now += seconds
        for call in self.sleeps:
            call(self.now)


@pytest.fixture
def hurry() -> Hurry:
    return Hurry()


def new(seconds: float | None = 10.0, interval: float = 1.0, **changes: Any) -> Run:
    params = TimelineParams(interval_seconds=interval, for_seconds=seconds, **changes)
    return prepare_timeline(params, environment())


def quiet() -> Snapshot:
    return snapshot(devices=())


def recorder(store: Store, hurry: Hurry, take: Callable[[], Snapshot] = quiet, **changes: Any) -> TimelineRecorder:
    usual: dict[str, Any] = {"asked_to_stop": lambda: False, "show": lambda progress: None, "pace": hurry.pace()}
    return TimelineRecorder(store, take, **(usual | changes))


def rows_of(recorded: Recorded, kind: str) -> list[dict[str, Any]]:
    return [row for row in recorded.rows if row["kind"] == kind]


def times(recorded: Recorded, kind: str = "host") -> list[float]:
    return [round(row["elapsed_seconds"], 6) for row in rows_of(recorded, kind)]


def test_samples_stand_at_even_steps_from_the_beginning_to_the_end(store: Store, hurry: Hurry) -> None:
    recorded = recorder(store, hurry).record(new(seconds=10.0, interval=2.5))
    assert times(recorded) == [0.0, 2.5, 5.0, 7.5, 10.0]
    assert [row["repeat"] for row in rows_of(recorded, "host")] == [0, 1, 2, 3, 4]
    run = store.run(recorded.run.id)
    assert run == recorded.run
    assert run.process == current_process()
    assert (run.experiment, run.lab, run.status, run.error) == ("timeline", "live", "done", None)
    assert (run.progress.fraction, run.observations) == (1.0, len(recorded.rows))
    assert run.params == {"interval_seconds": 2.5, "for_seconds": 10.0, "probe": False}
    assert run.finished_at is not None
    assert store.observations(run.id) == recorded.rows


def test_a_time_that_is_no_multiple_of_the_interval_ends_with_a_sample(store: Store, hurry: Hurry) -> None:
    assert times(recorder(store, hurry).record(new(seconds=5.0, interval=2.0))) == [0.0, 2.0, 4.0, 5.0]
    assert times(recorder(store, hurry).record(new(seconds=5.0, interval=60.0))) == [0.0, 5.0]


def test_an_hour_is_recorded_whole_and_leaves_no_thread(store: Store, hurry: Hurry) -> None:
    before = set(threading.enumerate())
    recorded = recorder(store, hurry, failing_at(*range(3, 50))).record(new(seconds=3600.0))
    assert times(recorded) == [float(second) for second in range(3601) if not 3 <= second < 50]
    assert len(rows_of(recorded, "missed")) == 47
    assert len(recorded.run.notes) == 1
    assert rows_of(recorded, "host")[-1]["watch_cpu_seconds"] == pytest.approx(360.0)
    assert set(threading.enumerate()) == before


@pytest.mark.parametrize(
    ("took", "steps"),
    [
        ((2.4,) * 5, [0.0, 3.4, 6.4, 9.4, 12.4]),  # it leaves steps out instead of falling behind
        ((5.0, *(0.0,) * 12), [float(step) for step in range(13)]),  # time begins when the driver has answered
    ],
)
def test_a_slow_reader_keeps_the_steps(took: Sequence[float], steps: list[float], store: Store, hurry: Hurry) -> None:
    waits = iter(took)

    def slow() -> Snapshot:
        hurry.now += next(waits)
        return quiet()

    assert times(recorder(store, hurry, slow).record(new(seconds=12.0))) == steps


def test_each_sample_is_in_the_database_while_the_next_one_is_awaited(store: Store, hurry: Hurry) -> None:
    taken = 0
    run = new(seconds=5.0)

    def take() -> Snapshot:
        nonlocal taken
        # Time is in a hurry here, and the writer is not.
        until(lambda: store.run(run.id).observations >= taken, seconds=20 * FLUSH_SECONDS)
        taken += 1
        return snapshot(devices=(), holders=())

    recorder(store, hurry, take).record(run)
    assert taken == 6


def test_without_an_end_it_goes_on_until_somebody_asks(store: Store, hurry: Hurry) -> None:
    recorded = recorder(store, hurry, asked_to_stop=lambda: hurry.now > 1060.05).record(new(seconds=None))
    assert times(recorded)[-1] == 60.0
    assert recorded.run.status == "done"
    assert "for_seconds" not in recorded.run.params


def test_a_wish_to_stop_is_noticed_at_once_between_rare_samples(store: Store, hurry: Hurry) -> None:
    recorder(store, hurry, asked_to_stop=lambda: hurry.now > 1007.0).record(new(seconds=None, interval=600.0))
    assert hurry.now < 1007.3


def test_who_cancels_through_the_database_ends_it(store: Store, hurry: Hurry) -> None:
    run = new(seconds=None)

    def cancel(now: float) -> None:
        if now > 1005 and store.run(run.id).status == "running":
            store.update(run.id, status="cancelled")

    hurry.sleeps.append(cancel)
    recorded = recorder(store, hurry).record(run)
    assert recorded.run.status == "cancelled"
    assert times(recorded)[-1] >= 4.0  # it learns of it with what it stores next; time is in a hurry here


def test_stopped_before_its_first_sample_it_is_cancelled(store: Store, hurry: Hurry) -> None:
    recorded = recorder(store, hurry, asked_to_stop=lambda: True).record(new())
    assert (recorded.run.status, recorded.rows) == ("cancelled", [])


def test_progress_is_told_and_stored(store: Store, hurry: Hurry) -> None:
    progresses: list[Progress] = []
    recorder(store, hurry, show=progresses.append).record(new(seconds=4.0))
    assert [round(progress.fraction, 2) for progress in progresses] == [0.0, 0.25, 0.5, 0.75, 1.0]
    assert progresses[0].message == "0 s, 1 sample, 16 GiB pinned"
    assert progresses[-1].message == "4.00 s, 5 samples, 16 GiB pinned"


def test_it_goes_on_though_nobody_can_be_shown_progress(store: Store, hurry: Hurry) -> None:
    def gone(progress: Progress) -> None:
        raise BrokenPipeError

    recorded = recorder(store, hurry, show=gone).record(new(seconds=4.0))
    assert (recorded.run.status, times(recorded)[-1]) == ("done", 4.0)


# A reader that fails


def failing_at(*calls: int, error: Exception | None = None) -> Callable[[], Snapshot]:
    count = -1

    def take() -> Snapshot:
        nonlocal count
        count += 1
        if count in calls:
            raise error or OSError(24, "Too many open files", "/proc/stat")
        return quiet()

    return take


def test_a_reader_that_raises_once_leaves_a_note_and_a_row_and_goes_on(store: Store, hurry: Hurry) -> None:
    recorded = recorder(store, hurry, failing_at(3)).record(new(seconds=6.0))
    assert recorded.run.status == "done"
    assert times(recorded) == [0.0, 1.0, 2.0, 4.0, 5.0, 6.0]
    assert times(recorded, "missed") == [3.0]
    reason = "OSError: [Errno 24] Too many open files: '/proc/stat'"
    assert rows_of(recorded, "missed")[0]["reason"] == reason
    assert recorded.run.notes == (f"Samples are missing: {reason}",)
    assert "samples-missing" in [finding.rule for finding in read_run(recorded.run, recorded.rows).findings]


def test_different_failures_do_not_fill_the_notes(store: Store, hurry: Hurry) -> None:
    count = 0

    def take() -> Snapshot:
        nonlocal count
        count += 1
        raise ValueError(f"number {count}")

    recorded = recorder(store, hurry, take).record(new(seconds=20.0))
    assert len(recorded.run.notes) == timeline.MOST_FAILURES_NOTED
    assert (recorded.run.status, recorded.run.error) == ("failed", "no sample could be taken: ValueError: number 1")


def test_a_figure_that_no_database_holds_costs_its_sample_only(store: Store, hurry: Hurry) -> None:
    before, after = (snapshot(devices=(), holders=(holder(host_alloc_bytes=size * GIB),)) for size in (1, 2))
    bad = snapshot(devices=(), holders=(holder(host_alloc_bytes=2 * GIB, registered_bytes=2**63),))
    turns = iter([before, bad, after, after])
    recorded = recorder(store, hurry, lambda: next(turns)).record(new(seconds=3.0))
    assert recorded.run.status == "done"
    assert times(recorded) == [0.0, 2.0, 3.0]
    (missed,) = rows_of(recorded, "missed")
    assert "more than 64 bits" in missed["reason"]
    # What the bad one would have told is told by the next.
    assert [row["host_alloc_bytes"] for row in rows_of(recorded, "holder")] == [GIB, 2 * GIB]
    assert [row["elapsed_seconds"] for row in rows_of(recorded, "event")] == [2.0]


def test_what_cannot_be_looked_at_is_noted_once_though_its_numbers_change(store: Store, hurry: Hurry) -> None:
    count = 0

    def take() -> Snapshot:
        nonlocal count
        count += 1
        gaps = (
            Unreadable(what=f"Open files of {count} of {300 + count} processes", reason="they belong to other users"),
            Unreadable(what="GPUs", reason=f"NVML has not answered for {count} s"),
        )
        return snapshot(devices=(), unreadable=gaps)

    recorded = recorder(store, hurry, take).record(new(seconds=10.0))
    assert recorded.run.notes == ("Open files of 1 of 301 processes could not be read: they belong to other users.",)
    assert rows_of(recorded, "host")[4]["missing"].endswith("devices: NVML has not answered for 5 s")


def test_a_probe_that_lost_calls_is_noted_once(store: Store, hurry: Hurry) -> None:
    lost = iter([0, 0, 12, 24, 36])

    def take() -> Snapshot:
        return snapshot(devices=(), probe=ProbeState(since=TAKEN_AT, lost_events=next(lost)))

    recorded = recorder(store, hurry, take).record(new(seconds=4.0))
    assert recorded.run.notes == (
        "The probe lost calls that came too fast: registered memory is an estimate from then on.",
    )


# The file


def test_the_file_is_a_bundle_of_the_run_as_the_database_has_it(store: Store, hurry: Hurry, tmp_path: Path) -> None:
    file = tmp_path / "t.pinscope"
    recorded = recorder(store, hurry, output=file).record(new())
    assert read_bundle(file) == [(recorded.run, recorded.rows)]
    assert store.import_runs(read_bundle(file)).skipped == (recorded.run.id,)


def test_the_file_is_written_also_if_sampling_broke_off(
    store: Store, hurry: Hurry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "t.pinscope"

    def broken(now: float) -> None:
        if now > 1005:
            raise RuntimeError("something nobody thought of")

    hurry.sleeps.append(broken)
    recorded = recorder(store, hurry, output=file).record(new())
    assert (recorded.run.status, recorded.run.error) == (
        "failed", "unexpected RuntimeError: something nobody thought of",
    )  # fmt: skip
    assert times(recorded)[-1] >= 4.0
    assert read_bundle(file) == [(recorded.run, recorded.rows)]


def test_a_file_that_appeared_meanwhile_stays_and_the_run_is_kept(store: Store, hurry: Hurry, tmp_path: Path) -> None:
    file = tmp_path / "t.pinscope"
    hurry.sleeps.append(lambda now: None if file.exists() else file.write_text("mine") and None)
    run = new()
    with pytest.raises(PinScopeError, match=f"is there already.*pinscope export {run.id}") as caught:
        recorder(store, hurry, output=file).record(run)
    assert caught.value.exit_code == 1
    assert file.read_text() == "mine"
    assert store.run(run.id).status == "done"


class Troubled(Store):
    """A store that can be told to fail."""

    failing = False

    def append(self, *arguments: Any, **named: Any) -> int:
        if self.failing:
            raise StoreFailed("database somewhere: disk full")
        return super().append(*arguments, **named)

    def update(self, *arguments: Any, **named: Any) -> Run:
        if self.failing:
            raise StoreFailed("database somewhere: disk full")
        return super().update(*arguments, **named)


def test_a_database_that_fails_for_a_while_loses_nothing(hurry: Hurry) -> None:
    with Troubled() as store:
        hurry.sleeps.append(lambda now: setattr(store, "failing", 1003 < now < 1006))
        recorded = recorder(store, hurry).record(new())
        assert times(recorded) == [float(second) for second in range(11)]
        assert (recorded.run.status, recorded.saved) == ("done", None)


def test_a_database_that_never_recovers_leaves_the_whole_run_in_the_file(hurry: Hurry, tmp_path: Path) -> None:
    with Troubled() as store:
        hurry.sleeps.append(lambda now: setattr(store, "failing", now > 1003))
        recorded = recorder(store, hurry, output=tmp_path / "t.pinscope").record(new())
        store.failing = False
        assert recorded.saved is not None
        reconcile(store)
        assert not recorded.saved.exists()
        kept = store.run(recorded.run.id), list(store.observations(recorded.run.id))
    for run, rows in (kept, *read_bundle(tmp_path / "t.pinscope")):
        assert (run.status, len([row for row in rows if row["kind"] == "host"])) == ("done", 11)


def test_a_run_that_cannot_be_stored_is_not_begun(hurry: Hurry, tmp_path: Path) -> None:
    with Store() as store:
        run = new()
        store.add(run)
        with pytest.raises(BadInput, match="is in the database already"):
            recorder(store, hurry, take=pytest.fail).record(run)


# What may be asked for


def test_a_timeline_ends_by_itself_where_a_bundle_is_full(
    store: Store, hurry: Hurry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(timeline, "MOST_ROWS", 50)
    count = 0

    def busy() -> Snapshot:
        nonlocal count
        count += 1
        return snapshot(devices=(), holders=(holder(host_alloc_bytes=count * GIB),))

    recorded = recorder(store, hurry, busy).record(new(seconds=None))
    assert recorded.full_after_seconds == times(recorded)[-1]
    assert recorder(store, hurry).record(new(seconds=3.0)).full_after_seconds is None
    assert 50 <= len(recorded.rows) < 53
    assert recorded.run.status == "done"
    assert recorded.run.notes == ("The recording ended because one timeline holds at most 50 rows.",)
