"""Ways to use data on the host: which wins, where they cross, and what a run then says. Rows are synthetic."""

from __future__ import annotations

from typing import Any

import pytest

from pinscope.analysis.cells import AS_GOOD
from pinscope.experiments.access.experiment import AccessObservation
from pinscope.experiments.access.reading import Accesses, Cell, Pair, of
from tests.data import synthetic
from tests.data.readings import As, Made

draw = As("access").draw
MADE = Made("access")
read, findings = MADE.reading, MADE.findings

ROWS = list[dict[str, Any]]
SIZE = 2**28


def rows(
    way: str, seconds: float, pattern: str = "stream_read", spacing: int = 1, *, uses: int = 1, intact: bool = True
) -> ROWS:
    """Eight equal repeats after a warm-up."""
    return [
        AccessObservation(
            repeat=max(number - 1, 0), warmup=number == 0, way=way, pattern=pattern, bytes=SIZE, spacing=spacing,
            uses=uses, touched_bytes=SIZE // spacing, device_seconds=seconds * 0.9, wall_seconds=seconds, intact=intact,
        ).model_dump()
        for number in range(9)
    ]  # fmt: skip


def wild(way: str, *seconds: float, **labels: Any) -> ROWS:
    """Three times each, in turn."""
    return [rows(way, each, **labels)[1] for _ in range(3) for each in seconds]


def accesses(rows: ROWS) -> Accesses:
    measured = of(synthetic.run("access"), rows)
    assert measured
    return measured


def cells(measured: ROWS) -> list[Cell]:
    return list(accesses(measured).cells)


def verdicts(measured: ROWS) -> list[str]:
    """Of zero-copy beside the copy in its place, case by case."""
    return [pair.verdict for pair in accesses(measured).pairs]


def test_ways_within_a_tenth_of_each_other_are_as_good() -> None:
    for mine, how in [
        (0.5, "faster"),
        (1 / 1.11, "faster"),
        (1 / 1.1, "as good"),
        (1.1, "as good"),
        (1.103, "as good"),
        (1.11, "slower"),
    ]:
        one, other = cells(rows("mapped", mine) + rows("copy", 1.0))
        assert Pair(one, other).verdict == how


def test_ways_that_differ_by_no_more_than_both_may_be_off_are_as_good() -> None:
    steady, wide = (cells(measured)[0] for measured in (rows("copy", 4.1e-3), wild("mapped", 2.8e-3, 3.4e-3, 4.5e-3)))
    assert steady.wall_seconds.median / wide.wall_seconds.median > 1.1
    assert Pair(wide, steady).verdict == Pair(steady, wide).verdict == "as good"
    wilder = cells(wild("mapped", 1e-3, 3.4e-3, 9e-3))[0]
    assert Pair(wilder, steady).verdict == Pair(steady, wilder).verdict == "not known"


def test_zero_copy_is_not_advised_where_it_only_cannot_be_told_from_a_copy() -> None:
    def verdict(mapped: ROWS) -> str:
        return read([*rows("copy", 3e-3), *mapped]).verdict or ""

    assert verdict(rows("mapped", 3.2e-3)).startswith("Map the data (zero-copy): it takes at most 1.07 times")
    assert verdict(wild("mapped", 2.6e-3, 3.5e-3, 4.4e-3)).startswith("Measure again: ")


def test_a_share_at_which_a_pattern_is_not_known_is_none_from_which_all_are_faster() -> None:
    measured: ROWS = []
    for pattern in ("stream_read", "stream_write"):
        measured += rows("copy", 5e-3, pattern) + rows("mapped", 20e-3, pattern)
        measured += rows("copy", 5e-3, pattern, 16)
    faster = rows("mapped", 1e-3, "stream_write", 16)
    known = [*measured, *faster, *rows("mapped", 1e-3, "stream_read", 16)]
    unknown = [*measured, *faster, *wild("mapped", 0.2e-3, 1e-3, 3e-3, spacing=16)]
    assert ["6.2 %" in (read(each).verdict or "") for each in (known, unknown)] == [True, False]
    finding = findings(unknown)["access-sparse"]
    assert finding.title.endswith("faster than a copy at 6.2 % (streaming write)")
    assert verdicts(unknown) == ["slower", "not known", "slower", "faster"]
    assert None not in [figure.value for figure in finding.evidence]


def test_tables_charts_and_findings_call_the_same_ways_as_good() -> None:
    """Zero-copy takes 1.07 times as long as a copy for one use, as on an H200, and twice as long for two."""
    measured = (
        rows("copy", 5e-3) + rows("copy", 5e-3, uses=2) + rows("mapped", 5.35e-3) + rows("mapped", 10.7e-3, uses=2)
    )
    reading = read(measured)
    finding = next(one for one in reading.findings if one.rule == "access-uses")
    assert verdicts(measured) == ["as good", "slower"]
    assert [figure.value for figure in finding.evidence] == pytest.approx([2.14, 1.07])
    assert {figure.name: figure.value for figure in reading.headline}["Fastest for one streaming read"] == (
        "explicit copy or zero-copy (mapped)"
    )
    assert [row[3] for row in reading.tables[0].rows] == ["explicit copy or zero-copy (mapped)", "explicit copy"]
    (chart,) = draw(synthetic.run("overlap"), measured)
    sizes = {trace.name: tuple(trace.marker.size) for trace in chart.figure.data if trace.name != "link limit"}
    assert sizes["explicit copy"][0] == sizes["explicit copy"][1] == sizes["zero-copy (mapped)"][0]
    assert sizes["zero-copy (mapped)"][1] < sizes["zero-copy (mapped)"][0]
    assert f"{AS_GOOD:.2f} times" in reading.tables[0].note


