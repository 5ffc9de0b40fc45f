"""Charts of runs over all GPUs: a matrix of pairs, bars beside the link's limit, nodes."""

from __future__ import annotations

from typing import Any

import pytest

from pinscope.charts.marks import Chart, colour
from pinscope.charts.theme import COLOURS
from pinscope.experiments.registry import draw_run
from tests.unit.experiments.topology.hosts import ROWS, host, run

PAIRS = ((0, 1), (2, 3), (4, 5), (6, 7))


def charts(rows: ROWS, gpus: int = 2, nodes: int = 1) -> dict[str, Chart]:
    return {chart.key: chart for chart in draw_run(run(gpus, nodes), rows)}


def texts(chart: Chart) -> list[Any]:
    return [annotation.text for annotation in chart.figure.layout.annotations]


@pytest.mark.parametrize("gpus", [2, 8])
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


def test_a_run_that_goes_on_draws_what_there_is() -> None:
    rows = host(4, PAIRS[:2], directions=("h2d", "bidirectional"))
    for count in range(0, len(rows), 250):
        for chart in charts(rows[:count], 4).values():
            assert chart.alt.endswith(".")
            assert len(chart.figure.data) > 0


def test_the_colour_of_a_square_runs_from_the_worst_to_the_best() -> None:
    assert colour(1.2) == colour(1.0) == COLOURS["copy"].lower()
    assert colour(0.1) == colour(0.5) == COLOURS["stall"].lower()
    assert colour(0.75) not in (colour(0.5), colour(1.0))
