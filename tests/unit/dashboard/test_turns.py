"""Turns and pace: many pages share one server, on a clock that a test turns."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from pinscope.dashboard.turns import PATIENCE_SECONDS, SHARE, Pace, Turns


class Clock:
    """Seconds that pass when a test says so."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def pace(clock: Clock) -> Iterator[Pace]:
    return Pace(clock)


def draw_for(pace: Pace, clock: Clock, pages: int, turn_seconds: float, seconds: float) -> None:
    """So many pages that want to be drawn each second are drawn, each at its pace."""
    until = clock.now + seconds
    while clock.now < until:
        for page in range(pages):
            pace.drawn(str(page), pace.seconds(1.0), turn_seconds)
        clock.now += pace.seconds(1.0)


def test_scripts_draw_one_at_a_time_in_the_order_in_which_they_came() -> None:
    turns, seen, drawing = Turns(), [], []

    def draw(number: int) -> None:
        with turns.turn():
            drawing.append(number)
            seen.append((number, len(drawing)))
            time.sleep(0.005)
            drawing.remove(number)

    with turns.turn():
        threads = []
        for number in range(20):
            threads.append(threading.Thread(target=draw, args=(number,)))
            threads[-1].start()
            while len(turns._line) <= number:
                time.sleep(0.001)
    for thread in threads:
        thread.join()
    assert seen == [(number, 1) for number in range(20)]


def test_after_a_turn_all_rest_in_proportion_to_what_it_computed() -> None:
    computed, taken = iter([0.0, 0.06, 0.06, 0.06]), []
    turns = Turns(processor_clock=lambda: next(computed))
    with turns.turn(taken.append):
        pass
    ended = time.monotonic()
    with turns.turn():
        pass
    rest = 0.06 * (1 / SHARE - 1)
    assert time.monotonic() - ended >= 0.9 * rest
    assert taken[0] >= rest


def test_a_script_that_takes_long_is_not_waited_for() -> None:
    turns, go_on = Turns(), threading.Event()

    def draw_long() -> None:
        with turns.turn():
            go_on.wait(30)

    slow = threading.Thread(target=draw_long)
    slow.start()
    while turns._drawing is None:
        time.sleep(0.001)
    begun = time.monotonic()
    with turns.turn():
        assert 0.5 * PATIENCE_SECONDS < time.monotonic() - begun < 20
        assert slow.is_alive()
    go_on.set()
    slow.join()


def test_a_part_of_a_page_draws_in_its_page_s_turn_and_an_error_ends_the_turn() -> None:
    turns = Turns()
    with ExitStack() as page:
        page.enter_context(turns.turn())
        with turns.turn():
            pass
    with pytest.raises(ZeroDivisionError), turns.turn():
        raise ZeroDivisionError
    with turns.turn():
        assert len(turns._line) == 0


def test_few_pages_are_drawn_as_often_as_their_readers_chose(pace: Pace, clock: Clock) -> None:
    draw_for(pace, clock, pages=5, turn_seconds=0.05, seconds=60)
    assert (pace.seconds(0.5), pace.seconds(1.0), pace.seconds(30.0)) == (0.5, 1.0, 30.0)
    assert pace.pages == 5


def test_many_pages_are_drawn_less_often_and_each_before_ten_seconds(pace: Pace, clock: Clock) -> None:
    draw_for(pace, clock, pages=50, turn_seconds=0.06, seconds=60)
    assert 50 * 0.06 < pace.seconds(1.0) < 10
    assert pace.pages == 50
    assert pace.seconds(30.0) == 30.0


def test_once_pages_close_the_others_are_drawn_as_often_as_before(pace: Pace, clock: Clock) -> None:
    draw_for(pace, clock, pages=50, turn_seconds=0.06, seconds=60)
    for page in range(2, 50):
        pace.closed(str(page))
    draw_for(pace, clock, pages=2, turn_seconds=0.06, seconds=300)
    assert pace.seconds(1.0) == 1.0


def test_a_page_that_is_drawn_no_more_counts_no_more(pace: Pace, clock: Clock) -> None:
    pace.drawn("one", 1.0, 0.05)
    clock.now += 10
    assert pace.pages == 0


def test_a_pace_does_not_swing(pace: Pace, clock: Clock) -> None:
    paces = []
    for turn_seconds in (0.03, 0.05, 0.03, 0.05, 0.03, 0.05):  # a neighbour comes and goes every ten seconds
        draw_for(pace, clock, pages=50, turn_seconds=turn_seconds, seconds=10)
        paces.append(pace.seconds(1.0))
    assert paces[1:] == [paces[1]] * 5


def test_the_first_drawings_which_load_modules_slow_nobody_down(pace: Pace, clock: Clock) -> None:
    pace.drawn("one", 1.0, 3.0)
    clock.now += 60
    pace.drawn("one", 1.0, 3.0)
    assert pace.seconds(1.0) == 1.0
