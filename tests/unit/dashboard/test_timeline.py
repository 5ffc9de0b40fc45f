"""A timeline on the pages: it opens and is found like any run, and cannot be started."""

from __future__ import annotations

import pytest
from streamlit.testing.v1 import AppTest

from pinscope.dashboard.pages import RUNS
from pinscope.probes.process import current_process
from pinscope.records.run import Progress, Run
from pinscope.store.store import Store
from tests.data import synthetic, synthetic_timeline
from tests.unit.dashboard.conftest import Open, all_opened


def said(app: AppTest) -> str:
    """All that the page says in words."""
    kinds = (app.title, app.header, app.markdown, app.caption, app.info, app.warning, app.error)
    return "\n".join(str(element.value) for kind in kinds for element in kind)


@pytest.fixture
def kept(store: Store) -> Run:
    run = synthetic_timeline.run(id="a-timeline")
    store.import_runs([(run, synthetic_timeline.growing()), (synthetic.run("bandwidth"), [])])
    return run


def test_a_timeline_opens_with_findings_charts_and_tables(kept: Run, open_page: Open) -> None:
    app = all_opened(open_page(RUNS, run=kept.id))
    assert not app.exception
    assert app.title[0].value == "Timeline · live view"
    words = said(app)
    assert app.dataframe
    assert "leaky" in words
    assert "host model" not in words
    assert [badge for badge in ("quick", "full") if f"{badge}]" in words] == []
    assert len(app.get("plotly_chart")) == 4
    assert {metric.label for metric in app.metric} >= {"Pinned at the end"}


def test_one_that_goes_on_says_how_long_it_will(store: Store, open_page: Open) -> None:
    run = synthetic_timeline.run(
        id="going-on", status="running", finished_at=None, process=current_process(),
        progress=Progress(fraction=0.2, message="120 s, 121 samples"),
    )  # fmt: skip
    store.add(run.model_copy(update={"params": {**run.params, "for_seconds": 600.0}}))
    store.append(run.id, synthetic_timeline.growing(samples=10))
    app = open_page(RUNS, run=run.id)
    assert not app.exception
    assert "roughly 600 s in all" in said(app)
    assert len(app.get("plotly_chart")) == 1
