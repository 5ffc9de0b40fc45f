"""A database that may only be read is read: by another user, on a read-only file system, on a full disk."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from pinscope.errors import StoreFailed
from pinscope.runner.jobs import reconcile
from pinscope.store.database import open_read_only
from pinscope.store.documents import StoredRow
from pinscope.store.recordings import recorded_observations, recorded_runs
from pinscope.store.store import Store
from tests.data.second_user import as_another_user, needs_root
from tests.unit.store.runs import damaged_runs, new_rows, new_run

ROOT = Path(__file__).parents[3]
IMPORTS = """
import os
from pathlib import Path
from pinscope.errors import PinScopeError
from pinscope.store import recordings
from pinscope.store.bundle import open_bundle
from pinscope.store.new_file import check_new, new_file
from pinscope.store.store import Store
"""
PROGRAM = """
import json, sys
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from pinscope.cli.main import main
answers = []
for words in json.loads(sys.argv[1]):
    with redirect_stdout(StringIO()) as out, redirect_stderr(StringIO()) as err:
        code = main(words)
    answers.append([code, out.getvalue(), err.getvalue()])
print(json.dumps(answers))
"""
AS_NOBODY = ("setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups")
OWN_MOUNTS = ("unshare", "--mount", "--propagation", "private", "sh", "-c")


def real_rows() -> list[StoredRow]:
    """Twenty observations of a bandwidth run."""
    run = next(run for run in recorded_runs() if run.experiment == "bandwidth")
    return list(recorded_observations(run.id)[:20])


@pytest.fixture
def place() -> Iterator[Path]:
    """A folder that other users may look into, with a database in ``db`` and a folder ``out`` for everybody."""
    folder = Path(tempfile.mkdtemp(prefix="pinscope-place-", dir="/tmp"))
    folder.chmod(0o755)
    for name in ("db", "out", "home"):
        (folder / name).mkdir()
    (folder / "out").chmod(0o777)
    (folder / "home").chmod(0o777)
    with Store(f"sqlite:///{folder}/db/x.db") as store:
        store.add(new_run("r", status="done"))
        store.append("r", real_rows())
        store.add(new_run("gone", process={"pid": 2**22, "started": 1.0, "boot_id": "x"}))
    (folder / "db" / "x.db").chmod(0o644)  # its user lets others read it
    yield folder
    shutil.rmtree(folder)


def answers(place: Path, prefix: tuple[str, ...], script: str = "") -> list[tuple[int, str, str]]:
    """What every command that only reads says, and one that stores, when they run after ``script``."""
    out = place / "out"
    commands = [
        ["runs", "list", "--json"], ["runs", "show", "r", "--json"], ["report", "r", "-o", f"{out}/r.csv"],
        ["export", "r", "-o", f"{out}/r.pinscope"], ["plan", "--pinned", "1GiB", "--json"],
        ["runs", "delete", "r", "--yes"],
    ]  # fmt: skip
    program = [sys.executable, "-P", "-c", PROGRAM, json.dumps(commands)]
    command = [*prefix, f'{script}; exec "$@"', "sh", *program] if script else [*prefix, *program]
    environment = {
        **os.environ, "PYTHONPATH": str(ROOT), "PINSCOPE_DATABASE": f"sqlite:///{place}/db/x.db", "COLUMNS": "200",
        "HOME": f"{place}/home", "TMPDIR": f"{place}/out", "PYTHONDONTWRITEBYTECODE": "1",
    }  # fmt: skip
    done = subprocess.run(command, env=environment, cwd="/", capture_output=True, text=True, check=False)
    if done.returncode:
        reason = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
        if any(word in done.stderr for word in ("unshare:", "setpriv:", "mount:", "ModuleNotFoundError", "ermission")):
            pytest.skip(f"this cannot be tried here: {reason}")
        pytest.fail(done.stderr)
    return [(code, out_text, err) for code, out_text, err in json.loads(done.stdout)]


def assert_read(place: Path, answered: list[tuple[int, str, str]], why: str) -> None:
    """All that reads has worked and said why nothing can be stored, but for a plan; what stores has said it too."""
    *reads, plan, delete = answered
    said = f"pinscope: nothing can be stored in {place}/db/x.db: {why}\n"
    assert [(code, err) for code, _, err in reads] == [(0, said)] * len(reads)
    assert (plan[0], plan[2]) == (0, "")
    listed = {run["id"]: run["status"] for run in json.loads(reads[0][1]) if not run["recording"]}
    assert listed == {"r": "done", "gone": "interrupted"}
    assert len(json.loads(reads[1][1])["observations"]) == 20
    assert delete[0] == 1
    assert why in delete[2]
    assert len(delete[2].splitlines()) == 1
    assert sorted(path.name for path in (place / "out").iterdir()) == ["r.csv", "r.pinscope"]
    with Store(f"sqlite:///{place}/db/x.db") as store:
        assert len(store.observations("r")) == 20


def test_in_a_folder_of_another_user_all_can_be_read(place: Path) -> None:
    assert_read(place, answers(place, AS_NOBODY), f"this user may not write to {place}/db/x.db")
    assert [path.name for path in (place / "db").iterdir()] == ["x.db"]


def test_a_folder_that_may_not_be_entered_is_no_folder_without_runs(place: Path) -> None:
    (place / "db").chmod(0o700)
    why = f"database {place}/db/x.db: this user may not enter {place}/db; PINSCOPE_DATABASE can name another place"
    for code, out, err in answers(place, AS_NOBODY):
        assert (code, out) == (1, "")
        assert err.startswith(f"pinscope: {why}")
        assert err.count("\n") == 1


ASKS = (
    "Store().runs()",
    "recordings.folder = lambda: Path(place, 'db')\n    recordings.recorded_runs()",
    "check_new(Path(place, 'db', 'x.pinscope'))",
    "new_file(Path(place, 'db', 'x.pinscope')).__enter__()",
    "open_bundle(Path(place, 'db', 'x.pinscope')).__enter__()",
)


@needs_root
def test_what_lies_in_a_closed_folder_is_not_said_to_be_missing(place: Path) -> None:
    (place / "db").chmod(0o700)
    begin = f"{IMPORTS}\nplace = '{place}'\nos.environ.update(PINSCOPE_DATABASE='', XDG_DATA_HOME=place + '/db')"
    asks = "\n".join(f"try:\n    {ask}\nexcept PinScopeError as error:\n    print(error)" for ask in ASKS)
    first, *others = as_another_user(asks, before=begin).splitlines()
    assert "may not enter" in first
    assert len(others) == len(ASKS) - 1
    assert all("ermission denied" in line or "may not" in line for line in others)


@pytest.mark.parametrize("killed", [False, True], ids=["closed", "with a log"])
def test_on_a_read_only_file_system_all_can_be_read(place: Path, killed: bool) -> None:
    db = place / "db"
    if killed:  # a writer was killed: what it stored last stands in the log
        leave_log(db / "x.db")
    script = f"mount --bind {db} {db} && mount -o remount,ro,bind {db}"
    assert_read(place, answers(place, OWN_MOUNTS, script), f"the file system of {db}/x.db is read-only")


def test_on_a_full_disk_all_can_be_read(place: Path) -> None:
    db = place / "db"
    script = (
        f"cp {db}/x.db {place}/ && mount -t tmpfs -o size=1m none {db} && cp {place}/x.db {db}/ && rm {place}/x.db; "
        f"dd if=/dev/zero of={db}/full bs=4096 status=none 2>/dev/null"
    )
    assert_read(place, answers(place, OWN_MOUNTS, script), f"the disk of {db}/x.db is full")


def leave_log(file: Path, with_index: bool = True) -> None:
    """Leave the files beside a database that a killed writer leaves; its log holds the last of the two runs."""
    saved = file.with_name("saved")
    with closing(sqlite3.connect(file)) as first, Store(f"sqlite:///{file}") as store:
        first.execute("SELECT 1 FROM runs").fetchall()  # while it is open, the log stays
        store.delete("r")
        store.add(new_run("r", status="done"))
        store.append("r", real_rows())
        saved.mkdir()
        for suffix in ("", "-wal", "-shm") if with_index else ("", "-wal"):
            shutil.copy(f"{file}{suffix}", saved / f"{file.name}{suffix}")
    for path in saved.iterdir():
        path.replace(file.with_name(path.name))
    saved.rmdir()


def test_changes_in_a_log_without_its_index_are_not_passed_over(tmp_path: Path) -> None:
    with Store(f"sqlite:///{tmp_path}/x.db") as store:
        store.add(new_run("r", status="done"))
        store.add(new_run("old", status="done"))
    leave_log(tmp_path / "x.db", with_index=False)
    with pytest.raises(StoreFailed, match=r"its last changes stand in x\.db-wal"):
        open_read_only(tmp_path / "x.db")


def test_a_log_that_only_began_hides_nothing(tmp_path: Path) -> None:
    """As a writer leaves it that was killed before it had stored anything; faults/test_io_errors found it."""
    with Store(f"sqlite:///{tmp_path}/x.db") as store:
        store.add(new_run("r", status="done"))
    leave_log(tmp_path / "x.db", with_index=False)
    os.truncate(tmp_path / "x.db-wal", 32)
    with closing(open_read_only(tmp_path / "x.db")) as connection:
        assert connection.execute("SELECT count(*) FROM runs").fetchone() == (1,)


def test_where_no_database_can_be_made_the_recordings_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied", str(tmp_path / "no"))

    monkeypatch.setattr(Path, "mkdir", refuse)
    with Store(f"sqlite:///{tmp_path}/no/x.db") as store:
        assert store.refusal == f"Permission denied: {tmp_path}/no"
        assert store.runs() == recorded_runs()
        with pytest.raises(StoreFailed, match="Permission denied"):
            store.add(new_run())
        monkeypatch.undo()
        run = store.add(new_run())
        assert store.runs(recordings=False) == [run]
        assert store.refusal is None


def test_a_lost_run_is_shown_as_interrupted_though_it_cannot_be_marked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Store(f"sqlite:///{tmp_path}/x.db") as store:
        run = store.add(new_run(process={"pid": 2**22, "started": 1.0, "boot_id": "x"}))

        def fail(*_: object, **__: object) -> None:
            raise StoreFailed("the disk is full")

        with monkeypatch.context() as patch:
            patch.setattr(Store, "update", fail)
            assert reconcile(store) == []
            assert store.run(run.id).status == store.runs(recordings=False)[0].status == "interrupted"
            assert store.unfinished() == []
        assert reconcile(store) == [run.id]
        with Store(store.url) as other:
            assert other.run(run.id).status == "interrupted"


@pytest.mark.parametrize(
    ("column", "value", "why"),
    [
        ("document", b"{", "it is not JSON"),
        ("document", b"5", "it is not a document"),
        ("progress", b"[", "it is not JSON"),
        ("status", b"fine", "status"),
        ("created_at", b"yesterday", None),
    ],
)
def test_damage_in_one_run_hides_no_other(tmp_path: Path, column: str, value: bytes, why: str | None) -> None:
    with Store(f"sqlite:///{tmp_path}/x.db") as store:
        good, bad = store.add(new_run(status="done")), store.add(new_run(status="done"))
        store.append(bad.id, new_rows(2))
        with closing(sqlite3.connect(tmp_path / "x.db", isolation_level=None)) as raw:
            raw.execute(f"UPDATE runs SET {column} = CAST(? AS TEXT) WHERE id = ?", (value, bad.id))  # noqa: S608
        runs, damaged = store.runs(recordings=False), damaged_runs(store)
        if why is None:
            assert len(runs) == 2
            return
        assert runs == [good]
        assert [run.id for run in damaged] == [bad.id]
        assert why in damaged[0].why
        with pytest.raises(StoreFailed, match=f"run {bad.id} in the database cannot be read .*`pinscope runs delete"):
            store.run(bad.id)
        reconcile(store)
        store.delete(bad.id)
        assert damaged_runs(store) == []


def test_a_damaged_observation_is_named_and_hides_no_other_run(tmp_path: Path) -> None:
    with Store(f"sqlite:///{tmp_path}/x.db") as store:
        for run_id in ("good", "bad"):
            store.add(new_run(run_id, status="done"))
            store.append(run_id, new_rows(3))
        with closing(sqlite3.connect(tmp_path / "x.db", isolation_level=None)) as raw:
            raw.execute("UPDATE observations SET row = '{' WHERE run_id = 'bad' AND sequence = 1")
        assert list(store.observations("good")) == new_rows(3)
        with pytest.raises(StoreFailed, match="observation 1 of run bad in the database cannot be read"):
            list(store.observations("bad"))
