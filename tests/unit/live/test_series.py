"""What happened between two snapshots, what stays of one, who grows, and the moments and curves that pages draw."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pinscope.live.series import (
    BANDS,
    MOST_HOLDERS,
    MOST_POINTS,
    SERIES,
    changes,
    growing,
    holder_trends,
    moments,
    sample_of,
    within,
)
from pinscope.records.snapshot import Holder, Snapshot
from pinscope.records.timeline import Event, HolderSample, Sample
from tests.data import synthetic_snapshot
from tests.data.synthetic_snapshot import GIB, MIB, TAKEN_AT, holder, host


def seen(*holders: Holder, seconds: float = 0.0, **changed: Any) -> Snapshot:
    """A snapshot with these holders."""
    return synthetic_snapshot.snapshot(
        holders=holders, devices=(), taken_at=TAKEN_AT + timedelta(seconds=seconds), **changed
    )


def told(events: Sequence[Event]) -> list[tuple[str, int, str, int, int]]:
    return [(one.kind, one.pid, one.what, one.change_bytes, one.total_bytes) for one in events]


def test_holders_appear_grow_release_and_end_the_largest_change_first() -> None:
    before = seen(
        holder(1, host_alloc_bytes=GIB), holder(2, host_alloc_bytes=8 * GIB), holder(3, host_alloc_bytes=4 * GIB)
    )
    after = seen(
        holder(1, host_alloc_bytes=3 * GIB), holder(2, host_alloc_bytes=7 * GIB), holder(4, host_alloc_bytes=MIB),
        seconds=1.0,
    )  # fmt: skip
    found = changes(before, after)
    assert told(found) == [
        ("ended", 3, "host_alloc", -4 * GIB, 0),
        ("grew", 1, "host_alloc", 2 * GIB, 3 * GIB),
        ("released", 2, "host_alloc", -GIB, 7 * GIB),
        ("appeared", 4, "host_alloc", MIB, MIB),
    ]
    assert {one.at for one in found} == {after.taken_at}


def test_what_is_not_known_is_no_change() -> None:
    known, unknown = (
        holder(1, host_alloc_bytes=GIB),
        holder(1, host_alloc_bytes=None, missing={"host_alloc_bytes": "?"}),
    )
    assert changes(seen(known), seen(unknown)) == ()
    assert changes(seen(unknown), seen(known)) == ()
    nobody = host(explained_bytes=None, missing={"explained_bytes": "/proc shows no process"})
    assert changes(seen(known), seen(host=nobody)) == ()
    assert changes(seen(host=nobody), seen(known)) == ()


def test_the_same_pid_started_later_is_another_process() -> None:
    first = holder(1, host_alloc_bytes=GIB)
    assert first.started_at is not None
    second = holder(1, host_alloc_bytes=GIB, started_at=first.started_at + timedelta(minutes=1))
    assert [(kind, change) for kind, _, _, change, _ in told(changes(seen(first), seen(second)))] == [
        ("ended", -GIB), ("appeared", GIB)
    ]  # fmt: skip


AMOUNTS = st.none() | st.integers(0, 2**50)
HOLDERS = st.dictionaries(st.integers(1, 6), st.tuples(AMOUNTS, AMOUNTS, AMOUNTS), max_size=6).map(
    lambda by_pid: seen(
        *(
            holder(pid, host_alloc_bytes=alloc, registered_bytes=registered, locked_bytes=locked)
            for pid, (alloc, registered, locked) in by_pid.items()
        )
    )
)


@given(HOLDERS, HOLDERS)
def test_events_add_up_to_what_changed(before: Snapshot, after: Snapshot) -> None:
    events = changes(before, after)
    for what in ("host_alloc", "registered", "locked"):
        was = {one.pid: getattr(one, f"{what}_bytes") for one in before.holders}
        now = {one.pid: getattr(one, f"{what}_bytes") for one in after.holders}
        for pid in was.keys() | now.keys():
            first, last = was.get(pid, 0), now.get(pid, 0)
            moved = sum(one.change_bytes for one in events if (one.pid, one.what) == (pid, what))
            assert moved == (0 if first is None or last is None else last - first)
    assert all(one.change_bytes for one in events)


def test_a_sample_has_the_totals_and_the_largest_holders() -> None:
    many = [holder(pid, host_alloc_bytes=pid * MIB, locked_bytes=0) for pid in range(1, MOST_HOLDERS + 5)]
    idle = holder(9999, host_alloc_bytes=0)
    found = synthetic_snapshot.snapshot(holders=(idle, *many))
    sample = sample_of(found, 12.5)
    assert [one.pid for one in sample.holders] == list(range(MOST_HOLDERS + 4, 4, -1))
    assert sample.holders_left_out == 4
    assert (sample.elapsed_seconds, sample.pinned_bytes, sample.available_bytes) == (12.5, 16 * GIB, 448 * GIB)
    assert Sample.model_validate_json(sample.model_dump_json()) == sample


def test_a_sample_says_why_a_total_is_missing_and_nothing_else() -> None:
    reasons = {"pinned_bytes": "the kernel does not count", "pressure": "not told"}
    sample = sample_of(seen(host=host(pinned_bytes=None, missing=reasons)), 0.0)
    assert (sample.pinned_bytes, sample.missing) == (None, {"pinned_bytes": "the kernel does not count"})


def test_samples_share_what_did_not_change() -> None:
    first = sample_of(seen(holder(1), holder(2)), 0.0)
    second = sample_of(seen(holder(1), holder(2, locked_bytes=MIB)), 1.0, first)
    by_pid = [{one.pid: one for one in sample.holders} for sample in (first, second)]
    assert by_pid[0][1] is by_pid[1][1]
    assert by_pid[1][2].locked_bytes == MIB
    assert first.missing is second.missing


def series(*amounts: int | None) -> list[Sample]:
    """One process with so many times 8 MiB, each 8 seconds; ``None``: it was left out of the sample."""
    samples: list[Sample] = []
    for number, amount in enumerate(amounts):
        holders = [holder(1, host_alloc_bytes=8 * MIB * amount)] if amount is not None else []
        samples.append(sample_of(seen(*holders), 8.0 * number, samples[-1] if samples else None))
    return samples


def test_a_process_grows_if_it_takes_more_and_more_and_gives_nothing_back() -> None:
    for amounts, grows in [
        ((1, 2, 3, 4, 5, 6), True),
        ((1, 1, 2, 2, 3, 3, 4, 4, 5, 5), True),
        ((1, 2, None, 3, 4, 5, 6), True),  # a sample without it tells nothing
        ((9, 9, 9, 9, 9, 9), False),
        ((1, 5, 9, 9, 9, 9, 9, 9, 9), False),  # took what it needed when it started
        ((1, 2, 3, 2, 3, 4, 5), False),  # gave something back
        ((1, 1, 1, 1, 2, 2), False),  # once is not growth
        ((1, 2, 3, 4, 5, None), False),  # not there any more, or small beside the others
        ((), False),
    ]:
        assert growing(series(*amounts)) == (frozenset({1}) if grows else frozenset())


BEGIN = datetime(2026, 1, 1, tzinfo=UTC)
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


def test_a_trend_tells_what_each_process_held_and_counts_what_is_pinned_and_locked_once() -> None:
    history = [sample(0), sample(1, holders=(holding(7, GIB, 2 * GIB),)), sample(2, holders=(holding(7, None, GIB),))]

    assert holder_trends(history, 40) == {(7, BEGIN): (None, 2.0 * GIB, 1.0 * GIB)}
    assert holder_trends((), 40) == {}
