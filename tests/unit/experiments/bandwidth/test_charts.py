"""What the charts of a bandwidth run say, read back from the figures."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import plotly.graph_objects as go
import pytest

from pinscope.charts.chart import Chart
from pinscope.charts.theme import COLOURS, DASHES
from tests.data import synthetic
from tests.data.readings import As

draw = As("bandwidth").draw

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


def drawn(rows: list[Row], **run: Any) -> dict[str, Chart]:
    return {chart.key: chart for chart in draw(synthetic.run("bandwidth", **run), rows)}


def trace(figure: go.Figure, name: str, panel: int = 1) -> Any:
    """The trace of that name in a panel, counted from the top."""
    axis = "x" if panel == 1 else f"x{panel}"
    return next(item for item in figure.data if item.name == name and item.xaxis == axis)


@pytest.fixture(scope="module")
def full() -> dict[str, Chart]:
    return drawn(synthetic.bandwidth_rows(devices=2), devices=2)


def test_a_run_without_rows_has_no_charts() -> None:
    assert drawn([]) == {}


def test_a_full_run_has_every_chart_with_words_and_units(full: dict[str, Chart]) -> None:
    assert list(full) == [
        "bandwidth", "speedup", "issue-time", "copiers", "latency-fit", "memory-states", "all-devices",
    ]  # fmt: skip
    for chart in full.values():
        assert chart.title
        assert chart.caption.endswith(".")
        heads = [axis.title.text for axis in (*chart.figure.select_yaxes(), *chart.figure.select_xaxes())]
        assert any(head and head.endswith(")") for head in heads), heads  # the unit in brackets


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


def test_warmups_are_not_drawn() -> None:
    figure = drawn([row(warmup=True, device_seconds=1.0), row(device_seconds=1e-3)])["bandwidth"].figure

    assert trace(figure, "pinned").y == pytest.approx([2**20 / 1e-3 / 1e9])


def test_copies_of_other_gpus_stay_out_of_the_curves() -> None:
    rows = [row(), row(device=1, device_seconds=9.0), row(devices=2, device_seconds=9.0)]

    assert trace(drawn(rows, devices=2)["bandwidth"].figure, "pinned").y == pytest.approx([2**20 / 1e-3 / 1e9])


def test_both_directions_at_once_count_together_against_twice_the_limit() -> None:
    rows = [row(), row(direction="bidirectional", d2h_seconds=1e-3)]

    figure = drawn(rows)["bandwidth"].figure

    assert trace(figure, "pinned", 2).y == pytest.approx([2 * 2**20 / 1e-3 / 1e9])
    assert trace(figure, "link limit", 1).y == pytest.approx([57.6, 57.6])
    assert trace(figure, "link limit", 2).y == pytest.approx([115.2, 115.2])


def test_the_host_model_has_no_link_limit_and_says_so() -> None:
    chart = drawn(synthetic.bandwidth_rows("host"), lab="host")["bandwidth"]

    assert "link limit" not in {item.name for item in chart.figure.data}
    assert "host model has no link" in chart.caption


def test_an_unknown_link_limit_is_left_out_and_said() -> None:
    environment = synthetic.environment()
    bare = environment.devices[0].model_copy(update={"link": None})

    chart = drawn([row()], environment=environment.model_copy(update={"devices": (bare,)}))["bandwidth"]

    assert "link limit" not in {item.name for item in chart.figure.data}
    assert "not known" in chart.caption


def test_kinds_differ_by_colour_and_marker_and_directions_by_dash(full: dict[str, Chart]) -> None:
    figure = full["bandwidth"].figure

    for panel, way in enumerate(("h2d", "d2h", "bidirectional"), start=1):
        for kind, name, symbol in (("pinned", "pinned", "circle"), ("write_combined", "write-combined", "square")):
            curve = trace(figure, name, panel)
            assert (curve.line.color, curve.marker.symbol) == (COLOURS[kind], symbol)
            assert curve.line.dash == DASHES[way]


def test_each_name_stands_in_the_legend_once_and_pinned_first(full: dict[str, Chart]) -> None:
    entries = [item for item in full["bandwidth"].figure.data if item.showlegend]

    names = [item.name for item in entries]
    assert len(names) == len(set(names)) == 6
    assert names[-3:] == ["pageable", "pinned", "link limit"]
    assert full["bandwidth"].figure.layout.legend.traceorder == "reversed+grouped"


def test_the_ratio_is_that_of_equal_sizes() -> None:
    rows = [row(), row(memory="pageable", device_seconds=4e-3), row(memory="pageable", bytes=2**21)]

    figure = drawn(rows)["speedup"].figure

    shown = trace(figure, "pinned ÷ pageable")
    assert list(shown.x) == [2**20]
    assert shown.y == pytest.approx([4.0])


def test_issue_times_are_medians_in_seconds_on_logarithmic_axes() -> None:
    rows = [row(issue_seconds=seconds) for seconds in (1e-6, 2e-6, 9e-6)]

    figure = drawn(rows)["issue-time"].figure

    assert trace(figure, "pinned").y == pytest.approx([2e-6])
    assert (figure.layout.xaxis.type, figure.layout.yaxis.type) == ("log", "log")
    assert list(figure.layout.yaxis.ticktext) == ["1 µs", "2 µs", "5 µs", "10 µs"]  # within one decade


def test_kernel_copies_stand_beside_those_of_the_engine_with_open_markers() -> None:
    rows = [row(), row(copier="kernel", device_seconds=2e-3), row(memory="pageable")]

    figure = drawn(rows)["copiers"].figure

    assert {item.name for item in figure.data} == {"pinned, engine", "pinned, kernel", "link limit"}
    assert trace(figure, "pinned, kernel").marker.symbol == "circle-open"
    assert trace(figure, "pinned, kernel").y == pytest.approx([2**20 / 2e-3 / 1e9])


def test_a_run_without_kernel_copies_has_no_chart_of_them() -> None:
    assert "copiers" not in drawn([row()])


def test_the_fitted_line_goes_through_times_that_lie_on_a_line() -> None:
    sizes = [4096 * 16**power for power in range(4)]
    rows = [row(bytes=size, device_seconds=5e-6 + size / 50e9) for size in sizes]

    figure = drawn(rows)["latency-fit"].figure

    line = trace(figure, "pinned, fit")
    assert np.asarray(line.y) == pytest.approx(5e-6 + np.asarray(line.x) / 50e9)
    assert line.customdata[0].startswith("α 5.00 µs, β 50.0 GB/s, half of β at 244 KiB, R² 1.000")


def test_one_copy_stands_beside_one_more_and_above_what_the_link_needs() -> None:
    sizes = [4096 * 16**power for power in range(4)]
    rows = [
        row(bytes=n, device_seconds=8e-6 + n / 50e9, one_more_seconds=2e-6 + n / 50e9, one_more_copies=64)
        for n in sizes
    ]

    figure = drawn(rows)["latency-fit"].figure

    one, more = trace(figure, "pinned, one copy"), trace(figure, "pinned, one more")
    assert one.y == pytest.approx([8e-6 + size / 50e9 for size in sizes])
    assert more.y == pytest.approx([2e-6 + size / 50e9 for size in sizes])
    assert (one.marker.symbol, more.marker.symbol) == ("circle-open", "circle")
    assert trace(figure, "link limit").y == pytest.approx([sizes[0] / 57.6e9, sizes[-1] / 57.6e9])
    assert (figure.layout.xaxis.type, figure.layout.yaxis.type) == ("log", "log")


def test_states_of_memory_have_a_chart_of_their_own_and_the_others_show_the_compared_one() -> None:
    states = [("4k", "cold", 1e-3), ("4k", "warm", 7e-4), ("thp", "cold", 9e-4), ("thp", "warm", 6e-4)]
    rows = [row(memory="pageable", backing=b, cache=c, device_seconds=t) for b, c, t in states]
    rows += [row(device_seconds=2e-4), row(device_seconds=4e-4, cache="warm")]

    charts = drawn(rows)

    shown = {item.name for item in charts["memory-states"].figure.data}
    assert shown == {*(f"pageable, {b}, {c}" for b, c, _ in states), "pinned, warm"}
    assert trace(charts["bandwidth"].figure, "pageable").y == pytest.approx([2**20 / 1e-3 / 1e9])
    assert trace(charts["bandwidth"].figure, "pinned").y == pytest.approx([2**20 / 2e-4 / 1e9])
    assert trace(charts["speedup"].figure, "pinned ÷ pageable").y == pytest.approx([5.0])


def test_rows_of_earlier_versions_are_drawn_as_they_were() -> None:
    new = {"one_more_seconds", "one_more_copies", "backing", "cache"}
    rows = [
        {key: value for key, value in row(memory=kind).items() if key not in new} for kind in ("pinned", "pageable")
    ]

    charts = drawn(rows)

    assert list(charts) == ["bandwidth", "speedup", "issue-time"]


def test_two_sizes_give_no_fit() -> None:
    assert "latency-fit" not in drawn([row(), row(bytes=2**21)])


def test_all_gpus_at_once_stand_beside_each_alone() -> None:
    rows = [
        row(device_seconds=1e-3),
        row(device=1, device_seconds=2e-3),
        row(devices=2, device_seconds=4e-3),
        row(device=1, devices=2, device_seconds=5e-3),
    ]

    figure = drawn(rows, devices=2)["all-devices"].figure

    rate = 2**20 / 1e9
    alone, at_once = figure.data
    assert (alone.name, at_once.name) == ("alone", "all at once")
    assert list(alone.y) == ["GPU 0, h2d", "GPU 1, h2d"]
    assert alone.x == pytest.approx([rate / 1e-3, rate / 2e-3])
    assert at_once.x == pytest.approx([rate / 4e-3, rate / 5e-3])
