"""Runs in real child processes on the host model: they end in order, and whatever kills them loses nothing."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pinscope.errors import BadInput
from pinscope.experiments.registry import read_run
from pinscope.probes.process import is_alive, process_of
from pinscope.records.run import Run
from pinscope.runner import jobs
from pinscope.runner.jobs import Job, Request
from pinscope.store.store import Store
from tests.conftest import Outliving
from tests.data.standing_still import standing_still
from tests.data.waiting import until
from tests.unit.store.runs import environment

ROOT = Path(__file__).parents[2]
SHORT = {"sizes": "64KiB", "memory": "pageable,pinned", "directions": "h2d", "repeats": "8", "precision": "0.5"}
LONG = {**SHORT, "sizes": "64KiB,128KiB,256KiB", "repeats": "10000", "precision": "1e-9", "time_limit": "20"}
"""Two minutes if nobody stops it."""


@pytest.fixture
def start(store: Store) -> Iterator[Callable[..., Job]]:
    """Start bandwidth on the host model; what still runs when the test ends is killed."""
    started: list[Job] = []

    def begin(overrides: dict[str, str]) -> Job:
        started.append(jobs.start(store, prepared(overrides)))
        return started[-1]

    yield begin
    for job in started:
        if job.child.poll() is None:
            os.kill(job.child.pid, signal.SIGKILL)
        job.child.wait()


def prepared(overrides: dict[str, str]) -> Run:
    return jobs.prepare(Request("bandwidth", lab="host", quick=True, overrides=overrides), environment())


def shared_memory() -> set[str]:
    """Segments, but for those of the PostgreSQL servers of other tests."""
    return {path.name for path in Path("/dev/shm").iterdir() if not path.name.startswith("PostgreSQL.")}


def assert_whole(store: Store, run_id: str) -> None:
    """The observations are as many as the run says, each of them complete."""
    rows = store.observations(run_id)
    assert len(rows) == store.run(run_id).observations
    assert all(row["wrong_words"] == 0 and row["device_seconds"] > 0 for row in rows)


def test_a_run_completes_though_the_thread_that_started_it_ended(
    store: Store, start: Callable[..., Job], outliving: Outliving
) -> None:
    outliving.threads.add("pinscope-launcher_0")  # lives as long as this process, by design
    started: list[Job] = []
    page = threading.Thread(target=lambda: started.append(start(SHORT)))
    page.start()
    page.join()
    (job,) = started
    assert job.child.wait(60) == 0
    run = store.run(job.run_id)
    assert (run.status, run.error, run.progress.fraction) == ("done", None, 1.0)
    assert run.finished_at is not None
    assert run.finished_at > run.created_at
    assert {row["memory"] for row in store.observations(run.id)} == {"pageable", "pinned"}
    assert_whole(store, run.id)
    assert run.verdict
    assert run.verdict == read_run(run, store.observations(run.id)).verdict


def test_workers_have_loaded_before_the_first_run_and_those_that_get_none_end(store: Store) -> None:
    requests = [Request("bandwidth", "host"), Request("overlap", "host")]
    with jobs.workers_for(store, requests) as workers:
        measuring, other = workers
        assert measuring is not None
        assert other is not None
        assert {str(Path(f"/proc/{worker.pid}/fd/1").readlink()) for worker in (measuring, other)} == {os.devnull}
        job = jobs.start(store, prepared(SHORT), measuring)
        assert job.child.wait(60) == 0
        assert other.poll() is None
    assert other.poll() is not None
    assert store.run(job.run_id).status == "done"


def test_a_cancelled_run_keeps_what_it_measured(store: Store, start: Callable[..., Job]) -> None:
    job = start(LONG)
    until(lambda: store.run(job.run_id).observations > 5 and store.run(job.run_id).progress.message)
    seen = store.run(job.run_id)
    assert (seen.status, seen.process) == ("running", process_of(job.child.pid))
    assert 0 <= seen.progress.fraction < 1
    jobs.cancel(store, job.run_id)
    assert job.child.wait(10) == 130
    run = store.run(job.run_id)
    assert (run.status, run.error) == ("cancelled", None)
    assert run.finished_at is not None
    assert run.observations >= seen.observations
    assert_whole(store, run.id)
    with pytest.raises(BadInput, match="is not running; it is cancelled"):
        jobs.cancel(store, job.run_id)


def test_a_run_that_no_signal_reaches_is_cancelled_through_the_database(
    store: Store, start: Callable[..., Job]
) -> None:
    job = start(LONG)
    until(lambda: store.run(job.run_id).observations > 5)
    process = store.run(job.run_id).process
    assert process is not None
    store.update(job.run_id, process=process.model_copy(update={"namespace": "pid:[1]"}))  # as another container's
    jobs.cancel(store, job.run_id)
    assert job.child.wait(15) == 130
    assert store.run(job.run_id).status == "cancelled"
    assert_whole(store, job.run_id)


def test_memory_that_has_gone_while_the_run_waited_refuses_it(store: Store) -> None:
    run = prepared(SHORT)
    more = run.budget.model_copy(update={"pinned_bytes": 2**50})  # as much too much as if others had taken it since
    job = jobs.start(store, run.model_copy(update={"budget": more}))
    assert job.child.wait(30) == 3
    ended = store.run(run.id)
    assert (ended.status, ended.observations) == ("failed", 0)
    assert "is safe here" in (ended.error or "")


def test_a_killed_run_is_marked_and_the_next_one_starts(store: Store, start: Callable[..., Job]) -> None:
    """tests/faults kills at many more moments."""
    left_over = shared_memory()
    job = start(LONG)
    until(lambda: store.run(job.run_id).observations > 5)
    seen = store.run(job.run_id).observations
    os.kill(job.child.pid, signal.SIGKILL)
    assert job.child.wait(10) == -signal.SIGKILL
    assert jobs.reconcile(store) == [job.run_id]
    run = store.run(job.run_id)
    assert run.status == "interrupted"
    assert run.error is not None
    assert run.finished_at is not None
    assert run.observations >= seen
    assert_whole(store, run.id)
    assert jobs.reconcile(store) == []
    assert shared_memory() <= left_over
    again = start(SHORT)
    assert again.child.wait(60) == 0
    assert store.run(again.run_id).status == "done"


def test_a_child_does_not_survive_the_process_that_started_it(store: Store) -> None:
    left_over = shared_memory()
    program = """