def test_single_words_are_held_against_copying_all_at_the_shares_that_were_measured() -> None:
    measured: ROWS = []
    for spacing in (1, 4, 16):
        measured += rows("copy", 5e-3, "random_read", spacing) + rows("mapped", 0.04 / spacing, "random_read", spacing)
    finding = findings(measured)["access-sparse"]
    assert finding.title.endswith("zero-copy is faster than a copy at 6.2 % (random read)")
    assert verdicts(measured) == ["slower", "slower", "faster"]
    assert set(accesses(measured).over("spacing", "random_read")) == {"copy", "mapped"}


def test_blocks_are_held_against_a_copy_of_these_blocks_and_not_of_all() -> None:
    measured = rows("copy", 5e-3) + rows("mapped", 5.2e-3)
    for spacing in (4, 16):
        measured += rows("copy", 5e-3, spacing=spacing) + rows("copy_part", 5e-3 / spacing, spacing=spacing)
        measured += rows("mapped", 5.2e-3 / spacing, spacing=spacing)
    finding = findings(measured)["access-sparse"]
    assert finding.title.endswith("zero-copy is faster than a copy at no share that was measured")
    assert verdicts(measured) == ["as good"] * 3
    assert finding.evidence[1].name == "Streaming read of 6.2 %, 2D copy of the part"
    assert "cudaMemcpy2DAsync" in finding.advice


def test_shares_that_differ_by_pattern_are_all_counted() -> None:
    measured: ROWS = []
    for pattern, faster_from in (("random_read", 16), ("scatter_write", 4), ("stream_read", 4)):
        for spacing in (1, 4, 16):
            mapped = 2e-3 if spacing >= faster_from else 9e-3
            measured += rows("copy", 5e-3, pattern, spacing) + rows("mapped", mapped, pattern, spacing)
    title = findings(measured)["access-sparse"].title
    assert title.endswith("zero-copy is faster than a copy at 6.2 % (all patterns), in some up to 25.0 %")
    never = rows("copy", 5e-3, "stream_write", 16) + rows("mapped", 5e-3, "stream_write", 16)
    never += rows("copy", 5e-3, "stream_write") + rows("mapped", 5e-3, "stream_write")
    assert findings(measured + never)["access-sparse"].title.endswith("than a copy in some patterns up to 25.0 %")


def test_slow_migration_on_demand_is_warned_of_and_prefetching_told() -> None:
    measured = rows("copy", 5e-3) + rows("managed", 25e-3) + rows("prefetched", 6e-3)
    measured += rows("copy", 5e-3, "stream_write") + rows("managed", 50e-3, "stream_write")
    finding = findings(measured)["managed-on-demand"]
    assert "5.0 times as long as an explicit copy for one streaming read of 256 MiB" in finding.title
    assert finding.severity == "note"
    assert "over all patterns 5.0 times to 10.0 times as long" in finding.detail
    assert "Prefetched, that read takes 1.20 times as long as a copy." in finding.detail
    assert "managed-on-demand" not in findings(rows("copy", 5e-3) + rows("managed", 6e-3))
    assert "managed-on-demand" not in findings(rows("copy", 5e-3) + wild("managed", 5e-3, 25e-3, 50e-3))


def test_a_way_whose_time_is_not_known_is_not_called_the_slowest() -> None:
    slow = [*rows("copy", 5e-3), *rows("mapped", 9e-3)]
    for managed, slowest in (
        (rows("managed", 25e-3), "managed, on demand"),
        (wild("managed", 5e-3, 25e-3, 50e-3), "zero"),
    ):
        (row,) = read([*slow, *managed]).tables[0].rows
        assert str(row[5]).startswith(slowest)


def test_where_the_fastest_way_is_not_known_none_is_named() -> None:
    reading = read([*wild("copy", 0.5e-3, 3e-3, 9e-3), *rows("mapped", 9e-3)])
    (row,) = reading.tables[0].rows
    assert row[3:] == (None, None, "zero-copy (mapped)", None)
    reasons = {figure.key: figure.reason for figure in reading.headline}
    assert reasons["fastest.way"] == "its repeats vary too much"


def test_prefetching_is_not_advised_for_writes_where_it_was_slower_than_a_copy() -> None:
    measured = rows("copy", 5e-3) + rows("managed", 25e-3) + rows("copy", 5e-3, "stream_write")
    slow, fast = (rows("prefetched", seconds, "stream_write") for seconds in (18e-3, 5e-3))
    slower = findings(measured + slow)["managed-on-demand"]
    assert (slower.evidence[-1].value, len(slower.evidence)) == (pytest.approx(3.6), 3)
    assert slower.advice.endswith("write whole: prefetched, it took 3.6 times as long.")
    assert "write whole" not in findings(measured + fast)["managed-on-demand"].advice
