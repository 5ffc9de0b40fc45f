"""Opening databases: addresses, SQLite's own ways, and what is said when it does not work."""

from __future__ import annotations

import logging
import sqlite3
import sys
from contextlib import closing
from pathlib import Path

import pytest
from sqlalchemy import event

from pinscope.errors import BadInput, NotPossible, StoreFailed
from pinscope.store import database
from pinscope.store.database import Database
from pinscope.store.store import Store
from tests.unit.store.runs import new_rows, new_run


def test_a_path_is_whole_and_odd_signs_survive_the_url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with Store("sqlite:///x.db") as store:
        assert store.url == f"sqlite:///{tmp_path}/x.db"
    monkeypatch.delenv("PINSCOPE_DATABASE")
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "a b?c#d%20é"))
    with Store() as store, Store(store.url) as again:
        assert again.name == store.name == str(tmp_path / "a b?c#d%20é" / "pinscope" / "pinscope.db")


def test_what_is_no_database_url_of_a_file_or_server_is_refused_with_examples() -> None:
    for url in ["", "x.db", "not a url", "nosuch://host/db", "sqlite://", "sqlite:///:memory:"]:
        with pytest.raises(BadInput, match=r"in-memory|write sqlite:////path/to/pinscope\.db or postgresql://user"):
            Database(url)


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("postgresql://user:secret@127.0.0.1/db", r"-m pip install -e .*\[postgresql\]"),
        ("mysql://user:secret@127.0.0.1/db", r"mysql.* needs a Python package that is not installed: MySQLdb"),
    ],
)
def test_a_missing_driver_is_told(url: str, why: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(NotPossible, match=why):
        Database(url)


def test_a_server_that_does_not_answer_is_told_without_the_password() -> None:
    for url in ("postgresql://user:sesame@127.0.0.1:1/db", "postgres://user@127.0.0.1:1/db?password=sesame"):
        with pytest.raises(StoreFailed, match=r"database postgresql://user@127.0.0.1:1/db: .*refused") as caught:
            Database(url)
        assert "sesame" not in str(caught.value)
        assert "\n" not in str(caught.value)


def test_a_file_of_something_else_is_refused_and_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "letter.db"
    path.write_text("Dear database,\n" * 100)
    with pytest.raises(StoreFailed, match=r"letter\.db: file is not a database$"):
        Database(f"sqlite:///{path}")
    assert path.read_text() == "Dear database,\n" * 100
    with closing(sqlite3.connect(tmp_path / "x.db")) as other:
        other.execute("CREATE TABLE runs (number INTEGER)")
    with pytest.raises(StoreFailed, match="not a PinScope database"):
        Database(f"sqlite:///{tmp_path / 'x.db'}")


def test_a_damaged_database_is_told_in_one_line(tmp_path: Path) -> None:
    path = tmp_path / "x.db"
    with Store(f"sqlite:///{path}") as store:
        run = store.add(new_run())
        store.append(run.id, new_rows(2000))
    content = bytearray(path.read_bytes())
    content[4096 * 8 :] = bytes(byte ^ 0x5A for byte in content[4096 * 8 :])
    path.write_bytes(content)
    with Store(f"sqlite:///{path}") as store, pytest.raises(StoreFailed, match=r"x\.db: .*malformed$"):
        list(store.observations(run.id))


@pytest.mark.parametrize("place", ["file/x.db", "folder"])
def test_a_place_where_no_file_can_be_is_told(tmp_path: Path, place: str) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "folder").mkdir()
    with pytest.raises(StoreFailed, match=r"database /.*: (Not a directory|File exists|unable to open).*"):
        Database(f"sqlite:///{tmp_path / place}")


def test_a_database_that_may_only_be_read_is_read(tmp_path: Path) -> None:
    path = tmp_path / "x.db"
    with Store(f"sqlite:///{path}") as store:
        run = store.add(new_run())
    with Store(f"sqlite:///file:{path}?mode=ro&uri=true") as store:
        assert store.run(run.id) == run
        with pytest.raises(StoreFailed, match="readonly database; PINSCOPE_DATABASE can name another place"):
            store.append(run.id, new_rows(1))


def test_a_lock_that_somebody_keeps_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database, "BUSY_SECONDS", 0)
    with Store(f"sqlite:///{tmp_path}/x.db") as store:
        run = store.add(new_run())
        other = sqlite3.connect(tmp_path / "x.db", isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(StoreFailed, match="locked by another process"):
            store.append(run.id, new_rows(1))
        other.execute("ROLLBACK")
        other.close()
        assert store.append(run.id, new_rows(1)) == 1


def test_a_full_disk_is_told_and_costs_only_what_did_not_fit(tmp_path: Path) -> None:
    with Store(f"sqlite:///{tmp_path}/x.db") as store:
        run = store.add(new_run())
        limit_pages(store, 40)
        stored = 0
        complaint = ""
        while not complaint:
            try:
                stored = store.append(run.id, new_rows(50, first=stored))
            except StoreFailed as error:
                complaint = str(error)
        assert complaint == f"database {store.name}: database or disk is full"
        assert 0 < stored == len(store.observations(run.id)) == store.run(run.id).observations
        limit_pages(store, 1_000_000)
        assert store.append(run.id, new_rows(50, first=stored)) == stored + 50


def limit_pages(store: Store, pages: int) -> None:
    """Let the database grow to so many pages and no further, as a full disk does."""
    engine = store._engine

    def limit(connection: sqlite3.Connection, _record: object) -> None:
        connection.execute(f"PRAGMA max_page_count={pages}").close()

    event.listen(engine, "connect", limit)
    engine.dispose()  # new connections know the limit


def test_a_deleted_file_is_noticed_and_made_anew(tmp_path: Path) -> None:
    path = tmp_path / "x.db"
    with Store(f"sqlite:///{path}") as store:
        run = store.add(new_run())
        for left in tmp_path.glob("x.db*"):
            left.unlink()
        with pytest.raises(BadInput, match="no run"):
            store.append(run.id, new_rows(1))
        assert store.runs(recordings=False) == []
        store.add(run)
        with Store(f"sqlite:///{path}") as other:
            assert other.run(run.id) == run


def test_a_replaced_file_is_the_one_that_is_used(tmp_path: Path) -> None:
    with Store(f"sqlite:///{tmp_path}/other.db") as other:
        run = other.add(new_run())
    with Store(f"sqlite:///{tmp_path}/x.db") as store:
        for left in tmp_path.glob("x.db-*"):
            left.unlink()
        (tmp_path / "other.db").replace(tmp_path / "x.db")
        assert store.runs(recordings=False) == [run]


def test_ctrl_c_while_a_connection_is_closed_shows_no_traceback(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """SQLAlchemy's pool logs what it met with its traceback, and raises it as well."""

    def interrupted(connection: sqlite3.Connection) -> None:
        connection.close()
        raise KeyboardInterrupt

    monkeypatch.setattr(logging.root, "handlers", [])  # as in a program that has not set up logging
    with Store(f"sqlite:///{tmp_path}/x.db") as store:
        monkeypatch.setattr(store._engine.dialect, "do_close", interrupted)
        with pytest.raises(KeyboardInterrupt):
            store._engine.dispose()
        monkeypatch.undo()
    assert capsys.readouterr().err == ""
