"""Charts of a plan, read back from the figures."""

from __future__ import annotations

import pytest

from pinscope.planning.charts import draw_plan
from tests.unit.planning.test_plan import GIB, MIB, plan


def test_page_tables_are_drawn_up_to_the_memory_of_the_gpu_with_the_plan_marked() -> None:
    tables, _ = draw_plan(plan(8 * GIB, processes=4, shared=True))
    lines = {trace.name: trace for trace in tables.figure.data}
    assert len([name for name in lines if name.startswith("one process")]) == 3
    for name, table in (("each process registers", 64 * MIB), ("one owner copies for all", 16 * MIB)):
        marked = [
            (x, y) for x, y, size in zip(lines[name].x, lines[name].y, lines[name].marker.size, strict=True) if size
        ]
        assert marked == [(8 * GIB, table)]
    assert set(lines["memory of one GPU, 80 GiB"].y) == {80 * GIB}
    assert tables.figure.layout.xaxis.type == tables.figure.layout.yaxis.type == "log"


def test_times_are_drawn_fastest_first_and_only_where_a_run_told_them() -> None:
    _, times = draw_plan(plan(40 * 10**9))
    seconds = {name: time for trace in times.figure.data for name, time in zip(trace.y, trace.x, strict=True)}
    first_on_top = times.figure.layout.yaxis.categoryarray[::-1]
    assert [seconds[name] for name in first_on_top] == pytest.approx([1.0, 40 / 38, 10.0])
    assert all(time in times.alt for time in ("1.00 s", "1.05 s", "10.0 s"))
    assert len(draw_plan(plan(GIB, paces=()))) == 1


def test_one_owner_of_memory_that_is_not_shared_pays_for_all_of_it() -> None:
    tables, _ = draw_plan(plan(8 * GIB, processes=4))
    lines = {trace.name: dict(zip(trace.x, trace.y, strict=True)) for trace in tables.figure.data}
    assert lines["one owner copies for all"][8 * GIB] == lines["each process registers"][8 * GIB] == 64 * MIB


@pytest.mark.parametrize(("pinned", "count"), [(8, 1), (2**20, 1), (2**33, 2), (2**50, 1)])
def test_any_amount_can_be_drawn(pinned: int, count: int) -> None:
    charts = draw_plan(plan(pinned))
    assert len(charts) == count  # times only near what was measured
    for chart in charts:
        chart.figure.to_plotly_json()
        assert chart.caption.endswith(".")
