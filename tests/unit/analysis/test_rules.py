"""Each rule at its limits, on them and beside them; and what grows like a leak."""

from __future__ import annotations

import random
from collections.abc import Callable
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pinscope.analysis import rules
from pinscope.analysis.rules import (
    BUSY_SHARE,
    GIB,
    LEAK_BYTES,
    LINK_SAMPLES,
    MIB,
    gap_seconds,
    group_severity,
    is_busy,
    is_lasting,
    is_much_rounding,
    is_well_below_host,
    link_shortfall,
    page_table_severity,
    pinned_severity,
    pinned_twice_bytes,
    steady_growth,
    unattributed_severity,
)


def test_pinned_memory_is_graver_the_more_of_what_others_leave_it_takes_and_grave_where_memory_is_scarce() -> None:
    for pinned, available, severity in [
        (249, 10, None), (250, 500, "note"), (400, 400, "note"), (401, 400, "warning"), (600, 150, "warning"),
        (601, 150, "critical"), (250, 49, "critical"),
    ]:  # fmt: skip
        assert pinned_severity(pinned, available, 1000) == severity


def test_a_group_is_near_its_limit_if_little_is_left_and_much_is_pinned() -> None:
    for pinned, headroom, severity in [
        (499, 10, None),
        (500, 101, None),
        (500, 100, "warning"),
        (500, 31, "warning"),
        (500, 30, "critical"),
    ]:
        assert group_severity(pinned, headroom, 1000) == severity


def test_a_group_is_well_below_its_host_in_all_or_now() -> None:
    for limit, headroom, below in [(750, 375, False), (749, 375, True), (1000, 374, True), (2000, 1000, False)]:
        assert is_well_below_host(limit, headroom, total_bytes=1000, available_bytes=500) is below


def test_memory_is_pinned_twice_if_clearly_more_is_pinned_than_in_use() -> None:
    assert pinned_twice_bytes(250, total_bytes=1000, available_bytes=800) is None
    assert pinned_twice_bytes(251, total_bytes=1000, available_bytes=800) == 51


def test_rounding_counts_from_a_gib_on_or_from_a_share_of_a_small_host() -> None:
    assert not is_much_rounding(0, 0)
    assert not is_much_rounding(GIB - 1, 512 * GIB)
    assert is_much_rounding(GIB, 512 * GIB)
    assert is_much_rounding(21 * MIB, GIB)
    assert not is_much_rounding(20 * MIB, GIB)


def test_page_tables_are_judged_by_their_share_of_the_gpu() -> None:
    shares = (0.0099, rules.TABLES_WARNING, 0.0999, rules.TABLES_CRITICAL)
    assert [page_table_severity(share) for share in shares] == [None, "warning", "warning", "critical"]


def test_unattributed_gpu_memory_is_a_warning_only_where_no_process_may_have_it() -> None:
    assert unattributed_severity(512 * MIB - 1, sure=True) is None
    assert unattributed_severity(512 * MIB, sure=True) == "note"
    assert unattributed_severity(2 * GIB, sure=True) == "warning"
    assert unattributed_severity(2 * GIB, sure=False) == "note"


def test_lanes_count_always_and_the_generation_of_a_busy_gpu() -> None:
    for link, busy, expected in [
        ((5, 5, 16, 16), True, None),
        ((1, 5, 16, 16), True, ("generation", "warning")),
        ((1, 5, 16, 16), None, ("generation", "note")),
        ((1, 5, 16, 16), False, None),
        ((1, 5, 8, 16), False, ("lanes", "warning")),
        ((None, 5, None, 16), True, None),
        ((5, None, 8, None), True, None),
    ]:
        short = link_shortfall(*link, busy=busy)
        assert (None if short is None else (short.what, short.severity)) == expected


def test_a_gpu_is_busy_if_any_known_share_says_so() -> None:
    assert is_busy(None, 0.0, BUSY_SHARE)
    assert not is_busy(None, BUSY_SHARE / 2)
    assert not is_busy(None)


def test_a_link_must_be_below_its_best_in_several_samples_and_in_half_of_them() -> None:
    assert is_lasting(LINK_SAMPLES, 2 * LINK_SAMPLES)
    assert not is_lasting(LINK_SAMPLES, 2 * LINK_SAMPLES + 1)
    assert not is_lasting(LINK_SAMPLES - 1, LINK_SAMPLES - 1)


@pytest.mark.parametrize(("interval", "seconds"), [(0.1, 1.1), (1.0, 2.5), (10.0, 25.0)])
def test_a_gap_is_several_intervals_and_more_than_a_second(interval: float, seconds: float) -> None:
    assert gap_seconds(interval) == pytest.approx(seconds)


def series(amount: Callable[[int], int], samples: int = 61, interval: float = 1.0) -> list[tuple[float, int]]:
    """A step function as a timeline has it: a step where the amount changed."""
    amounts = [(number * interval, amount(number)) for number in range(samples)]
    return [amounts[0], *(after for before, after in pairwise(amounts) if before[1] != after[1])]


def test_growth_in_many_steps_without_release_is_steady() -> None:
    growth = steady_growth(series(lambda n: GIB + n * MIB), end_seconds=60.0)
    assert growth is not None
    assert (growth.bytes, growth.seconds, growth.rises) == (60 * MIB, 60.0, 60)
    assert growth.bytes_per_second == pytest.approx(MIB)


def test_a_few_large_steps_with_a_little_given_back_are_steady_too() -> None:
    amounts = [(0.0, GIB), (10.0, 2 * GIB), (30.0, 3 * GIB), (31.0, 3 * GIB - 100 * MIB), (50.0, 4 * GIB)]
    assert steady_growth([*amounts, (75.0, 5 * GIB)], end_seconds=80.0) is not None


_noise = random.Random(7)
_JITTER = [_noise.randrange(-MIB, MIB) for _ in range(61)]


def test_what_does_not_grow_steadily_is_no_leak() -> None:
    for amount in [
        lambda n: 8 * GIB, lambda n: GIB + (n % 10) * 8 * MIB, lambda n: GIB + n * 2 * MIB - (n // 10) * 19 * MIB,
        lambda n: GIB if n < 30 else 9 * GIB, lambda n: GIB + (n > 10) * GIB + (n > 20) * GIB + (n > 50) * 4 * GIB,
        lambda n: GIB + min(n, 20) * 64 * MIB, lambda n: GIB + max(n - 40, 0) * 64 * MIB, lambda n: GIB + _JITTER[n],
        lambda n: GIB + n * (LEAK_BYTES // 61), lambda n: 8 * GIB - n * 8 * MIB,
        lambda n: GIB + min(n, 30) * 32 * MIB - max(n - 30, 0) * 32 * MIB,
    ]:  # fmt: skip
        assert steady_growth(series(amount), end_seconds=60.0) is None


def test_a_look_that_was_too_short_shows_no_leak() -> None:
    amounts = series(lambda n: n * 64 * MIB, samples=29)
    assert steady_growth(amounts, end_seconds=28.0) is None
    assert steady_growth([], end_seconds=100.0) is None


@given(st.lists(st.integers(0, 2**40), min_size=1, max_size=60), st.floats(0.1, 100))
def test_whatever_an_amount_does_growth_is_that_from_first_to_last(amounts: list[int], interval: float) -> None:
    steps = series(lambda n: amounts[n], samples=len(amounts), interval=interval)
    growth = steady_growth(steps, end_seconds=len(amounts) * interval)
    if growth is not None:
        assert growth.bytes == amounts[-1] - amounts[0] >= LEAK_BYTES
