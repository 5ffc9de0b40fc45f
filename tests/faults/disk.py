"""What the campaigns do on a disk that fails, and what must be true of it afterwards, whatever failed when."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any
from unittest.mock import patch

from pinscope.runner.jobs import reconcile
from pinscope.store.bundle import read_bundle, write_bundle
from pinscope.store.new_file import own_folder
from pinscope.store.recordings import recorded_observations, recorded_runs
from pinscope.store.store import Store
from tests.faults.forked import Ended
from tests.unit.store.runs import new_run

KEPT, GOES, COMES = "run-kept", "run-goes", "run-comes"
"""Runs: one that nothing touches, one that is deleted, one that is imported."""
ROWS = 40
SETTINGS = ("sizes=4KiB", "memory=pinned", "directions=h2d", "repeats=8", "precision=0.5", "time_limit=0.05")
RECORD = ("record", "--for", "0.2", "--interval", "0.1", "--json")
RUN = ("run", "bandwidth", "--lab", "host", "--quick", "--json", *(w for one in SETTINGS for w in ("--set", one)))


@dataclass(frozen=True)
class Operation:
    """A command that changes files.

    Attributes:
        name: what it is called here.
        arguments: its command line.
        writes: the file that it makes in ``out``, if any.
    """

    name: str
    arguments: tuple[str, ...]
    writes: str | None = None


OPERATIONS = (
    Operation("import", ("import", "comes.pinscope")),
    Operation("delete", ("runs", "delete", GOES, "--yes")),
    Operation("export", ("export", KEPT, GOES, "-o", "out/e.pinscope"), "e.pinscope"),
    Operation("report", ("report", KEPT, "-o", "out/r.csv"), "r.csv"),
    Operation(
        "record", ("record", "--for", "0.2", "--interval", "0.1", "--json", "-o", "out/t.pinscope"), "t.pinscope"
    ),
    Operation("run", RUN),
)


@cache
def some_rows() -> list[dict[str, Any]]:
    """Observations of a bandwidth run."""
    run = next(run for run in recorded_runs() if run.experiment == "bandwidth")
    return list(recorded_observations(run.id)[:ROWS])


@contextmanager
def disks(folder: Path) -> Iterator[Callable[[], Path]]:
    """Gives what makes fresh disks, all alike, one after the other: a database with two runs, and a bundle."""
    template, used = folder / "template", folder / "disk"
    for name in ("db", "out", "tmp", "home"):
        (template / name).mkdir(parents=True)
    with Store(f"sqlite:///{template}/db/runs.db") as store:
        for run_id in (KEPT, GOES):
            store.add(new_run(run_id, status="done"))
            store.append(run_id, some_rows())
    write_bundle(template / "comes.pinscope", [(new_run(COMES, status="done"), some_rows())])

    def fresh() -> Path:
        shutil.rmtree(used, ignore_errors=True)
        shutil.copytree(template, used)
        return used

    yield fresh
    shutil.rmtree(used, ignore_errors=True)


def rescued(disk: Path) -> list[Path]:
    """Files of runs that a writer saved."""
    return sorted(path for place in ("db", "tmp", "home") for path in own_folder(disk / place).glob("unsaved-*"))


def complaints(disk: Path, operation: Operation, ended: Ended) -> Iterator[str]:
    """What is wrong with the disk after a command ended, or was killed; it does not fail any more."""
    yield from _damage(disk / "db" / "runs.db")
    with (
        Store(f"sqlite:///{disk}/db/runs.db") as store,
        patch.dict(os.environ, TMPDIR=f"{disk}/tmp", HOME=f"{disk}/home"),
    ):
        reconcile(store)
        yield from (f"the next command left {path}" for path in rescued(disk))
        runs = {run.id: run for run in store.runs(recordings=False)}
        rows = {run_id: list(store.observations(run_id)) for run_id in runs}
    if KEPT not in runs or list(rows[KEPT]) != some_rows():
        yield "a run that nothing touched has changed"
    if GOES in runs and list(rows[GOES]) != some_rows():
        yield "a run is half deleted"
    if GOES not in runs and operation.name != "delete":
        yield "a run is gone"
    if COMES in runs and (operation.name != "import" or list(rows[COMES]) != some_rows()):
        yield "a run is half imported"
    for run in runs.values():
        if run.status == "running":
            yield f"run {run.id} reads as running, but nothing runs"
    yield from _left(disk, operation, ended)
    if ended.code == 0:
        yield from _unkept(disk, operation, ended, rows)
    if operation.name in ("run", "record") and not ended.killed and ended.stdout:
        yield from _lost(disk, ended, rows)


def _damage(database: Path) -> Iterator[str]:
    with closing(sqlite3.connect(database)) as connection:
        found = connection.execute("PRAGMA integrity_check").fetchall()
        if found != [("ok",)]:
            yield f"the database is damaged: {found[:3]}"
        stored = "SELECT run_id, sequence, 1 AS rows FROM observations UNION ALL SELECT run_id, sequence, rows FROM "
        counted = "SELECT id, observations, COALESCE(SUM(rows), 0), COALESCE(MAX(sequence + rows), 0) FROM runs "
        for run_id, told, count, last in connection.execute(
            f"{counted} LEFT JOIN ({stored} observation_blocks) ON run_id = runs.id GROUP BY runs.id"
        ):
            if not told == count == last:
                yield f"rows of run {run_id} are no prefix: {count} up to {last}, the run says {told}"


def _left(disk: Path, operation: Operation, ended: Ended) -> Iterator[str]:
    """Files that nobody asked for, and files that are not whole."""
    for path in (disk / "out").iterdir():
        if path.name.startswith(".pinscope-") and ended.killed:
            continue  # the hidden name of a file that was not whole yet
        if path.name != operation.writes:
            yield f"left behind: out/{path.name}"
        elif path.suffix == ".pinscope":
            read_bundle(path)
        elif path.read_text().count("\n") != ROWS + 1:
            yield f"{path.name} is not whole"
    for place in ("tmp", "home"):
        for path in (disk / place).rglob("*"):
            # Empty, the user's own folder is left by a process that is killed.
            if path != own_folder(disk / place):
                yield f"left behind: {path.relative_to(disk)}"


def _unkept(disk: Path, operation: Operation, ended: Ended, rows: dict[str, Any]) -> Iterator[str]:
    """What a command that said that it succeeded has not done."""
    if operation.writes and not (disk / "out" / operation.writes).exists():
        yield "it succeeded, but its file is not there"
    if operation.name == "import" and COMES not in rows:
        yield "it succeeded, but the run is not there"
    if operation.name == "delete" and GOES in rows:
        yield "it succeeded, but the run is still there"
    if operation.name in ("run", "record") and json.loads(ended.stdout)["run"]["id"] not in rows:
        yield "it succeeded, but the run is not in the database"


def _lost(disk: Path, ended: Ended, rows: dict[str, Any]) -> Iterator[str]:
    """What was printed must be stored: by the command itself, or by the next one from where it was saved."""
    printed = json.loads(ended.stdout)
    run_id, shown = printed["run"]["id"], printed["observations"]
    if len(rows.get(run_id, ())) != len(shown):
        yield f"{len(shown)} observations were printed; kept are {len(rows.get(run_id, ()))}"
