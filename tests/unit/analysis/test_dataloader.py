"""A training loop's settings: what each reaches, and what a run then says. Rows are synthetic."""

from __future__ import annotations

from typing import Any

import pytest

from pinscope.analysis.dataloader import combinations, rounded_up
from pinscope.analysis.dataloader_reading import read_dataloader
from pinscope.charts.dataloader import draw
from pinscope.errors import InvalidParameter
from pinscope.experiments.dataloader import DataloaderObservation, DataloaderParams
from pinscope.records.finding import Finding
from tests.data import synthetic

ROWS = list[dict[str, Any]]
BATCH = 40 * 10**6


def rows(pin: bool, asynchronous: bool, step: float, workers: int = 4, **changes: Any) -> ROWS:
    """A warm-up and nine equal steps."""
    values = {
        "wait_seconds": 1e-3, "issue_seconds": 1e-5, "copy_seconds": 8e-4 if pin else 4e-3, "compute_seconds": 4e-3,
        "stall_seconds": step - 4e-3, "wrong_items": 0, "pinned_bytes": 2**30 if pin else 0, **changes,
    }  # fmt: skip
    return [
        DataloaderObservation(
            repeat=max(number - 1, 0), warmup=number == 0, pin_memory=pin, non_blocking=asynchronous, workers=workers,
            batch_bytes=BATCH, step_seconds=step, **values,
        ).model_dump()
        for number in range(10)
    ]  # fmt: skip


def all_four() -> ROWS:
    return [
        *rows(False, False, 8e-3), *rows(False, True, 8e-3), *rows(True, False, 5.5e-3), *rows(True, True, 5e-3),
    ]  # fmt: skip


def findings(found: ROWS) -> dict[str, Finding]:
    return {one.rule: one for one in read_dataloader(synthetic.run("overlap"), found).findings}


def test_steps_with_the_same_settings_are_one_combination_without_the_warm_up() -> None:
    (one,) = combinations(rows(True, True, 5e-3))
    assert one.step_seconds.count == 9
    assert one.steps_per_second == pytest.approx(200)
    assert one.stall_share == pytest.approx(0.2)
    assert one.copy_bytes_per_second == pytest.approx(50e9)


def in_bursts(*settings: bool) -> ROWS:
    """Three quick steps, then one that waits for the next batches; a worker made several at once."""
    quick, late = rows(*settings, 0.02, wait_seconds=1e-4), rows(*settings, 0.34, wait_seconds=0.32)
    return [(late if place % 4 == 0 else quick)[place] for place in range(9)]


def test_batches_that_come_in_bursts_count_with_all_their_time() -> None:
    (one,) = combinations(in_bursts(True, True))
    assert one.steps_per_second == pytest.approx(10)
    assert one.wait_share == pytest.approx(0.8, abs=0.01)
    assert one.stall_share == pytest.approx(0.96)
    assert one.step_seconds.median == pytest.approx(0.02)
    assert "80.1 %" in findings(in_bursts(True, True))["loader-bound"].title
    (_, idle) = draw(synthetic.run("overlap"), in_bursts(True, True))[1].figure.data
    assert list(idle.x) == pytest.approx([0.096])


def test_what_pinned_batches_gain_is_said_against_pageable_and_blocking() -> None:
    found = findings(all_four())
    assert "1.60 times the steps" in found["pinned-batches"].title
    assert "does nothing for pageable" in found["non-blocking-alone"].title
    headline = {one.name: one.value for one in read_dataloader(synthetic.run("overlap"), all_four()).headline}
    assert headline["Fastest"] == "pinned, non_blocking, 4 workers"
    assert headline["× pageable and blocking"] == pytest.approx(1.6)


def test_a_loop_that_waits_for_its_loader_is_told_that_pinning_changes_little() -> None:
    slow = [*rows(False, False, 0.05, wait_seconds=0.045), *rows(True, True, 0.0499, wait_seconds=0.045)]
    found = findings(slow)
    assert "90.2 %" in found["loader-bound"].title
    assert found["pinning-gains-nothing"].advice.startswith("Make the loader faster first")


