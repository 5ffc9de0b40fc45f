"""A training loop's settings: what each reaches, and what a run then says. Rows are synthetic."""

from __future__ import annotations

from typing import Any

import pytest

from pinscope.experiments.dataloader.experiment import DataloaderObservation
from pinscope.experiments.dataloader.reading import Cell, Loops, speedup
from pinscope.records.run import VARIES
from tests.data import synthetic
from tests.data.readings import As, Made

draw = As("dataloader").draw
MADE = Made("dataloader")
read, findings = MADE.reading, MADE.findings

ROWS = list[dict[str, Any]]
BATCH = 40 * 10**6
STEPS = 81
"""Of a round: the first has no length, and 80 make 16 batches of five."""
PACES = (0.99, 1.0, 1.01)
"""Of the rounds, so that intervals are about ± 2.5 %."""


def rows(pin: bool, asynchronous: bool, step: float, workers: int = 4, **changes: Any) -> ROWS:
    """Three rounds of equal steps; a round differs from the next by 1 %."""
    values = {
        "wait_seconds": 1e-3, "make_seconds": workers * 2e-3 if workers else 2e-3, "pin_seconds": 3e-3 if pin else None,
        "issue_seconds": 1e-5, "copy_seconds": 8e-4 if pin else 4e-3, "compute_seconds": 4e-3,
        "stall_seconds": step - 4e-3, "wrong_items": 0, "pinned_bytes": 2**30 if pin else 0, **changes,
    }  # fmt: skip
    return [
        DataloaderObservation(
            repeat=number, warmup=number == 0, round=turn, pin_memory=pin, non_blocking=asynchronous, workers=workers,
            batch_bytes=BATCH, step_seconds=step * pace, **values,
        ).model_dump()
        for turn, pace in enumerate(PACES)
        for number in range(STEPS)
    ]  # fmt: skip


def all_four(workers: int = 4) -> ROWS:
    return [
        *rows(False, False, 8e-3, workers), *rows(False, True, 8e-3, workers), *rows(True, False, 5.5e-3, workers),
        *rows(True, True, 5e-3, workers),
    ]  # fmt: skip


def cells(rows: ROWS) -> list[Cell]:
    return Loops(rows).cells


def with_a_backlog(steps: ROWS, ahead: int = 16) -> ROWS:
    """A long first step, and what the workers had made meanwhile comes at once."""
    early = {1: 0.15, **dict.fromkeys(range(2, ahead + 1), 1e-3)}
    return [{**row, "step_seconds": early.get(row["repeat"], row["step_seconds"])} for row in steps]


def test_what_the_workers_made_while_they_started_is_not_counted() -> None:
    (cell,) = cells(with_a_backlog(rows(True, True, 8e-3, workers=8)))
    assert cell.start_count is not None
    assert cell.start_count >= 16
    assert cell.steps_per_second.median == pytest.approx(125, rel=1e-3)
    row = read(with_a_backlog(rows(True, True, 8e-3, workers=8))).tables[0]
    assert dict(zip(row.columns, row.rows[0], strict=True))["start"] == cell.start_count


def test_a_loop_that_never_becomes_steady_gets_no_figure_and_is_named() -> None:
    slower = [{**row, "step_seconds": 5e-3 * (1 + row["repeat"] / 40)} for row in rows(True, True, 5e-3)]
    rules = findings([*slower, *rows(False, False, 8e-3)])
    assert rules["never-steady"].title == (
        "1 of 2 combinations did not reach a steady rate within 81 steps and has no figure"
    )
    assert rules["never-steady"].severity == "note"
    assert rules["never-steady"].detail == "pinned, non_blocking, 4 workers."
    assert rules["never-steady"].advice.endswith("--set steps=162")
    assert "pinned-batches" not in rules
    assert read([*slower, *rows(False, False, 8e-3)]).verdict == (
        "The fastest loop makes 125.0 steps a second with pageable, blocking, 4 workers."
    )
    alone = read(slower)
    assert (alone.verdict, alone.headline) == (None, ())
    assert {finding.rule for finding in alone.findings} == {"never-steady", "pinned-rounding"}
    assert draw(synthetic.run("overlap"), slower) == []


