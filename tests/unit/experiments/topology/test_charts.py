"""Charts of runs over all GPUs: a matrix of pairs, bars beside the link's limit, nodes."""

from __future__ import annotations

from typing import Any

import pytest

from pinscope.charts.chart import Chart
from pinscope.charts.marks import colour
from pinscope.charts.theme import COLOURS
from pinscope.experiments.registry import draw_run
from tests.unit.experiments.topology.hosts import FAR, LINK, ROWS, copied, host, run

PAIRS = ((0, 1), (2, 3), (4, 5), (6, 7))


def charts(rows: ROWS, gpus: int = 2, nodes: int = 1) -> dict[str, Chart]:
    return {chart.key: chart for chart in draw_run(run(gpus, nodes), rows)}


def texts(chart: Chart) -> list[Any]:
    return [annotation.text for annotation in chart.figure.layout.annotations]


@pytest.mark.parametrize("gpus", [2, 4, 8])
def test_the_matrix_has_every_pair_twice_and_each_alone_on_its_diagonal(gpus: int) -> None:
    chart = charts(host(gpus, PAIRS), gpus)["topology-pairs"]
    h2d, d2h = chart.figure.data
    for matrix in (h2d, d2h):
        assert [len(line) for line in matrix.z] == [gpus] * gpus
        for one in range(gpus):
            assert matrix.z[one][one] == 1.0
            for other in range(gpus):
                shares = one // 2 == other // 2 and one != other
                assert matrix.z[one][other] == pytest.approx(0.6 if shares else 1.0)
    assert texts(chart).count("60" if gpus > 4 else "60.0 %<br>60.0 GB/s") == 2 * gpus
    assert "GPUs 0 and 1 to the GPU 60.0 %" in chart.alt


def test_bars_stand_beside_the_most_that_the_link_carries() -> None:
    drawn = charts(host(2, directions=("h2d", "bidirectional")))
    assert [key for key in drawn if key != "topology-pairs"] == ["topology-h2d", "topology-bidirectional"]
    figure = drawn["topology-h2d"].figure
    assert {trace.name for trace in figure.data} == {
        "alone", "all at once, one process", "all at once, one process per GPU",
    }  # fmt: skip
    bars = len(figure.layout.yaxis.categoryarray)
    assert [shape.x0 for shape in figure.layout.shapes] == pytest.approx([57.6] * bars)
    assert figure.layout.xaxis.range[1] > 57.6
    both = drawn["topology-bidirectional"].figure
    assert [shape.x0 for shape in both.layout.shapes] == pytest.approx([2 * 57.6] * bars)


def test_one_gpu_has_bars_and_no_matrix() -> None:
    drawn = charts(host(1), 1)
    assert list(drawn) == ["topology-rates"]
    assert "GPU 0, h2d 50.0 GB/s; GPU 0, d2h 50.0 GB/s" in drawn["topology-rates"].alt


def test_nodes_are_drawn_where_there_are_several() -> None:
    near = {0: 0, 1: 1}
    rows = host(2, near=near) + copied({0: FAR}, node=1) + copied({1: FAR}, node=0)
    chart = charts(rows, nodes=2)["topology-nodes"]
    assert chart.figure.data[0].z == ([1.0, FAR / LINK], [FAR / LINK, 1.0])
    assert "50.0 GB/s (near)" in texts(chart)
    assert "topology-nodes" not in charts(host(2))


def test_a_run_that_goes_on_draws_what_there_is() -> None:
    rows = host(4, PAIRS[:2], directions=("h2d", "bidirectional"))
    for count in range(0, len(rows), 97):
        for chart in charts(rows[:count], 4).values():
            assert chart.alt.endswith(".")
            assert len(chart.figure.data) > 0


def test_the_colour_of_a_square_runs_from_the_worst_to_the_best() -> None:
    assert colour(1.2) == colour(1.0) == COLOURS["copy"].lower()
    assert colour(0.1) == colour(0.5) == COLOURS["stall"].lower()
    assert colour(0.75) not in (colour(0.5), colour(1.0))
