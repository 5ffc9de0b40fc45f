"""Timelines as arithmetic: who held what for how long, what grows like a leak, and where samples are missing."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from pinscope.experiments.registry import checked_rows
from pinscope.live.series import Moment, TimelineRows
from pinscope.live.timeline.charts import thinned
from pinscope.live.timeline.reading import Watched, of, points
from tests.data.synthetic_snapshot import GIB, holder, host, snapshot
from tests.data.synthetic_timeline import rows_of, run
from tests.data.synthetic_timeline import watched as rows_watched


def seen(rows: list[dict[str, object]], interval_seconds: float = 1.0) -> Watched:
    return of(run(interval_seconds), checked_rows("timeline", rows))


def test_rows_kept_before_driver_memory_was_known_still_open_and_later_ones_count_it() -> None:
    rows = rows_watched(
        3, lambda number: (holder(driver_memory_bytes=number * GIB),), driver_memory_bytes=lambda _: GIB
    )
    assert [life.peak_bytes for life in seen(rows).lives] == [18 * GIB]
    assert points(rows, "driver_memory_bytes")[0] == (0.0, GIB)
    old = [{name: value for name, value in row.items() if name != "driver_memory_bytes"} for row in rows]
    assert [life.peak_bytes for life in of(run(), old).lives] == [16 * GIB]
    assert points(old, "driver_memory_bytes") == []


# Holders


def test_a_life_tells_first_peak_and_end() -> None:
    amounts = [4, 6, 10, 3]
    (life,) = seen(rows_watched(4, lambda n: (holder(1, host_alloc_bytes=amounts[n] * GIB),))).lives
    assert (life.first_bytes, life.peak_bytes, life.last_bytes) == (4 * GIB, 10 * GIB, 3 * GIB)
    assert life.grew_bytes == 6 * GIB
    assert (life.first_seconds, life.last_seconds, life.came, life.gone) == (0.0, 3.0, False, False)


def test_who_comes_meanwhile_has_grown_from_nothing_and_who_goes_holds_nothing_at_the_end() -> None:
    lives = seen(rows_watched(6, lambda n: (holder(1),) if 2 <= n < 4 else ())).lives
    (life,) = lives
    assert (life.came, life.gone, life.grew_bytes, life.last_bytes) == (True, True, 16 * GIB, 0)
    assert (life.first_seconds, life.last_seconds) == (2.0, 4.0)


def test_who_gave_all_back_and_took_again_is_one_life() -> None:
    (life,) = seen(rows_watched(6, lambda n: (holder(1),) if n != 3 else ())).lives
    assert [amount for _, amount in life.amounts] == [16 * GIB, 0, 16 * GIB]
    assert (life.gone, life.last_seconds) == (False, 5.0)


# Figures and reasons


def test_what_a_holder_had_before_anybody_could_look_is_no_growth() -> None:
    closed = host(explained_bytes=None, other_pinned_bytes=None)
    found = seen(rows_of([snapshot(host=closed), snapshot(host=closed), snapshot(), snapshot()]))
    assert [(life.came, life.first_seconds, life.grew_bytes) for life in found.lives] == [(False, 2.0, 0)]


# Gaps


def timed(times: Sequence[float], missed: Sequence[float] = (), interval: float = 1.0) -> Watched:
    """Samples and failed ones at these seconds."""
    made = TimelineRows()
    rows = []
    for number, at in enumerate(sorted([*times, *missed])):
        moment = Moment(number, at)
        rows += made.missed("OSError: no", moment) if at in missed else made.of(snapshot(devices=()), moment, 0.0)
    return seen(rows, interval)


def test_a_time_in_which_nobody_took_samples_is_a_gap_without_reason() -> None:
    (gap,) = timed([0, 1, 2, 62, 63]).gaps
    assert (gap.start_seconds, gap.end_seconds, gap.samples, gap.reason) == (2.0, 62.0, 59, None)


def test_samples_that_failed_are_gaps_with_a_reason_also_at_the_ends() -> None:
    found = timed([1, 2, 4, 5], missed=[0, 3, 6, 7, 8]).gaps
    assert [(gap.start_seconds, gap.end_seconds, gap.samples, gap.reason) for gap in found] == [
        (0.0, 1.0, 1, "OSError: no"), (2.0, 4.0, 1, "OSError: no"), (5.0, 8.0, 3, "OSError: no"),
    ]  # fmt: skip


def test_fast_samples_of_a_busy_machine_are_no_gap_before_a_second() -> None:
    assert timed([0, 0.1, 0.2, 1.1, 1.2], interval=0.1).gaps == ()
    assert len(timed([0, 0.1, 0.2, 1.5], interval=0.1).gaps) == 1


# Drawing


@given(st.lists(st.floats(0, 1e12), max_size=400), st.integers(8, 100))
def test_a_thinned_series_keeps_ends_extremes_and_order(values: list[float], most: int) -> None:
    whole = [(float(place), value) for place, value in enumerate(values)]
    thin = thinned(whole, most)
    assert len(thin) <= max(most + 4, 0)
    assert thin == sorted(thin)
    assert set(thin) <= set(whole)
    if whole:
        assert (thin[0], thin[-1]) == (whole[0], whole[-1])
        assert max(value for _, value in thin) == max(values)
        assert min(value for _, value in thin) == min(values)
