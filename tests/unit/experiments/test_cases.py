"""Budget, progress and notes follow from a run's cases."""

from __future__ import annotations

import pytest

from pinscope.errors import Cancelled, NotPossible
from pinscope.experiments.contract import Case, Progress, Reason, possible, whole_budget
from pinscope.lab.harness import Harness

CASES = [
    Case("small", 1, 1.0, pinned_bytes=8, device_bytes=64),
    Case("large", 2, 3.0, pinned_bytes=32, pageable_bytes=16),
    Case("small again", 3, 4.0, pinned_bytes=8, hugetlb_bytes=8),
]


def even_only(number: int) -> Reason:
    return f"number {number}", "It is odd." if number % 2 else None


def test_the_budget_is_the_most_of_each_kind_that_one_case_holds_and_the_seconds_of_all() -> None:
    budget = whole_budget(CASES, start_seconds=2.0)
    held = (budget.pinned_bytes, budget.pageable_bytes, budget.device_bytes, budget.hugetlb_bytes)
    assert (held, budget.seconds) == ((32, 16, 64, 8), 10.0)


def test_progress_is_the_share_of_seconds_over_all_that_is_handed_out() -> None:
    reports: list[tuple[float, str]] = []
    progress = Progress(CASES, Harness(report=lambda share, words: reports.append((share, words))))
    assert [what for part in (CASES[:1], CASES[1:]) for what in progress.through(part)] == [1, 2, 3]
    assert reports == [(0.0, "small"), (0.125, "large"), (0.5, "small again")]


def test_a_cancelled_run_takes_no_further_case() -> None:
    wanted = iter([False, True])
    cases = Progress(CASES, Harness(cancelled=lambda: next(wanted))).through(CASES)
    assert next(cases) == 1
    with pytest.raises(Cancelled):
        next(cases)


def test_what_is_left_out_is_noted_once_a_reason() -> None:
    notes: list[str] = []
    kept = possible([*CASES, CASES[0]], Harness(note=notes.append), even_only)
    assert [case.what for case in kept] == [2]
    assert notes == ["Left out: number 1; number 3. It is odd."]


def test_where_nothing_can_be_measured_the_run_ends_with_the_reason_and_what_to_ask_for() -> None:
    with pytest.raises(NotPossible, match=r"can be measured: It is odd\. Other ways .*: --set ways=2$"):
        possible(CASES[:1], Harness(), even_only, "ways=2")
    with pytest.raises(NotPossible, match=r"can be measured: these parameters leave nothing$"):
        possible([], Harness(), even_only)
