"""Trend: a series from a link or chosen, its step, and links that cannot be used."""

from __future__ import annotations

from pinscope.dashboard.pages import TREND
from pinscope.store.store import Store
from tests.data.stepping_runs import KEY, add_stepping_runs
from tests.unit.dashboard.conftest import Open


def test_a_step_is_said_with_its_run_and_what_changed_and_drawn(store: Store, open_page: Open) -> None:
    step = add_stepping_runs(store)
    app = open_page(TREND)
    assert not app.exception
    (verdict,) = app.subheader
    assert step in verdict.value.replace("\\", "")
    assert "driver 580.1 → 590.2" in verdict.value.replace("\\", "")
    assert len(app.get("plotly_chart")) == 1
    assert app.code[0].value == f"pinscope runs trend bandwidth {KEY} --like run-19"
    assert [box.label for box in app.selectbox] == ["Experiment", "Machine and parameters", "Figure"]


def test_a_link_names_a_series_and_a_run_without_figures_is_said(store: Store, open_page: Open) -> None:
    add_stepping_runs(store)
    app = open_page(TREND, experiment="bandwidth", series="quick")
    assert not app.exception
    assert app.selectbox(key="trend-series").value == "quick"
    assert "no figure to follow" in app.info[0].value


def test_a_link_that_names_nothing_shows_the_first_and_one_run_has_no_step(store: Store, open_page: Open) -> None:
    add_stepping_runs(store, many=1)
    app = open_page(TREND, experiment="nothing", series="<script>", figure="../../etc/passwd")
    assert not app.exception
    assert "no step can be told from chance" in app.subheader[0].value
    assert len(app.get("plotly_chart")) == 1
