"""The CPU's time for copies, beside the driver's calls within; and of which call later copies are."""

from __future__ import annotations

import numpy as np
import pytest

from pinscope.tracing.host_work import HostWork, calls_of_copies
from pinscope.tracing.mapped_file import CONVERTED, LOADS, NEXT, PINNED, RECEIVE, RECEIVED
from pinscope.tracing.spool import CALLS, HOST_CALLS
from pinscope.tracing.stretch import Busy

NAMES = [("", ""), ("Tensor.to", ""), ("Tensor.to", "float32 → float16"), (NEXT, ""), (RECEIVE, "")]
MICRO = 1000
LOOKED = {7: 60 * MICRO}
"""Correlation id of a call before which we looked at its memory for so long."""


def host_calls(*calls: tuple[int, int, int, int]) -> np.ndarray:
    """Name, flags, beginning and end in microseconds; in thread 1."""
    made = np.zeros(len(calls), HOST_CALLS)
    for row, (name, flags, begin, end) in zip(made, calls, strict=True):
        row["name"], row["flags"], row["thread"], row["bytes"] = name, flags, 1, 1 << 20
        row["start"], row["end"] = begin * MICRO, end * MICRO
    return made


def driver_calls(*calls: tuple[int, int, int]) -> np.ndarray:
    """Thread, beginning and end in microseconds."""
    made = np.zeros(len(calls), CALLS)
    for row, (thread, begin, end) in zip(made, calls, strict=True):
        row["thread"], row["start"], row["end"] = thread, begin * MICRO, end * MICRO
    return made


def work(host: np.ndarray, driver: np.ndarray, *busy: tuple[int, int], own: tuple[bool, ...] = (True,)) -> HostWork:
    times = np.asarray(busy, np.int64).reshape(-1, 2) * MICRO
    return HostWork(host, NAMES, np.asarray(own), driver, Busy(times[:, 0], times[:, 1]), LOOKED)


def test_the_driver_s_calls_of_the_same_thread_are_left_out_and_idle_is_what_no_gpu_used() -> None:
    """Another thread's call, one that begins before and one behind are not within."""
    host = host_calls((1, 0, 100, 1100), (1, 0, 2000, 2100))
    seen = work(host, driver_calls((1, 50, 90), (1, 300, 400), (2, 500, 600), (1, 700, 900), (1, 1200, 1300)),
                (450, 650), (800, 1000), (2050, 3000))  # fmt: skip
    assert seen.seconds.tolist() == pytest.approx([700e-6, 100e-6])
    assert seen.idle_seconds.tolist() == pytest.approx([400e-6, 50e-6])
    assert seen.of_driver_calls.tolist() == [-1, 0, -1, 0, -1]


def test_our_look_at_the_memory_of_a_copy_is_none_of_the_library_s_work() -> None:
    driver = driver_calls((1, 80, 90), (1, 95, 98))
    driver["correlation_id"] = 7, 8
    seen = work(host_calls((1, 0, 0, 100)), driver)
    assert seen.seconds.tolist() == seen.idle_seconds.tolist() == pytest.approx([(20 + 5 + 2) * 1e-6])


def test_two_threads_at_once_idle_no_moment_twice() -> None:
    host = host_calls((1, 0, 0, 100), (1, 0, 50, 150))
    host["thread"][1] = 2
    seen = work(host, driver_calls())
    assert seen.seconds.tolist() == pytest.approx([100e-6, 100e-6])
    assert seen.idle_seconds.tolist() == pytest.approx([100e-6, 50e-6])
    assert seen.idle_within(np.asarray([0]), np.asarray([151 * MICRO])).tolist() == [150 * MICRO]


def test_a_loop_s_waits_are_those_without_what_was_received_by_the_median_one() -> None:
    batches = [(3, LOADS, 1000 * n, 1000 * n + 100) for n in range(4)] + [(3, LOADS, 9000, 99000)]
    received = [(4, RECEIVED, 1000 * n + 20, 1000 * n + 80) for n in range(4)]
    seen = work(host_calls(*sorted(batches + received, key=lambda call: call[2])), driver_calls())
    rows = np.flatnonzero(seen.calls["name"] == 3)
    together = seen.together(rows, np.empty(0, np.intp), np.empty(0))
    assert (together["count"], together["host_seconds"]) == (5, 0)
    assert together["wait_seconds"] == pytest.approx(5 * 40e-6)
    assert together["pins_batches"] is False


def test_what_a_library_does_in_a_thread_of_its_own_is_left_out_unless_the_program_is_one() -> None:
    host = host_calls((1, 0, 0, 100), (1, 0, 200, 300))
    host["stack"][1] = 1
    assert len(work(host, driver_calls(), own=(True, False)).calls) == 1
    assert len(work(host, driver_calls(), own=(False, False)).calls) == 2


def test_copies_have_the_reason_of_the_calls_that_made_them_if_they_are_large() -> None:
    host = host_calls((2, PINNED | CONVERTED, 0, 100), (1, RECEIVED, 200, 300))
    seen = work(host, driver_calls((1, 50, 90), (1, 250, 290), (1, 400, 500)))
    places, sizes = np.asarray([0, 1, 2, -1]), np.full(4, 1 << 20)
    assert seen.of_copies(places, sizes) == {
        "pinned_source_count": 1, "received_count": 1, "reason": "converted: float32 → float16",
    }  # fmt: skip
    assert seen.of_copies(places, np.full(4, 1000)) == {}


# Copies that a library's own threads make once the call has returned


def matched(copies: list[tuple[int, int]], calls: list[tuple[int, int]]) -> list[int]:
    """Copies and calls as moment and bytes → place of the call of each copy."""
    arrays = [np.asarray(pairs, np.int64).reshape(-1, 2).T for pairs in (copies, calls)]
    return [int(place) for place in calls_of_copies(*arrays[0], *arrays[1])]


def test_each_copy_is_of_the_oldest_call_that_has_so_many_bytes_left() -> None:
    assert matched([(20, 8), (21, 8), (22, 4)], [(1, 8), (2, 4), (3, 8)]) == [0, 2, 1]


def test_the_arrays_of_one_call_are_copied_one_after_the_other() -> None:
    assert matched([(5, 6), (6, 2), (7, 5)], [(1, 8), (2, 5)]) == [0, 0, 1]


def test_a_copy_that_no_call_before_it_explains_has_none_nor_has_another_of_its_size() -> None:
    assert matched([(5, 8), (6, 4), (30, 8)], [(1, 8), (10, 8)]) == [0, -1, 1]
    assert matched([(5, 8), (6, 8), (30, 8)], [(1, 8), (10, 8)]) == [-1, -1, -1]
    assert matched([(5, 8)], [(1, 4)]) == [-1]
    assert matched([(5, 8)], []) == [-1]


def test_copies_that_do_not_make_up_the_bytes_of_their_call_have_none() -> None:
    assert matched([(5, 8), (6, 4)], [(1, 16), (2, 4)]) == [-1, -1]
