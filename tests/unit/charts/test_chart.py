"""Charts are drawn when they are looked at."""

from __future__ import annotations

from collections.abc import Iterator

import plotly.graph_objects as go
import pytest

from pinscope.charts.lazy import LazyCharts
from pinscope.charts.marks import Chart
from pinscope.errors import BadInput
from tests.data import synthetic
from tests.data.readings import As
from tests.unit.experiments.allocation.test_arithmetic import buffers


def drawings(drawn: list[str], broken: str = "") -> Iterator[Chart]:
    for key in "abc":
        if key == broken:
            raise BadInput("it makes no sense")
        drawn.append(key)
        yield Chart(key, "", "", go.Figure(), "")


def test_a_chart_is_drawn_when_it_is_looked_at() -> None:
    drawn: list[str] = []
    charts = LazyCharts(drawings(drawn))
    assert not drawn
    assert charts
    assert charts[0].key == "a"
    assert charts.may_have_more_than(1)
    assert drawn == ["a"]
    assert [chart.key for chart in charts[1:]] == ["b", "c"]
    assert [chart.key for chart in charts] == drawn == ["a", "b", "c"]
    assert not charts.may_have_more_than(3)


def test_one_that_cannot_be_drawn_is_an_error_each_time() -> None:
    charts = LazyCharts(drawings([], broken="b"))
    for _ in range(2):
        assert charts[0].key == "a"
        with pytest.raises(BadInput, match="makes no sense"):
            len(charts)


def test_the_host_model_is_drawn_in_its_own_words() -> None:
    _, times = As("allocation").draw(synthetic.run("overlap", "host"), buffers("pinned", 1.0))
    assert [trace.name for trace in times.figure.data] == ["map + mlock"] * 2
    assert As("allocation").draw(synthetic.run("overlap"), []) == []