import sys, time
from pinscope.probes.environment import capture_environment
from pinscope.runner import jobs
from pinscope.store.bundle import read_bundle
from pinscope.store.store import Store
store = Store()
overrides = dict(pair.split("=") for pair in sys.argv[1:])
request = jobs.Request("bandwidth", lab="host", quick=True, overrides=overrides)
job = jobs.start(store, jobs.prepare(request, capture_environment()))
print(job.run_id, job.child.pid, flush=True)
time.sleep(600)
"""
    parent = subprocess.Popen(
        [sys.executable, "-c", program, *(f"{name}={value}" for name, value in LONG.items())],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert parent.stdout is not None
    run_id, pid = parent.stdout.readline().split()
    parent.stdout.close()
    child = process_of(int(pid))
    assert child is not None
    until(lambda: store.run(run_id).observations > 20)
    os.kill(parent.pid, signal.SIGKILL)
    parent.wait()
    until(lambda: not is_alive(child), seconds=3)
    assert jobs.reconcile(store) == [run_id]
    assert store.run(run_id).status == "interrupted"
    assert store.run(run_id).observations > 20
    assert_whole(store, run_id)
    assert shared_memory() <= left_over


def test_runs_that_queue_say_for_what_can_be_cancelled_and_then_complete(
    store: Store, start: Callable[..., Job]
) -> None:
    first = start(LONG)
    until(lambda: store.run(first.run_id).observations > 0)
    with standing_still(store, first.run_id):
        second, third = start(SHORT), start(SHORT)
        for job in (second, third):
            until(lambda job=job: store.run(job.run_id).progress.waiting_for is not None)
            waiting = store.run(job.run_id)
            assert (waiting.status, waiting.observations) == ("running", 0)
        assert store.run(second.run_id).progress.waiting_for == f"run {first.run_id} (process {first.child.pid})"
        jobs.cancel(store, third.run_id)
        assert third.child.wait(10) == 130
    assert store.run(third.run_id).status == "cancelled"
    assert store.run(first.run_id).status == "running"
    jobs.cancel(store, first.run_id)
    assert second.child.wait(60) == 0
    done = store.run(second.run_id)
    assert (done.status, done.progress.waiting_for) == ("done", None)
    assert_whole(store, second.run_id)