def test_a_ratio_whose_interval_holds_1_is_no_difference() -> None:
    turned = [{**row, "step_seconds": 8.05e-3 * PACES[2 - row["round"]]} for row in rows(False, True, 8e-3)]
    finding = findings([*rows(False, False, 8e-3), *turned])["no-difference-measured"]
    assert finding.title == "No difference measured for non_blocking copies of pageable batches"
    assert "A difference of up to 7.9 % is not excluded." in finding.detail


def noisy(pin: bool, asynchronous: bool, step: float, workers: int) -> ROWS:
    """Rounds that differ the other way round from those of :func:`rows`, so that ratios vary by 2 %."""
    return [{**row, "step_seconds": step * PACES[2 - row["round"]]} for row in rows(pin, asynchronous, step, workers)]


def test_the_verdict_says_what_pinned_batches_bring_and_that_the_gpu_waits() -> None:
    assert read(all_four()).verdict == (
        "If num_workers is 4, use pin_memory with non_blocking: 1.60 times (3 repeats) as fast."
    )
    same = [*rows(False, False, 8e-3), *noisy(True, True, 8e-3, 4)]
    assert read(same).verdict == (
        "3 rounds cannot tell whether pin_memory with non_blocking changes the speed (workers: 4)."
    )


def restless(pin: bool, asynchronous: bool, step: float) -> ROWS:
    """Rounds that differ by so much that their ratio to steady ones is no figure."""
    return [{**row, "step_seconds": step * (0.5, 1.0, 1.5)[row["round"]]} for row in rows(pin, asynchronous, step)]


def test_speeds_that_vary_too_much_are_no_figures_and_more_rounds_are_advised() -> None:
    alone = read([*rows(False, False, 8e-3), *restless(True, True, 8e-3)])
    (said,) = (finding for finding in alone.findings if finding.rule == "no-difference-measured")
    assert said.title == "3 rounds vary too much to tell what pin_memory and non_blocking change"
    assert [(figure.name, figure.value) for figure in said.evidence] == [("Rounds", 3)]
    assert said.advice.endswith("--set rounds=11")
    assert alone.verdict == "3 rounds cannot tell whether pin_memory with non_blocking changes the speed (workers: 4)."
    gains = {figure.key: (figure.value, figure.reason) for figure in alone.headline}
    assert gains["workers_4.gain"] == (None, VARIES)
    both = [*rows(False, False, 8e-3), *restless(True, True, 8e-3), *noisy(False, True, 8e-3, 4)]
    said = findings(both)["no-difference-measured"]
    assert said.title == "No difference measured for non_blocking copies of pageable batches"
    assert "of pin_memory with non_blocking with 4 workers the rounds vary too much to tell" in said.detail
    assert "inf" not in said.detail


def test_what_the_fastest_loop_pins_is_one_figure() -> None:
    loops = [*rows(False, False, 8e-3), *rows(True, False, 5.5e-3, pinned_bytes=2**31), *rows(True, True, 5e-3)]
    (pinned,) = (figure for figure in read(loops).headline if figure.key == "fastest.pinned")
    figures = {figure.name: figure.value for figure in findings(loops)["pinned-rounding"].evidence}
    assert figures["Pinned in all, pinned, non_blocking, 4 workers"] == pinned.value == 2**30
    unpinned = [*rows(False, False, 4e-3), *rows(True, False, 5.5e-3, pinned_bytes=2**31), *rows(True, True, 5e-3)]
    assert "pinned, blocking, 4 workers: 2 GiB" in findings(unpinned)["pinned-rounding"].detail


def test_rounds_that_lack_one_of_two_are_left_out_of_their_ratio() -> None:
    plain, pinned = cells([*rows(False, False, 8e-3), *[r for r in rows(True, True, 5e-3) if r["round"] < 2]])
    effect = speedup(pinned, plain)
    assert effect is not None
    assert (effect.value, effect.ratio.count) == (pytest.approx(1.6), 2)


