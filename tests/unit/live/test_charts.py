"""The live chart: a specification that never changes, and moments that tell the truth about the total."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import pandas as pd
import pytest

from pinscope.charts.theme import COLOURS
from pinscope.live.charts import BANDS, LINES, MOST_POINTS, SERIES, drawing, frame, trends, within
from pinscope.records.timeline import HolderSample, Sample

BEGIN = datetime(2026, 1, 1, tzinfo=UTC)
GIB = 2**30
KNOWN, OTHER, WHOLE = BANDS
LOCKED, DRIVER = LINES


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


def seconds(data: pd.DataFrame) -> list[float]:
    return [(moment - BEGIN).total_seconds() for moment in data["time"]]


def drawn(samples: Sequence[Sample], window: float = 300.0, interval: float = 1.0) -> pd.DataFrame:
    """Without the two rows that hold the axis."""
    return frame(samples, window, interval).iloc[1:-1]


def test_a_moment_is_a_row_and_a_series_a_column_of_few_bytes() -> None:
    data = drawn([sample(number, 3 * GIB, 2 * GIB, mlocked_bytes=GIB) for number in range(5)])

    assert list(data.columns) == ["time", *SERIES]
    assert set(data.dtypes[list(SERIES)]) == {np.dtype(np.float32)}
    assert seconds(data) == [0, 1, 2, 3, 4]
    assert data.iloc[-1][[KNOWN, OTHER, LOCKED]].tolist() == [2 * GIB, GIB, GIB]
    assert np.isnan(data.iloc[-1][WHOLE])


def test_what_is_not_known_is_no_number() -> None:
    data = drawn([sample(0, None, GIB, mlocked_bytes=None)])

    assert data[KNOWN].tolist() == [GIB]
    assert data[[OTHER, WHOLE, LOCKED]].isna().all(axis=None)


@pytest.mark.parametrize(("explained", "other"), [(None, None), (5 * GIB, None)])
def test_a_total_that_cannot_be_split_is_shown_whole(explained: int | None, other: int | None) -> None:
    data = drawn([sample(0, 3 * GIB, explained, other_pinned_bytes=other)])

    assert data[WHOLE].tolist() == [3 * GIB]
    assert data[[KNOWN, OTHER]].isna().all(axis=None)


def test_only_the_window_is_drawn_and_the_axis_stays_a_minute_long_at_least() -> None:
    history = [sample(number) for number in range(1000)]

    assert seconds(frame(history, 300, 1.0))[:2] == [699, 699]
    assert seconds(frame(history[:10], 300, 1.0))[:2] == [-51, 0]
    assert seconds(frame(history[:100], 300, 1.0))[:2] == [0, 0]


def test_the_last_reading_holds_until_the_next() -> None:
    last = frame([sample(0), sample(10, GIB, GIB)], 300, 10.0).iloc[-1]

    assert last["time"] == BEGIN + timedelta(seconds=20)
    assert last[KNOWN] == GIB


def test_a_time_in_which_nobody_looked_stays_open() -> None:
    data = drawn([sample(0, GIB, GIB), sample(1, GIB, GIB), sample(100, GIB, GIB), sample(101, GIB, GIB)])

    assert seconds(data) == [0, 1, 2, 2, 100, 101]
    assert data[KNOWN].tolist()[:3] == [GIB] * 3
    assert np.isnan(data[KNOWN].tolist()[3])


def test_a_busy_host_that_is_a_little_late_leaves_no_hole() -> None:
    assert seconds(drawn([sample(0), sample(2), sample(4)])) == [0, 2, 4]


def test_no_more_moments_than_a_screen_shows_and_no_peak_lost() -> None:
    history = [sample(number, GIB, GIB) for number in range(3600)]
    history[1777] = sample(1777, 9 * GIB, GIB)
    data = frame(history, 3600, 1.0)

    assert len(data) <= MOST_POINTS + 5
    assert data[OTHER].max() == 8 * GIB
    assert 1777 in seconds(data)


def test_moments_once_drawn_stay_where_they_are() -> None:
    history = [sample(number, number % 7 * GIB, 0) for number in range(3700)]
    before, after = (set(seconds(drawn(history[:end], 3600))[10:-10]) for end in (3650, 3660))

    assert before - after <= {one for one in before if one < 120}  # those that left the window


def test_nothing_yet_is_an_empty_frame() -> None:
    assert frame((), 300, 1.0).empty
    assert within((), 300) == ()


def test_the_specification_is_the_same_whatever_is_drawn() -> None:
    first, second = (drawing(frame([sample(0, amount, 0)], 300, 1.0)) for amount in (0, GIB))
    del first["datasets"], second["datasets"]

    assert json.dumps(first, sort_keys=True) == json.dumps(second, sort_keys=True)


def test_the_data_is_named_where_the_specification_looks_for_it() -> None:
    spec = drawing(frame([sample(0)], 300, 1.0))

    assert list(spec["datasets"]) == [spec["data"]["name"]]


def test_series_have_the_colours_of_their_meaning() -> None:
    assert {
        KNOWN: COLOURS["pinned"], OTHER: COLOURS["registered"], WHOLE: COLOURS["reference"], LOCKED: COLOURS["locked"],
        DRIVER: COLOURS["write_combined"],
    } == SERIES  # fmt: skip


def test_the_wheel_alone_does_not_zoom() -> None:
    text = json.dumps(drawing(frame([sample(0)], 300, 1.0))["layer"])

    assert "wheel![event.ctrlKey || event.metaKey]" in text


def test_trends_tell_of_each_process_what_it_held() -> None:
    history = [sample(0), sample(1, holders=(holding(7, GIB, GIB),)), sample(2, holders=(holding(7, None, GIB),))]

    assert trends(history, 300) == {(7, BEGIN): [0.0, 2.0 * GIB, 1.0 * GIB]}
    assert trends((), 300) == {}


def test_a_trend_counts_memory_that_is_registered_and_locked_once() -> None:
    both = holding(7, GIB, GIB).model_copy(update={"registered_bytes": GIB})
    assert trends([sample(0, holders=(both,))], 300) == {(7, BEGIN): [2.0 * GIB]}


def test_trends_are_short_and_end_with_the_last_sample() -> None:
    history = [sample(number, holders=(holding(7, number),)) for number in range(3599)]
    (curve,) = trends(history, 3600).values()

    assert 40 <= len(curve) <= 82
    assert curve[-1] == 3598
