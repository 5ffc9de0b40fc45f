"""The live chart: moments that tell the truth about the total, and small curves that do not move."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from pinscope.live.series import BANDS, MOST_POINTS, SERIES, holder_trends, moments, within
from pinscope.records.timeline import HolderSample, Sample

BEGIN = datetime(2026, 1, 1, tzinfo=UTC)
GIB = 2**30
KNOWN, OTHER, WHOLE = BANDS
LOCKED, DRIVER = list(SERIES)[3:]


def sample(second: float, pinned: int | None = 0, explained: int | None = 0, **changes: Any) -> Sample:
    other = None if pinned is None or explained is None else pinned - explained
    fields: dict[str, Any] = {
        "taken_at": BEGIN + timedelta(seconds=second), "elapsed_seconds": second, "available_bytes": 0,
        "pinned_bytes": pinned, "explained_bytes": explained, "other_pinned_bytes": other, "mlocked_bytes": 0,
        "holders": (), "holders_left_out": 0, "cpu_seconds": 0.0,
    }  # fmt: skip
    return Sample(**(fields | changes))


def holding(pid: int, amount: int | None, locked: int | None = 0) -> HolderSample:
    return HolderSample(
        pid=pid, started_at=BEGIN, name="one", host_alloc_bytes=amount, registered_bytes=None, locked_bytes=locked
    )


def drawn(samples: Sequence[Sample], window: float = 300.0, after: float | None = None) -> list[dict[str, Any]]:
    """Moments by the names of their values; their time in seconds."""
    return [
        {"second": at / 1000 - BEGIN.timestamp(), **dict(zip(SERIES, values, strict=True))}  # type: ignore[operator]
        for at, *values in moments(samples, window, 1.0, after)
    ]


def seconds(found: Sequence[Mapping[str, Any]]) -> list[float]:
    return [one["second"] for one in found]


def test_a_moment_has_a_value_for_each_series() -> None:
    found = drawn([sample(number, 3 * GIB, 2 * GIB, mlocked_bytes=GIB) for number in range(5)])

    assert seconds(found) == [0, 1, 2, 3, 4]
    assert [found[-1][name] for name in (KNOWN, OTHER, WHOLE, LOCKED)] == [2 * GIB, GIB, None, GIB]


def test_what_is_not_known_is_no_number() -> None:
    (found,) = drawn([sample(0, None, GIB, mlocked_bytes=None)])
    assert [found[name] for name in (KNOWN, OTHER, WHOLE, LOCKED)] == [GIB, None, None, None]


@pytest.mark.parametrize(("explained", "other"), [(None, None), (5 * GIB, None)])
def test_a_total_that_cannot_be_split_is_shown_whole(explained: int | None, other: int | None) -> None:
    (found,) = drawn([sample(0, 3 * GIB, explained, other_pinned_bytes=other)])
    assert [found[name] for name in (KNOWN, OTHER, WHOLE)] == [None, None, 3 * GIB]


def test_only_the_window_is_told_and_later_only_what_is_new() -> None:
    history = [sample(number) for number in range(1000)]

    assert seconds(drawn(history))[0] == 699
    assert seconds(drawn(history, after=996.0)) == [997, 998, 999]
    assert drawn(history, after=999.0) == []
    assert drawn(()) == []
    assert within((), 300) == ()


def test_no_more_moments_than_a_screen_shows_and_no_peak_lost() -> None:
    history = [sample(number, GIB, GIB) for number in range(3600)]
    history[1777] = sample(1777, 9 * GIB, GIB)
    found = drawn(history, 3600)

    assert len(found) <= MOST_POINTS + 1
    assert max(one[OTHER] for one in found) == 8 * GIB
    assert 1777 in seconds(found)


def test_moments_once_drawn_stay_where_they_are() -> None:
    history = [sample(number, number % 7 * GIB, 0) for number in range(3700)]
    before, after = (set(seconds(drawn(history[:end], 3600))[10:-10]) for end in (3650, 3660))

    assert before - after <= {one for one in before if one < 120}  # those that left the window


def test_a_trend_tells_what_each_process_held_and_counts_what_is_pinned_and_locked_once() -> None:
    history = [sample(0), sample(1, holders=(holding(7, GIB, 2 * GIB),)), sample(2, holders=(holding(7, None, GIB),))]

    assert holder_trends(history, 40) == {(7, BEGIN): (None, 2.0 * GIB, 1.0 * GIB)}
    assert holder_trends((), 40) == {}


def test_trends_are_short_and_end_with_the_last_sample() -> None:
    history = [sample(number, holders=(holding(7, number),)) for number in range(3599)]
    (curve,) = holder_trends(history, 40).values()

    assert 20 <= len(curve) <= 41
    assert curve[-1] == 3598
