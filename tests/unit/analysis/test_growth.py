"""What grows like a leak, and what only looks like it."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pinscope.analysis.rules import LEAK_BYTES, steady_growth

MIB, GIB = 2**20, 2**30


def series(amount: Callable[[int], int], samples: int = 61, interval: float = 1.0) -> list[tuple[float, int]]:
    """A step function as a timeline has it: a step where the amount changed."""
    found: list[tuple[float, int]] = []
    for number in range(samples):
        if not found or found[-1][1] != amount(number):
            found.append((number * interval, amount(number)))
    return found


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


@pytest.mark.parametrize(
    "amount",
    [
        lambda n: 8 * GIB,
        lambda n: GIB + (n % 10) * 8 * MIB,
        lambda n: GIB + n * 2 * MIB - (n // 10) * 19 * MIB,
        lambda n: GIB if n < 30 else 9 * GIB,
        lambda n: GIB + (n > 10) * GIB + (n > 20) * GIB + (n > 50) * 4 * GIB,
        lambda n: GIB + min(n, 20) * 64 * MIB,
        lambda n: GIB + max(n - 40, 0) * 64 * MIB,
        lambda n: GIB + _JITTER[n],
        lambda n: GIB + n * (LEAK_BYTES // 61),
        lambda n: 8 * GIB - n * 8 * MIB,
        lambda n: GIB + min(n, 30) * 32 * MIB - max(n - 30, 0) * 32 * MIB,
    ],
    ids=[
        "constant", "sawtooth", "sawtooth that gives nearly all back", "single step", "one step is most of it",
        "fills up and stops", "begins late", "noise", "little", "shrinks", "up and down again",
    ],
)  # fmt: skip
def test_what_does_not_grow_steadily_is_no_leak(amount: Callable[[int], int]) -> None:
    assert steady_growth(series(amount), end_seconds=60.0) is None


def test_a_look_that_was_too_short_shows_no_leak() -> None:
    amounts = series(lambda n: n * 64 * MIB, samples=29)
    assert steady_growth(amounts, end_seconds=28.0) is None
    assert steady_growth([], end_seconds=100.0) is None


@given(st.lists(st.integers(0, 2**40), min_size=1, max_size=60), st.floats(0.1, 100))
def test_whatever_an_amount_does_growth_is_that_from_first_to_last(amounts: list[int], interval: float) -> None:
    found = series(lambda n: amounts[n], samples=len(amounts), interval=interval)
    growth = steady_growth(found, end_seconds=len(amounts) * interval)
    if growth is not None:
        assert growth.bytes == amounts[-1] - amounts[0] >= LEAK_BYTES
