"""Charts of a filled group: rounds inside and outside, and what the group holds."""

from __future__ import annotations

from pinscope.experiments.brim.charts import draw
from pinscope.records.run import Run
from tests.data import synthetic
from tests.unit.experiments.brim.test_reading import CLIFF, KILL, LIMIT, at, filled

RUN: Run = synthetic.run("brim")


def test_a_filled_group_shows_both_processes_the_limit_and_the_kill() -> None:
    rounds, memory = draw(RUN, filled())
    lines = {trace.name: trace for trace in rounds.figure.data}
    assert set(lines) == {"in the group", "outside the group", "cliff by the group's account", "limit", "killed"}
    assert lines["limit"].x == (100, 100)
    assert lines["cliff by the group's account"].x[0] == 100 * CLIFF / LIMIT
    assert lines["killed"].x[0] > 100 * KILL / LIMIT
    assert rounds.figure.layout.yaxis.type == "log"
    held = {trace.name: trace for trace in memory.figure.data}
    assert set(held) == {"pinned", "page cache", "all in the group", "limit"}
    assert max(held["all in the group"].y) <= 100
    assert "killed at" in rounds.alt


def test_groups_with_and_without_swap_have_charts_of_their_own() -> None:
    with_swap = [row | {"swap": True} for row in filled()]
    keys = [chart.key for chart in draw(RUN, filled() + with_swap)]
    assert keys == ["brim-rounds", "brim-memory", "brim-rounds-swap", "brim-memory-swap"]


def test_nothing_is_drawn_before_the_first_step() -> None:
    assert draw(RUN, []) == []
    assert draw(RUN, at("before", 0, 0)) == []
