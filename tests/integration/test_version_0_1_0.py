"""What version 0.1.0 stored opens: tests/data/v0.1.0 holds a database and a bundle that its own commands wrote.

On a host without a GPU, named old-host: ``run bandwidth --lab host --quick``, ``record``, and ``run overlap``, which
was killed; then ``runs list`` and ``export``.
"""

from __future__ import annotations

import json
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path
from zipfile import ZipFile

import pytest
from typer.testing import CliRunner, Result

from pinscope.cli.main import app
from pinscope.store.bundle import read_bundle, write_bundle
from pinscope.store.store import Store
from tests.data.events import SCHEMA, events
from tests.unit.store.runs import new_rows, new_run

OLD = Path(__file__).parents[1] / "data" / "v0.1.0"
RUNS = {
    "20261122-053948-61ea51": ("overlap", "interrupted", 31),
    "20261122-053938-47a900": ("timeline", "done", 5),
    "20261122-053927-a05261": ("bandwidth", "done", 36),
}


@pytest.fixture
def old_database(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the database, as the one that commands use."""
    file = tmp_path / "old.db"
    shutil.copyfile(OLD / "pinscope.db", file)
    monkeypatch.setenv("PINSCOPE_DATABASE", f"sqlite:///{file}")
    return file


def pinscope(*arguments: object) -> Result:
    """A command that succeeds."""
    result = CliRunner().invoke(app, [str(argument) for argument in arguments], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result


def raw_rows(run_id: str) -> list[dict[str, object]]:
    """The observations as they lie in the old bundle, read without PinScope."""
    with ZipFile(OLD / "runs.pinscope") as archive:
        return [json.loads(line) for line in archive.read(f"runs/{run_id}/observations.jsonl").splitlines()]


@pytest.mark.usefixtures("old_database")
def test_an_old_database_lists_and_shows_its_runs() -> None:
    listed = json.loads(pinscope("runs", "list", "--json").stdout)
    own = {run["id"]: (run["experiment"], run["status"], run["observations"]) for run in listed if not run["recording"]}
    assert own == RUNS
    for run_id, (experiment, status, _) in RUNS.items():
        answer = json.loads(pinscope("runs", "show", run_id, "--json").stdout)
        assert (answer["run"]["experiment"], answer["run"]["status"]) == (experiment, status)
        assert answer["run"]["environment"]["host"] == "old-host"
        assert answer["observations"] == raw_rows(run_id)
        assert run_id in pinscope("runs", "show", run_id).stdout


@pytest.mark.usefixtures("old_database")
@pytest.mark.parametrize("suffix", ["html", "md", "csv", "parquet", "json"])
def test_old_runs_have_every_report(suffix: str, tmp_path: Path) -> None:
    for run_id in RUNS:
        pinscope("report", run_id, "-o", tmp_path / f"{run_id}.{suffix}")
        assert (tmp_path / f"{run_id}.{suffix}").stat().st_size > 500


@pytest.mark.usefixtures("old_database")
def test_old_runs_are_exported_as_they_were(tmp_path: Path) -> None:
    pinscope("export", *RUNS, "-o", tmp_path / "again.pinscope")
    again, before = read_bundle(tmp_path / "again.pinscope"), read_bundle(OLD / "runs.pinscope")
    assert again == before
    assert [run.id for run, _ in again] == list(RUNS)


def test_an_old_database_takes_new_runs_beside_the_old_ones(old_database: Path) -> None:
    with Store() as store:
        run = store.add(new_run())
        store.append(run.id, new_rows(3))
        store.update("20261122-053938-47a900", notes=("Read by a newer version.",))
        store.delete("20261122-053927-a05261")
    with Store() as store:
        assert store.observations(run.id) == new_rows(3)
        assert store.run("20261122-053938-47a900").notes == ("Read by a newer version.",)
        assert store.observations("20261122-053938-47a900") == raw_rows("20261122-053938-47a900")
        assert {kept.id for kept in store.runs(recordings=False)} == {*RUNS, run.id} - {"20261122-053927-a05261"}
    with sqlite3.connect(old_database) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    connection.close()


def test_an_old_bundle_is_imported_whole(tmp_path: Path) -> None:
    said = json.loads(pinscope("import", OLD / "runs.pinscope", "--json").stdout)
    assert said == {"added": list(RUNS), "completed": [], "skipped": []}
    with Store() as store:
        for run_id in RUNS:
            assert store.observations(run_id) == raw_rows(run_id)
        write_bundle(tmp_path / "onward.pinscope", [(store.run(run_id), store.observations(run_id)) for run_id in RUNS])
    assert read_bundle(tmp_path / "onward.pinscope") == read_bundle(OLD / "runs.pinscope")


def test_reading_leaves_an_old_database_to_older_versions_and_writing_brings_it_up_to_date(old_database: Path) -> None:
    def version() -> tuple[int, int]:
        with closing(sqlite3.connect(old_database)) as connection:
            (schema,) = connection.execute("SELECT schema_version FROM meta").fetchone()
            (tables,) = connection.execute("SELECT count(*) FROM sqlite_schema WHERE name = 'attachments'").fetchone()
        return schema, tables

    with Store() as store:
        assert len(store.runs(recordings=False)) == len(RUNS)
        assert version() == (1, 0)
        with store.attach("20261122-053927-a05261", "copies", SCHEMA) as writer:
            writer.write(events(0, 10))
        assert version() == (2, 1)
        assert store.observations("20261122-053927-a05261") == raw_rows("20261122-053927-a05261")
        attached = store.attached(store.run("20261122-053927-a05261"))
        assert sum(piece.num_rows for piece in attached.tables("copies")) == 10
