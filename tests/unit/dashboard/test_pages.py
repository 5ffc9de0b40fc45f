"""Every page of the page table, in every state that a store can be in: a new page is tested by being listed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from streamlit.testing.v1 import AppTest

from pinscope.dashboard.home import STEPS
from pinscope.dashboard.pages import EXPERIMENTS, HOME, NOW, PAGES, RUNS, PageEntry
from pinscope.dashboard.widgets import plain, prose
from pinscope.experiments import registry
from pinscope.records.run import HOST_MODEL_NOTE, Run
from pinscope.store.recordings import newest_recordings
from pinscope.store.store import Store
from tests.unit.dashboard.conftest import Open

every_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.title)


def texts(app: AppTest) -> str:
    """All that the page says in words."""
    kinds = (app.title, app.header, app.markdown, app.caption, app.info, app.warning, app.error, app.success)
    return "\n".join(str(element.value) for kind in kinds for element in kind)


@pytest.mark.parametrize(("page", "gpus"), [*((page, 0) for page in PAGES), (HOME, 3), (EXPERIMENTS, 3)])
def test_a_page_stands_with_an_empty_store(
    page: PageEntry, gpus: int, machine: Callable[[int], None], open_page: Open
) -> None:
    machine(gpus)
    app = open_page(page)
    assert not app.exception
    assert gpus or not app.error  # of GPUs that are not there
    assert len(app.title) == 1


@every_page
def test_a_page_stands_with_a_full_store(page: PageEntry, full_store: Store, open_page: Open) -> None:
    app = open_page(page)
    assert not app.exception
    assert not app.error


@pytest.mark.parametrize("page", [page for page in PAGES if page is not NOW], ids=lambda page: page.title)
def test_a_database_that_cannot_be_used_is_one_clear_line(
    page: PageEntry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, open_page: Open
) -> None:
    (tmp_path / "broken.sqlite").write_bytes(b"this is no database" * 100)
    monkeypatch.setenv("PINSCOPE_DATABASE", f"sqlite:///{tmp_path / 'broken.sqlite'}")
    app = open_page(page)
    assert not app.exception
    assert len(app.error) == 1
    assert "broken" in app.error[0].value
    assert "\n" not in app.error[0].value
    assert "Traceback" not in texts(app)


@pytest.mark.parametrize(("page", "gpus"), [(HOME, 1), (RUNS, 0), (EXPERIMENTS, 0)])
def test_where_nothing_can_be_stored_a_page_shows_what_there_is_and_says_why_nothing_is_added(
    page: PageEntry, gpus: int, shipped: Run, monkeypatch: pytest.MonkeyPatch, machine: Callable[[int], None],
    open_page: Open,
) -> None:  # fmt: skip
    monkeypatch.setenv("PINSCOPE_DATABASE", "sqlite:////proc/pinscope/runs.db")  # not even root can make a file there
    machine(gpus)
    app = open_page(page)
    (note,) = app.warning
    assert "/proc/pinscope/runs.db" in note.value.replace("\\", "")
    assert not app.exception
    assert not app.error
    assert gpus == 0 or "Synthetic GPU" in texts(app)


def test_home_without_a_gpu_says_so_and_leads_through_recordings_step_by_step(
    machine: Callable[[int], None], open_page: Open
) -> None:
    machine(0)
    app = open_page(HOME)
    assert "run on the host model" in app.info[0].value
    choice = app.segmented_control(key="step")
    assert len(choice.options) == len(STEPS)
    for number, name in enumerate(STEPS[:2]):
        if number:  # the first is shown at once
            choice = app.segmented_control(key="step")
            choice.set_value(name).run()
        assert not app.exception
        kind = registry.find_reader(name).kind
        assert choice.options[number] == f"{number + 1} · {kind.title}"
        assert plain(kind.question) in texts(app)
        assert len(app.get("plotly_chart")) == 1
        verdict = newest_recordings()[name].verdict
        assert verdict
        assert [header.value for header in app.subheader] == [prose(verdict)]


def test_a_run_of_the_host_model_says_that_it_is_one(full_store: Store, open_page: Open) -> None:
    app = open_page(RUNS, run="syntheticbandwidthhost")
    assert plain(HOST_MODEL_NOTE) in "".join(caption.value for caption in app.caption)
    assert "host model (no GPU)" in app.title[0].value.replace("\\", "")


def test_experiments_names_the_host_model_where_there_is_no_gpu_and_else_the_gpus_first(
    machine: Callable[[int], None], open_page: Open
) -> None:
    host_model = "host model (no GPU)"
    machine(0)
    app = open_page(EXPERIMENTS)
    for gpus, places in ((0, []), (2, ["GPU 0: Synthetic GPU", "GPU 1: Synthetic GPU"])):
        machine(gpus)
        place = next(box for box in app.run().selectbox if box.label == "Runs on")
        assert place.options == [*places, host_model]
