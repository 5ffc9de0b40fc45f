"""What a process holds, as one amount."""

from __future__ import annotations

from pinscope.analysis.held import held_bytes
from tests.data.synthetic_snapshot import GIB


def test_memory_that_cuda_pinned_and_that_is_locked_or_pinned_for_rdma_too_counts_once() -> None:
    assert held_bytes(GIB, 3 * GIB, 2 * GIB) == 4 * GIB
    assert held_bytes(3 * GIB, None, 2 * GIB, 3 * GIB) == 3 * GIB
    assert held_bytes(GIB, GIB, 5 * GIB, GIB) == 5 * GIB


def test_what_is_not_known_is_left_out_and_nothing_known_is_no_amount() -> None:
    assert held_bytes(GIB, None, None) == GIB
    assert held_bytes(None, None, 0, 0) == 0
    assert held_bytes(None, None, None, None) is None


def test_driver_memory_comes_on_top() -> None:
    assert held_bytes(GIB, 2 * GIB, GIB, driver_memory=3 * GIB) == 6 * GIB
    assert held_bytes(None, None, None, driver_memory=GIB) == GIB
