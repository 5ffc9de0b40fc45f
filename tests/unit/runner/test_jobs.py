"""Which unfinished runs are taken for lost: those whose child has certainly ended, and no others."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from pinscope.probes.process import current_process, process_of
from pinscope.records.run import Progress, Run
from pinscope.runner import jobs
from pinscope.runner.jobs import SILENT_SECONDS, UNBORN_SECONDS, cancel, reconcile
from pinscope.store.store import Store
from tests.unit.store.runs import environment, new_run

ELSEWHERE = "pid:[1]"
"""The pid namespace of another container."""


def silent_for(seconds_ago: float) -> Progress:
    """Progress that the child stored so long ago."""
    return Progress(at=time.monotonic() - seconds_ago)


def unfinished(machine: str | None = None, process: dict[str, Any] | None = None, **changes: Any) -> Run:
    """A run of this process, or of one that differs from it in some fields."""
    changes["process"] = current_process().model_copy(update=process or {})
    if machine:
        changes["environment"] = environment().model_copy(update={"machine_id": machine})
    return new_run(**changes)


FAR = {"pid": 2**22, "namespace": ELSEWHERE}
LEFT_ALONE: dict[str, Callable[[], Run]] = {
    "alive": unfinished,
    "namespace not told": lambda: unfinished(process={"namespace": None}),
    "another container": lambda: unfinished(process=FAR, progress=silent_for(seconds_ago=SILENT_SECONDS / 2)),
    "said nothing yet": lambda: unfinished(process=FAR),
    "another machine": lambda: unfinished(process={"pid": 2**22, "boot_id": "another"}, machine="elsewhere"),
    "being started": lambda: new_run(created_at=datetime.now(UTC)),
}
MARKED: dict[str, Callable[[], Run]] = {
    "ended": lambda: unfinished(process={"pid": 2**22}),
    "pid used again": lambda: unfinished(process={"started": 1.0}),
    "silent in another container": lambda: unfinished(
        process={"namespace": ELSEWHERE}, progress=silent_for(seconds_ago=SILENT_SECONDS + 1)
    ),
    "restarted": lambda: unfinished(process={"boot_id": "before the restart"}),
    "never started": lambda: new_run(created_at=datetime.now(UTC) - timedelta(seconds=UNBORN_SECONDS + 1)),
    "clock set back": lambda: new_run(created_at=datetime.now(UTC) + timedelta(hours=1)),
}


@pytest.mark.parametrize("case", [*LEFT_ALONE, *MARKED])
def test_a_run_is_marked_where_its_child_is_gone_and_left_alone_where_it_may_still_measure(
    store: Store, case: str
) -> None:
    run = store.add((LEFT_ALONE | MARKED)[case]())
    assert reconcile(store) == ([run.id] if case in MARKED else [])
    assert store.run(run.id).status == ("interrupted" if case in MARKED else "running")


@pytest.mark.parametrize(
    "made",
    [
        lambda: unfinished(process={"pid": 2**22, "namespace": ELSEWHERE}, progress=silent_for(seconds_ago=1)),
        lambda: unfinished(process={"pid": 2**22, "boot_id": "another"}, machine="elsewhere"),
    ],
    ids=["another container", "another machine"],
)
def test_a_run_out_of_reach_can_be_cancelled_and_then_deleted(store: Store, made: Callable[[], Run]) -> None:
    run = made()
    store.add(run)
    cancel(store, run.id)
    assert store.run(run.id).status == "cancelled"
    store.delete(run.id)


def test_a_process_of_another_container_with_the_same_pid_is_not_signalled(store: Store) -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as bystander:
        run = unfinished(process={"pid": bystander.pid, "namespace": ELSEWHERE}, progress=silent_for(seconds_ago=1))
        store.add(run)
        cancel(store, run.id)
        assert bystander.poll() is None
        bystander.communicate(b"\n")
        assert bystander.returncode == 0


SLOW_TO_END = """
import signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: None)
print("ready", flush=True)
sys.stdin.readline()
"""


@pytest.mark.parametrize(("lab", "code"), [("live", 0), ("host", -signal.SIGKILL)])
def test_a_recording_is_given_the_time_it_takes_to_end_and_a_measurement_is_not(
    store: Store, monkeypatch: pytest.MonkeyPatch, lab: str, code: int
) -> None:
    monkeypatch.setattr(jobs, "GRACE_SECONDS", 0.2)
    with subprocess.Popen([sys.executable, "-c", SLOW_TO_END], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"ready\n"
        process = process_of(child.pid)
        assert process is not None
        run = new_run(lab=lab, experiment="timeline" if lab == "live" else "bandwidth", process=process)
        store.add(run)
        cancel(store, run.id)
        assert store.run(run.id).status == "cancelled"
        with suppress(BrokenPipeError):
            child.communicate(b"\n")
        assert child.returncode == code
