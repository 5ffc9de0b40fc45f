"""Setting an experiment up: what it takes is told before it starts, and nonsense is one clear line."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from streamlit.testing.v1 import AppTest

from pinscope.dashboard.pages import EXPERIMENTS
from pinscope.dashboard.widgets import prose
from pinscope.records.run import Run
from pinscope.store.recordings import newest_recordings
from pinscope.store.store import Store
from tests.unit.dashboard.conftest import Open

SIZES = "bandwidth-host-quick-sizes"


@pytest.fixture
def app(open_page: Open) -> AppTest:
    return open_page(EXPERIMENTS)


def start_button(app: AppTest) -> bool:
    """Whether Start can be pressed."""
    return not next(button for button in app.button if button.label.startswith("Start")).disabled


def test_the_budget_is_told_before_the_start_and_follows_the_form(app: AppTest) -> None:
    figures = {metric.label: metric.value for metric in app.metric}
    assert figures["Pinned"] == "32 MiB"
    assert set(figures) == {"Pinned", "Other host memory", "Model's device memory", "Time (estimate)"}
    assert start_button(app)
    app.text_input(key=SIZES).set_value("1 MiB").run()
    assert {metric.label: metric.value for metric in app.metric}["Pinned"] == "2 MiB"
    app.segmented_control(key="size").set_value("Full").run()
    assert "256 MiB" in app.text_input(key="bandwidth-host-full-sizes").value


def test_refused_input_is_one_clear_line_and_cannot_be_started(app: AppTest) -> None:
    refused = {
        "0": "greater than 0", "-4KiB": "greater than 0", "12": "multiple of 8", "a lot": "is not a size",
        "": "at least one", "1000TiB": "safe",
    }  # fmt: skip
    for sizes, complaint in refused.items():
        app.text_input(key=SIZES).set_value(sizes).run()
        assert not app.exception
        assert len(app.error) == 1
        assert complaint in app.error[0].value.replace("\\", "")
        assert "\n" not in app.error[0].value
        assert not start_button(app)
    app.text_input(key=SIZES).set_value("1 MiB").run()
    assert start_button(app)
    app.pills(key="bandwidth-host-quick-memory").set_value([]).run()
    assert len(app.error) == 1
    assert not start_button(app)


def test_start_starts_exactly_what_the_form_says(app: AppTest, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[Run] = []

    def start(opened: Store, run: Run) -> None:
        started.append(opened.add(run))

    monkeypatch.setattr("pinscope.runner.jobs.start", start)  # the browser tests start real children
    app.text_input(key=SIZES).set_value("64 KiB")
    app.pills(key="bandwidth-host-quick-directions").set_value(["h2d"])
    app.button(key="start-0").click().run()
    assert not app.exception
    assert len(started) == 1
    assert started[0].quick
    assert (started[0].lab, started[0].device) == ("host", 0)
    assert started[0].params["sizes"] == [2**16]
    assert started[0].params["directions"] == ["h2d"]
    assert [run.id for run in store.unfinished()] == [started[0].id]
    assert app.button(key="start-1").label == "Start (waits until the device is free)"


def test_an_experiment_that_needs_a_gpu_shows_its_recording_where_there_is_none(
    machine: Callable[[int], None], open_page: Open
) -> None:
    machine(0)
    app = open_page(EXPERIMENTS)
    app.segmented_control(key="experiment").set_value("access").run()
    assert not app.exception
    assert not app.error
    assert app.info[0].proto.title == "This experiment needs a GPU"
    assert [button for button in app.button if button.label.startswith("Start")] == []
    assert len(app.get("plotly_chart")) == 1
    assert [header.value for header in app.subheader] == [prose(newest_recordings()["access"].verdict or "")]


def test_the_form_is_told_as_a_command(app: AppTest) -> None:
    assert app.code[0].value == "pinscope run bandwidth --lab host --quick"
    app.text_input(key=SIZES).set_value("64 KiB, 1 MiB").run()
    app.number_input(key="bandwidth-host-quick-precision").set_value(2.0).run()
    assert app.code[0].value == "pinscope run bandwidth --lab host --quick --set sizes=64KiB,1MiB --set precision=2%"
