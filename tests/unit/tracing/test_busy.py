"""When something ran: unions of intervals, and what of a stretch they cover."""

from __future__ import annotations

import random

import numpy as np

from pinscope.tracing.stretch import Busy, once


def times(*values: int) -> np.ndarray:
    return np.asarray(values, np.int64)


def test_it_agrees_with_counting_every_moment() -> None:
    chance = random.Random(7)
    starts = [chance.randrange(500) for _ in range(60)]
    ends = [start + chance.randrange(1, 20) for start in starts]
    covered = np.zeros(600, bool)
    for start, end in zip(starts, ends, strict=True):
        covered[start:end] = True
    busy = Busy(np.asarray(starts), np.asarray(ends))
    assert busy.seconds == covered.sum() / 1e9
    begun = np.asarray([chance.randrange(590) for _ in range(200)], np.int64)
    ended = begun + np.asarray([chance.randrange(60) for _ in range(200)])
    expected = [covered[a:b].sum() for a, b in zip(begun, ended, strict=True)]
    assert busy.within(begun, ended).tolist() == expected


def test_after_a_moment_it_is_idle_until_the_next_begins() -> None:
    busy = Busy(times(10, 50), times(20, 60))
    assert busy.idle_after(times(0, 10, 15, 20, 45, 60, 99)).tolist() == [10, 0, 0, 30, 5, 0, 0]


def test_where_nothing_ran_nothing_is_covered() -> None:
    busy = Busy(times(), times())
    assert busy.seconds == 0
    assert busy.within(times(1), times(9)).tolist() == [0]
    assert busy.idle_after(times(1)).tolist() == [0]


def test_each_moment_of_overlapping_stretches_belongs_to_the_first() -> None:
    starts, ends = once(times(0, 5, 6, 20), times(10, 12, 8, 25))
    assert list(zip(starts.tolist(), ends.tolist(), strict=True)) == [(0, 10), (10, 12), (12, 12), (20, 25)]
