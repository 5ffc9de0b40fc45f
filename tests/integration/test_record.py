"""``pinscope record`` as people use it: real processes that hold real memory, real signals, a real database."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

from pinscope.cli.main import main
from pinscope.experiments.registry import read_run
from pinscope.live.source import snapshot
from pinscope.live.timeline.reading import TimelineParams
from pinscope.live.tracker import Tracker
from pinscope.records.run import Progress, Run
from pinscope.records.snapshot import Snapshot
from pinscope.runner.jobs import cancel, reconcile
from pinscope.runner.timeline import TimelineRecorder, prepare_timeline
from pinscope.store.bundle import read_bundle
from pinscope.store.store import Store
from tests.data.fake_driver import PROGRAM, Program, build, tracing
from tests.data.waiting import until
from tests.integration.processes import holder, in_the_background
from tests.unit.store.runs import environment

MIB = 2**20


def recording(*arguments: str, **changes: str) -> AbstractContextManager[subprocess.Popen[str]]:
    """A recording in a process of its own."""
    return in_the_background("record", *arguments, **changes)


def samples(store: Store) -> int:
    """Of the only run that was recorded here."""
    runs = store.runs(recordings=False)
    return sum(row["kind"] == "host" for row in store.observations(runs[0].id)) if runs else 0


def the_run(store: Store) -> Run:
    (run,) = store.runs(recordings=False)
    return run


def rows_of(rows: list[dict[str, Any]], kind: str, pid: int | None = None) -> list[dict[str, Any]]:
    return [row for row in rows if row["kind"] == kind and pid in (None, row.get("pid"))]


def test_what_a_program_locks_and_frees_is_in_the_timeline(tmp_path: Path) -> None:
    file = tmp_path / "t.pinscope"
    with holder() as (pid, tell), Store() as store:
        with recording("--interval", "0.2", "--pid", str(pid), "-o", str(file)) as process:
            until(lambda: samples(store) >= 2, process)
            tell(str(2 * MIB))
            until(lambda: len(rows_of(store.observations(the_run(store).id), "event")) >= 1, process)
            tell(str(MIB))
            until(lambda: len(rows_of(store.observations(the_run(store).id), "event")) >= 2, process)
            tell("free")
            until(lambda: len(rows_of(store.observations(the_run(store).id), "event")) >= 3, process)
            process.send_signal(signal.SIGINT)
            out, errors = process.communicate(timeout=30)
            assert process.returncode == 0, errors
        run = the_run(store)
        rows = store.observations(run.id)
    assert (run.status, run.error) == ("done", None)
    assert [(row["event"], row["what"], row["change_bytes"]) for row in rows_of(rows, "event")] == [
        ("appeared", "locked", 2 * MIB), ("grew", "locked", MIB), ("released", "locked", -3 * MIB),
    ]  # fmt: skip
    assert [row["locked_bytes"] for row in rows_of(rows, "holder", pid)] == [2 * MIB, 3 * MIB, 0]
    assert f"(pid {pid})" in out
    assert "3 MiB" in out
    assert read_bundle(file) == [(run, rows)]


@pytest.mark.xdist_group("tracefs")
def test_with_the_probe_registered_memory_is_in_the_timeline_of_its_process(tmp_path: Path) -> None:
    library = build(tmp_path)
    steps = [("register", 2 * MIB), ("register", 4 * MIB)]
    with tracing(), Tracker(libraries=[library]) as tracker, Program(library) as program, Store() as store:
        run = prepare_timeline(TimelineParams(interval_seconds=0.1, pids=(program.pid,), probe=True), environment())
        samples = 0

        def step(progress: Progress) -> None:
            """After a sample: another registration."""
            nonlocal samples
            samples += 1
            if steps:
                word, size = steps.pop()
                program.does(word, program.does("map", size), size, 0)

        def take() -> Snapshot:
            return snapshot(registrations=tracker.registered())

        recorded = TimelineRecorder(store, take, lambda: samples >= 4, step).record(run)
    assert recorded.run.status == "done"
    holders = rows_of(recorded.rows, "holder", program.pid)
    assert [row["registered_bytes"] for row in holders] == [4 * MIB, 6 * MIB]
    events = [row for row in rows_of(recorded.rows, "event") if row["what"] == "registered"]
    assert [(row["event"], row["change_bytes"]) for row in events] == [("appeared", 4 * MIB), ("grew", 2 * MIB)]
    peaks = read_run(recorded.run, recorded.rows).tables[0]
    assert ("Grew most", f"{PROGRAM} (pid {program.pid})") in [cells[:2] for cells in peaks.rows]


def test_a_terminal_that_closes_ends_it_well_however_rare_the_samples(tmp_path: Path) -> None:
    file = tmp_path / "t.pinscope"
    with Store() as store, recording("--interval", "3600", "-o", str(file), "--json") as process:
        until(lambda: samples(store) == 1, process)
        process.send_signal(signal.SIGHUP)
        out, errors = process.communicate(timeout=10)
        assert process.returncode == 0, errors
        run = the_run(store)
    assert run.status == "done"
    assert json.loads(out)["run"]["id"] == run.id
    ((bundled, _),) = read_bundle(file)
    assert bundled == run


def test_killed_it_leaves_an_interrupted_run_with_all_samples_so_far(tmp_path: Path) -> None:
    file = tmp_path / "t.pinscope"
    with Store() as store:
        with recording("--interval", "0.1", "-o", str(file)) as process:
            until(lambda: samples(store) >= 5, process)
            assert reconcile(store) == []
            os.kill(process.pid, signal.SIGKILL)
            process.wait(30)
        before = samples(store)
        run = the_run(store)
        assert run.status == "running"
        assert reconcile(store) == [run.id]
        assert the_run(store).status == "interrupted"
        assert samples(store) == before >= 5
        assert not file.exists()
        assert main(["export", run.id, "-o", str(file)]) == 0
        assert main(["runs", "show", run.id]) == 0
    ((_, rows),) = read_bundle(file)
    assert len(rows_of(rows, "host")) == before


def test_who_cancels_it_from_a_page_ends_it_well() -> None:
    with Store() as store, recording("--interval", "0.2") as process:
        until(lambda: samples(store) >= 2, process)
        cancel(store, the_run(store).id)
        assert process.wait(30) == 0
        assert the_run(store).status == "done"


def test_a_database_that_is_deleted_meanwhile_leaves_all_of_it_in_the_file(tmp_path: Path) -> None:
    database, file = tmp_path / "db" / "runs.db", tmp_path / "t.pinscope"
    url = f"sqlite:///{database}"
    with recording("--interval", "0.1", "-o", str(file), PINSCOPE_DATABASE=url) as process:
        until(database.exists, process)
        with Store(url) as store:
            until(lambda: samples(store) >= 5, process)
            before = samples(store)
        for left in database.parent.iterdir():
            left.unlink()
        time.sleep(0.3)
        process.send_signal(signal.SIGTERM)
        out, errors = process.communicate(timeout=30)
    assert process.returncode == 1, errors
    assert "the database accepts nothing more; the run was saved to " in errors
    assert "Pinned at the end" in out
    with Store(url) as store:
        reconcile(store)
        (run,) = store.runs(recordings=False)
        for kept, rows in ((run, store.observations(run.id)), *read_bundle(file)):
            assert kept.status == "done"
            assert len(rows_of(list(rows), "host")) > before
