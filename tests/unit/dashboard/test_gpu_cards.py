"""Home on a GPU host: a card for each GPU with what was measured of it, and one button that measures."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from streamlit.testing.v1 import AppTest

from pinscope.dashboard import state
from pinscope.dashboard.machine import _expected, _shared
from pinscope.dashboard.pages import HOME
from pinscope.dashboard.widgets import plain, prose
from pinscope.records.environment import Environment
from pinscope.records.run import Run
from pinscope.runner.jobs import Request
from pinscope.store.documents import StoredRow
from pinscope.store.store import Store
from tests.conftest import Outliving
from tests.data import synthetic, synthetic_snapshot
from tests.data.waiting import until
from tests.unit.dashboard.conftest import Open

SHORT = {"sizes": "64KiB", "memory": "pinned", "directions": "h2d", "precision": "50%", "time_limit": "0.2"}


@pytest.fixture(autouse=True)
def _now(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who uses the GPUs of a synthetic machine."""
    monkeypatch.setattr(state, "snapshot", synthetic_snapshot.snapshot)


def answer(gpu: int) -> str:
    return f"GPU {gpu} reaches 55.3 GB/s."


def run_of(gpu: int, **changes: object) -> Run:
    """A run of that GPU on a machine with two."""
    run = synthetic.run("bandwidth", devices=2, id=f"of-gpu-{gpu}", device=gpu, **changes)
    return run.model_copy(update={"verdict": answer(gpu)})


def rows_of(gpu: int, times: float = 1.0) -> list[StoredRow]:
    rows = synthetic.bandwidth_rows(sizes=(2**12, 2**28))
    return [{**row, "device": gpu, "one_more_seconds": row["one_more_seconds"] * times} for row in rows]


def links(app: AppTest) -> dict[str, str]:
    """Label of each link to a run → its query."""
    found = [element.proto for element in app.get("page_link")]
    return {link.label: link.query_string for link in found if link.query_string}


def test_a_card_shows_the_answers_of_its_own_gpu_and_each_leads_to_its_run(
    store: Store, machine: Callable[[int], None], open_page: Open
) -> None:
    store.import_runs([(run_of(0), rows_of(0)), (run_of(1), rows_of(1))])
    machine(2)
    app = open_page(HOME)
    assert not app.exception
    assert [links(app)[prose(answer(gpu))] for gpu in (0, 1)] == ["run=of-gpu-0", "run=of-gpu-1"]
    labels = [element.proto.label for element in app.get("page_link")]
    assert labels.count(plain("Not measured yet: Overlap, Page tables")) == 2
    assert any(plain("pinned memory: 16 GiB") in label for label in labels)


def test_a_gpu_that_copies_slower_than_its_like_is_named_in_its_card(
    store: Store, machine: Callable[[int], None], open_page: Open
) -> None:
    store.import_runs([(run_of(0), rows_of(0)), (run_of(1), rows_of(1, times=2))])
    machine(2)
    behind = [label for label in links(open_page(HOME)) if "copies at" in label]
    assert len(behind) == 1
    assert behind[0].startswith("GPU 1 copies at")


def test_runs_that_failed_or_are_of_another_gpu_answer_nothing(
    store: Store, machine: Callable[[int], None], open_page: Open
) -> None:
    store.import_runs([(run_of(1), rows_of(1)), (run_of(0, status="failed", error="it broke"), rows_of(0))])
    machine(1)
    app = open_page(HOME)
    assert prose(answer(1)) not in links(app)
    assert plain("Not measured yet: Bandwidth, Overlap, Page tables") in [
        link.proto.label for link in app.get("page_link")
    ]


@pytest.fixture
def on_the_host_model(monkeypatch: pytest.MonkeyPatch, outliving: Outliving) -> Iterator[None]:
    """What the button measures runs on the host model: there is no GPU here."""
    outliving.threads.add("pinscope-launcher_0")  # lives as long as this process, by design

    def requests(environment: Environment) -> list[Request]:
        assert environment.devices
        return [Request("bandwidth", "host", quick=True, overrides=SHORT) for _ in range(2)]

    monkeypatch.setattr("pinscope.dashboard.machine.machine_requests", requests)
    yield
    _expected.clear()


@pytest.mark.usefixtures("on_the_host_model")
def test_one_click_measures_all_and_the_bar_goes_when_it_has_ended(
    store: Store, machine: Callable[[int], None], open_page: Open
) -> None:
    machine(1)
    app = open_page(HOME)
    assert "2 quick experiments" in "".join(caption.value for caption in app.caption)
    app.button(key="measure").click().run()
    assert not app.exception
    assert [button.key for button in app.button if str(button.key).startswith("measur")] == ["measuring-cancel"]
    until(lambda: sum(run.status == "done" for run in store.runs(recordings=False)) == 2)
    _shared().end()
    app.run()
    assert [button.key for button in app.button if str(button.key).startswith("measur")] == ["measure"]


@pytest.mark.usefixtures("on_the_host_model")
def test_cancel_ends_what_the_button_began(store: Store, machine: Callable[[int], None], open_page: Open) -> None:
    machine(1)
    app = open_page(HOME)
    app.button(key="measure").click().run()
    app.button(key="measuring-cancel").click().run()
    assert not app.exception
    assert [button.key for button in app.button if str(button.key).startswith("measur")] == ["measure"]
    assert {run.status for run in store.runs(recordings=False)} <= {"cancelled", "done"}


def test_where_nothing_can_be_measured_the_button_says_why(
    monkeypatch: pytest.MonkeyPatch, machine: Callable[[int], None], open_page: Open
) -> None:
    machine(1)
    without = synthetic.environment(1).model_copy(update={"packages": {"numpy": "2.0"}})
    monkeypatch.setattr(state, "capture_environment", lambda: without)
    state.environment.clear()
    app = open_page(HOME)
    button = app.button(key="measure-refused")
    assert button.disabled
    assert "CuPy" in "".join(caption.value for caption in app.caption)