def test_a_loop_that_computes_all_the_time_is_not_told_to_mend_its_loader() -> None:
    busy = [*rows(False, False, 4.1e-3), *rows(True, True, 4.1e-3)]
    finding = findings(busy)["pinning-gains-nothing"]
    assert "2.4 %" in finding.detail
    assert finding.advice == "Nothing: the GPU computes nearly all of the time, and no copy holds it up."
    idle = [*rows(False, False, 8e-3), *rows(True, True, 8e-3)]
    assert "waits for more than copies" in findings(idle)["pinning-gains-nothing"].advice


def test_a_gain_of_pinned_batches_is_told_of_the_copies_that_reached_it() -> None:
    blocking = [*rows(False, False, 8e-3), *rows(True, False, 5e-3), *rows(True, True, 5.5e-3)]
    finding = findings(blocking)["pinned-batches"]
    assert finding.title == "Pinned batches make 1.60 times the steps"
    assert finding.advice == "DataLoader(..., pin_memory=True). non_blocking=True was no faster here."
    assert findings(blocking[:20])["pinned-batches"].advice == "DataLoader(..., pin_memory=True)."


def test_pageable_batches_that_are_fastest_are_not_called_pinned() -> None:
    found = findings([*rows(False, False, 8e-3), *rows(False, True, 5e-3), *rows(True, True, 7.9e-3)])
    assert "pinned-batches" not in found
    assert "pinning-gains-nothing" in found
    assert "pinned-batches" not in findings([*rows(False, False, 8e-3), *rows(False, True, 5e-3)])


def test_rounding_up_to_powers_of_two_is_told_with_what_was_pinned() -> None:
    finding = findings(all_four())["pinned-rounding"]
    assert "64 MiB for a batch of 38.1 MiB" in finding.title
    assert "1 GiB were pinned" in finding.detail
    assert [rounded_up(size) for size in (1, 2**20, 2**20 + 1)] == [1, 2**20, 2**21]


def test_a_count_within_its_slack_is_nothing_pinned() -> None:
    (one,) = combinations(rows(False, False, 8e-3, pinned_bytes=-148 * 2**10))
    assert one.pinned_bytes == 0
    (one,) = combinations(rows(True, False, 8e-3, pinned_bytes=64 * 2**20))
    assert one.pinned_bytes == 64 * 2**20


def test_steps_that_vary_are_called_unstable_with_what_to_do() -> None:
    uneven = [{**row, "step_seconds": 8e-3 * (1 + row["repeat"] % 3)} for row in rows(True, True, 8e-3, workers=1)]
    finding = findings(uneven)["unstable"]
    assert "1 of 1 combinations is unstable" in finding.title
    assert "non_blocking, 1 worker." in finding.detail
    assert "steps=300" in (finding.advice or "")


def test_wrong_batches_are_critical() -> None:
    assert findings(rows(True, True, 5e-3, wrong_items=1))["batch-wrong"].severity == "critical"


def test_an_unknown_count_of_pinned_pages_has_a_reason() -> None:
    headline = read_dataloader(synthetic.run("overlap"), rows(True, True, 5e-3, pinned_bytes=None)).headline
    pinned = next(one for one in headline if one.name == "Pinned for it")
    assert pinned.value is None
    assert pinned.reason


def test_a_run_without_rows_says_and_draws_nothing() -> None:
    assert read_dataloader(synthetic.run("overlap"), []).headline == ()
    assert draw(synthetic.run("overlap"), []) == []


def test_charts_show_steps_over_workers_and_the_parts_of_a_step() -> None:
    steps, parts = draw(synthetic.run("overlap"), all_four() + rows(True, True, 4.5e-3, workers=8))
    fastest = next(trace for trace in steps.figure.data if trace.name == "pinned, non_blocking")
    assert list(fastest.x) == [4, 8]
    assert {trace.name for trace in parts.figure.data} == {"compute", "GPU idle"}


@pytest.mark.parametrize(("name", "value"), [("workers", "-1"), ("batch", 0), ("pin_memory", "maybe"), ("steps", 1)])
def test_what_makes_no_sense_is_refused(name: str, value: object) -> None:
    with pytest.raises(InvalidParameter, match=name):
        DataloaderParams.preset("cuda", quick=True).with_overrides({name: value})
