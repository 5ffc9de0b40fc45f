"""The command ``pinscope`` as people run it: a real database, real runs on the host model.

A command line is carried out in this process, which costs a tenth of a new one. Processes of their own have those that
meet signals, pipes or terminals, and one that stands for all.
"""

from __future__ import annotations

import csv
import io
import json
import os
import re
import signal
import sqlite3
import subprocess
import sys
import time
from contextlib import closing, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from pinscope.cli.main import main
from pinscope.experiments.registry import EXPERIMENTS
from pinscope.probes.host_memory import read_nodes
from pinscope.store.bundle import read_bundle
from pinscope.store.new_file import own_folder
from pinscope.store.store import Store
from tests.data.waiting import until
from tests.integration.processes import drawn_in_a_terminal, variables
from tests.unit.store.runs import new_run

SMALL = ("--set", "sizes=64KiB,256KiB", "--set", "repeats=8", "--set", "precision=0.5")
LEAST = (*SMALL, "--set", "memory=pinned", "--set", "directions=h2d")
"""Of one combination."""
FEWEST = (
    "sizes=64KiB repeats=8 precision=0.5 directions=h2d memory=pinned backings=4k chunk=256KiB chunks=4 cap=64MiB "
    "step_seconds=0.05 strategies=one_owner total=32MiB file=16MiB"
)
"""Of every experiment."""
ENDLESS = ("--set", "sizes=64KiB", "--set", "repeats=10000", "--set", "precision=1e-9", "--set", "time_limit=60")
"""Minutes if nobody stops it."""

REPORTS = """
import sys
from pinscope.cli.main import main
sys.exit(max(main(["report", sys.argv[1], "-o", file]) for file in sys.argv[2:]))
"""

Done = subprocess.CompletedProcess[str]


def pinscope(*arguments: str, **changes: str) -> Done:
    """One command to its end, without a terminal."""
    out, errors = io.StringIO(), io.StringIO()
    with pytest.MonkeyPatch.context() as patch, Path(os.devnull).open() as nothing:
        for name, value in changes.items():
            patch.setenv(name, value)
        patch.setattr(sys, "stdin", nothing)
        with redirect_stdout(out), redirect_stderr(errors):
            code = main(arguments)
    return Done(arguments, code, out.getvalue(), errors.getvalue())


