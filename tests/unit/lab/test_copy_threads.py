"""Threads that copy host memory together, and the processor time that a process used."""

from __future__ import annotations

import threading
import time

import numpy as np
import pytest

from pinscope.lab.harness import ProcessorTime
from pinscope.lab.pattern import CopyThreads, stretches


@pytest.mark.parametrize(("nbytes", "count"), [(8, 1), (8, 4), (4096, 3), (10 * 4096 + 8, 3), (2**20, 7)])
def test_stretches_cover_every_byte_once_and_are_no_more_than_threads(nbytes: int, count: int) -> None:
    parts = stretches(nbytes, count)
    assert len(parts) <= count
    assert [at for at, _ in parts] == [0, *np.cumsum([length for _, length in parts])[:-1]]
    assert sum(length for _, length in parts) == nbytes


@pytest.mark.parametrize("count", [1, 3])
def test_threads_copy_all_of_it_and_one_is_the_calling_thread(count: int) -> None:
    source, target = np.arange(2**15, dtype=np.uint64), np.zeros(2**15, np.uint64)
    before, seen = threading.active_count(), []
    with CopyThreads(count) as threads:
        threads.copy(target.ctypes.data, source.ctypes.data, source.nbytes)
        threads.each(lambda _: seen.append(threading.current_thread()), [1])
    assert np.array_equal(target, source)
    assert (seen[0] is threading.current_thread()) == (count == 1)
    assert threading.active_count() == before


def test_processor_time_is_that_of_all_threads_and_that_of_the_caller() -> None:
    def work() -> None:
        end = time.thread_time() + 0.05
        while time.thread_time() < end:
            sum(range(1000))

    before = ProcessorTime.so_far()
    other = threading.Thread(target=work)
    other.start()
    other.join()
    used = ProcessorTime.so_far().since(before)
    assert used.process_seconds >= 0.045
    assert used.thread_seconds <= used.process_seconds - 0.04
