"""What the charts of a bandwidth run say, read back from the figures."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import plotly.graph_objects as go
import pytest

from tests.data import synthetic
from tests.data.readings import Made

drawn = Made("bandwidth").charts

Row = dict[str, Any]


def row(**changes: Any) -> Row:
    seconds = changes.get("device_seconds", 1e-3)
    changes.setdefault("one_more_seconds", seconds)
    fields = {
        "repeat": 0, "warmup": False, "memory": "pinned", "direction": "h2d", "copier": "engine", "bytes": 2**20,
        "device": 0, "devices": 1, "device_seconds": seconds, "wall_seconds": seconds, "issue_seconds": 2e-6,
        "h2d_seconds": seconds, "d2h_seconds": None, "wrong_words": 0, "one_more_copies": 1, "backing": None,
        "cache": None,
    }  # fmt: skip
    return fields | changes


def repeated(times: Sequence[float], **labels: Any) -> list[Row]:
    return [row(repeat=number, device_seconds=seconds, **labels) for number, seconds in enumerate(times)]


def trace(figure: go.Figure, name: str, panel: int = 1) -> Any:
    """The trace of that name in a panel, counted from the top."""
    axis = "x" if panel == 1 else f"x{panel}"
    return next(item for item in figure.data if item.name == name and item.xaxis == axis)


def test_the_one_copy_of_a_run_that_just_began_is_drawn() -> None:
    charts = drawn([row()])

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

    chart = drawn([row()], environment=environment.model_copy(update={"devices": (bare,)}))["bandwidth"]

    assert "link limit" not in {item.name for item in chart.figure.data}
    assert "not known" in chart.caption
