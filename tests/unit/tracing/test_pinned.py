"""Pinned memory over time: what was released, what each allocation holds, the most that was there at once."""

from __future__ import annotations

import mmap

import numpy as np
import pytest

from pinscope.tracing.sites import NEVER, PinnedMemory
from pinscope.tracing.spool import TYPES

ALLOCATES, RELEASES = 1, 2


def pinned(*events: tuple[int, int, int, int]) -> PinnedMemory:
    """Of (operation, address, bytes, time)."""
    made = np.zeros(len(events), TYPES["allocations"])
    for place, name in enumerate(("memory_operation_type", "address", "bytes", "timestamp")):
        made[name] = [event[place] for event in events]
    return PinnedMemory(made)


def test_an_address_that_is_used_again_is_released_as_often_as_the_program_did() -> None:
    memory = pinned(
        (ALLOCATES, 4096, 10, 1), (ALLOCATES, 8192, 20, 2), (RELEASES, 4096, 10, 3), (ALLOCATES, 4096, 30, 4),
        (RELEASES, 8192, 20, 9),
    )  # fmt: skip
    assert memory.released.tolist() == [3, 9, NEVER]
    assert memory.is_left.tolist() == [False, False, True]
    assert memory.taken["bytes"].tolist() == [10, 20, 30]


def test_a_release_of_what_was_pinned_before_changes_nothing() -> None:
    memory = pinned((RELEASES, 4096, 10, 1), (ALLOCATES, 4096, 30, 2))
    assert memory.changes()[1].tolist() == [30]


def test_an_address_that_is_allocated_again_was_released_though_that_was_not_recorded() -> None:
    """As where each pass of a loop pins in a recorded part and releases behind it."""
    memory = pinned((ALLOCATES, 4096, 10, 1), (ALLOCATES, 4096, 10, 2), (ALLOCATES, 4096, 10, 3))
    assert memory.released.tolist() == [2, 3, NEVER]
    assert memory.peak(np.arange(3)) == 10


def test_the_peak_is_the_most_at_once() -> None:
    memory = pinned(
        (ALLOCATES, 4096, 10, 1), (RELEASES, 4096, 10, 2), (ALLOCATES, 4096, 20, 2), (ALLOCATES, 8192, 5, 3),
        (RELEASES, 4096, 20, 4), (ALLOCATES, 16384, 15, 5),
    )  # fmt: skip
    moments, changes = memory.changes()
    assert moments.tolist() == [1, 2, 2, 3, 4, 5]
    assert changes.tolist() == [10, -10, 20, 5, -20, 15]
    assert memory.peak(np.arange(4)) == 25
    assert memory.peak(np.asarray([0, 2])) == 10


def test_memory_is_held_in_whole_pages() -> None:
    for offset, size, pages in [(0, 1, 1), (0, 4096, 1), (100, 4096, 2), (4095, 2, 2)]:
        if mmap.PAGESIZE != 4096:
            pytest.skip("the pages here are not of 4 KiB")
        assert pinned((ALLOCATES, 1 << 40 | offset, size, 1)).held.tolist() == [4096 * pages]


def test_nothing_was_pinned() -> None:
    memory = pinned()
    assert memory.peak(np.arange(0)) == 0
    assert not len(memory.held)
