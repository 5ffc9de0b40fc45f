"""Home on a GPU host, through Streamlit's AppTest: from the click to the filled cards."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from cupy.cuda import runtime

from pinscope.store.store import Store
from tests.conftest import Outliving

streamlit = pytest.importorskip("streamlit", reason="the dashboard needs Streamlit, which is not installed here")
testing = pytest.importorskip("streamlit.testing.v1")  # makes a temporary folder for as long as this process lives
ROOT = Path(__file__).resolve().parents[2]
MOST_SECONDS = 120
"""From the click to the filled card of a machine with one GPU; each other one may take a minute more."""


@pytest.fixture(autouse=True)
def _dashboard_ends(outliving: Outliving, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    outliving.threads.add("pinscope-launcher_0")  # lives as long as this process, by design
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))  # PyTorch makes it when it is imported
    yield
    streamlit.cache_resource.clear()  # closes the store


def test_one_click_fills_every_card_and_each_answer_leads_to_its_run() -> None:
    from pinscope.dashboard import machine
    from pinscope.dashboard.machine import SHOWN
    from pinscope.dashboard.widgets import prose

    gpus = runtime.getDeviceCount()
    app = testing.AppTest.from_file(ROOT / "app.py", default_timeout=120).run()
    assert not app.exception
    begun = time.monotonic()
    app.button(key="measure").click().run()
    suite = machine._shared().suite
    assert suite is not None
    suite.join()
    app.run()
    took = time.monotonic() - begun

    assert not app.exception
    assert [step.problem for step in suite.steps] == [None] * len(suite.steps)
    with Store() as store:
        runs = [store.run(step.run_id or "") for step in suite.steps]
    assert {run.status for run in runs} == {"done"}
    links = [element.proto for element in app.get("page_link")]
    shown = {(link.label, link.query_string) for link in links}
    answers = [run for run in runs if run.experiment in SHOWN]
    assert len(answers) == len(SHOWN) * gpus
    for run in answers:
        assert run.verdict
        assert (prose(run.verdict), f"run={run.id}") in shown
    assert len(app.get("plotly_chart")) == len(answers)
    estimate = suite.expected_seconds
    assert took < MOST_SECONDS + 60 * (gpus - 1), f"{took:.0f} s, where {estimate:.0f} s were said"