def test_the_part_that_is_busy_longest_bounds_the_loop() -> None:
    for workers, changes, part, share in [
        (4, {"make_seconds": 38e-3}, "making batches in the workers", 0.95),
        (4, {"pin_seconds": 9.5e-3}, "PyTorch's pinning thread", 0.95),
        (4, {"copy_seconds": 6e-3, "compute_seconds": 3e-3}, "copying to the GPU", 0.9),
        (4, {"copy_seconds": 1e-3, "compute_seconds": 8e-3}, "computing", 0.9),
        (0, {"make_seconds": 6e-3, "pin_seconds": 3e-3}, "the training program", 1.0),
        (4, {"wait_seconds": 5e-4}, "the training program", 0.95),
    ]:
        steps = rows(
            True, True, 10e-3, workers, **{"make_seconds": 1e-3, "pin_seconds": 1e-3, "wait_seconds": 9e-3, **changes}
        )
        finding = findings(steps).get("bound")
        assert (finding is None) == (part == "computing")  # nothing in the loader is to be changed
        name = part[:1].upper() + part[1:]
        if finding:
            assert finding.title.startswith(
                f"{name} is the busiest part of the fastest loop, {100 * share:.1f} % of each step"
            )
            assert (
                "the GPU's copies and kernels" if part in ("copying to the GPU", "computing") else part
            ) in finding.detail
        (cell,) = cells(steps)
        assert cell.busy[0].share == pytest.approx(share, rel=1e-3)
        assert ("pinning" in {busy.part for busy in cell.busy}) == bool(workers)


def test_a_count_within_its_slack_is_nothing_pinned() -> None:
    (cell,) = cells(rows(False, False, 8e-3, pinned_bytes=-148 * 2**10))
    assert cell.pinned_bytes == 0
    (cell,) = cells(rows(True, False, 8e-3, pinned_bytes=64 * 2**20))
    assert cell.pinned_bytes == 64 * 2**20


def test_a_program_that_waits_for_its_gpu_does_not_bound_the_loop() -> None:
    steps = rows(True, True, 10e-3, copy_seconds=1e-3, compute_seconds=8e-3, wait_seconds=1e-4)
    steps = [{**row, "stall_seconds": 0.0} for row in steps]
    (cell,) = cells(steps)
    assert (cell.busiest, cell.busy_share) == ("computing", pytest.approx(0.9, rel=1e-3))
    assert "bound" not in findings(steps)


def of_kind(kind: str, gain: float, workers: int = 4) -> ROWS:
    return [
        *rows(False, False, 8e-3, workers, batch_kind=kind),
        *rows(True, True, 8e-3 / gain, workers, batch_kind=kind),
    ]


@pytest.mark.parametrize(("kind", "words"), [("many", "60 tensors"), ("slow", "slow items")])
def test_another_kind_of_batch_that_gains_less_is_set_beside_the_usual_one(kind: str, words: str) -> None:
    said = findings([*all_four(), *of_kind(kind, 1.05)])["gain-by-batch"]
    assert said.title == (
        f"pin_memory with non_blocking makes a loop 1.60 times as fast with one tensor, 1.05 with {words}"
    )
    assert "gain-by-batch" not in findings([*all_four(), *of_kind(kind, 1.6)])


def test_another_kind_of_batch_decides_neither_verdict_nor_headline_nor_what_a_setting_gains() -> None:
    usual, both = read(all_four()), read([*all_four(), *of_kind("many", 4.0), *of_kind("slow", 1.0)])
    assert (usual.verdict, usual.headline) == (both.verdict, both.headline)
    rules = findings([*all_four(), *of_kind("many", 4.0)])
    assert {finding.rule: finding for finding in usual.findings}["pinned-batches"] == rules["pinned-batches"]
    assert "one tensor a batch" in rules["pinned-batches"].detail
    names = {row[3:5] for row in both.tables[0].rows}
    assert {name for _, name in names} == {"one tensor", "60 tensors", "slow items"}


def test_kinds_of_batches_whose_intervals_meet_or_are_not_known_are_not_told_apart() -> None:
    assert "gain-by-batch" not in findings([*all_four(), *of_kind("many", 1.6)])
    once = [row for row in [*all_four(), *of_kind("many", 1.0)] if row["round"] == 1]
    assert "gain-by-batch" not in findings(once)
