"""The store on a real PostgreSQL server: all that it promises (tests/unit/store/test_store.py), and what is special."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import psycopg
import pytest

from pinscope.errors import StoreFailed
from pinscope.runner.jobs import Request, ended_run, prepare, reconcile, start
from pinscope.store.safe_writer import SafeWriter, find_saved
from pinscope.store.store import Store
from tests.conftest import Outliving
from tests.integration.postgresql_server import PostgreSQLServer
from tests.unit.store.runs import environment, new_rows, new_run, repeats
from tests.unit.store.test_attachments import *  # noqa: F403 - the same tests, on the ``url`` of this file
from tests.unit.store.test_fleet_store import *  # noqa: F403 - likewise
from tests.unit.store.test_store import *  # noqa: F403 - the same tests, on the ``url`` of this file


@pytest.fixture
def url(server: PostgreSQLServer) -> str:
    """The server's database, emptied."""
    server.empty()
    return server.url


def test_it_is_postgresql_and_the_password_is_never_shown(store: Store, server: PostgreSQLServer, url: str) -> None:
    store.add(new_run())
    assert not list(Path(os.environ["XDG_DATA_HOME"]).glob("**/*.db"))  # no file beside a server
    with store.reading() as connection:
        assert str(connection.exec_driver_sql("SELECT version()").scalar()).startswith("PostgreSQL")
    assert server.password in store.url
    assert server.password not in repr(store) + store.name
    wrong = url.replace(server.password, "sesame")
    with pytest.raises(StoreFailed, match="password authentication failed") as caught:
        Store(wrong)
    assert "sesame" not in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.usefixtures("url")
def test_a_socket_will_do(server: PostgreSQLServer) -> None:
    folder = quote(str(server.folder), safe="")
    address = f"postgresql://tester@/postgres?host={folder}&port={server.port}&password={server.password}"
    with Store(address) as store:
        run = store.add(new_run())
        assert server.password not in store.name
        with Store(store.url) as again:
            assert again.run(run.id) == run


@pytest.fixture
def without_encoding(server: PostgreSQLServer) -> Iterator[str]:
    """A database that takes and gives bytes as they are (SQL_ASCII), as old servers have them."""
    with psycopg.connect(server.url, autocommit=True) as connection:
        connection.execute("CREATE DATABASE plain ENCODING 'SQL_ASCII' TEMPLATE template0 LC_COLLATE 'C' LC_CTYPE 'C'")
        yield server.url.removesuffix("postgres") + "plain"
        connection.execute("DROP DATABASE plain WITH (FORCE)")


def test_a_database_without_an_encoding_holds_runs_and_tells_its_errors_in_one_line(without_encoding: str) -> None:
    with Store(without_encoding) as store:
        run = store.add(new_run())
        store.append(run.id, new_rows(2))
        assert store.runs(recordings=False) == [run.model_copy(update={"observations": 2})]
        assert list(store.observations(run.id)) == new_rows(2)
    with psycopg.connect(without_encoding, autocommit=True) as connection:
        for statement in (
            b"CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS "
            b"$$ BEGIN RAISE EXCEPTION 'Platte voll: gr\xfc\xdfe'; END $$",
            b"CREATE TRIGGER refuse BEFORE UPDATE ON runs FOR EACH ROW EXECUTE FUNCTION refuse()",
        ):
            connection.execute(statement)
    for encoding in ("", "?client_encoding=utf8", "?client_encoding=latin1"):
        with Store(without_encoding + encoding) as store, pytest.raises(StoreFailed) as caught:
            store.update(run.id, status="done")
        assert "\n" not in str(caught.value)


def test_a_database_that_is_not_there_is_told(server: PostgreSQLServer) -> None:
    with pytest.raises(StoreFailed, match='database "nosuch" does not exist'):
        Store(f"postgresql://tester:{server.password}@127.0.0.1:{server.port}/nosuch")


def test_somebody_who_may_only_read_can_read(server: PostgreSQLServer, url: str, store: Store) -> None:
    run = store.add(new_run())
    with Store(url + "?options=-c%20default_transaction_read_only%3Don") as reader:
        assert reader.run(run.id) == run
        with pytest.raises(StoreFailed, match="read-only transaction"):
            reader.append(run.id, new_rows(1))


def test_rows_wait_while_the_server_is_away_and_it_is_found_again(
    server: PostgreSQLServer, store: Store, outliving: Outliving
) -> None:
    run = store.add(new_run())
    writer = SafeWriter(store, run)
    writer.append(new_rows(2))
    server.stop()
    writer.append(new_rows(2, first=2))
    writer.update(status="done")
    with pytest.raises(StoreFailed, match=r"database postgresql://tester@127\.0\.0\.1:\d+/postgres: ") as caught:
        store.append(run.id, new_rows(1))
    assert "\n" not in str(caught.value)
    server.start()
    outliving.processes.add(server.pid)
    writer.append(new_rows(1, first=4))
    assert writer.close() is None
    assert repeats(store.observations(run.id)) == [0, 1, 2, 3, 4]
    assert store.run(run.id).status == "done"


@pytest.mark.parametrize("moment", ["before the first row", "at the end"])
def test_a_server_that_goes_away_when_a_run_begins_or_ends_costs_nothing(
    server: PostgreSQLServer, outliving: Outliving, store: Store, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    monkeypatch.setenv("PINSCOPE_DATABASE", store.url)
    settings = {"sizes": "64KiB", "memory": "pinned", "directions": "h2d", "repeats": "8", "precision": "0.5"}
    run = prepare(Request("bandwidth", lab="host", quick=True, overrides=settings), environment())
    job = start(store, run)
    while moment == "at the end" and store.run(run.id).observations < 8:
        time.sleep(0.005)
    server.stop()
    code = job.child.wait(60)
    server.start()
    outliving.processes.add(server.pid)
    assert find_saved(store, run.id) or moment == "at the end"  # it may just have ended
    reconcile(store)
    assert find_saved(store, run.id) is None
    ended = store.run(run.id)
    assert (code, ended.status) == (0, "done")
    assert len([row for row in store.observations(run.id) if not row["warmup"]]) >= 8


def test_the_result_is_printed_when_the_server_is_back(
    server: PostgreSQLServer, outliving: Outliving, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = store.add(new_run(status="done"))
    store.append(run.id, new_rows(2))
    server.stop()

    def start_again(_seconds: float) -> None:
        monkeypatch.undo()
        server.start()
        outliving.processes.add(server.pid)

    monkeypatch.setattr(time, "sleep", start_again)
    assert ended_run(store, run.id) == (run.model_copy(update={"observations": 2}), new_rows(2), True)
