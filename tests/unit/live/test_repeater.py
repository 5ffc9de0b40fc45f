"""One thread repeats its work at a steady pace, and can be stopped and started at any time, also while it hangs."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator

import pytest

from pinscope.errors import InvalidParameter
from pinscope.live.sampler import Repeater
from tests.data.fast_time import FastTime

LONG = 20.0
PROMPT = 5.0


def threads() -> list[threading.Thread]:
    return [one for one in threading.enumerate() if one.name == "worker"]


def turns(time_: FastTime, work_seconds: Callable[[int], float], interval: float = 1.0) -> list[float]:
    """When each turn began until the clock reached its end."""
    begun: list[float] = []

    def work() -> None:
        begun.append(time_.now)
        time_.now += work_seconds(len(begun))

    repeated = Repeater("worker", work, interval, clock=time_.clock, wait=time_.wait)
    repeated.start()
    assert time_.reached.wait(LONG)
    repeated.stop()
    assert not repeated.running
    return begun


def test_it_begins_at_once_and_keeps_its_pace_whatever_the_work_takes() -> None:
    assert turns(FastTime(5.0), lambda _: 0.25) == [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]


def test_turns_that_slow_work_missed_are_left_out() -> None:
    assert turns(FastTime(8.0), lambda turn: 2.5 if turn == 2 else 0.25) == [0.0, 1.0, 4.0, 5.0, 6.0, 7.0, 8.0]
    assert turns(FastTime(9.0), lambda _: 1.5) == [0.0, 2.0, 4.0, 6.0, 8.0]


def test_a_pace_that_makes_no_sense_is_refused() -> None:
    for seconds in [0.0, -1.0, 0.001, float("nan"), float("inf")]:
        with pytest.raises(InvalidParameter, match="at least"):
            Repeater("worker", lambda: None, seconds)


def test_started_twice_it_is_still_one_thread_and_stopped_twice_it_is_stopped() -> None:
    repeated = Repeater("worker", lambda: None, 0.01)
    for _ in range(20):
        repeated.start()
        repeated.start()
        assert len(threads()) == 1
        repeated.stop()
        repeated.stop()
        assert threads() == []


class Hanging:
    """Work that hangs until it is let go."""

    def __init__(self) -> None:
        self.begun = threading.Semaphore(0)
        self.let_go = threading.Event()
        self.finished = threading.Event()
        self.repeater = Repeater("worker", self.work, 0.01, finish=self.finished.set)

    def work(self) -> None:
        self.begun.release()
        self.let_go.wait(LONG)


@pytest.fixture
def hanging(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hanging]:
    monkeypatch.setattr("pinscope.live.sampler.STOP_SECONDS", 0.05)
    one = Hanging()
    yield one
    one.let_go.set()
    one.repeater.stop()


def test_a_stop_does_not_wait_for_work_that_hangs(hanging: Hanging) -> None:
    hanging.repeater.start()
    assert hanging.begun.acquire(timeout=LONG)
    begun = time.monotonic()
    hanging.repeater.stop()
    assert time.monotonic() - begun < PROMPT
    assert not hanging.repeater.running
    assert not hanging.finished.is_set()
    hanging.let_go.set()
    assert hanging.finished.wait(LONG)


def test_starting_again_uses_the_thread_that_hangs_instead_of_another(hanging: Hanging) -> None:
    for _ in range(5):
        hanging.repeater.start()
        assert len(threads()) == 1
        hanging.repeater.stop()
    hanging.repeater.start()
    hanging.let_go.set()
    assert hanging.begun.acquire(timeout=LONG)
    assert hanging.begun.acquire(timeout=LONG)  # it goes on
    assert len(threads()) == 1
