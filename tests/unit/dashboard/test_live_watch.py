"""One sampler for all who look; it rests when nobody does, and leaves no thread."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pinscope.dashboard.live_board import Watch
from pinscope.live.source import LiveSource
from pinscope.records.snapshot import Snapshot
from tests.data.synthetic_live import Source, empty
from tests.data.waiting import until


@pytest.fixture
def taken(tmp_path: Path) -> Snapshot:
    return empty(tmp_path)


@pytest.fixture
def source(taken: Snapshot) -> Source:
    return Source(lambda: taken)


@pytest.fixture
def watch(source: Source) -> Iterator[Watch]:
    opened: Callable[[], LiveSource] = lambda: source  # type: ignore[assignment, return-value]  # noqa: E731
    made = Watch(opened, rest_seconds=0.5, interval_seconds=0.02)
    yield made
    made.close()


def samplers() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "pinscope-sampler"]


def test_all_who_look_share_one_sampler(watch: Watch, source: Source) -> None:
    for _ in range(5):
        watch.look()
    until(lambda: watch.look().latest)

    assert len(samplers()) == 1
    assert source.opened == 1
    assert watch.look().latest is watch.look().latest or source.taken > 1


def test_it_rests_when_nobody_looks_and_starts_again_when_somebody_does(watch: Watch, source: Source) -> None:
    until(lambda: watch.look().latest)
    until(lambda: source.closed == source.opened == 1)
    assert not samplers()

    seen = len(watch.look().samples)
    assert watch.running
    until(lambda: len(watch.look().samples) > seen)
    assert len(samplers()) == 1
    assert source.opened == 2


def test_what_was_seen_before_a_rest_is_not_shown_as_now(watch: Watch, source: Source) -> None:
    until(lambda: watch.look().latest)
    until(lambda: not samplers())
    held = threading.Event()
    take, source.take_one = source.take_one, lambda: (held.wait(10), take())[1]

    again = watch.look()
    assert again.latest is None
    assert again.samples
    held.set()
    until(lambda: watch.look().latest)


def test_a_source_that_fails_does_not_keep_it_awake(watch: Watch, source: Source) -> None:
    def fail() -> Snapshot:
        raise OSError(5, "Input/output error")

    source.take_one = fail
    until(lambda: watch.look().trouble)
    until(lambda: source.closed == 1)
    assert not samplers()


def test_many_who_look_and_close_at_once_leave_one_thread_at_most(watch: Watch, source: Source) -> None:
    def busy() -> None:
        for number in range(30):
            watch.look()
            if number % 10 == 9:
                watch.close()

    threads = [threading.Thread(target=busy) for _ in range(4)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        assert len(samplers()) <= 1
    watch.close()
    until(lambda: not samplers())
    assert source.opened == source.closed
