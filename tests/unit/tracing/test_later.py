"""Work that the recorder puts off until the program waits."""

from __future__ import annotations

import threading

from pinscope.tracing.later import MOST_WAITING, Later


def test_what_is_put_off_is_done_once_and_in_its_order() -> None:
    late, done = Later(), list[int]()
    for number in range(3):
        late.put_off(done.append, number)
    assert done == []
    assert (late.catch_up(), done, late.catch_up()) == (True, [0, 1, 2], False)


def test_no_more_waits_than_is_bounded() -> None:
    late, done = Later(), list[int]()
    for number in range(MOST_WAITING + 1):
        late.put_off(done.append, number)
    assert done == [*range(MOST_WAITING + 1)]


def test_work_that_needs_what_waits_before_it_may_ask_for_it() -> None:
    """As a copy to the host does, whose sample is compared with that of an earlier one; also in a signal's handler."""
    late, done = Later(), list[str]()
    late.put_off(lambda: (late.put_off(done.append, "inner"), late.catch_up(), done.append("outer")))
    late.catch_up()
    assert done == ["inner", "outer"]


def test_threads_that_catch_up_together_do_each_piece_once() -> None:
    late, done = Later(), list[int]()
    for number in range(MOST_WAITING):
        late.put_off(done.append, number)
    threads = [threading.Thread(target=late.catch_up) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert done == [*range(MOST_WAITING)]
