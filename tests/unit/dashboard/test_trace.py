"""A trace on the pages: it opens and is found like any run, and cannot be started."""

from __future__ import annotations

import pytest

from pinscope.dashboard.pages import RUNS
from pinscope.dashboard.plain import prose
from pinscope.records.run import Run
from pinscope.store.store import Store
from tests.data import synthetic_trace
from tests.unit.dashboard.conftest import Open, all_opened


@pytest.fixture
def kept(store: Store) -> Run:
    run = synthetic_trace.run()
    store.import_runs(
        [(run, [synthetic_trace.program(), synthetic_trace.site(33), synthetic_trace.site(40, "pinned")])]
    )
    return run


def test_a_trace_opens_with_verdict_findings_charts_and_the_table_of_lines(kept: Run, open_page: Open) -> None:
    app = all_opened(open_page(RUNS, run=kept.id))
    assert not app.exception
    assert app.title[0].value == "Trace · traced program"
    assert app.subheader[0].value.startswith(prose("train.py:33 copied 1000 MiB from pageable memory"))
    assert len(app.get("plotly_chart")) == 2
    assert any("train.py:40" in str(frame.value) for frame in app.dataframe)
