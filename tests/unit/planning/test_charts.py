"""The chart of a plan, read back from the figure."""

from __future__ import annotations

import pytest

from pinscope.planning.reading import draw_plan
from tests.unit.planning.test_plan import GIB, plan


def test_times_are_drawn_fastest_first_and_only_where_a_run_told_them() -> None:
    (times,) = draw_plan(plan(40 * 10**9))
    seconds = {name: time for trace in times.figure.data for name, time in zip(trace.y, trace.x, strict=True)}
    first_on_top = times.figure.layout.yaxis.categoryarray[::-1]
    assert [seconds[name] for name in first_on_top] == pytest.approx([1.0, 40 / 38, 10.0])
    assert all(time in times.alt for time in ("1.00 s", "1.05 s", "10.0 s"))
    assert draw_plan(plan(GIB // 8)) == draw_plan(plan(GIB, paces=())) == []  # far less than was measured
