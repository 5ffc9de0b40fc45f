"""Ten thousand hosts in PostgreSQL: runs are taken at the rate at which they come, and who is at fault is found.

Times are those of the processor, of this process: the machine may be shared. The wall clock is printed beside them.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import TypeVar

import pyarrow  # noqa: F401 - not in each writer
import pytest

from pinscope.report.fleet import read_fleet, render
from pinscope.store.bundle import open_bundle, write_bundle
from pinscope.store.store import Store
from tests.data.synthetic_fleet import SyntheticFleet, fill, scaled_rows
from tests.integration.postgresql_server import PostgreSQLServer

HOSTS, FAULTS = 10_000, 20
MOST_FALSE = 2
WRITERS, RUNS = 2, 300
READ_SECONDS, REPORT_SECONDS = 2.5, 1.5
IMPORT_SECONDS = 0.012
"""Of a run of 900 rows, at most; on a core that has nothing else to do it takes 0.004."""
Answer = TypeVar("Answer")


def measured(what: str, do: Callable[[], Answer]) -> tuple[Answer, float]:
    wall, begun = time.perf_counter(), time.process_time()
    answer = do()
    took = time.process_time() - begun
    print(f"{what}: {took:.2f} s of the processor, {time.perf_counter() - wall:.2f} s")  # noqa: T201 - what -s shows
    return answer, took


def forked(file: Path, url: str) -> int:
    """A process that imports a bundle."""
    if child := os.fork():
        return child
    code = 1
    try:
        with Store(url) as store, open_bundle(file, whole=False) as bundle:
            code = int(len(store.import_runs(bundle.items(), bundle.parts).added) != RUNS)
    finally:
        os._exit(code)


def test_runs_of_quick_size_are_taken_as_they_come(server: PostgreSQLServer, tmp_path: Path) -> None:
    server.empty()
    files = [tmp_path / f"{writer}.pinscope" for writer in range(WRITERS)]
    for writer, file in enumerate(files):
        runs = islice(SyntheticFleet(RUNS, 1, seed=writer).runs(), RUNS)
        write_bundle(
            file, [(run.model_copy(update={"id": f"{run.id}-{writer}"}), scaled_rows(offs)) for run, offs in runs]
        )
    with Store(server.url) as store, store.writing():
        pass  # makes the tables
    begun, before = time.perf_counter(), os.times()
    children = [forked(file, server.url) for file in files]
    codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
    wall, after = time.perf_counter() - begun, os.times()
    took = after.children_user + after.children_system - before.children_user - before.children_system
    count = WRITERS * RUNS
    print(f"{count} runs of 900 rows: {count / wall:.0f} a second, {took / count:.4f} s of the processor each")  # noqa: T201
    assert codes == [0] * WRITERS
    with Store(server.url) as store:
        run = next(store.each_run(recordings=False))
        assert len(list(store.observations(run.id))) == 900
    assert took / count < IMPORT_SECONDS


@pytest.mark.parametrize("seed", range(5))
def test_who_is_at_fault_among_ten_thousand_hosts_is_found(server: PostgreSQLServer, seed: int) -> None:
    server.empty()
    made = SyntheticFleet(HOSTS, FAULTS // 4, seed)
    blamed = set[str]()
    with Store(server.url) as store:
        for experiment in ("bandwidth", "pinning_strategy"):
            fill(store, made, experiment)
            fleet, took = measured(
                f"{experiment} on {HOSTS:,} hosts", lambda experiment=experiment: read_fleet(store, experiment)
            )
            page, drawn = measured("its report", lambda fleet=fleet: render(fleet, ".html", "rack"))
            assert took < READ_SECONDS
            assert drawn < REPORT_SECONDS
            assert b"By rack" in page
            blamed |= {outlier.gpu.newest.host for outlier in fleet.outliers}
    found, false = blamed & set(made.faults), blamed - set(made.faults)
    print(f"seed {seed}: {len(found)} of {len(made.faults)} found, {len(false)} blamed wrongly")  # noqa: T201 - as above
    assert len(found) == FAULTS
    assert len(false) <= MOST_FALSE
