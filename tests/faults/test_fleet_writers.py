"""Sixteen writers of a fleet, whose server restarts in the middle of it: nothing that was acknowledged is lost or
doubled."""

from __future__ import annotations

import io
import os
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from sqlalchemy import select

from pinscope.errors import StoreFailed
from pinscope.records.run import Run
from pinscope.store import tables
from pinscope.store.bundle import BundleReader, render_bundle
from pinscope.store.figures import stored_figures
from pinscope.store.safe_writer import SafeWriter, bring_in
from pinscope.store.store import Store
from tests.conftest import Outliving
from tests.data.synthetic_fleet import base
from tests.faults.campaign import Campaign, whole_only
from tests.integration.postgresql_server import PostgreSQLServer, started_server
from tests.unit.store.runs import new_rows

WRITERS, RESTARTS = 16, 10
PAUSE_SECONDS = 0.05
"""Between the runs of a writer: sixteen at full speed would leave the server no time to come back."""


@pytest.fixture
def server(outliving: Outliving) -> Iterator[PostgreSQLServer]:
    with started_server(outliving) as started:
        yield started


def patiently(do: Callable[[], object]) -> None:
    """Again until the database takes it, as a campaign of a fleet does."""
    while True:
        try:
            do()
        except StoreFailed:
            time.sleep(0.1)
        else:
            return


def write(number: int, url: str, folder: Path) -> None:
    """Store runs until the folder says that it is enough; each that was acknowledged is a line: its id, its rows."""
    model = base("pinning_strategy")[0]
    with Store(url, at_once=False) as store, (folder / f"said-{number}").open("w") as said:
        for count in range(10_000):
            if (folder / "enough").exists():
                return
            run = model.model_copy(update={"id": f"writer-{number}-{count}"})
            rows = new_rows(50 + 7 * (count % 9))
            if number % 2:
                bundle = render_bundle([(run, rows)])

                def keep(bundle: bytes = bundle) -> None:
                    with BundleReader(io.BytesIO(bundle), "it") as opened:
                        store.import_runs(opened.items(), opened.parts)

                patiently(keep)
            else:
                begun = run.model_copy(update={"status": "running", "figures": None})

                def add(begun: Run = begun) -> None:
                    with Store(url) as other:
                        if not [known for known in other.runs(recordings=False) if known.id == begun.id]:
                            other.add(begun)

                patiently(add)
                writer = SafeWriter(store, begun)
                for first in range(0, len(rows), 20):
                    writer.append(rows[first : first + 20])
                writer.close(status="done", figures=run.figures)
            said.write(f"{run.id} {len(rows)}\n")
            said.flush()
            time.sleep(PAUSE_SECONDS)


def forked(number: int, url: str, folder: Path) -> int:
    child = os.fork()
    if child:
        return child
    code = 1
    try:
        write(number, url, folder)
        code = 0
    except BaseException:  # noqa: BLE001 - of a child: the test reads it
        (folder / f"failed-{number}").write_text(traceback.format_exc())
    os._exit(code)


@whole_only
def test_a_server_that_restarts_loses_and_doubles_nothing(
    campaign: Campaign, server: PostgreSQLServer, outliving: Outliving, tmp_path: Path
) -> None:
    Store(server.url).close()
    with Store(server.url) as store, store.writing():
        pass  # makes the tables
    base("pinning_strategy")
    chance = campaign.random()
    children = [forked(number, server.url, tmp_path) for number in range(WRITERS)]
    for _ in range(RESTARTS):
        time.sleep(chance.uniform(1.0, 3.0))
        server.stop()
        time.sleep(chance.choice((0.0, 0.5, 1.5)))
        server.start()
        outliving.processes.add(server.pid)
        campaign.count("database restarts")
    time.sleep(2.0)
    (tmp_path / "enough").touch()
    codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
    for file in tmp_path.glob("failed-*"):
        campaign.fail(file.read_text()[-600:])
    said = dict(
        line.split() for file in tmp_path.glob("said-*") for line in file.read_text().splitlines() if " " in line
    )
    with Store(server.url) as store:
        bring_in(store)
        for run_id, count in said.items():
            rows = list(store.observations(run_id))
            if rows != new_rows(int(count)):
                campaign.fail(f"{run_id}: {count} rows were acknowledged, and {len(rows)} are there, or others")
        with store.reading() as connection:
            ids = list(connection.scalars(select(tables.RUNS.c.id)))
        figures = {row.run_id for row in stored_figures(store, "pinning_strategy", "cuda", 10**6)[0]}
    done = {run_id for run_id in ids if run_id in said}
    if missing := set(said) - figures:
        campaign.fail(f"{len(missing)} runs have no figures, such as {sorted(missing)[0]}")
    campaign.measured.append(f"{len(said):,} runs acknowledged to {WRITERS} writers, {RESTARTS} restarts")
    assert len(ids) == len(set(ids))
    assert len(done) == len(said) > 10 * WRITERS
    assert codes == [0] * WRITERS
