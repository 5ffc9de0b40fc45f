"""Ways to use data on the host: which wins, where they cross, and what a run then says. Rows are synthetic."""

from __future__ import annotations

from typing import Any

import pytest

from pinscope.analysis.access import cells, crossing, over_spacing, over_uses, winners
from pinscope.analysis.access_reading import read_access
from pinscope.charts.access import draw
from pinscope.errors import InvalidParameter
from pinscope.experiments.access import AccessObservation, AccessParams
from pinscope.records.finding import Finding
from tests.data import synthetic

ROWS = list[dict[str, Any]]
SIZE = 2**28


def rows(
    way: str, seconds: float, pattern: str = "stream_read", spacing: int = 1, *, uses: int = 1, intact: bool = True
) -> ROWS:
    """Seven equal repeats after a warm-up."""
    return [
        AccessObservation(
            repeat=max(number - 1, 0), warmup=number == 0, way=way, pattern=pattern, bytes=SIZE, spacing=spacing,
            uses=uses, touched_bytes=SIZE // spacing, device_seconds=seconds * 0.9, wall_seconds=seconds, intact=intact,
        ).model_dump()
        for number in range(8)
    ]  # fmt: skip


def lines() -> ROWS:
    """A copy that costs 5 ms and 0.1 ms a use; zero-copy at 2 ms a use, less where less is used."""
    found: ROWS = []
    for uses in (1, 2, 4, 8):
        found += rows("copy", 5e-3 + uses * 1e-4, uses=uses) + rows("mapped", uses * 2e-3, uses=uses)
    return found


def findings(found: ROWS) -> dict[str, Finding]:
    return {one.rule: one for one in read_access(synthetic.run("overlap"), found).findings}


def test_repeats_of_one_combination_are_one_cell_and_warm_ups_are_not_counted() -> None:
    (cell,) = cells(rows("copy", 4e-3, spacing=4, uses=2))
    assert cell.wall_seconds.count == 7
    assert cell.useful_bytes_per_second == pytest.approx(SIZE / 4 * 2 / 4e-3)


def test_zero_copy_and_copy_cross_where_their_times_are_equal() -> None:
    curves = over_uses(cells(lines()), "stream_read", 1)
    at = crossing(curves["mapped"], curves["copy"], "uses")
    assert at is not None
    assert 2.4 < at < 3.0  # 5 ms ÷ (2 ms − 0.1 ms) = 2.6, between two measured points
    assert crossing(curves["copy"], curves["mapped"], "uses") is None


def test_ways_within_a_tenth_of_the_best_win_together() -> None:
    found = cells(rows("copy", 1.0) + rows("mapped", 1.05) + rows("managed", 3.0))
    assert [cell.way for cell in winners(found)] == ["copy", "mapped"]


def test_a_run_says_up_to_how_many_uses_zero_copy_wins() -> None:
    found = findings(lines())["access-uses-stream_read"]
    assert "zero-copy wins up to 2." in found.title
    assert "2 times or less" in found.advice


@pytest.mark.parametrize(
    ("mapped", "words"), [((1e-3, 2e-3), "zero-copy wins, also for 2 uses"), ((9e-3, 18e-3), "from the first use on")]
)
def test_a_way_that_leads_everywhere_is_said_to(mapped: tuple[float, float], words: str) -> None:
    found = rows("copy", 5e-3) + rows("copy", 5e-3, uses=2)
    found += rows("mapped", mapped[0]) + rows("mapped", mapped[1], uses=2)
    assert words in findings(found)["access-uses-stream_read"].title


def test_a_run_says_below_which_share_zero_copy_wins() -> None:
    found: ROWS = []
    for spacing in (1, 4, 16):
        found += rows("copy", 5e-3, "random_read", spacing) + rows("mapped", 0.04 / spacing, "random_read", spacing)
    finding = findings(found)["access-sparse-random_read"]
    assert "less than 12.5 % is used" in finding.title
    assert "2.0 times as long" in finding.detail
    assert set(over_spacing(cells(found), "random_read", 1)) == {"copy", "mapped"}


def test_slow_migration_on_demand_is_warned_of_and_prefetching_told() -> None:
    found = rows("copy", 5e-3) + rows("managed", 25e-3) + rows("prefetched", 6e-3)
    finding = findings(found)["managed-on-demand"]
    assert "5.0 times" in finding.title
    assert "1.2 times" in finding.detail
    assert "managed-on-demand" not in findings(rows("copy", 5e-3) + rows("managed", 6e-3))


def test_wrong_data_is_critical() -> None:
    finding = findings(rows("mapped", 1e-3, intact=False))["access-wrong"]
    assert finding.severity == "critical"
    assert finding.evidence[0].value == 7


def test_the_headline_names_the_best_way_for_data_used_whole_and_once() -> None:
    headline = {one.name: one.value for one in read_access(synthetic.run("overlap"), lines()).headline}
    assert headline["Used once: streaming read"] == "zero-copy (mapped)"
    assert headline["Its rate: streaming read"] == pytest.approx(SIZE / 2e-3)


def test_a_run_without_rows_says_and_draws_nothing() -> None:
    reading = read_access(synthetic.run("overlap"), [])
    assert (reading.headline, reading.tables, reading.findings) == ((), (), ())
    assert draw(synthetic.run("overlap"), []) == []


def test_charts_show_each_way_over_uses_and_over_the_share() -> None:
    over, share = draw(
        synthetic.run("overlap"), lines() + rows("copy", 5e-3, spacing=4) + rows("mapped", 1e-3, spacing=4)
    )
    mapped = next(trace for trace in over.figure.data if trace.name == "zero-copy (mapped)")
    assert list(mapped.x) == [1, 2, 4, 8]
    assert list(mapped.y) == pytest.approx([2e-3, 4e-3, 8e-3, 16e-3])
    assert {trace.name for trace in share.figure.data} == {"explicit copy", "zero-copy (mapped)", "link limit"}
    assert all("Dotted: all of it over the link" in chart.caption for chart in (over, share))


@pytest.mark.parametrize(
    ("name", "value"), [("size", 3 * 2**20), ("size", 2**34), ("spacings", "3"), ("uses", "0"), ("ways", "teleport")]
)
def test_what_makes_no_sense_is_refused(name: str, value: object) -> None:
    with pytest.raises(InvalidParameter, match=name):
        AccessParams.preset("cuda", quick=True).with_overrides({name: value})
