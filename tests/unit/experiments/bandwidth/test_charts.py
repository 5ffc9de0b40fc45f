"""What the charts of a bandwidth run say, read back from the figures."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import plotly.graph_objects as go
import pytest

from tests.data import synthetic
from tests.data.readings import Made
from tests.unit.experiments.bandwidth.test_arithmetic import row

drawn = Made("bandwidth").charts


def repeated(times: Sequence[float], **labels: Any) -> list[dict[str, Any]]:
    return [row(seconds, 2**20, repeat=number, **labels) for number, seconds in enumerate(times)]


def trace(figure: go.Figure, name: str, panel: int = 1) -> Any:
    """The trace of that name in a panel, counted from the top."""
    axis = "x" if panel == 1 else f"x{panel}"
    return next(item for item in figure.data if item.name == name and item.xaxis == axis)


def test_the_one_copy_of_a_run_that_just_began_is_drawn() -> None:
    charts = drawn([row(1e-3, 2**20)])

    assert list(charts) == ["bandwidth", "issue-time"]
    assert trace(charts["bandwidth"].figure, "pinned").y == pytest.approx([2**20 / 1e-3 / 1e9])


def test_rates_are_medians_and_bars_their_quartiles() -> None:
    figure = drawn(repeated([1e-3, 2e-3, 3e-3, 4e-3, 5e-3]))["bandwidth"].figure

    shown = trace(figure, "pinned")
    rate = 2**20 / 1e9
    assert shown.y[0] == pytest.approx(rate / 3e-3)
    assert shown.y[0] + shown.error_y.array[0] == pytest.approx(rate / 2e-3)
    assert shown.y[0] - shown.error_y.arrayminus[0] == pytest.approx(rate / 4e-3)


def test_an_unknown_link_limit_is_left_out_and_said() -> None:
    environment = synthetic.environment()
    bare = environment.devices[0].model_copy(update={"link": None})

    chart = drawn([row(1e-3, 2**20)], environment=environment.model_copy(update={"devices": (bare,)}))["bandwidth"]

    assert "link limit" not in {item.name for item in chart.figure.data}
    assert "not known" in chart.caption
