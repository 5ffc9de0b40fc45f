"""The dashboard's pages through Streamlit's AppTest, on a real store."""

from __future__ import annotations

import functools
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import streamlit as st
from sqlalchemy.engine import make_url
from streamlit.components.v2 import manifest_scanner
from streamlit.testing.v1 import AppTest

from pinscope.dashboard import state
from pinscope.dashboard.pages import HOME, PageEntry
from pinscope.records.run import Run
from pinscope.store import recordings
from pinscope.store.bundle import render_bundle
from pinscope.store.documents import StoredRow
from pinscope.store.store import Store
from tests.data import synthetic
from tests.data.recorded import forget_recordings

ROOT = Path(__file__).resolve().parents[3]
Open = Callable[..., AppTest]


@pytest.fixture(scope="session", autouse=True)
def _components_are_looked_for_once() -> Iterator[None]:
    """Streamlit parses what every installed package says of itself, again for each AppTest."""
    with pytest.MonkeyPatch.context() as patch:
        once = functools.cache(manifest_scanner.scan_component_manifests)
        patch.setattr(manifest_scanner, "scan_component_manifests", once)
        yield


def all_opened(app: AppTest) -> AppTest:
    """The page of a run with everything opened that lies one click away."""
    for name in ("figures", "findings", "charts", "tables"):
        app.session_state[f"rest-{name}"] = True
    return app.run()


@pytest.fixture(scope="session")
def overlap_rows() -> list[StoredRow]:
    """A short overlap run."""
    return synthetic.overlap_rows(balances=["balanced"], depths=[1, 2], every_combination=False, chunks=8)


@pytest.fixture
def shipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Run]:
    """A recording in place of those that the package ships."""
    run: Run = synthetic.run("bandwidth", id="a-recording")
    (tmp_path / "recordings").mkdir()
    (tmp_path / "recordings" / "a.pinscope").write_bytes(render_bundle([(run, synthetic.bandwidth_rows())]))
    monkeypatch.setattr(recordings, "folder", lambda: tmp_path / "recordings")
    forget_recordings()
    yield run
    forget_recordings()


@pytest.fixture(scope="session")
def full_database(overlap_rows: list[StoredRow], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A database with runs of every experiment, lab and status, and one of an experiment of the future."""
    runs: list[tuple[Run, list[StoredRow]]] = [
        (synthetic.run("bandwidth"), synthetic.bandwidth_rows()),
        (synthetic.run("bandwidth", "host"), synthetic.bandwidth_rows("host")),
        (synthetic.run("overlap"), overlap_rows),
        (synthetic.run("bandwidth", id="of-the-future").model_copy(update={"experiment": "pinning"}), []),
    ]
    runs += [(synthetic.run("overlap", id=f"a-{word}", status=word), []) for word in ("failed", "cancelled")]
    runs += [(synthetic.run("bandwidth", id="a-interrupted", status="interrupted", error="the child is gone"), [])]
    file = tmp_path_factory.mktemp("full") / "full.sqlite"
    with Store(f"sqlite:///{file}") as store:
        store.import_runs(runs)
    return file


@pytest.fixture
def full_store(full_database: Path) -> Iterator[Store]:
    """A copy of that database, where the pages under test look for theirs."""
    url = os.environ["PINSCOPE_DATABASE"]
    shutil.copy(full_database, make_url(url).database or "")
    with Store(url) as opened:
        yield opened


@pytest.fixture
def open_page() -> Iterator[Open]:
    """Opens a page of the page table, at an address with the given query parameters."""

    def open_page(entry: PageEntry, **query: str) -> AppTest:
        app = AppTest.from_file(ROOT / "app.py", default_timeout=60)
        if entry is not HOME:  # Home would be drawn first, at twice the cost
            app.switch_page(str(entry.path.relative_to(ROOT)))
        for name, value in query.items():
            app.query_params[name] = value
        return app.run()

    yield open_page
    st.cache_resource.clear()  # closes the stores


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Makes the pages believe that they run on a machine with so many GPUs."""

    def pretend(gpus: int) -> None:
        monkeypatch.setattr(state, "capture_environment", lambda: synthetic.environment(gpus))
        state.environment.clear()

    return pretend
