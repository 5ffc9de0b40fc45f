"""Pinning strategies: which is best, which findings follow, and recipes that run when pasted."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import pytest

from pinscope.analysis.pinning_strategy import DEFAULT_ARRAY, DEFAULT_CHUNKS, Recipe, recommend, strategy_cells
from pinscope.records.registration import STRATEGIES
from pinscope.records.run import Finding, Reading
from pinscope.units import parse_bytes
from tests.data import synthetic
from tests.data.readings import As

GIB = 2**30
Row = dict[str, Any]


def row(strategy: str, total: float, wait: float = 0.01, repeat: int = 0, **changes: Any) -> Row:
    chunked = strategy != "idle" and STRATEGIES[strategy].chunked
    waits = {
        "neighbour_info_seconds": wait, "neighbour_nvml_seconds": wait / 2, "neighbour_kernel_seconds": 1e-4,
        "neighbour_allocation_seconds": wait / 3, "neighbour_control_seconds": 1e-4,
    }  # fmt: skip
    fields: Row = {
        "repeat": repeat, "warmup": False, "strategy": strategy, "bytes": 16 * GIB,
        "chunk_bytes": GIB if chunked else None, "threads": 8, "total_seconds": total, "touch_seconds": None,
        "pin_seconds": total, "release_seconds": 0.1, **waits, "release_neighbour_seconds": wait,
        **{f"release_{name}": seconds for name, seconds in waits.items()}, "pinned": True, "copy_bytes": GIB,
        "copy_seconds": 0.02, "crossing_copies": False if chunked and not strategy.startswith("host_alloc") else None,
    }  # fmt: skip
    return fields | changes


def idle(wait: float = 3e-4) -> Row:
    nothing = {name: None for name in row("idle", 1.0) if name.startswith("release_")}
    return row("idle", 1.0, wait, pinned=None, copy_bytes=None, copy_seconds=None, pin_seconds=None, **nothing)


def thrice(*rows: Row) -> list[Row]:
    return [{**row, "repeat": repeat} for row in rows for repeat in range(3)]


def read(rows: list[Row], **params: Any) -> Reading:
    return As("pinning_strategy").read(synthetic.run("overlap", params=params), rows)


def findings(rows: list[Row]) -> dict[str, Finding]:
    return {finding.rule: finding for finding in read(rows).findings}


USUAL = row("host_alloc", 4.8, 0.3)


def recommended(*rows: Row) -> tuple[str | None, str | None]:
    """For an array, and in chunks."""
    best = recommend(strategy_cells(rows))
    return best.array.strategy if best.array else None, best.chunks.strategy if best.chunks else None


def test_of_the_fast_ones_the_gentle_are_recommended() -> None:
    for rows, best in [
        ([row("thp_pipeline", 0.5, 0.15), row("thp_register_chunks", 0.6, 0.015)], (None, "thp_register_chunks")),
        ([row("host_alloc", 4.7, 0.01), row("thp_register", 0.5, 0.15)], ("thp_register", None)),
        ([row("thp_register_chunks", 0.55, 0.010), row("thp_pipeline", 0.42, 0.019)], (None, "thp_pipeline")),
        ([row("thp_register_chunks", 0.55, 0.010), row("thp_pipeline", 0.42, 0.021)], (None, "thp_register_chunks")),
        ([USUAL, row("thp_pipeline", 0.4, 0.01), row("thp_register", 0.5, 0.15)], ("thp_register", "thp_pipeline")),
        ([USUAL, row("host_alloc_chunks", 0.1, 0.001)], ("host_alloc", None)),
        ([USUAL, row("thp_register", 0.5, pinned=False)], ("host_alloc", None)),
        ([row("host_alloc", 0.6, 0.1), row("thp_register", 0.5, 0.1)], ("host_alloc", None)),
        ([idle()], (None, None)),
    ]:  # fmt: skip
        assert recommended(*rows) == best


def test_one_call_stays_where_noise_may_have_made_another_way_faster() -> None:
    wild = [row("thp_register", total, repeat=number) for number, total in enumerate((1.0, 3.0, 5.0))]
    usual = [row("host_alloc", total, repeat=number) for number, total in enumerate((3.5, 5.0, 6.5))]
    assert recommended(*usual, *wild)[0] == "host_alloc"


def test_waits_while_memory_is_given_back_count_as_much_as_those_while_it_is_pinned() -> None:
    harsh_at_the_end = row("thp_pipeline", 0.5, 0.010, release_neighbour_info_seconds=0.1)
    assert recommended(harsh_at_the_end, row("thp_register_chunks", 0.6, 0.012)) == (None, "thp_register_chunks")
    wait = strategy_cells([harsh_at_the_end])["thp_pipeline"].longest_wait
    assert (wait.seconds, wait.words) == (0.1, "cudaMemGetInfo, while freeing")


def test_one_long_wait_among_repeats_is_shown_and_decides_nothing() -> None:
    unlucky = [row("thp_pipeline", 0.5, wait, repeat) for repeat, wait in enumerate((0.011, 0.024, 0.008))]
    steady = [row("thp_register_chunks", 0.7, 0.010, repeat) for repeat in range(3)]
    cell = strategy_cells(unlucky)["thp_pipeline"]
    assert (cell.usual_wait_seconds, cell.longest_wait.seconds) == (0.011, 0.024)
    assert recommended(*unlucky, *steady) == (None, "thp_pipeline")


def test_the_control_is_no_wait_for_the_driver() -> None:
    busy = row("thp_pipeline", 0.5, 0.010, neighbour_control_seconds=0.5, release_neighbour_control_seconds=0.6)
    cell = strategy_cells([busy])["thp_pipeline"]
    assert cell.longest_wait.seconds == 0.010
    assert cell.longest_control == 0.6


def test_rows_without_control_are_read_as_far_as_they_go() -> None:
    old = {name: value for name, value in row("thp_register", 0.5, 0.01).items() if "control" not in name}
    assert strategy_cells([old])["thp_register"].longest_control is None
    assert read([USUAL, old]).findings


def test_times_are_medians_and_waits_the_longest_of_all_repeats() -> None:
    rows = [row("thp_pipeline", seconds, wait, repeat) for repeat, (seconds, wait) in
            enumerate([(0.4, 0.01), (0.6, 0.03), (0.5, 0.02)])]  # fmt: skip
    cell = strategy_cells(rows)["thp_pipeline"]
    assert cell.total_seconds.median == 0.5
    assert cell.longest_wait.seconds == 0.03
    assert cell.copy_bytes_per_second == pytest.approx(GIB / 0.02)
    assert cell.bytes_per_second == pytest.approx(16 * GIB / 0.5)


def test_runs_without_a_strategy_say_and_draw_nothing() -> None:
    for rows in ([], [idle()]):
        assert read(rows).headline == ()
        assert As("pinning_strategy").draw(synthetic.run("overlap"), rows) == []


def test_the_advised_calls_can_be_pasted_whatever_the_size() -> None:
    size, chunk = 1500 * 2**20, 7 * 2**20
    rows = [
        row("host_alloc", 4.8, 0.3, bytes=size),
        row("thp_register", 0.5, 0.3, bytes=size),
        row(DEFAULT_CHUNKS, 0.5, 0.01, bytes=size, chunk_bytes=chunk),
    ]
    advised = findings(thrice(*rows))
    (chunked,) = re.findall(r'pinned_empty\("(.+?)", chunk="(.+?)"\)', advised["gentler-in-chunks"].advice)
    assert [parse_bytes(text) for text in chunked] == [size, chunk]
    (whole,) = re.findall(r'pinned_empty\("(.+?)"\)', advised["faster-strategy"].advice)
    assert parse_bytes(whole) == size


def test_the_call_names_what_is_not_the_default() -> None:
    whole, chunks = Recipe(DEFAULT_ARRAY, None, 16), Recipe(DEFAULT_CHUNKS, GIB, 16)
    assert whole.call(GIB) == 'pinscope.pinned_empty("1 GiB")'
    assert chunks.call(GIB) == 'pinscope.pinned_empty("1 GiB", chunk="1 GiB")'
    other = Recipe("thp_register_threads", GIB, 4, names_threads=True)
    assert other.call(GIB) == (
        'pinscope.pinned_empty("1 GiB", chunk="1 GiB", strategy="thp_register_threads", threads=4)'
    )


def test_chunks_are_recommended_only_where_they_are_clearly_gentler() -> None:
    chunks = row(DEFAULT_CHUNKS, 0.4, 0.015)
    rows = thrice(USUAL, row("thp_register", 0.5, 0.15, release_neighbour_info_seconds=0.2), chunks)
    finding = findings(rows)["gentler-in-chunks"]
    title = "Pinning 16 GiB held another process up 300 ms (one cudaHostAlloc), "
    in_chunks = "in chunks of 1 GiB 15.0 ms (3 repeats)"
    assert finding.title == f"{title}the recommended way in one piece 200 ms while freeing, {in_chunks}"
    assert "recommended" not in findings(thrice(USUAL, chunks))["gentler-in-chunks"].title
    assert finding.severity == "warning"
    assert "inside one chunk" in finding.advice
    assert "refuses a copy that crosses" in finding.detail
    assert 'pinscope.pinned_empty("16 GiB", chunk="1 GiB"):' in finding.advice
    near = thrice(USUAL, row("thp_register", 0.5, 0.15), row("thp_pipeline", 0.4, 0.12))
    assert "gentler-in-chunks" not in findings(near)
    assert "gentler-in-chunks" not in findings([USUAL, row("thp_register", 0.5)])
    assert [rule for rule in findings(rows) if "chunks" in rule or "wait" in rule] == ["gentler-in-chunks"]
    assert read(rows).verdict == (
        "Touch huge pages with 8 threads, register: 16 GiB whole 500 ms, in chunks 400 ms, cudaHostAlloc 4.80 s."
    )


@pytest.mark.parametrize(
    ("whole", "chunks", "gentler"),
    [
        ((0.2, 0.2, 0.2), (0.01, 0.01, 0.19), True),
        ((0.2, 0.2, 0.2), (0.01, 0.01, 0.21), False),
        ((0.2,) * 2, (0.01,) * 2, False),
    ],
    ids=["in each repeat", "not in all", "two may be chance"],
)
def test_longest_waits_of_few_repeats_are_chance(
    whole: Sequence[float], chunks: Sequence[float], gentler: bool
) -> None:
    rows = [
        row(strategy, 0.5, wait, repeat)
        for strategy, waits in (("thp_register", whole), ("thp_pipeline", chunks))
        for repeat, wait in enumerate(waits)
    ]
    assert recommend(strategy_cells(rows)).gentler_in_chunks == gentler


def test_a_long_wait_beside_a_way_that_nobody_is_advised_to_take_is_no_warning() -> None:
    quick = [row("host_alloc", 4.8, 0.01), row("thp_register", 0.5, 0.015)]
    assert "neighbours-wait" not in findings([*quick, row("touch_register", 2.0, 0.05)])
    assert "(1 repeat)" in findings([quick[0], row("thp_register", 0.5, 0.05)])["neighbours-wait"].title


@pytest.mark.parametrize(("target", "seconds"), [(256 * GIB, 8.0), (257 * GIB, None)])
def test_a_pace_says_nothing_of_more_than_16_times_what_was_measured(target: int, seconds: float | None) -> None:
    reading = read([USUAL, row("thp_register", 0.5)], target=target)
    (figure,) = (figure for figure in reading.findings[0].evidence if figure.name.startswith("Extrapolated"))
    assert figure.value == seconds


def test_a_wait_is_the_drivers_unless_a_process_without_driver_calls_was_late_as_well() -> None:
    driver = findings([row("host_alloc", 4.8, 0.3), idle()])["neighbours-wait"]
    assert "The driver makes other processes' calls wait" in driver.detail
    assert "delayed by 100 µs, so the processors were not the cause" in driver.detail
    busy = findings([row("host_alloc", 4.8, 0.3, neighbour_control_seconds=0.25), idle()])["neighbours-wait"]
    assert "delayed by 250 ms as well: the processors were busy." in busy.detail


def test_a_longer_wait_than_with_one_cuda_host_alloc_is_not_hidden() -> None:
    finding = findings([USUAL, row("thp_register", 0.5, 1.4), idle()])["neighbours-wait"]
    assert "take 300 ms" in finding.title
    assert finding.detail.endswith(
        "The longest of this run: 1.40 s, while pinning by huge pages, threads touch, register."
    )
    assert "longest of this run" not in findings([USUAL, row("thp_register", 0.5), idle()])["neighbours-wait"].detail


def test_memory_that_is_not_pinned_is_told() -> None:
    assert findings([row("thp_register", 0.4, pinned=False)])["not-pinned"].severity == "critical"
    assert findings([USUAL, row("thp_register", 4.0)]).keys() == {"neighbours-wait"}
    assert findings([row("host_alloc", 4.8, 0.001), idle()]) == {}
