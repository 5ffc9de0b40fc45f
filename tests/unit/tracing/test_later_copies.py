"""Which call copies of a library's own threads belong to, and which copies are of a loader's batches."""

from __future__ import annotations

import numpy as np

from pinscope.tracing.later_copies import calls_of_copies
from pinscope.tracing.loader_feeds import Loader, copies_of_batches


def matched(copies: list[tuple[int, int]], calls: list[tuple[int, int]]) -> list[int]:
    """Copies and calls as moment and bytes → place of the call of each copy."""
    arrays = [np.asarray(column, np.int64) for pairs in (copies, calls) for column in zip(*pairs, strict=True)]
    return [int(place) for place in calls_of_copies(*arrays)]


def test_each_copy_is_of_the_oldest_call_that_has_so_many_bytes_left() -> None:
    assert matched([(20, 8), (21, 8), (22, 4)], [(1, 8), (2, 4), (3, 8)]) == [0, 2, 1]


def test_the_arrays_of_one_call_are_copied_one_after_the_other() -> None:
    assert matched([(5, 6), (6, 2), (7, 6)], [(1, 8), (2, 6)]) == [0, 0, 1]


def test_a_copy_that_no_call_before_it_explains_has_none() -> None:
    assert matched([(5, 8), (6, 8), (30, 8)], [(1, 8), (10, 8)]) == [0, -1, 1]
    assert matched([(5, 8)], [(1, 4)]) == [-1]


def test_a_copy_from_where_a_batch_lies_is_of_its_loader_if_it_comes_behind_it() -> None:
    note = {"stack": 3, "ns": 100, "pins": False, "workers": 2, "tensors": [[4096, 64], [8192, 32]]}
    host = np.asarray([4096, 4096, 8192, 4096, 9000], np.uint64)
    size = np.asarray([64, 64, 64, 64, 32], np.int64)
    starts = np.asarray([50, 150, 160, 170, 180], np.int64)
    assert list(copies_of_batches([note], host, size, starts)) == [(Loader(3, False, 2), 1)]
