"""Runs set against runs, by a link or chosen: Compare and Trend; and links that cannot be used."""

from __future__ import annotations

import pytest
from streamlit.testing.v1 import AppTest

from pinscope.dashboard.pages import COMPARE, TREND
from pinscope.dashboard.widgets import prose
from pinscope.experiments.registry import verdict_of
from pinscope.report.comparison import compare_named, foremost
from pinscope.store import choice
from pinscope.store.store import Store
from tests.data import synthetic
from tests.data.stepping_runs import KEY, add_stepping_runs
from tests.unit.dashboard.conftest import Open
from tests.unit.dashboard.test_runs_page import said
from tests.unit.report.test_comparison import H100, H200, IDS

BEFORE, AFTER = (IDS[f"pinning_strategy-{host}"] for host in ("h100", "h200"))


def sides(app: AppTest) -> dict[str, str]:
    """What the address says."""
    given = {side: app.query_params[side] for side in ("a", "b") if side in app.query_params}
    return {side: text if isinstance(text, str) else text[0] for side, text in given.items()}


def test_a_link_shows_the_verdict_the_first_figures_the_machines_and_two_charts(store: Store, open_page: Open) -> None:
    (comparison,) = compare_named(lambda: store, [H100, H200]).comparisons
    app = open_page(COMPARE, a=BEFORE, b=AFTER)
    assert not app.exception
    assert [header.value for header in app.subheader] == [prose(verdict_of(comparison))]
    assert sum(
        prose(cell.verdict_words) in markdown.value for cell in foremost(comparison) for markdown in app.markdown
    )
    assert "NVIDIA H100 80GB HBM3 → NVIDIA H200" in str(app.table[1].value.replace({r"\\": ""}, regex=True).to_dict())
    assert len(app.get("plotly_chart")) == 2
    cells = len(app.dataframe[0].value)
    assert app.code[0].value == f"pinscope compare {BEFORE} {AFTER}"
    app.toggle(key="all").set_value(True).run()
    assert len(app.dataframe[0].value) > cells


def test_equal_runs_show_no_difference(store: Store, open_page: Open) -> None:
    rows = synthetic.bandwidth_rows(sizes=synthetic.SIZES[::4])
    store.import_runs([(synthetic.run("bandwidth", id=name), rows) for name in ("first", "second")])
    app = open_page(COMPARE, a="first", b="second")
    assert not app.exception
    assert app.subheader[0].value.startswith("No difference")
    assert "faster" not in said(app)


def test_what_is_chosen_stands_in_the_address_and_can_be_swapped(store: Store, open_page: Open) -> None:
    store.import_runs([(synthetic.run("bandwidth", id="of-another-kind"), [])])
    app = open_page(COMPARE)
    assert not app.subheader
    app.multiselect(key="compare-a").set_value([BEFORE]).run()
    assert sides(app) == {"a": BEFORE}
    other = app.multiselect(key="compare-b")
    assert not any("Bandwidth" in label or BEFORE in label for label in other.options)
    other.set_value([AFTER]).run()
    assert sides(app) == {"a": BEFORE, "b": AFTER}
    verdict = app.subheader[0].value
    next(button for button in app.button if button.label == "Swap sides").click().run()
    assert sides(app) == {"a": AFTER, "b": BEFORE}
    assert app.subheader[0].value != verdict
    app.multiselect(key="compare-b").set_value([]).run()
    assert sides(app) == {"a": AFTER}


@pytest.mark.parametrize("name", ["nothing", H200])
def test_a_link_that_names_no_run_is_one_clear_line_and_opens_no_file(name: str, store: Store, open_page: Open) -> None:
    del store
    app = open_page(COMPARE, a=BEFORE, b=name)
    assert not app.exception
    (error,) = app.error
    assert "\n" not in error.value
    assert not app.subheader
    app.multiselect(key="compare-b").set_value([AFTER]).run()
    assert not app.error
    assert app.subheader


def test_runs_that_cannot_be_compared_are_one_clear_line(open_page: Open) -> None:
    app = open_page(COMPARE, a=BEFORE, b=IDS["overlap-h200"])
    assert not app.exception
    assert "these are of" in app.error[0].value


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


def test_of_more_runs_than_a_page_looks_at_trend_says_so(
    store: Store, open_page: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    add_stepping_runs(store)
    whole = "Of the newest 5 finished runs of all kinds; the command line looks at all."
    assert whole not in said(open_page(TREND))
    monkeypatch.setattr(choice, "NEWEST", 5)
    assert whole in said(open_page(TREND))


def test_a_link_that_names_nothing_shows_the_first_and_one_run_has_no_step(store: Store, open_page: Open) -> None:
    add_stepping_runs(store, many=1)
    app = open_page(TREND, experiment="nothing", series="<script>", figure="../../etc/passwd")
    assert not app.exception
    assert "no step can be told from chance" in app.subheader[0].value
    assert len(app.get("plotly_chart")) == 1
