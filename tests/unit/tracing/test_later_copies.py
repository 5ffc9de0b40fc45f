"""Which call copies of a library's own threads belong to."""

from __future__ import annotations

import numpy as np

from pinscope.tracing.host_work import calls_of_copies


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