def in_own_process(*command: str, **changes: str) -> Done:
    """The same in a process of its own, with another hash of each string."""
    return subprocess.run(
        [sys.executable, *command], env=variables(**changes), stdin=subprocess.DEVNULL,
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip


def running(experiment: str, *arguments: str, **changes: str) -> subprocess.Popen[str]:
    """A run on the host model that goes on."""
    return subprocess.Popen(
        [sys.executable, "-m", "pinscope", "run", experiment, "--lab", "host", *arguments], env=variables(**changes),
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def document(done: Done) -> Any:
    """The one JSON document on stdout of a command that ended well."""
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def fails(done: Done, code: int) -> str:
    """The one line of a command that was refused."""
    assert done.returncode == code, done.stderr
    assert done.stdout == ""
    assert "Traceback" not in done.stderr
    lines = done.stderr.splitlines()
    assert len(lines) == 1, done.stderr
    assert lines[0].startswith("pinscope: ")
    return lines[0].removeprefix("pinscope: ")


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, dict[str, Any]]:
    """A database with one run of the host model, and what ``run --json`` printed of it."""
    database = f"sqlite:///{tmp_path_factory.mktemp('measured') / 'runs.db'}"
    words = f"-m pinscope run bandwidth --lab host --quick --json {' '.join(SMALL)} --set directions=h2d --name mine"
    done = in_own_process(*words.split(), PINSCOPE_DATABASE=database)
    return database, document(done)


def test_a_run_bound_to_a_numa_node_says_so_and_each_row_names_it() -> None:
    node = max(node.number for node in read_nodes().value or () if node.memory_bytes)
    printed = document(
        pinscope("run", "bandwidth", "--lab", "host", "--quick", "--json", *LEAST, "--set", f"node={node}")
    )
    assert printed["run"]["notes"] == [f"Host buffers and the threads that copy were bound to NUMA node {node}."]
    assert {(row["host_node"], row["host_nodes"]) for row in printed["observations"]} == {(node, None)}
    assert "host_node" in printed["run"]["method"]


@pytest.fixture
def run_id(measured: tuple[str, dict[str, Any]], monkeypatch: pytest.MonkeyPatch) -> str:
    """The id of that run, in the database that the test's commands use."""
    monkeypatch.setenv("PINSCOPE_DATABASE", measured[0])
    return str(measured[1]["run"]["id"])


def test_run_prints_one_document_with_every_observation(measured: tuple[str, dict[str, Any]]) -> None:
    database, printed = measured
    run = printed["run"]
    assert (printed["format"], run["experiment"], run["lab"], run["status"]) == (1, "bandwidth", "host", "done")
    assert run["params"]["sizes"] == [2**16, 2**18]
    rows = printed["observations"]
    assert len(rows) == run["observations"]
    with Store(database) as store:
        assert rows == store.observations(run["id"])
    combinations = {(row["memory"], row["direction"], row["bytes"]) for row in rows if not row["warmup"]}
    assert len(combinations) == 3 * 2
    for row in rows:
        assert row["wrong_words"] == 0
        assert 0 < row["issue_seconds"] <= row["wall_seconds"]
        assert row["device_seconds"] > 0
    assert {quantity["name"] for quantity in run["headline"]} >= {"Pinned to the device, 256 KiB"}


def test_the_run_is_in_the_list_and_can_be_shown(run_id: str, measured: tuple[str, dict[str, Any]]) -> None:
    listed = document(pinscope("runs", "list", "--json"))
    mine = listed[0]
    assert (mine["id"], mine["experiment"], mine["lab"], mine["status"]) == (run_id, "bandwidth", "host", "done")
    assert mine["recording"] is False
    assert (mine["name"], mine["figure"]) == ("mine", measured[1]["run"]["headline"][0])
    assert all(one["recording"] for one in listed[1:])
    assert document(pinscope("runs", "show", run_id, "--json")) == measured[1]
    shown = pinscope("runs", "show", "mine").stdout
    assert run_id in shown
    assert "host model (no GPU)" in shown
    assert "Every combination" in shown


def test_a_bundle_carries_the_run_into_an_empty_database_and_every_report_is_the_same(
    run_id: str, tmp_path: Path, measured: tuple[str, dict[str, Any]]
) -> None:
    bundle, elsewhere = tmp_path / "one.pinscope", f"sqlite:///{tmp_path / 'empty.db'}"
    exported = document(pinscope("export", run_id, "-o", str(bundle), "--json"))
    assert exported == {"file": str(bundle), "bytes": bundle.stat().st_size, "runs": [run_id]}
    imported = document(pinscope("import", str(bundle), "--json", PINSCOPE_DATABASE=elsewhere))
    assert imported == {"added": [run_id], "completed": [], "skipped": []}
    assert document(pinscope("import", str(bundle), "--json"))["skipped"] == [run_id]
    assert document(pinscope("runs", "show", run_id, "--json", PINSCOPE_DATABASE=elsewhere)) == measured[1]
    suffixes = (".html", ".md", ".csv", ".parquet", ".json")  # here in this process, there in another
    theirs = [str(tmp_path / f"there{suffix}") for suffix in suffixes]
    assert in_own_process("-c", REPORTS, run_id, *theirs, PINSCOPE_DATABASE=elsewhere).returncode == 0
    for suffix in suffixes:
        here = tmp_path / f"here{suffix}"
        assert main(["report", run_id, "-o", str(here)]) == 0
        assert here.read_bytes() == here.with_stem("there").read_bytes(), suffix
    rows = measured[1]["observations"]
    assert json.loads((tmp_path / "there.json").read_text()) == measured[1]
    frame = pd.read_parquet(tmp_path / "there.parquet")
    assert frame["device_seconds"].tolist() == [row["device_seconds"] for row in rows]
    with (tmp_path / "there.csv").open(newline="") as file:
        assert [float(row["device_seconds"]) for row in csv.DictReader(file)] == [row["device_seconds"] for row in rows]
    assert run_id in (tmp_path / "there.md").read_text()
    html = (tmp_path / "there.html").read_text()
    assert "host model (no GPU)" in html
    assert not re.search(r"(?:src|href)=[\"']?(?:https?:)?//", html)


@pytest.mark.release  # tests/unit/experiments runs each by itself
def test_run_all_prints_one_document_of_all_experiments() -> None:
    done = pinscope(
        "run", "all", "--lab", "host", "--quick", "--json",
        *(part for setting in FEWEST.split() for part in ("--set", setting)),
    )  # fmt: skip
    printed = document(done)
    assert printed["format"] == 1
    meant = [entry.experiment.name for entry in EXPERIMENTS if entry.experiment.labs["host"] is None]
    assert [one["run"]["experiment"] for one in printed["runs"]] == meant
    assert all(one["run"]["status"] == "done" and one["observations"] for one in printed["runs"])


def test_run_tells_people_headline_run_and_next_command() -> None:
    done = pinscope("run", "bandwidth", "--quick", *LEAST, CUDA_VISIBLE_DEVICES="")
    assert done.returncode == 0
    assert "Pinned to the device, 256 KiB" in done.stdout
    assert (found := re.search(r"pinscope report (\S+) -o report.html", done.stdout))
    assert f"run {found[1]}" in done.stderr
    assert "\x1b" not in done.stdout + done.stderr


def test_deleting_asks_first_and_deletes_one_run(run_id: str, tmp_path: Path) -> None:
    bundle, mine = tmp_path / "one.pinscope", f"sqlite:///{tmp_path / 'mine.db'}"
    main(["export", run_id, "-o", str(bundle)])
    with Store(mine) as store:
        store.import_runs(read_bundle(bundle))
    assert "--yes" in fails(pinscope("runs", "delete", run_id, PINSCOPE_DATABASE=mine), 2)
    deleted = pinscope("runs", "delete", run_id, "--yes", "--json", PINSCOPE_DATABASE=mine)
    assert document(deleted) == {"deleted": run_id}
    assert "no run" in fails(pinscope("runs", "delete", run_id, "--yes", PINSCOPE_DATABASE=mine), 2)


def listed(*options: str, **changes: str) -> list[str]:
    return [run["id"] for run in document(pinscope("runs", "list", "--json", *options, **changes))]


def test_the_list_is_filtered_and_cut_after_the_newest(tmp_path: Path) -> None:
    mine = {"PINSCOPE_DATABASE": f"sqlite:///{tmp_path / 'mine.db'}"}
    with Store(mine["PINSCOPE_DATABASE"]) as store:
        old, new = store.add(new_run(status="done")), store.add(new_run(status="failed"))
    assert listed("--no-recordings", **mine) == [new.id, old.id]
    assert listed("--status", "failed", **mine) == [new.id]
    assert listed("--experiment", "overlap", "--no-recordings", **mine) == []
    assert listed("--limit", "1", **mine) == [new.id]
    everything = document(pinscope("runs", "list", "--json", **mine))
    assert listed("--lab", "live", **mine) == [run["id"] for run in everything if run["lab"] == "live"] != []
    assert listed("--lab", "host", **mine) == [new.id, old.id]
    none = pinscope("runs", "list", "--experiment", "overlap", "--no-recordings", **mine)
    assert (none.returncode, none.stdout) == (0, "No run matches.\n")


@pytest.mark.parametrize(("status", "damage"), [("done", "5"), ("running", "{broken")])
def test_a_run_that_cannot_be_read_is_removed_as_the_error_says(tmp_path: Path, status: str, damage: str) -> None:
    file = tmp_path / "runs.db"
    with Store(f"sqlite:///{file}") as store:
        good, bad = store.add(new_run(status="done")), store.add(new_run(status=status))
    with closing(sqlite3.connect(file)) as connection, connection:
        connection.execute("UPDATE runs SET document = ? WHERE id = ?", (damage, bad.id))
    database = {"PINSCOPE_DATABASE": f"sqlite:///{file}"}
    advice = f"`pinscope runs delete {bad.id}` removes it"
    listed = pinscope("runs", "list", **database)
    assert listed.returncode == 0
    assert listed.stderr.rstrip().endswith(advice)
    assert good.id in listed.stdout
    assert document(pinscope("runs", "delete", bad.id, "--yes", "--json", **database)) == {"deleted": bad.id}
    assert next(run["id"] for run in document(pinscope("runs", "list", "--json", **database))) == good.id


def test_doctor_tells_what_works_here_and_why_the_rest_does_not() -> None:
    printed = document(pinscope("doctor", "--json"))
    assert set(printed) == {"format", "environment", "capabilities", "findings", "database"}
    able = {one["name"]: one for one in printed["capabilities"]}
    assert all(one["works"] or one["reason"] for one in able.values())
    text = pinscope("doctor")
    assert text.returncode == 0
    assert all(one["title"] in text.stdout for one in able.values())
    assert "\x1b" not in text.stdout


@pytest.mark.parametrize(
    ("how", "code", "status"),
    [("by a signal", 130, "cancelled"), ("from another terminal", 130, "cancelled"), ("its child", 1, "interrupted")],
)
def test_a_run_that_is_ended_says_so_and_keeps_what_it_measured(how: str, code: int, status: str) -> None:
    with running("bandwidth", "--json", *ENDLESS) as process, Store() as store:
        until(lambda: any(run.observations > 20 for run in store.runs(recordings=False)), process)
        run = store.runs(recordings=False)[0]
        if how == "by a signal":
            process.send_signal(signal.SIGTERM)
        elif how == "from another terminal":  # the beginning of its id will do
            answer = document(pinscope("runs", "cancel", run.id[:-2], "--json"))
            assert answer == {"cancelled": run.id, "status": "cancelled"}
        else:
            assert run.process is not None
            os.kill(run.process.pid, signal.SIGKILL)
        out, errors = process.communicate(timeout=30)
        assert process.returncode == code
        printed = json.loads(out)
        assert printed["run"]["status"] == store.run(run.id).status == status
        assert printed["observations"] == store.observations(run.id)
        assert len(printed["observations"]) > 20
    assert "Traceback" not in errors
    assert f"run {run.id} was {status}" in errors
    if status == "cancelled":
        assert fails(pinscope("runs", "cancel", run.id), 2) == f"run {run.id} is not running; it is cancelled"


_LATE = """
import os, signal, sys
from pinscope.cli import entry

class Late:
    def __del__(self):
        os.kill(os.getpid(), signal.SIGINT)

late = Late()
sys.argv = ["pinscope", "--version"]
sys.exit(entry.main())
"""
"""The last object goes when Python takes its modules apart, after it has given all signals their default again."""


def test_ctrl_c_after_all_is_done_does_not_change_the_exit_code() -> None:
    command = [sys.executable, "-c", _LATE]
    done = subprocess.run(
        command, env=variables(), stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("pinscope ")


def test_cancelling_stops_the_experiments_that_would_follow() -> None:
    # Every experiment takes 1000 repeats, which last for seconds.
    long = [text.replace("10000", "1000") for text in ENDLESS]
    with running("all", *long) as process, Store() as store:
        until(lambda: any(run.observations for run in store.runs(recordings=False)), process)
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=30)
        assert process.returncode == 130
        assert [run.experiment for run in store.runs(recordings=False)] == ["bandwidth"]


@pytest.mark.parametrize("stopped", [False, pytest.param(True, marks=pytest.mark.release)])
def test_a_run_whose_database_is_deleted_goes_on_and_is_saved(tmp_path: Path, stopped: bool) -> None:
    database = tmp_path / "db" / "runs.db"
    briefly = (*ENDLESS[:-1], "time_limit=1", "--set", "memory=pinned", "--set", "directions=h2d")
    settings = ENDLESS if stopped else briefly
    process = running("bandwidth", "--quick", *settings, PINSCOPE_DATABASE=f"sqlite:///{database}")
    with Store(f"sqlite:///{database}") as store:
        until(lambda: any(run.observations > 5 for run in store.runs(recordings=False)), process)
        (run,) = store.runs(recordings=False)
    for left in database.parent.iterdir():
        left.unlink()
    time.sleep(0.5)
    if stopped:
        process.send_signal(signal.SIGINT)
    said = process.communicate(timeout=60)[1]
    assert process.returncode == (130 if stopped else 1), said
    (file,) = own_folder(database.parent).iterdir()
    assert str(file) in said
    shown = document(pinscope("runs", "show", run.id, "--json", PINSCOPE_DATABASE=f"sqlite:///{database}"))
    assert not file.exists()
    assert shown["run"]["status"] == ("cancelled" if stopped else "done")
    assert len(shown["observations"]) > run.observations


def test_a_reader_that_goes_away_is_no_error(run_id: str) -> None:
    with subprocess.Popen(
        [sys.executable, "-m", "pinscope", "runs", "show", run_id, "--json"],
        env=variables(), stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    ) as process:  # fmt: skip
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait(30) == 0


RECORD = ("record", "--for", "0.3s", "--interval", "0.1")


@pytest.mark.parametrize(
    ("words", "progress"), [(("run", "bandwidth", "--lab", "host", "--quick", *LEAST), b"%"), (RECORD, b"samples")]
)
def test_a_terminal_gets_a_bar_and_a_pipe_gets_plain_lines(words: tuple[str, ...], progress: bytes) -> None:
    drawn, facts = drawn_in_a_terminal(*words)
    assert progress in drawn
    assert b"\x1b[" in drawn
    assert b"\x1b" not in facts


def test_help_answers_at_once_and_imports_no_heavy_library() -> None:
    script = (
        "import sys, time\nbegun = time.process_time()\nfrom pinscope.cli.main import main\n"
        "code = main(['--help'])\ntook = time.process_time() - begun\n"
        "heavy = {'streamlit', 'pandas', 'plotly', 'sqlalchemy', 'numpy', 'cupy', 'rich', 'pydantic'}\n"
        "print(code, sorted(heavy & set(sys.modules)), file=sys.stderr)\nprint(took, file=sys.stderr)"
    )
    fastest = float("inf")
    for _ in range(3):
        done = subprocess.run(
            [sys.executable, "-c", script], env=variables(), capture_output=True, text=True, timeout=30, check=True
        )
        what, took = done.stderr.splitlines()
        assert what == "0 []"
        fastest = min(fastest, float(took))
        if fastest < 0.5:
            break
    assert fastest < 0.5
